"""Files that were written from a recipe come back as that recipe."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recipegen.catalog import load_cluster, load_model
from recipegen.decide import decide
from recipegen.formats import (
    accelerate_read,
    axolotl_read,
    deepspeed_read,
    launch_read,
    train_json,
    train_json_read,
)
from recipegen.formats.assemble import assemble
from recipegen.formats.assembled import Assembled
from recipegen.formats.reading import at, restrict
from recipegen.project import render
from recipegen.spec import (
    Recipe,
    Request,
)
from tests.formats.assembling import STACK, made, readings
from tests.recipes_for_tests import PINS, cluster, decision, model, recipes

WRITABLE = [
    *((name, r) for name, r in recipes()),
    *((f"{name}-accelerate", dataclasses.replace(r, trainer="accelerate", passthrough={})) for name, r in recipes()),
]
WRITABLE = [(name, r) for name, r in WRITABLE if r.trainer == "axolotl" or not train_json.unsupported(r)]
Carried = Mapping[str, Callable[[Recipe], bool]]


def carried(r: Recipe) -> dict[str, Any]:
    """What the files of a recipe state of it."""
    main: Carried = axolotl_read.CARRIES if r.trainer == "axolotl" else train_json_read.CARRIES
    beside: Carried = accelerate_read.CARRIES if r.trainer == "axolotl" else accelerate_read.CARRIES_FULL
    found: dict[str, Any] = {}
    for table in (deepspeed_read.CARRIES, beside, main, launch_read.CARRIES):
        found |= restrict(r, table)
    return found


def read_back(r: Recipe) -> Assembled:
    world = cluster(r.parallelism.nodes, r.parallelism.gpus_per_node)
    files = render(decision(r), pins=PINS)
    return assemble(readings(files), STACK, cluster=world, model=lambda _: model(), hardware=r.hardware)


@pytest.mark.parametrize(("name", "r"), WRITABLE, ids=[name for name, _ in WRITABLE])
def test_what_was_written_comes_back(name: str, r: Recipe) -> None:
    answer = read_back(r)
    got = made(answer)
    if r.passthrough:  # a key that a person passes through wins over the field it stands for
        return
    differ = {path: (value, at(got, path)) for path, value in carried(r).items() if at(got, path) != value}
    assert not differ
    assert (got.parallelism, got.hardware, got.network, got.trainer) == (
        r.parallelism,
        r.hardware,
        r.network,
        r.trainer,
    )
    assert set(answer.provenance) >= set(carried(r)) - answer.defaults
    assert not set(answer.provenance) & answer.defaults


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from([r for _, r in WRITABLE]),
    st.integers(1, 64),
    st.integers(1, 64),
    st.integers(16, 2**20),
    st.floats(1e-9, 1, allow_nan=False),
    st.floats(0.01, 100),
    st.booleans(),
)
def test_numbers_come_back_whatever_they_are(
    r: Recipe, micro: int, steps: int, length: int, rate: float, epochs: float, flag: bool
) -> None:
    r = dataclasses.replace(
        r,
        micro_batch_size=micro,
        gradient_accumulation=steps,
        sequence_len=length,
        epochs=epochs,
        schedule=dataclasses.replace(r.schedule, learning_rate=rate),
        tf32=flag,
        passthrough={},
    )
    got = made(read_back(r))
    assert {path: at(got, path) for path in carried(r)} == carried(r)


DECIDED = [
    ("Qwen/Qwen3-8B", "kentino-8x-rtx-5090", {"method": "full"}),
    ("Qwen/Qwen3-8B", "kentino-8x-rtx-5090", {"method": "full", "trainer": "accelerate"}),
    ("meta-llama/Llama-3.1-8B", "kentino-4x-rtx-4090", {"method": "lora"}),
    ("meta-llama/Llama-3.1-8B", "kentino-4x-rtx-4090", {"method": "qlora", "trainer": "accelerate"}),
    ("google/gemma-3-12b-it", "kentino-8x-rtx-pro-6000", {"method": "lora"}),
    ("openai/gpt-oss-20b", "kentino-8x-rtx-pro-6000", {"method": "lora"}),
    ("Qwen/Qwen3-30B-A3B", "kentino-8x-rtx-pro-6000", {"method": "lora"}),
    ("Qwen/Qwen3-14B", "kentino-8x-rtx-5090", {"method": "full", "nodes": 2, "network": "roce-100"}),
    ("Qwen/Qwen3-8B", "kentino-8x-rtx-5090", {"method": "full", "pins": {"parallelism.strategy": "zero3_cpu"}}),
]


@pytest.mark.parametrize(("name", "hardware", "more"), DECIDED, ids=[f"{d[0]}-{n}" for n, d in enumerate(DECIDED)])
def test_a_decided_recipe_comes_back_whole(name: str, hardware: str, more: dict[str, Any]) -> None:
    request = Request(model=name, hardware=hardware, **more)
    world = load_cluster(hardware, nodes=request.nodes, network=request.network)
    shape = load_model(name)
    answer = decide(request, shape, world, STACK, ())
    files = render(answer, pins=PINS)
    got = made(assemble(readings(files), STACK, cluster=world, model=lambda _: shape))
    want = _without_effect(answer.recipe, got)
    for field in dataclasses.fields(Recipe):
        assert getattr(got, field.name) == getattr(want, field.name), field.name


def _without_effect(want: Recipe, got: Recipe) -> Recipe:
    """`want` with those fields of `got` that no file carries (module docstring of formats/assemble.py)."""
    names = ["datasets"]
    if not launch_read.CARRIES["launch.environment"](want):
        launch = dataclasses.replace(want.launch, environment=got.launch.environment)
        want = dataclasses.replace(want, launch=launch)
    if want.trainer == "accelerate":
        names.append("chat_template")
        want = dataclasses.replace(want, saving=dataclasses.replace(want.saving, save_only_model=False))
    if not want.activation_checkpointing:
        names.append("activation_checkpointing_reentrant")
    if want.gradient_accumulation == 1:
        names.append("sync_each_batch")
    if want.deepspeed and got.deepspeed:
        sizes = ("nvme_path", "buffer_count", "buffer_size")
        kept = {name: getattr(got.deepspeed, name) for name in sizes}
        want = dataclasses.replace(want, deepspeed=dataclasses.replace(want.deepspeed, **kept))
    return dataclasses.replace(want, **{name: getattr(got, name) for name in names})
