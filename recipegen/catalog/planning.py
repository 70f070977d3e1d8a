"""Planning constants as data: planning.yaml, read once. Formulas live in `recipegen.estimate`."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml


@dataclass(frozen=True)
class Band:
    """A low, a central and a high value of the same quantity."""

    low: float
    central: float
    high: float


@dataclass(frozen=True)
class Planning:
    """planning.yaml with its values alone; units, marks and sources stay in the file, under the same names."""

    one_gpu_without_logits: Band
    one_gpu_with_logits: Band
    fsdp_without_logits: Band
    fsdp_with_logits: Band
    cuda_context_bytes: float
    nccl_buffer_bytes: float
    cublas_workspace_bytes: float
    zero3_live_parameters: float
    zero_overlap_buckets: float
    chunked_loss_chunks: float
    offloaded_layers_in_flight: float
    rank_process_bytes: float
    dataloader_worker_bytes: float
    batch_bytes_per_token: float
    cpu_offload_overhead: float
    nvme_swap_tensors: float
    prepared_bytes_per_token: float
    qlora_compute_factor: float
    overlap: float

    def spread(self, *, sharded: bool, logits: bool) -> Band:
        """How far the allocator spreads the passing part of the peak, as a share of it."""
        if sharded:
            return self.fsdp_with_logits if logits else self.fsdp_without_logits
        return self.one_gpu_with_logits if logits else self.one_gpu_without_logits


def planning_table() -> dict[str, Any]:
    """planning.yaml as it is: name -> {value, unit, mark, source}."""
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    text = Path(__file__).with_name("planning.yaml").read_text(encoding="utf-8")
    data: dict[str, Any] = yaml.load(text, Loader=loader)  # noqa: S506  (a safe loader, in C where there is one)
    return data


@lru_cache(maxsize=1)
def planning() -> Planning:
    """The constants, read once per process."""
    table = planning_table()
    values: dict[str, Any] = {}
    for name, row in table.pop("allocator_spread").items():
        if isinstance(row, dict):
            values[name] = Band(**row)
    values.update((name, float(row["value"])) for name, row in table.items())
    return Planning(**values)
