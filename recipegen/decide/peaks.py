"""GPU memory during one decision: asked of each set of symbols once."""

from __future__ import annotations

from dataclasses import replace

from recipegen.estimate.memory import gpu_memory
from recipegen.estimate.symbols import Symbols
from recipegen.spec import GpuMemory

_ACCUMULATES = 2  # micro-batches; memory asks only whether a step has more than one (tests/decide/test_peaks.py)


class Peaks:
    """`gpu_memory` that remembers. The search probes a micro-batch, prices it, and meets it again in a smaller global
    batch, where only the number of micro-batches differs, and in a way out."""

    def __init__(self) -> None:
        self._known: dict[tuple[Symbols, int], GpuMemory] = {}

    def __call__(self, x: Symbols, capacity_bytes: int) -> GpuMemory:
        if x.accumulation > _ACCUMULATES:
            x = replace(x, accumulation=_ACCUMULATES)
        key = (x, capacity_bytes)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = gpu_memory(x, capacity_bytes)
        return found
