"""The bookkeeping against memory that is really allocated: the same step on CPU tensors, read from torch's profiler.

The profiler reports every allocation and release of the C++ CPU allocator; the simulation does not take part in that.
"""

from __future__ import annotations

import gc
import time
from dataclasses import replace
from typing import Any

import pytest
import tiny_recipes as samples

from recipegen.simulate import Options, simulate
from recipegen.spec import Method, ModelSpec, Recipe

pytestmark = pytest.mark.stack

#: beside the tensors the profiler sees small things of the runtime (index tensors, scalars); and no rounding to 512 B
LARGEST_DIFFERENCE = 0.003

CASES = {
    "full, checkpointing": (samples.tiny(), Method.FULL, {}),
    "full, no checkpointing": (samples.tiny(), Method.FULL, {"activation_checkpointing": False}),
    "full, fp32 under autocast": (samples.tiny(), Method.FULL, {"precision": samples.FP32}),
    "full, tied": (samples.tiny("qwen3", tied=True), Method.FULL, {}),
    "full, accumulation": (samples.tiny(), Method.FULL, {"gradient_accumulation": 2}),
    "full, foreach optimizer": (samples.tiny(), Method.FULL, {"optimizer": "adamw_torch", "micro_batch_size": 1}),
    "full, mixture of experts": (samples.tiny("qwen3_moe"), Method.FULL, {}),
    "LoRA, checkpointing": (samples.tiny(), Method.LORA, {}),
    "LoRA, no checkpointing": (samples.tiny(), Method.LORA, {"activation_checkpointing": False}),
    "QLoRA (emulated), checkpointing": (samples.tiny(), Method.QLORA, {}),
}


def allocated_peak(model: ModelSpec, recipe: Recipe) -> int:
    """Peak bytes of one measured step on real tensors, from the allocator's own events."""
    from torch.profiler import ProfilerActivity, profile

    began: list[int] = []
    gc.collect()
    options = Options(real_tensors=True, on_start=lambda: began.append(time.time_ns()))
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        simulate(model, recipe, samples.stack(), options=options)
    events = [e for e in profiler.profiler.kineto_results.events() if e.name() == "[memory]"]
    events.sort(key=lambda event: event.start_ns())
    live = peak = 0
    for event in events:
        live += event.nbytes()
        if event.start_ns() >= began[0]:
            peak = max(peak, live)
    return peak


@pytest.mark.parametrize("name", CASES)
def test_a_simulated_peak_is_what_the_allocator_gives_out(name: str) -> None:
    model, method, fields = CASES[name]
    more: dict[str, Any] = dict(fields)
    recipe = samples.recipe(model, method, **more)
    simulated = simulate(model, recipe, samples.stack()).peak_bytes
    real = allocated_peak(model, recipe)
    assert simulated == pytest.approx(real, rel=LARGEST_DIFFERENCE)


def test_the_comparison_can_fail() -> None:
    """Without checkpointing a step needs more than with it, by much more than the bound."""
    model = samples.tiny(layers=8)
    recipe = samples.recipe(model, micro_batch_size=8, activation_checkpointing=False)
    other = simulate(model, replace(recipe, activation_checkpointing=True), samples.stack()).peak_bytes
    assert abs(other / allocated_peak(model, recipe) - 1) > 5 * LARGEST_DIFFERENCE
