"""What DeepSpeed's ZeRO really keeps, seen in two gloo processes, and how Accelerate hands it an optimizer."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from recipegen.catalog.stack import load_stack
from recipegen.spec import Dtype, Method, Precision, Strategy

pytestmark = pytest.mark.long
HERE = Path(__file__).parent
TORCH = {Dtype.BF16: "torch.bfloat16", Dtype.FP32: "torch.float32"}


def report(stage: int, offload: str, load: str) -> dict[str, Any]:
    environment = {**os.environ, "DS_ACCELERATOR": "cpu", "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2", "--master_port", "29641"]
    done = subprocess.run(
        [*command, str(HERE / "dtypes_zero.py"), str(stage), offload, load],
        capture_output=True,
        text=True,
        env=environment,
        timeout=900,
        check=False,
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("REPORT ")]
    assert lines, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(lines[0].removeprefix("REPORT "))
    return found


@pytest.mark.parametrize(
    ("stage", "offload", "load", "strategy"),
    [
        (2, "none", "bf16", Strategy.ZERO2),
        (2, "none", "fp32", Strategy.ZERO2),
        (3, "cpu", "bf16", Strategy.ZERO3_CPU),
    ],
)
def test_zero_keeps_bf16_gradients_and_an_fp32_master(stage: int, offload: str, load: str, strategy: Strategy) -> None:
    p: Precision = load_stack().precision("accelerate", strategy, Method.FULL, "adamw_torch_fused", Dtype(load))
    seen = report(stage, offload, load)
    assert seen["world_size"] == 2
    assert seen["parameters"] == [TORCH[p.parameters]]  # embeddings too, though the model was loaded with them in fp32
    assert seen["gradients"] == [TORCH[p.gradients]]
    assert seen["reduction"] == TORCH[p.reduction]
    assert p.master is not None
    assert seen["master"] == [TORCH[p.master]]
    assert seen["states"] == [TORCH[p.states]]


def test_accelerate_drops_betas_when_it_offloads_an_optimizer() -> None:
    """Why deepspeed.json carries an optimizer section under offload."""
    import torch
    from accelerate.utils.deepspeed import map_pytorch_optim_to_deepspeed

    original = torch.optim.AdamW([torch.nn.Parameter(torch.zeros(2))], lr=1e-5, betas=(0.8, 0.9), eps=1e-6)
    replaced = map_pytorch_optim_to_deepspeed(original)
    assert type(replaced).__name__ == "DeepSpeedCPUAdam"
    assert replaced.defaults["lr"] == 1e-5
    assert tuple(replaced.defaults["betas"]) == (0.9, 0.999)
    assert replaced.defaults["eps"] == 1e-8
