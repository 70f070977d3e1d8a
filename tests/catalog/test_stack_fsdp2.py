"""FSDP2 and DDP in two real gloo processes: what is kept, and in which dtype gradients are reduced."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from recipegen.catalog.stack import load_stack
from recipegen.spec import Dtype, Method, Precision, Strategy

pytestmark = pytest.mark.run
HERE = Path(__file__).parent
SHIM = HERE.parent / "trainers" / "cpu_shim"
TORCH = {Dtype.BF16: "torch.bfloat16", Dtype.FP32: "torch.float32"}
CASES = {
    "ddp": ("ddp fp32 full", "ddp bf16 full", "ddp bf16 lora"),
    "sharded": (
        "accelerate fp32 full",
        "accelerate bf16 full",
        "accelerate bf16 lora",
        "axolotl bf16 full",
        "axolotl bf16 lora",
    ),
}


@cache
def reports(mode: str) -> dict[str, Any]:
    """One start of two ranks for all cases of a mode: starting costs more than the steps."""
    environment = {
        **os.environ,
        "RECIPEGEN_TEST_CPU": mode,
        "PYTHONPATH": str(SHIM),
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2", "--master_port", "29643"]
    done = subprocess.run(
        [*command, str(HERE / "dtypes_two_ranks.py"), *CASES[mode]],
        capture_output=True,
        text=True,
        env=environment,
        timeout=600,
        check=False,
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("REPORT ")]
    assert lines, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(lines[0].removeprefix("REPORT "))
    return found


def matches(seen: dict[str, Any], p: Precision, *, adapter: bool = False) -> None:
    assert seen["world_size"] == 2
    assert seen["trainable"] == [TORCH[p.trainable]]
    assert seen["gradients"] == [TORCH[p.gradients]]
    assert seen["states"] == [TORCH[p.states]]
    assert seen["reduction"] == [TORCH[p.reduction]]
    assert seen["frozen"] == ([TORCH[p.parameters]] if adapter else [])


@pytest.mark.parametrize("load", [Dtype.FP32, Dtype.BF16])
def test_accelerate_keeps_the_loaded_dtype(load: Dtype) -> None:
    """Accelerate 1.13 warns of an upcast to fp32 and does none; 1.15 does it, and needs twice the memory."""
    seen = reports("sharded")[f"accelerate {load.value} full"]
    assert "FSDP" in seen["distributed_type"]
    matches(seen, load_stack().precision("accelerate", Strategy.FSDP2_FULL, Method.FULL, "adamw_torch_fused", load))


def test_axolotl_does_not_upcast() -> None:
    seen = reports("sharded")["axolotl bf16 full"]
    assert "FSDP" in seen["distributed_type"]
    matches(seen, load_stack().precision("axolotl", Strategy.FSDP2_FULL, Method.FULL, "adamw_torch_fused", Dtype.BF16))


@pytest.mark.parametrize("trainer", ["axolotl", "accelerate"])
def test_adapters_stay_fp32_and_reduce_in_bf16(trainer: str) -> None:
    seen = reports("sharded")[f"{trainer} bf16 lora"]
    p = load_stack().precision(trainer, Strategy.FSDP2_FULL, Method.LORA, "adamw_torch_fused", Dtype.BF16)
    matches(seen, p, adapter=True)


@pytest.mark.parametrize(
    ("load", "method"), [(Dtype.FP32, Method.FULL), (Dtype.BF16, Method.FULL), (Dtype.BF16, Method.LORA)]
)
def test_ddp_reduces_in_the_dtype_of_the_gradients(load: Dtype, method: Method) -> None:
    seen = reports("ddp")[f"ddp {load.value} {method.value}"]
    p = load_stack().precision("accelerate", Strategy.DDP, method, "adamw_torch_fused", load)
    assert p.reduction is p.gradients
    matches(seen, p, adapter=method.is_adapter)
