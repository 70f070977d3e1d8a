"""Does it fit: the GPU, the host, the disk."""

from __future__ import annotations

from collections.abc import Iterator

from recipegen.rules.registry import Context, rule
from recipegen.spec import Finding, Severity, Verdict
from recipegen.spec.units import gb, gib

_SOURCE = "recipegen/estimate, docs/estimates.md"


def binding_term(context: Context) -> tuple[str, int]:
    """The largest term of the peak phase: what to attack first. A name and its bytes."""
    term = max(context.costs.gpu.terms, key=lambda t: t.bytes)
    return term.name, term.bytes


@rule("RG101", "memory", Severity.ERROR, source=_SOURCE, needs_estimate=True)
def gpu_memory_is_enough(context: Context) -> Iterator[Finding]:
    """The peak per GPU (allocated, the allocator's overhead, CUDA context, NCCL buffers) must stay below what
    PyTorch sees of the card. The message names the phase of the peak and its largest term, because that is what
    a cheaper recipe has to change."""
    gpu = context.costs.gpu
    if gpu.verdict is not Verdict.DOES_NOT_FIT:
        return
    name, size = binding_term(context)
    yield Finding(
        "RG101",
        Severity.ERROR,
        "memory",
        f"GPU memory: {gib(gpu.reserved_low_bytes)} or more needed of {gib(gpu.capacity_bytes)}; "
        f"the peak is in {gpu.phase.replace('_', ' ')}, its largest term {name.replace('_', ' ')} ({gib(size)})",
        fix="see the ways out",
        source=_SOURCE,
        required_bytes=gpu.reserved_low_bytes,
        available_bytes=gpu.capacity_bytes,
    )


@rule("RG102", "memory", Severity.WARNING, source=_SOURCE, needs_estimate=True)
def gpu_memory_is_not_tight(context: Context) -> Iterator[Finding]:
    """Inside the error band of the estimate the run may die at its peak. It is worth a smaller micro-batch or a
    measured run before it is left alone."""
    gpu = context.costs.gpu
    if gpu.verdict is Verdict.TIGHT:
        yield Finding(
            "RG102",
            Severity.WARNING,
            "memory",
            f"GPU memory is tight: {gib(gpu.reserved_low_bytes)} to {gib(gpu.reserved_high_bytes)} needed of "
            f"{gib(gpu.capacity_bytes)} per GPU",
            fix="measure the first steps before leaving it alone",
            source=_SOURCE,
            required_bytes=gpu.peak_reserved_bytes,
            available_bytes=gpu.capacity_bytes,
        )


@rule("RG110", "host", Severity.ERROR, source=_SOURCE, needs_estimate=True)
def host_memory_is_enough(context: Context) -> Iterator[Finding]:
    """Host RAM per node: what loading holds at once (every rank's copy of the checkpoint unless loading is really
    shared), and what training keeps there (offloaded states, pinned buffers, data loading). A host that runs out
    kills ranks without a Python error."""
    host = context.costs.host
    if host.peak_bytes <= host.capacity_bytes:
        return
    when = "while loading" if host.load_peak_bytes >= host.steady_bytes else "while training"
    largest = max(host.terms, key=lambda t: t.bytes)
    yield Finding(
        "RG110",
        Severity.ERROR,
        "host",
        f"host RAM: {gb(host.peak_bytes)} needed {when} of {gb(host.capacity_bytes)} per node; "
        f"the largest term is {largest.name.replace('_', ' ')} ({gb(largest.bytes)})",
        fix="more host RAM (--hardware-override host_ram_gib=N), or a strategy that keeps less there",
        source=_SOURCE,
        required_bytes=host.peak_bytes,
        available_bytes=host.capacity_bytes,
    )


@rule("RG120", "disk", Severity.ERROR, source=_SOURCE, needs_estimate=True)
def disk_is_enough(context: Context) -> Iterator[Finding]:
    """The download, the prepared data, save_total_limit + 1 checkpoints (the new one is written before the oldest
    goes) and NVMe swap must fit the disk: a full disk at a checkpoint loses the run."""
    disk = context.costs.disk
    if disk.total_bytes <= disk.capacity_bytes:
        return
    yield Finding(
        "RG120",
        Severity.ERROR,
        "disk",
        f"disk: {gb(disk.total_bytes)} needed of {gb(disk.capacity_bytes)} per node "
        f"({disk.checkpoints_kept} checkpoints of {gb(disk.checkpoint_bytes)}, download {gb(disk.download_bytes)}, "
        f"swap {gb(disk.swap_bytes)})",
        fix="--set save_total_limit=1, or a larger disk (--hardware-override nvme_gb=N)",
        source=_SOURCE,
        required_bytes=disk.total_bytes,
        available_bytes=disk.capacity_bytes,
    )
