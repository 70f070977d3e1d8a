"""deepspeed.json comes back as the recipe it was written from; hand-written ones say what they state and no more."""

from __future__ import annotations

import copy
import dataclasses
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recipegen.formats import deepspeed, deepspeed_read
from recipegen.formats.documents import read_json
from recipegen.formats.reading import Reading, restrict
from recipegen.spec import Dtype, Recipe, Strategy
from tests.recipes_for_tests import recipe, recipes

WRITABLE = [
    (f"{name}-{trainer}", dataclasses.replace(r, trainer=trainer, passthrough={}))
    for name, r in recipes()
    if r.deepspeed is not None
    for trainer in ("axolotl", "accelerate")
]
# As the documentation of Transformers has it.
PUBLISHED = {
    "bf16": {"enabled": "auto"},
    "optimizer": {
        "type": "AdamW",
        "params": {"lr": "auto", "betas": "auto", "eps": "auto", "weight_decay": "auto"},
    },
    "scheduler": {"type": "WarmupLR", "params": {"warmup_min_lr": "auto"}},
    "zero_optimization": {
        "stage": 3,
        "offload_optimizer": {"device": "cpu", "pin_memory": True},
        "offload_param": {"device": "cpu", "pin_memory": True},
        "overlap_comm": True,
        "sub_group_size": 1e9,
        "reduce_bucket_size": "auto",
        "stage3_prefetch_bucket_size": "auto",
        "stage3_max_live_parameters": 1e9,
        "stage3_gather_16bit_weights_on_model_save": True,
    },
    "gradient_accumulation_steps": "auto",
    "gradient_clipping": "auto",
    "train_batch_size": "auto",
    "train_micro_batch_size_per_gpu": "auto",
    "steps_per_print": 2000,
}


def read(values: Any) -> Reading:
    return deepspeed_read.read(json.dumps(values, indent=1).encode(), "ds.json")


def zero(**section: Any) -> Reading:
    return read({"zero_optimization": section})


@pytest.mark.parametrize(("name", "r"), WRITABLE, ids=[name for name, _ in WRITABLE])
def test_what_was_written_is_read(name: str, r: Recipe) -> None:
    reading = deepspeed_read.read(deepspeed.write(r).encode(), "deepspeed.json")
    assert reading.values == restrict(r, deepspeed_read.CARRIES)
    assert reading.problems == ()
    assert reading.passthrough == {}
    assert set(reading.provenance) == set(reading.values)


@given(
    st.sampled_from([Strategy.ZERO2, Strategy.ZERO3_CPU, Strategy.ZERO3_NVME]),
    st.sampled_from(["none", "cpu", "nvme"]),
    st.sampled_from(["cpu", "nvme"]),
    st.booleans(),
    st.booleans(),
    st.integers(1, 10**10),
    st.integers(0, 10**10),
    st.floats(0, 10),
    st.booleans(),
)
def test_any_engine_comes_back(
    strategy: Strategy,
    of_states: str,
    of_parameters: str,
    pinned: bool,
    saved: bool,
    size: int,
    other: int,
    clip: float,
    stated: bool,
) -> None:
    r = recipe(strategy, trainer="accelerate" if stated else "axolotl")
    assert r.deepspeed is not None
    engine = dataclasses.replace(
        r.deepspeed, pin_memory=pinned, save_16bit_model=saved, reduce_bucket_size=size, prefetch_bucket_size=other,
        param_persistence_threshold=other, sub_group_size=size, buffer_count=5, buffer_size=size, nvme_path="/nvme",
        offload_optimizer=of_states, offload_param=of_parameters if engine_is_3(r) else "none",
    )  # fmt: skip
    devices = {engine.offload_optimizer, engine.offload_param}
    found = strategy if strategy is Strategy.ZERO2 else Strategy.ZERO3_NVME if "nvme" in devices else Strategy.ZERO3_CPU
    r = dataclasses.replace(
        r, deepspeed=engine, optimizer=dataclasses.replace(r.optimizer, max_grad_norm=clip),
        parallelism=dataclasses.replace(r.parallelism, strategy=found),
    )  # fmt: skip
    reading = deepspeed_read.read(deepspeed.write(r).encode(), "deepspeed.json")
    assert reading.values == restrict(r, deepspeed_read.CARRIES)


