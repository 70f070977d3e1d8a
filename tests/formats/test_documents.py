"""requirements.txt, DECISION.md and README.md."""

from __future__ import annotations

import dataclasses
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recipegen.formats import decision_md, readme_md, requirements
from recipegen.formats.axolotl import FIELDS
from recipegen.spec import LossKernel, Method, RecipegenError, Saving, Strategy, Verdict
from tests.recipes_for_tests import PINS, dataset, decision, model, recipe, recipes

SAMPLES = dict(recipes())
HOSTILE = "x | y <script>alert(1)</script> `$(touch canary)`\n\n# Heading\n| a | b |"


def pins(chosen: object) -> dict[str, str]:
    text = requirements.write(chosen, PINS)  # type: ignore[arg-type]
    return dict(re.findall(r"^([A-Za-z0-9._-]+)==(\S+)$", text, re.MULTILINE))


@pytest.mark.parametrize("name", SAMPLES)
def test_requirements_are_exact(name: str) -> None:
    text = requirements.write(SAMPLES[name], PINS)
    names = [line for line in text.splitlines() if line and not line.startswith("#")]
    assert all("==" in line or line == "flash-attn" for line in names)
    assert {"torch", "axolotl", "transformers", "accelerate", "peft"} <= set(pins(SAMPLES[name]))


def test_requirements_hold_what_the_recipe_uses_and_no_more() -> None:
    plain = pins(recipe())
    assert not {"torch-optimi", "liger-kernel", "deepspeed"} & set(plain)
    assert "tensorboard" not in plain  # comes with Axolotl
    assert pins(recipe(trainer="accelerate"))["tensorboard"] == PINS["tensorboard"]
    hub = (dataset("tatsu-lab/alpaca", local=False),)
    assert "datasets" in pins(recipe(trainer="accelerate", datasets=hub))
    assert "datasets" not in pins(recipe(trainer="accelerate"))
    assert "pyarrow" in requirements.packages(recipe(trainer="accelerate", datasets=(dataset("x.parquet"),)))
    assert pins(recipe(optimizer_name="optimi_adamw"))["torch-optimi"] == "0.2.1"
    assert "liger-kernel" in pins(recipe(loss_kernel=LossKernel.FUSED_LINEAR))
    assert "deepspeed" in pins(recipe(Strategy.ZERO2))
    assert "axolotl" not in pins(recipe(trainer="accelerate"))
    assert "bitsandbytes" not in pins(recipe(trainer="accelerate"))
    assert "bitsandbytes" in pins(recipe(Strategy.DDP, Method.QLORA, trainer="accelerate"))
    with pytest.raises(RecipegenError):
        requirements.write(recipe(trainer="megatron"), PINS)


def test_a_package_outside_the_stack_says_so() -> None:
    text = requirements.write(recipe(saving=Saving(1, 2, None, 1, "mlflow")), PINS)
    assert text.endswith("# Not part of the tested stack; any version.\nmlflow\n")


def test_a_version_cannot_smuggle_a_line() -> None:
    with pytest.raises(RecipegenError, match="exact"):
        requirements.write(recipe(), {**PINS, "torch": "2.13.0\n--index-url https://evil.example"})


def test_the_decision_shows_verdict_budget_and_alternatives() -> None:
    text = decision_md.write(decision())
    assert "**Verdict: fits**\n" in text
    for line in (
        "| `data.jsonl` | 1,000 (messages) | tokenizer | 640 / 3,900 / 4,100 | 10 of 1,000 rows, 10,000 tokens drop",
        "| logits | 7.00 GiB | chunked upcast |",
        "| peak allocated | 15.00 GiB | in the phase layer backward |",
        "| peak reserved | 17.00 GiB | planning value; 16.00 GiB to 19.00 GiB |",
        "| `sync_each_batch` | without it every GPU keeps 15.0 GiB of unsharded gradients |",
        "| `--method lora` | LoRA, FSDP2 full shard: 9.1 GiB of 31.37 GiB |",
        "| does not fit | 64.1 GiB of states on a 31.37 GiB card |",
    ):
        assert line in text
    assert "could not be verified" in text
    assert text.index("| logits") < text.index("| parameters")


def test_not_recommended_is_in_the_verdict() -> None:
    text = decision_md.write(decision(recommended=False, verdict=Verdict.TIGHT))
    assert "**Verdict: tight: inside the error band of the estimate**, **not recommended**" in text


def test_what_is_not_known_is_said() -> None:
    chosen = recipe(Strategy.FSDP2_HYBRID, nodes=2)
    text = decision_md.write(decision(chosen, model=model(unconfirmed=True)))
    assert "no second source" in text
    assert "not this network's" in text
    unread = dataclasses.replace(chosen, datasets=(dataset("x/y", rows=None, lengths=None, local=False),))
    assert "| `x/y` | not known | not measured |" in decision_md.write(decision(unread))
    assert "The data set was not read" in decision_md.write(decision(unread))


@pytest.mark.parametrize("name", SAMPLES)
def test_the_readme_fits_the_recipe(name: str) -> None:
    chosen = SAMPLES[name]
    text = readme_md.write(decision(chosen), ("axolotl.yaml", "launch.sh"))
    assert ("libaio" in text) == (chosen.parallelism.strategy is Strategy.ZERO3_NVME)
    assert ("MASTER_ADDR" in text) == (chosen.parallelism.nodes > 1)
    assert "| `axolotl.yaml` |" in text
    assert "train.py" not in text
    assert "\n\n\n" not in text


@given(st.text(max_size=40) | st.just(HOSTILE))
@settings(max_examples=60, deadline=None)
def test_no_text_becomes_markup(text: str) -> None:
    chosen = recipe(model=text, hardware=text)
    answer = decision(chosen, model=model(id=text, license=text), reasons={"model": text}, warnings=(text,))
    plain = decision(recipe(), model=model(id="x", license="x"), reasons={"model": "x"}, warnings=("x",))
    for write in (decision_md.write, lambda d: readme_md.write(d, ("axolotl.yaml",))):
        lines, expected = write(answer).splitlines(), write(plain).splitlines()
        assert len(lines) == len(expected)
        assert [line[:2] for line in lines if line.startswith(("#", "|", "```"))] == [
            line[:2] for line in expected if line.startswith(("#", "|", "```"))
        ]
        assert not any(re.search(r"(?<!\\)<[a-z/]", line) for line in lines)


def test_the_fields_of_the_decision_are_fields_of_the_recipe() -> None:
    assert {path.split(".")[0] for paths in FIELDS.values() for path in paths} <= set(vars(recipe()))
