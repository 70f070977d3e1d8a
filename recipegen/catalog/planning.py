"""Planning constants as data: planning.yaml, read once. Formulas live in `recipegen.estimate`."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any


@dataclass(frozen=True)
class Spread:
    """What the allocator reserves beyond what is allocated: shares of the logits and of the other passing bytes;
    `low` and `high` times both are the ends of the band; `needed_*` are the shares that a nearly full card had."""

    logits: float
    other: float
    low: float
    high: float
    needed_logits: float
    needed_other: float
    typical: float = 0.0  # share of the logits of a batch of typical length, beside those of the longest


@dataclass(frozen=True)
class Planning:
    """planning.yaml with its values alone; units, marks and sources stay in the file, under the same names."""

    one_gpu: Spread
    fsdp2: Spread
    second_stream_adapter: Spread
    second_stream_full: Spread
    shifted_logits: Spread
    varying_lengths: Spread
    emptied_cache: Spread
    allocated_band: float
    cuda_context_bytes: float
    nccl_buffer_bytes: float
    cublas_workspace_bytes: float
    zero3_live_parameters: float
    zero_overlap_buckets: float
    chunked_loss_chunks: float
    train_py_loss_chunk: float
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

    def spread(self, driver: str) -> Spread:
        """How far the allocator spreads the passing part of a phase, by what drives it."""
        found: Spread = getattr(self, driver)
        return found


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
