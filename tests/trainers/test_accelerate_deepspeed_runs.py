"""`--trainer accelerate` under DeepSpeed, on CPU: ZeRO-2, and ZeRO-3 with parameters and optimizer on the host.

The first run compiles DeepSpeed's CPU operators, which takes minutes.
"""

from __future__ import annotations

from collections.abc import Callable
from statistics import mean
from typing import Any

import pytest

from recipegen.spec import Dtype
from tests.trainers.accelerate_projects import CHECKPOINT, STEPS, Run, launch, new_project, resumed

pytestmark = [pytest.mark.run, pytest.mark.long]
CASES = {
    "zero2": {"hardware": "cpu-2x", "strategy": "zero2"},
    "zero3-cpu": {"hardware": "cpu-2x", "strategy": "zero3_cpu"},
    "fsdp2": {"hardware": "cpu-2x", "strategy": "fsdp2_full"},
}
ZERO = ["zero2", "zero3-cpu"]


@pytest.fixture(scope="module")
def ran(tiny_world: Any, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Run]:
    """Each case launched at most once."""
    folder = tmp_path_factory.mktemp("deepspeed")
    done: dict[str, Run] = {}

    def run(name: str) -> Run:
        if name not in done:
            done[name] = launch(new_project(folder / name, tiny_world, CASES[name]))
        return done[name]

    return run


@pytest.mark.parametrize("name", ZERO)
def test_deepspeed_really_runs_with_fp32_master_weights(ran: Callable[[str], Run], name: str) -> None:
    run = ran(name)
    recipe, setup = run.project.recipe, run.one("setup")
    assert setup["distributed_type"] == "DEEPSPEED"
    assert setup["wrapper"] == "DeepSpeedEngine"
    assert setup["processes"] == recipe.parallelism.world_size == 2
    assert recipe.precision.master is Dtype.FP32
    assert set(setup["trainable"]) == {"bfloat16"}
    assert {dtype for found in run.one("precision")["states"].values() for dtype in found} == {"float32"}
    losses = run.losses()
    assert len(losses) == STEPS
    assert mean(losses[-3:]) < mean(losses[:3]) - 0.08


@pytest.mark.parametrize("name", ZERO)
def test_the_losses_are_those_of_fsdp2(ran: Callable[[str], Run], name: str) -> None:
    assert ran(name).losses() == pytest.approx(ran("fsdp2").losses(), abs=0.02)


@pytest.mark.parametrize("name", ZERO)
def test_a_resumed_run_is_the_uninterrupted_one(ran: Callable[[str], Run], name: str) -> None:
    again = resumed(ran(name), f"{name}-resumed")
    assert again.steps() == {step: numbers for step, numbers in ran(name).steps().items() if step > CHECKPOINT}


@pytest.mark.parametrize("name", ZERO)
def test_the_exported_model_is_whole(ran: Callable[[str], Run], name: str) -> None:
    from safetensors import safe_open

    run = ran(name)
    with safe_open(run.project.output_dir / "final" / "model.safetensors", "pt") as file:
        numbers = sum(file.get_tensor(key).numel() for key in file.keys())  # noqa: SIM118
    assert numbers == run.one("setup")["trainable_parameters"]
