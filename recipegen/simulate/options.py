"""What a simulation may be told beside the recipe."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


def _nothing() -> None:
    """Nobody waits for the measured step."""


@dataclass(frozen=True)
class Options:
    """`compiled_loss`: the GPU can run the compiled chunked loss (Triton). `split_root`: embeddings and head in FSDP2
    groups of their own, as FSDP1 wrapped them. `adapter_groups`: lora_A and lora_B in groups of their own; None is what
    the recipe's trainer does (Axolotl does). `real_tensors`: run on CPU memory, to compare with a real allocator;
    `on_start` is called when the measured step begins."""

    compiled_loss: bool = True
    split_root: bool = False
    adapter_groups: bool | None = None
    real_tensors: bool = False
    on_start: Callable[[], None] = _nothing
