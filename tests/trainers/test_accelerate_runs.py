"""`--trainer accelerate`: projects that `recipegen new` wrote, launched unchanged on CPU, and what really ran.

train.py says itself what it made of the files (its events `setup` and `precision`); these tests hold that against the
Recipe. The exit code proves nothing: without a device Accelerate trains on every rank alone and ends with 0.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from statistics import mean
from typing import Any

import pytest

from recipegen.spec import Dtype
from tests.trainers import harness
from tests.trainers.accelerate_projects import CHECKPOINT, GLOBAL_BATCH, STEPS, Run, launch, new_project, resumed

pytestmark = pytest.mark.run
# The mean of the first losses differs by so much between seeds (test_axolotl_runs.py measures it).
SPREAD_OVER_SEEDS = 0.08
TORCH = {Dtype.FP32: "float32", Dtype.BF16: "bfloat16"}
# Name -> method, hardware, strategy, and what Accelerate must say it runs.
CASES: dict[str, dict[str, Any]] = {
    "single": {"hardware": "cpu-1x", "strategy": "single", "type": "NO"},
    "ddp": {
        "hardware": "cpu-2x",
        "strategy": "ddp",
        "type": "MULTI_CPU",
        "settings": {"activation_checkpointing": True},
    },
    "fsdp2": {"hardware": "cpu-2x", "strategy": "fsdp2_full", "type": "FSDP", "mesh": {"dp_shard": 2}},
    "hybrid": {
        "hardware": "cpu-4x",
        "strategy": "fsdp2_hybrid",
        "type": "FSDP",
        "mesh": {"dp_replicate": 2, "dp_shard_cp": 2},
        "settings": {"dp_shard": 2, "dp_replicate": 2, "activation_checkpointing": True},
    },
    "fsdp2-lora": {
        "method": "lora",
        "hardware": "cpu-2x",
        "strategy": "fsdp2_full",
        "type": "FSDP",
        "mesh": {"dp_shard": 2},
        "settings": {"packing": True, "activation_checkpointing": True, "loss_kernel": "chunked_upcast"},
    },
    "single-qlora": {"method": "qlora", "hardware": "cpu-1x", "strategy": "single", "type": "NO"},
}
# Four processes on two cores take a minute; Axolotl's hybrid run stays among the tests of every change.
NAMES = [pytest.param(name, marks=pytest.mark.long) if name == "hybrid" else name for name in CASES]
OTHERS = ["ddp", "fsdp2", pytest.param("hybrid", marks=pytest.mark.long)]


@pytest.fixture(scope="module")
def ran(tiny_world: Any, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Run]:
    """Each case launched at most once; what failed fails again at once."""
    folder = tmp_path_factory.mktemp("accelerate")
    done: dict[str, Run | AssertionError] = {}

    def run(name: str) -> Run:
        if name not in done:
            try:
                done[name] = launch(new_project(folder / name, tiny_world, CASES[name]))
            except AssertionError as error:
                done[name] = error
        found = done[name]
        if isinstance(found, AssertionError):
            raise found
        return found

    return run


@pytest.mark.parametrize("name", NAMES)
def test_what_ran_is_what_the_recipe_says(ran: Callable[[str], Run], name: str) -> None:
    run, case = ran(name), CASES[name]
    recipe, setup, seen = run.project.recipe, run.one("setup"), run.one("precision")
    mesh, precision = recipe.parallelism, recipe.precision
    assert recipe.trainer == "accelerate"
    assert recipe.gradient_accumulation == 2
    assert recipe.global_batch_size == GLOBAL_BATCH
    assert setup["distributed_type"] == case["type"]
    assert setup["processes"] == mesh.world_size
    assert setup["mesh"] == case.get("mesh")
    assert setup["gradient_checkpointing"] is recipe.activation_checkpointing
    if mesh.strategy.is_fsdp:
        assert setup["placements"].count("Shard(dim=0)") == 1
        assert setup["placements"].count("Replicate") == (1 if mesh.dp_replicate > 1 else 0)
        assert setup["sharded_modules"] == 3  # two layers and the root
        assert setup["reduction"] == TORCH[precision.reduction]
    elif mesh.world_size > 1:
        assert setup["wrapper"] == "DistributedDataParallel"
    assert setup["mixed_precision"] == ("bf16" if precision.compute is Dtype.BF16 else "no")
    assert set(setup["trainable"]) == {TORCH[precision.trainable]}
    assert set(seen["gradients"]) == {TORCH[precision.gradients]}
    assert {d for moment in ("exp_avg", "exp_avg_sq") for d in seen["states"][moment]} == {TORCH[precision.states]}
    if recipe.adapter is None:
        assert setup["frozen"] == {}
    elif precision.parameters is Dtype.NF4:
        assert "bfloat16" in setup["frozen"]  # two 4-bit weights are stored in each byte of a bf16 number
    else:
        assert set(setup["frozen"]) == {TORCH[precision.parameters]}


@pytest.mark.parametrize("name", NAMES)
def test_the_trained_parameters_are_counted(ran: Callable[[str], Run], name: str) -> None:
    from safetensors import safe_open

    from recipegen.catalog import load_model
    from recipegen.estimate import parameters

    run = ran(name)
    recipe = run.project.recipe
    shape = load_model(recipe.model)
    expected = (
        parameters.total(shape)
        if recipe.adapter is None
        else parameters.lora(shape, recipe.adapter.target_modules, recipe.adapter.r)
    )
    assert run.one("setup")["trainable_parameters"] == expected
    saved = (
        run.project.output_dir
        / "final"
        / ("model.safetensors" if recipe.adapter is None else "adapter_model.safetensors")
    )
    with safe_open(saved, "pt") as file:
        assert sum(file.get_tensor(key).numel() for key in file.keys()) == expected  # noqa: SIM118


@pytest.mark.parametrize("name", NAMES)
def test_the_loss_falls(ran: Callable[[str], Run], name: str) -> None:
    losses = ran(name).losses()
    assert len(losses) == STEPS
    assert mean(losses[-3:]) < mean(losses[:3]) - SPREAD_OVER_SEEDS, losses


@pytest.mark.parametrize("name", OTHERS)
def test_full_fine_tunes_agree_across_strategies(ran: Callable[[str], Run], name: str) -> None:
    """One seed, one global batch: the same numbers on one process, two, and four, sharded or not."""
    assert ran(name).losses() == pytest.approx(ran("single").losses(), abs=0.02)


@pytest.mark.parametrize("name", ["ddp", "fsdp2", "fsdp2-lora"])
def test_a_resumed_run_is_the_uninterrupted_one(ran: Callable[[str], Run], name: str) -> None:
    whole = ran(name)
    again = resumed(whole, f"{name}-resumed")
    assert again.one("resume")["step"] == CHECKPOINT
    assert again.steps() == {step: numbers for step, numbers in whole.steps().items() if step > CHECKPOINT}


@pytest.mark.long
def test_a_checkpoint_of_two_gpus_goes_on_on_four(ran: Callable[[str], Run]) -> None:
    again = resumed(ran("fsdp2"), "fsdp2-on-four", under=ran("hybrid").project)
    expected = [loss for step, (loss, _) in ran("fsdp2").steps().items() if step > CHECKPOINT]
    assert again.one("setup")["mesh"] == CASES["hybrid"]["mesh"]
    assert again.losses() == pytest.approx(expected, abs=0.02)


def test_what_was_exported_is_the_trained_model(ran: Callable[[str], Run]) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    folder = ran("fsdp2").project.output_dir / "final"
    loaded = AutoModelForCausalLM.from_pretrained(folder)
    start = AutoModelForCausalLM.from_pretrained(ran("fsdp2").project.recipe.model)
    assert type(loaded).__name__ == "LlamaForCausalLM"
    assert loaded.dtype is torch.bfloat16
    moved = [not torch.equal(a, b) for a, b in zip(loaded.parameters(), start.parameters(), strict=True)]
    assert all(moved)


def test_only_as_many_checkpoints_as_asked_are_kept(ran: Callable[[str], Run]) -> None:
    run = ran("fsdp2")
    kept = sorted(path.name for path in run.project.output_dir.glob("checkpoint-*"))
    assert len(kept) == min(2, run.project.recipe.saving.save_total_limit)
    assert not list(run.project.output_dir.glob("incomplete-*"))


def test_another_number_of_processes_is_refused(ran: Callable[[str], Run]) -> None:
    """Without the shim, on a machine without GPUs, every rank is alone: train.py must not train."""
    project = ran("ddp").project
    environment = harness.clean_environment() | {"HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""}
    copy = project.folder.with_name("alone")
    shutil.copytree(project.folder, copy, ignore=shutil.ignore_patterns("outputs"))
    ran_alone = subprocess.run(
        ["bash", str(copy / "launch.sh")], capture_output=True, text=True, env=environment, timeout=300, check=False
    )
    assert ran_alone.returncode != 0
    assert "train.json is for ddp on 2 processes" in ran_alone.stderr
    assert not Path(copy / "outputs" / "checkpoint-6").exists()
    assert os.listdir(copy)
