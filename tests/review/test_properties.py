"""What must hold whatever the recipe: nothing differs from itself, sides mirror, and writing is not meaning."""

from __future__ import annotations

import random
import tempfile
from pathlib import Path
from typing import Any

import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sides import FULL, LORA, checked

from recipegen.review.compare import compare
from recipegen.review.difference import Experiment, Status
from tests.recipes_for_tests import recipes

QUICK = settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
# The same number, and the same word, as people write them; YAML 1.1 reads 1e-5 as text, and Axolotl takes it.
SPELLINGS = {
    "1.0e-5": ["0.00001", "1e-5", "1.00e-05", "'1e-5'"],
    "1.0e-8": ["0.00000001", "1e-8"],
    "true": ["True", "yes", "on"],
    "2": ["2", "2"],
}
EDITS = [
    ("learning_rate: 1.0e-5", "learning_rate: 3.0e-5"),
    ("micro_batch_size: 2", "micro_batch_size: 1"),
    ("num_epochs: 2", "num_epochs: 5"),
    ("optimizer: adamw_torch_fused", "optimizer: optimi_adamw"),
    ("sequence_len: 4096", "sequence_len: 2048"),
    ("sample_packing: true", "sample_packing: false"),
    ("path: data.jsonl", "path: more.jsonl"),
    ("seed: 42", "seed: 1"),
    ("reshard_after_forward: true", "reshard_after_forward: false"),
    ("save_steps: 100", "save_steps: 50"),
    ("attn_implementation: sdpa", "attn_implementation: eager"),
    ("weight_decay: 0.0", "weight_decay: 0.01"),
]


def side(text: str) -> Any:
    with tempfile.TemporaryDirectory() as folder:
        return checked(Path(folder) / "recipe", text)


@st.composite
def rewritten(draw: st.DrawFn) -> tuple[str, str]:
    """A text and the same in another order, with comments, quotes, and other spellings."""
    text = draw(st.sampled_from([FULL, LORA]))
    values = yaml.safe_load(text)
    keys = draw(st.permutations(list(values)))
    lines = []
    for key in keys:
        flow = draw(st.sampled_from([None, False, True]))
        dumped = yaml.safe_dump({key: values[key]}, default_flow_style=flow, width=10_000).strip()
        written = dumped[1:-1] if dumped.startswith("{") else dumped
        if draw(st.booleans()):
            lines.append(f"# {draw(st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=20))}")
        lines.append(written)
    return text, "\n".join(lines) + "\n"


@given(rewritten())
@QUICK
def test_writing_is_not_meaning(texts: tuple[str, str]) -> None:
    found = compare("x", side(texts[0]), side(texts[1]))
    assert found.changes == ()
    assert found.status is Status.UNCHANGED
    assert found.meaning == found.no_ops == ()


@given(st.integers(min_value=0, max_value=2**32))
@QUICK
def test_numbers_and_words_are_equal_however_they_are_written(seed: int) -> None:
    chosen = random.Random(seed)
    lines = []
    for line in FULL.splitlines():
        key, separator, value = line.partition(": ")
        spelled = SPELLINGS.get(value)
        lines.append(f"{key}{separator}{chosen.choice(spelled)}" if spelled and chosen.random() < 0.5 else line)
    found = compare("x", side(FULL), side("\n".join(lines) + "\n"))
    assert found.changes == ()


@given(st.sets(st.sampled_from(EDITS), min_size=1, max_size=5), st.sets(st.sampled_from(EDITS), max_size=3))
@QUICK
def test_the_sides_mirror_one_another(one: set[tuple[str, str]], other: set[tuple[str, str]]) -> None:
    texts = []
    for edits in (one, other):
        text = FULL
        for old, new in edits:
            text = text.replace(old, new)
        texts.append(text)
    before, after = side(texts[0]), side(texts[1])
    there, back = compare("x", before, after), compare("x", after, before)
    assert bool(there.changes) == (one != other)
    assert {c.path: (c.before, c.after) for c in there.changes} == {c.path: (c.after, c.before) for c in back.changes}
    assert [(e.name, e.before, e.after) for e in there.effects] == [(e.name, e.after, e.before) for e in back.effects]
    assert there.experiment is back.experiment
    assert (there.verdict_before, there.verdict_after) == (back.verdict_after, back.verdict_before)
    assert len(there.new) == len(back.fixed)
    assert len(there.kept) == len(back.kept)


def test_every_recipe_is_equal_to_itself(tmp_path: Path) -> None:
    from recipegen.catalog import load_model
    from recipegen.check.checking import Options, check
    from recipegen.check.gather import Target
    from recipegen.formats import accelerate, axolotl, deepspeed, launcher

    for index, (_, recipe) in enumerate(recipes()):
        folder = tmp_path / str(index)
        folder.mkdir()
        texts = {
            "axolotl.yaml": axolotl.write(recipe, load_model("meta-llama/Llama-3.1-8B"), {}),
            "accelerate.yaml": accelerate.write(recipe),
            "launch.sh": launcher.write(recipe),
        }
        if recipe.deepspeed is not None:
            texts["deepspeed.json"] = deepspeed.write(recipe)
        for name, text in texts.items():
            (folder / name).write_text(text, encoding="utf-8")
        nodes = recipe.parallelism.nodes
        target = Target("kentino-8x-rtx-4090", nodes, "roce-100" if nodes > 1 else "none")
        (one,) = check([folder], Options(target)).checked
        found = compare("x", one, one)
        assert found.status is Status.UNCHANGED
        assert (found.changes, found.new, found.fixed) == ((), (), ())
        assert found.experiment is Experiment.SAME_ORDER
        assert not [effect for effect in found.effects if effect.changed]