def engine_is_3(r: Recipe) -> bool:
    return r.deepspeed is not None and r.deepspeed.stage == 3


def test_auto_is_not_a_value() -> None:
    reading = read(PUBLISHED)
    assert reading.problems == ()
    assert "micro_batch_size" not in reading.values
    assert "deepspeed.reduce_bucket_size" not in reading.values
    assert "precision.compute" not in reading.values
    assert reading.facts["train_batch_size"] == reading.facts["bf16_enabled"] == "auto"
    assert set(reading.facts["auto"]) == {
        "bf16.enabled", "optimizer.params.lr", "optimizer.params.betas", "optimizer.params.eps",
        "optimizer.params.weight_decay", "zero_optimization.reduce_bucket_size",
        "zero_optimization.stage3_prefetch_bucket_size", "gradient_accumulation_steps", "gradient_clipping",
        "train_batch_size", "train_micro_batch_size_per_gpu",
    }  # fmt: skip


def test_what_the_published_file_states() -> None:
    reading = read(PUBLISHED)
    assert reading.values["parallelism.strategy"] is Strategy.ZERO3_CPU
    assert reading.values["deepspeed.sub_group_size"] == 10**9
    assert isinstance(reading.values["deepspeed.sub_group_size"], int)
    assert reading.facts["max_live_parameters"] == 10**9
    assert reading.facts["optimizer_type"] == "AdamW"
    assert reading.passthrough == {"scheduler.params.warmup_min_lr": "auto", "steps_per_print": 2000}


@pytest.mark.parametrize(
    ("section", "strategy"),
    [
        ({"stage": 1}, None),
        ({"stage": 2}, Strategy.ZERO2),
        ({"stage": 3}, None),
        ({"stage": 3, "offload_optimizer": {"device": "cpu"}}, Strategy.ZERO3_CPU),
        ({"stage": 3, "offload_param": {"device": "nvme", "nvme_path": "/n"}}, Strategy.ZERO3_NVME),
        ({"stage": 3, "cpu_offload": True}, Strategy.ZERO3_CPU),
    ],
)
def test_the_strategy_of_a_stage(section: dict[str, Any], strategy: Strategy | None) -> None:
    reading = zero(**section)
    assert reading.values.get("parallelism.strategy") is strategy
    assert reading.facts["zero_stage"] == reading.values["deepspeed.stage"] == section["stage"]
    assert reading.problems == ()


def test_old_offload_keys_are_understood() -> None:
    reading = zero(stage=2, cpu_offload=True)
    assert reading.values["deepspeed.offload_optimizer"] == "cpu"
    assert reading.legacy == {"zero_optimization.cpu_offload": "zero_optimization.offload_optimizer.device"}


@pytest.mark.parametrize(
    ("values", "compute"),
    [
        ({"bf16": {"enabled": True}}, Dtype.BF16),
        ({"bf16": {"enabled": False}}, Dtype.FP32),
        ({"bf16": {"enabled": False}, "fp16": {"enabled": True}}, None),
        ({"bf16": {"enabled": False}, "fp16": {"enabled": "auto"}}, None),
        ({}, None),
    ],
)
def test_the_dtype_of_the_arithmetic(values: dict[str, Any], compute: Dtype | None) -> None:
    assert read(values).values.get("precision.compute") is compute


@pytest.mark.parametrize(
    ("values", "key", "part"),
    [
        ({"zero_optimization": {"stage": 5}}, "zero_optimization.stage", "not a ZeRO stage"),
        ({"zero_optimization": 3}, "zero_optimization", "not a mapping"),
        (
            {"zero_optimization": {"offload_param": {"device": "ssd"}}},
            "zero_optimization.offload_param.device",
            "none of",
        ),
        ({"gradient_accumulation_steps": 0}, "gradient_accumulation_steps", "below 1"),
        ({"gradient_accumulation_steps": 1.5}, "gradient_accumulation_steps", "not a whole number"),
        ({"bf16": {"enabled": "maybe"}}, "bf16.enabled", "neither true nor false"),
        ({"optimizer": {"params": {"betas": [0.9]}}}, "optimizer.params.betas", "two numbers"),
    ],
)
def test_what_cannot_be_taken_is_a_problem(values: dict[str, Any], key: str, part: str) -> None:
    reading = read({**values, "train_batch_size": 64})
    (problem,) = reading.problems
    assert problem.key == key
    assert part in problem.reason
    assert problem.where.startswith("ds.json:")
    assert reading.facts["train_batch_size"] == 64
    assert reading.passthrough == {}


