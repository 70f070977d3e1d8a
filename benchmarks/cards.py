"""The `gpu` column: a card of the catalogue, or a nameless one of a stated size."""

from __future__ import annotations

import re
import statistics
from dataclasses import dataclass
from functools import cache

from recipegen.catalog import load_cluster
from recipegen.catalog.cluster import gpu_names
from recipegen.spec import Gpu
from recipegen.spec.units import GIB

_ALIASES = (
    (r"h100.*96|gh200", None),
    (r"a100.*40", "a100-40gb"),
    (r"a100|a800", "a100-80gb"),
    (r"h100|h800", "h100"),
    (r"pro 6000.*max", "rtx-pro-6000-max-q"),
    (r"pro 6000.*server", "rtx-pro-6000-server"),
    (r"pro 6000", "rtx-pro-6000"),
    (r"6000 ada", "rtx-6000-ada"),
    (r"3090", "rtx-3090"),
    (r"4090", "rtx-4090"),
    (r"4080", "rtx-4080"),
    (r"5090", "rtx-5090"),
    (r"l40s", "l40s"),
    (r"l40", "l40"),
    (r"\bl4\b", "l4"),
    (r"a10g?\b", "a10g"),
    (r"a6000", "a6000"),
    (r"a5000", "a5000"),
    (r"h200", "h200"),
    (r"b200", "b200"),
)

_LARGEST_GB = 1024  # beyond every card; a larger number is a slip


@dataclass(frozen=True)
class Card:
    """One GPU. `memory_bytes` is what PyTorch sees; None when neither name nor size is known. `gpu` has the rates."""

    name: str
    memory_bytes: int | None
    gpu: Gpu | None


@cache
def _gpu(slug: str) -> Gpu:
    return load_cluster(f"1x-{slug}").gpu


@cache
def usable_share() -> float:
    """What PyTorch sees of a card, as a share of the size it is sold with: the median over the catalogue."""
    seen = [_gpu(slug).memory_bytes / GIB for slug in gpu_names()]
    return statistics.median(gib / _sold(gib) for gib in seen)


def _sold(gib: float) -> float:
    sizes = (8, 10, 11, 12, 16, 20, 24, 32, 40, 48, 64, 80, 94, 96, 141, 180, 192, 288)
    return next(float(size) for size in sizes if size >= gib)


def card_of(text: str, size_gb: float | None) -> Card:
    """The card of a row's `gpu` and `gpu_mem_gb`; a size that is none counts as unsaid, then the name may have it."""
    size_gb = size_gb if size_gb and 1 <= size_gb <= _LARGEST_GB else None
    named = re.search(r"(\d+(?:\.\d+)?) ?gi?b\b", text.lower())
    if size_gb is None and named and 1 <= float(named[1]) <= _LARGEST_GB:
        size_gb = float(named[1])
    for pattern, slug in _ALIASES:
        if slug is not None and re.search(pattern, text.lower()):
            gpu = _gpu(slug)
            if size_gb is None or abs(gpu.memory_bytes / GIB / size_gb - 1.0) < 0.1:
                return Card(gpu.name, gpu.memory_bytes, gpu)
            return Card(f"{gpu.name}, {size_gb:g} GB", round(size_gb * usable_share() * GIB), gpu)
        if slug is None and re.search(pattern, text.lower()):
            break
    if size_gb is None:
        return Card("a card of unknown size", None, None)
    return Card(f"a {size_gb:g} GB card", round(size_gb * usable_share() * GIB), None)
