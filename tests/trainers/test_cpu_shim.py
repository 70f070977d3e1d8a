"""The CPU shim replaces the attributes of its list and nothing else, and is off unless asked for."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.trainers.harness import HERE, SHIM, clean_environment

BF16 = "transformers.training_args.is_torch_bf16_gpu_available"
PARALLEL = [
    "accelerate.state.PartialState._prepare_backend",
    BF16,
    "transformers.modeling_utils.PreTrainedModel.from_pretrained",
]
MESH = "accelerate.parallelism_config.ParallelismConfig.build_device_mesh"
ZERO_STEP = "deepspeed.runtime.zero.stage_1_and_2.DeepSpeedZeroOptimizer.step"


def python(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    env = clean_environment() | {"PYTHONPATH": str(SHIM), **environment}
    return subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, env=env, timeout=300, check=False
    )


def changed(*groups: str) -> dict[str, list[str]]:
    ran = python(str(HERE / "compare_attributes.py"), *groups)
    assert ran.returncode == 0, ran.stderr[-2000:]
    line = next(line for line in ran.stdout.splitlines() if line.startswith("CHANGED "))
    found = json.loads(line.removeprefix("CHANGED "))
    assert found["compared"] > 50_000  # the trainers really were loaded
    return dict(found["changed"])


@pytest.mark.stack
def test_only_the_listed_attributes_differ() -> None:
    assert changed("single", "ddp", "sharded", "seed", "probe") == {
        "single": [BF16],
        "ddp": sorted(PARALLEL),
        "sharded": sorted([*PARALLEL, MESH]),
        "seed": ["axolotl.integrations.base.PluginManager.pre_lora_load"],
        "probe": ["transformers.trainer.Trainer.train"],
    }


@pytest.mark.long
def test_deepspeed_adds_one_attribute() -> None:
    assert changed("deepspeed") == {"deepspeed": sorted([*PARALLEL, ZERO_STEP])}


def test_without_its_variables_the_shim_does_nothing() -> None:
    code = "import sys; print(sorted(n for n in sys.modules if n in ('cpu_patches', 'import_hook', 'probe')))"
    ran = python("-c", code)
    assert ran.stdout.strip() == "[]"
    code = "import sys; print([type(finder).__module__ for finder in sys.meta_path])"
    assert "import_hook" not in python("-c", code).stdout


def test_only_workers_of_a_parallel_run_are_patched() -> None:
    """`accelerate launch` itself and the preparation of the data see nothing of it."""
    code = "import os, sys; print(len(sys.meta_path), 'ACCELERATE_TORCH_DEVICE' in os.environ)"
    plain = python("-c", code).stdout.split()[0]
    launcher = python("-c", code, RECIPEGEN_TEST_CPU="sharded").stdout.split()
    assert launcher == [plain, "False"]
    worker = python("-c", code, RECIPEGEN_TEST_CPU="sharded", LOCAL_RANK="0", WORLD_SIZE="2").stdout.split()
    assert worker == [str(int(plain) + 1), "True"]


def test_a_misspelt_mode_is_an_error() -> None:
    ran = python("-c", "print('went on')", RECIPEGEN_TEST_CPU="fsdp")
    assert "it must be one of single, ddp, sharded, deepspeed" in ran.stderr
    assert "went on" not in ran.stdout


@pytest.mark.stack
def test_observing_changes_no_number(tmp_path: Path) -> None:
    """Three steps of a plain Trainer with and without the probe: losses, norms and weights equal bit for bit."""
    ran = python(str(HERE / "train_three_steps.py"), str(tmp_path))
    assert ran.returncode == 0, ran.stderr[-2000:]
    line = next(line for line in ran.stdout.splitlines() if line.startswith("RESULTS "))
    results = json.loads(line.removeprefix("RESULTS "))
    assert results["observed"] == results["alone"]
    report = json.loads((tmp_path / "report" / "rank-0.json").read_text())
    assert [step["loss"] for step in report["steps"]] == results["alone"]["losses"]