def test_two_offloads_that_differ_are_a_problem() -> None:
    reading = zero(
        stage=3,
        offload_optimizer={"device": "cpu", "pin_memory": True},
        offload_param={"device": "cpu", "pin_memory": False},
    )
    assert [problem.key for problem in reading.problems] == ["zero_optimization.offload_param.pin_memory"]
    assert reading.facts["offload_param_pin_memory"] is False


def test_aio_is_kept_raw() -> None:
    assert read({"aio": {"queue_depth": 32}}).facts["aio"] == {"queue_depth": 32}


# --- JSON with lines


def test_lines_of_keys_and_items() -> None:
    text = '{"a": 1,\n\t"b": {"c\\"": [\n1,\n{"d": 2}], "e": []},\n"f": "x"}'
    document = read_json(text.encode(), "x.json")
    assert document.lines == {
        ("a",): 1, ("b",): 2, ("b", 'c"'): 2, ("b", 'c"', "0"): 3, ("b", 'c"', "1"): 4, ("b", 'c"', "1", "d"): 4,
        ("b", "e"): 4, ("f",): 5,
    }  # fmt: skip
    assert document.where(("b", "c", "x")) == "x.json:2"


@pytest.mark.parametrize(
    ("content", "where", "part"),
    [
        (b'{"a":\n 1,}', "x.json:2", "not valid JSON"),
        (b"[1]", "x.json", "not a JSON object"),
        (b'{"a": 1, "a": 1}', "x.json", "stands twice"),
        (b'{"a": [1e999]}', "x.json", "larger than a number"),
        (b'{"a": NaN}', "x.json", "not a number of JSON"),
        (b'{"a": "\\ud800"}', "x.json", "surrogate"),
        (b'{"a": ' + b"[" * 30 + b"]" * 30 + b"}", "x.json", "nested deeper"),
        (b'{"a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "x.json", "nested deeper"),
        (b'{"a": [' + b"0," * 150_000 + b"0]}", "x.json", "more than 100000 values"),
        (b'{"a": ' + b"1" * 5000 + b"}", "x.json", "not valid JSON"),
        (b"{" + b" " * 2**20 + b"}", "x.json", "at most 1048576"),
        (b"\xff", "x.json", "not UTF-8"),
    ],
)
def test_json_that_is_refused(content: bytes, where: str, part: str) -> None:
    document = read_json(content, "x.json")
    assert document.values is None
    assert document.problem is not None
    assert document.problem.where == where
    assert part in document.problem.reason


def test_a_whole_mebibyte_is_read() -> None:
    content = b'{"a": "' + b"x" * (2**20 - 9) + b'"}'
    assert len(content) == 2**20
    assert read_json(content, "x.json").problem is None


# --- anything at all

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5)
    | st.sampled_from(["auto", "cpu", "nvme", "1e9"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)  # fmt: skip


def paths(value: Any, path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    inner = [p for key, item in value.items() for p in paths(item, (*path, key))] if isinstance(value, dict) else []
    return [path, *inner] if path else inner


@given(st.sampled_from(paths(PUBLISHED)), JSON)
def test_any_mutation_is_read(path: tuple[str, ...], value: Any) -> None:
    values = copy.deepcopy(PUBLISHED)
    target: Any = values
    for name in path[:-1]:
        target = target[name]
    target[path[-1]] = value
    reading = read(values)
    assert set(reading.provenance) == set(reading.values)


@given(st.binary(max_size=200))
def test_any_bytes_are_read(content: bytes) -> None:
    assert deepspeed_read.read(content, "ds.json").format == "deepspeed"
