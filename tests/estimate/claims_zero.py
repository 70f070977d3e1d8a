"""Bytes that DeepSpeed holds in each part of a step on rank 0 of two, as JSON on stdout.

The process group is torch's fake one, which sends nothing: gloo frees in threads that the profiler does not see.

usage: claims_zero.py "STAGE OVERLAP ACCUMULATION BUCKET" ...   (2 | 3, 0 | 1, micro-batches, layers that fill a bucket)

Units are bytes per parameter, with the bf16 parameters: DeepSpeed makes its own copy of them, and the release of what
was allocated before the profiler began is not seen.
"""

from __future__ import annotations

import gc
import json
import sys
from typing import Any

import torch
from cpu_allocations import measured
from torch import nn

WIDTH, LAYERS = 256, 12
PARAMETERS = LAYERS * WIDTH * WIDTH


class Stack(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH, bias=False, dtype=torch.bfloat16) for _ in range(LAYERS))

    def forward(self, x: Any) -> Any:
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return x.float().sum()


def engine(model: Any, stage: int, overlap: bool, accumulation: int, bucket: int) -> Any:
    import deepspeed

    zero: dict[str, Any] = {
        "stage": stage,
        "overlap_comm": overlap,
        "contiguous_gradients": True,
        "reduce_bucket_size": bucket * WIDTH * WIDTH,
    }
    if stage == 3:
        zero |= {"stage3_param_persistence_threshold": 0, "stage3_prefetch_bucket_size": WIDTH * WIDTH}
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": accumulation,
        "gradient_clipping": 1.0,
        "bf16": {"enabled": True},
        "zero_optimization": zero,
        "zero_allow_untested_optimizer": True,
    }
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    return deepspeed.initialize(model=model, optimizer=optimizer, config=config, dist_init_required=False)[0]


def run(stage: int, overlap: bool, accumulation: int, bucket: int) -> dict[str, Any]:
    """The moments of the second step: forward, backward (of each micro-batch) and step, and what lived before."""
    model = Stack()
    held: dict[str, Any] = {}
    source = torch.ones(1, WIDTH, dtype=torch.bfloat16)

    def start() -> None:
        held["engine"] = engine(model, stage, overlap, accumulation, bucket)
        gc.collect()

    def forward() -> None:
        held["loss"] = held["engine"](source)

    def backward() -> None:
        held["engine"].backward(held.pop("loss"))
        gc.collect()

    def step() -> None:
        with torch.no_grad():  # gloo's all_gather writes into views that autograd tracks
            held["engine"].step()
        gc.collect()

    micro = [forward, backward, step]
    names = ["start"] + [f"first {i}" for i in range(3 * accumulation)]
    names += [f"{name} {i + 1}" for i in range(accumulation) for name in ("forward", "backward", "step")]
    moments = measured(start, *micro * (2 * accumulation))
    out: dict[str, Any] = {}
    for name, moment in zip(names, moments, strict=True):
        out[name] = {"peak": moment.peak / PARAMETERS, "left": moment.left / PARAMETERS}
    out["partition"] = partition(held["engine"].optimizer, stage)
    return out


def partition(optimizer: Any, stage: int) -> float:
    """Share of all parameters whose fp32 master this rank holds."""
    groups = optimizer.single_partition_of_fp32_groups if stage == 2 else optimizer.fp32_partitioned_groups_flat
    return sum(int(group.numel()) for group in groups) / PARAMETERS


if __name__ == "__main__":
    from torch.testing._internal.distributed.fake_pg import FakeStore

    torch.distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    found = {case: run(*(int(word) for word in case.split())) for case in sys.argv[1:]}
    print("REPORT " + json.dumps(found), flush=True)
