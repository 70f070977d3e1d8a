"""Does it fit: the GPU, the host, the disk."""

from __future__ import annotations

from collections.abc import Iterator

from recipegen.rules.registry import Context, Shortage, rule
from recipegen.spec import Severity, Verdict
from recipegen.spec.units import gb, gib

_SOURCE = "recipegen/estimate, docs/estimates.md"


@rule("RG101", "memory", Severity.ERROR, source=_SOURCE, needs_estimate=True)
def gpu_memory_is_enough(context: Context) -> Iterator[Shortage]:
    """The peak per GPU (allocated, the allocator's overhead, CUDA context, NCCL buffers) must stay below what
    PyTorch sees of the card. The message names the phase of the peak and its largest term, because that is what
    a cheaper recipe has to change."""
    gpu = context.costs.gpu
    if gpu.verdict is Verdict.DOES_NOT_FIT:
        largest = max(gpu.terms, key=lambda t: t.bytes)
        yield Shortage(
            f"GPU memory: {gib(gpu.needed_low_bytes)} or more needed of {gib(gpu.capacity_bytes)}; the peak is in "
            f"{_words(gpu.phase)}, its largest term {_words(largest.name)} ({gib(largest.bytes)})",
            "see the ways out",
            gpu.needed_low_bytes,
            gpu.capacity_bytes,
        )


@rule("RG102", "memory", Severity.WARNING, source=_SOURCE, needs_estimate=True)
def gpu_memory_is_not_tight(context: Context) -> Iterator[Shortage]:
    """Inside the error band of the estimate the run may die at its peak. It is worth a smaller micro-batch or a
    measured run before it is left alone."""
    gpu = context.costs.gpu
    if gpu.verdict is Verdict.TIGHT:
        yield Shortage(
            f"GPU memory is tight: {gib(gpu.needed_low_bytes)} to {gib(gpu.needed_high_bytes)} needed of "
            f"{gib(gpu.capacity_bytes)} per GPU",
            "measure the first steps before leaving it alone",
            gpu.needed_bytes,
            gpu.capacity_bytes,
        )


@rule("RG110", "host", Severity.ERROR, source=_SOURCE, needs_estimate=True)
def host_memory_is_enough(context: Context) -> Iterator[Shortage]:
    """Host RAM per node: what loading holds at once (every rank's copy of the checkpoint unless loading is really
    shared), and what training keeps there (offloaded states, pinned buffers, data loading). A host that runs out
    kills ranks without a Python error."""
    host = context.costs.host
    if host.peak_bytes > host.capacity_bytes:
        at = {"loading": host.load_peak_bytes, "training": host.steady_bytes, "saving": host.save_peak_bytes}
        when = max(at, key=lambda name: at[name])
        largest = max(host.terms, key=lambda t: t.bytes)
        yield Shortage(
            f"host RAM: {gb(host.peak_bytes)} needed while {when} of {gb(host.capacity_bytes)} per node; "
            f"the largest term is {_words(largest.name)} ({gb(largest.bytes)})",
            "more host RAM (--hardware-override host_ram_gib=N), or a strategy that keeps less there",
            host.peak_bytes,
            host.capacity_bytes,
        )


@rule("RG120", "disk", Severity.ERROR, source=_SOURCE, needs_estimate=True)
def disk_is_enough(context: Context) -> Iterator[Shortage]:
    """The download, the prepared data, save_total_limit + 1 checkpoints (the new one is written before the oldest
    goes) and NVMe swap must fit the disk: a full disk at a checkpoint loses the run."""
    disk = context.costs.disk
    if disk.total_bytes > disk.capacity_bytes:
        yield Shortage(
            f"disk: {gb(disk.total_bytes)} needed of {gb(disk.capacity_bytes)} per node "
            f"({disk.checkpoints_kept} checkpoints of {gb(disk.checkpoint_bytes)}, download {gb(disk.download_bytes)}, "
            f"swap {gb(disk.swap_bytes)})",
            "--set save_total_limit=1, or a larger disk (--hardware-override nvme_gb=N)",
            disk.total_bytes,
            disk.capacity_bytes,
        )


def _words(name: str) -> str:
    return name.replace("_", " ")
