"""Planning constants as data: planning.yaml, read once. Formulas live in `recipegen.estimate`."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any


@dataclass(frozen=True)
class Spread:
    """What the allocator reserves beyond what is allocated: shares of the logits and of the other passing bytes;
    `low` and `high` times both are the ends of the band, `needed` times both what a nearly full card must have."""

    logits: float
    other: float
    low: float
    needed: float
    high: float


@dataclass(frozen=True)
class Planning:
    """planning.yaml with its values alone; units, marks and sources stay in the file, under the same names."""

    one_gpu: Spread
    sharded_adapter: Spread
    sharded_full: Spread
    varying_lengths: Spread
    allocated_band: float
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
    nvme_swap_tensors: float
    prepared_bytes_per_token: float
    matmul_share: float
    memory_share: float
    flash_attention_share: float
    masked_attention_share: float
    kernel_launch_s: float
    zero3_fetch_s: float
    overlap: float

    def spread(self, *, sharded: bool, full: bool, varying_lengths: bool) -> Spread:
        """How far the allocator spreads the passing part of a phase."""
        if varying_lengths and not sharded:
            return self.varying_lengths
        if not sharded:
            return self.one_gpu
        return self.sharded_full if full else self.sharded_adapter


def planning_table() -> dict[str, Any]:
    """planning.yaml as it is: name -> {value, unit, mark, source}."""
    from pathlib import Path  # here: the formulas are imported without reading anything

    from recipegen.catalog.reading import load_yaml

    return dict(load_yaml(Path(__file__).with_name("planning.yaml")))


@lru_cache(maxsize=1)
def planning() -> Planning:
    """The constants, read once per process."""
    table = planning_table()
    values: dict[str, Any] = {}
    for name, row in table.pop("allocator_spread").items():
        if isinstance(row, dict):
            values[name] = Spread(**row)
    values.update((name, float(row["value"])) for name, row in table.items())
    return Planning(**values)
