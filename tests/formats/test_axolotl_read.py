"""axolotl.yaml is read as Axolotl 0.19 reads it: every field of a recipe comes back, and no junk raises."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from recipegen.catalog.stack import load_stack
from recipegen.formats import axolotl
from recipegen.formats.axolotl_facts import FACTS, NAMES
from recipegen.formats.axolotl_read import CARRIES, read
from recipegen.formats.reading import Reading, restrict
from recipegen.spec import (
    Adapter,
    Fsdp,
    Loading,
    LossKernel,
    Method,
    Optimizer,
    Recipe,
    Saving,
    Schedule,
    Strategy,
)
from tests.formats.axolotl_texts import of
from tests.recipes_for_tests import LINEAR, REASONS, dataset, model, recipe, recipes

SAMPLES = dict(recipes())


def written(chosen: Recipe) -> Reading:
    return read(axolotl.write(chosen, model(), REASONS).encode(), "axolotl.yaml")


def same(reading: Reading, chosen: Recipe) -> None:
    """Nothing lost, nothing added, nothing left over."""
    assert reading.values == restrict(chosen, CARRIES)
    assert reading.provenance.keys() == reading.values.keys()
    assert reading.facts.keys() <= NAMES
    assert reading.facts.get("dataset_entries", ()) == tuple(spec.entry for spec in chosen.datasets)
    assert (reading.problems, reading.legacy) == ((), {})
    assert reading.passthrough == chosen.passthrough.get("axolotl", {})


@pytest.mark.parametrize("name", [name for name in SAMPLES if name != "passthrough"])
def test_a_written_recipe_is_read_back(name: str) -> None:
    same(written(SAMPLES[name]), SAMPLES[name])


def test_keys_that_are_passed_through_come_back() -> None:
    passed = {"neftune_noise_alpha": 5.0, "dataloader_drop_last": True, "fsdp_config.mixed_precision_policy": "bf16"}
    chosen = recipe(passthrough={"axolotl": passed})
    same(written(chosen), chosen)


words = st.text(st.characters(codec="utf-8", exclude_categories=["C", "Z"]), min_size=1, max_size=20)
counts = st.integers(1, 10**9)
shares = st.floats(0, 0.99, allow_subnormal=False)
numbers = st.floats(0, 1e12, allow_subnormal=False)


@st.composite
def any_recipe(draw: st.DrawFn) -> Recipe:
    """A recipe of any strategy and method with any numbers and names."""
    strategy, method = draw(st.sampled_from(Strategy)), draw(st.sampled_from(Method))
    flags = iter(draw(st.lists(st.booleans(), min_size=20, max_size=20)))
    targets = draw(st.lists(st.sampled_from(LINEAR), min_size=1, unique=True).map(tuple) | st.just((r".*\.q_proj",)))
    adapter = Adapter(draw(counts), draw(counts), draw(shares), targets, next(flags), next(flags), next(flags))
    fsdp = Fsdp(next(flags), next(flags), next(flags), "FULL_STATE_DICT", draw(words))
    steps = draw(st.none() | counts)
    workers = draw(st.integers(0, 64))
    logger = draw(st.sampled_from(["tensorboard", "wandb", "trackio", "mlflow", "none"]))
    return recipe(
        strategy,
        method,
        model=draw(words),
        model_revision=draw(st.none() | words),
        trust_remote_code=next(flags),
        dequantize="mxfp4" if next(flags) else None,
        freeze_vision=next(flags),
        adapter=adapter if method.is_adapter else None,
        fsdp=fsdp if strategy.is_fsdp else None,
        optimizer=Optimizer(draw(words), draw(shares), draw(shares), draw(numbers), draw(numbers), draw(numbers)),
        schedule=Schedule(draw(numbers), draw(words), steps, None if steps else draw(st.none() | shares)),
        sequence_len=draw(counts),
        micro_batch_size=draw(counts),
        gradient_accumulation=draw(counts),
        packing=next(flags),
        pad_to_sequence_len=next(flags),
        epochs=draw(numbers),
        max_steps=draw(st.none() | counts),
        activation_checkpointing=next(flags),
        activation_offloading=next(flags),
        loss_kernel=draw(st.sampled_from([kernel for kernel in LossKernel if kernel is not LossKernel.CUT])),
        attention=draw(st.sampled_from(["sdpa", "flash_attention_2", "eager", "kernels-community/flash-attn3"])),
        torch_compile=next(flags),
        tf32=next(flags),
        datasets=tuple(dataset(path) for path in draw(st.lists(words, max_size=3))),
        val_set_size=draw(shares | counts.map(float)),
        chat_template=draw(st.none() | words),
        eot_tokens=tuple(draw(st.lists(words, max_size=2))),
        saving=Saving(draw(st.none() | counts), draw(counts), draw(st.none() | counts), 1, logger, next(flags)),
        loading=Loading(workers, draw(st.none() | counts), next(flags), draw(counts)),
        seed=draw(st.integers(0, 2**32)),
    )


@given(any_recipe())
@settings(max_examples=200, deadline=None)
def test_any_written_recipe_is_read_back(chosen: Recipe) -> None:
    same(written(chosen), chosen)


JUNK: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 2, 1.5, float("inf"), 10**400),
    *("", "auto", "no", "2e-4", "1" * 50, "offload", "unsloth", "full", "full_shard offload"),
    *([], [1], ["a"], [None], [[]], {}, {"a": None}, {"fsdp_version": []}, {"version": 9}),
)
junk = st.sampled_from(JUNK).map(copy.deepcopy)  # one object twice would be an alias in YAML
KNOWN = [*load_stack("axolotl-0.19.0").axolotl_keys()["objects"]["AxolotlInputConfig"], "model_type", "use_swanlab"]


@given(
    st.sampled_from(sorted(SAMPLES)),
    st.lists(st.tuples(st.sampled_from(KNOWN) | words, junk), max_size=20),
    st.lists(st.tuples(st.integers(0, 200), junk), max_size=10),
    st.lists(st.integers(0, 200), max_size=10),
)
@settings(max_examples=200, deadline=None)
def test_no_junk_raises_and_none_is_lost(
    name: str, added: list[tuple[str, Any]], swapped: list[tuple[int, Any]], removed: list[int]
) -> None:
    values = copy.deepcopy(axolotl.values(SAMPLES[name]))
    for index, value in swapped:
        values[list(values)[index % len(values)]] = value
    for index in removed:
        values.pop(list(values)[index % len(values)], None)
    values.update(added)
    values.setdefault("base_model", "m")
    reading = read(yaml.safe_dump(values).encode(), "axolotl.yaml")
    if not reading.values:  # e.g. a key that YAML reads as a number
        assert reading.problems
        return
    assert reading.provenance.keys() == reading.values.keys()
    assert set(reading.values) <= set(CARRIES)
    assert set(reading.facts) <= NAMES
    for key, value in values.items():
        if key not in KNOWN and key not in axolotl.FIELDS and not key.startswith(("use_", "liger_")):
            assert reading.passthrough[key] == value or value != value


@given(st.binary(max_size=200) | st.text(max_size=200).map(str.encode), st.text(max_size=20))
@settings(max_examples=200, deadline=None)
def test_no_bytes_raise(content: bytes, name: str) -> None:
    assert read(content, name).format == "axolotl"


def test_every_field_that_can_be_read_is_declared() -> None:
    """CARRIES is the list of what a reading may state; FACTS name keys of this Axolotl."""
    schema = load_stack("axolotl-0.19.0").axolotl_keys()["objects"]
    top = set(schema["AxolotlInputConfig"])
    plugins = {key for name in ("KernelsArgs", "ExpertParallelArgs") for key in schema[name]}
    for fact in FACTS:
        head, _, rest = fact.key.partition(".")
        assert head in top | plugins, fact.key
        if head == "fsdp_config":
            assert rest in schema["FSDPConfig"]
    assert len({fact.name for fact in FACTS}) == len(FACTS)


def test_a_value_knows_its_line() -> None:
    reading = of("sequence_len: 4096\nfsdp_version: 2\nfsdp_config:\n  offload_params: true\n")
    assert reading.provenance["sequence_len"] == "axolotl.yaml:2"
    assert reading.provenance["fsdp.offload_params"] == "axolotl.yaml:5"
    assert of("flash_attention: true").provenance["attention"] == "axolotl.yaml:2"


def test_only_what_stands_there_is_stated() -> None:
    reading = of("")
    assert reading.values == {"model": "NousResearch/Llama-3.2-1B"}
    assert reading.facts == {"engine": "none"}


def test_numbers_are_converted_as_pydantic_does() -> None:
    reading = of("learning_rate: 2e-4\nweight_decay: 1\nsequence_len: '4096'\nmicro_batch_size: 2.0\ntf32: 'yes'\n")
    assert reading.problems == ()
    assert reading.values["schedule.learning_rate"] == 2e-4
    assert reading.values["optimizer.weight_decay"] == 1.0
    assert (reading.values["sequence_len"], reading.values["micro_batch_size"]) == (4096, 2)
    assert reading.values["tf32"] is True


@pytest.mark.parametrize(
    ("line", "field"),
    [
        ("learning_rate: fast", "schedule.learning_rate"),
        ("learning_rate: .nan", "schedule.learning_rate"),
        ("micro_batch_size: 0", "micro_batch_size"),
        ("micro_batch_size: 1.5", "micro_batch_size"),
        ("sample_packing: maybe", "packing"),
        ("optimizer: 8", "optimizer.name"),
        ("attn_implementation: flash", "attention"),
        ("save_steps: 10.5", "saving.save_steps"),
        ("dp_shard_size: 0", "parallelism.dp_shard"),
    ],
)
def test_what_cannot_be_converted_is_a_problem_and_no_value(line: str, field: str) -> None:
    reading = of(f"{line}\nseed: 7")
    assert [(p.key, p.where) for p in reading.problems] == [(line.partition(":")[0], "axolotl.yaml:2")]
    assert field not in reading.values
    assert reading.values["seed"] == 7


def test_a_number_too_long_to_print_is_only_a_problem() -> None:
    huge = "0x" + "f" * 5000
    for key in ("fsdp_version", "learning_rate", "save_steps", "max_steps", "bf16", "micro_batch_size", "fsdp"):
        assert of(f"{key}: {huge}\nfsdp_config: {{fsdp_version: 2, offload_params: {huge}}}").problems


def test_an_unreadable_file_is_one_problem() -> None:
    reading = read(b"a: 1\nb: [\n", "odd: name.yaml")
    assert [p.where.startswith("odd: name.yaml:") for p in reading.problems] == [True]
    assert reading.values == {}


def test_a_file_without_a_model_says_so() -> None:
    assert [p.key for p in read(b"seed: 1", "a.yaml").problems] == ["base_model"]
