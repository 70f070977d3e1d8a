"""GPU memory: the peak over phases, and what the card must have for it.

    allocated = max over phases of the sum of their terms
    reserved  = max over phases of lasting + (1 + a) logits + (1 + b) other passing terms, + cuBLAS workspace
    needed    = reserved + CUDA context + NCCL buffers

The shares a and b, their band and the band of the allocated bytes are in recipegen/catalog/planning.yaml, fitted on
published measurements; docs/accuracy.md says how well they do. Capacity is what PyTorch sees of the card.
"""

from __future__ import annotations

from recipegen.catalog.planning import planning
from recipegen.estimate.lasting import LASTING
from recipegen.estimate.phases import phases
from recipegen.estimate.symbols import Symbols
from recipegen.spec import GpuMemory, Phase

_LOGITS = "logits_and_loss"


def _parts(phase: Phase) -> tuple[int, int, int]:
    """Bytes of a phase that last, that are logits and loss, and the other passing ones."""
    lasting = sum(term.bytes for term in phase.terms if term.name in LASTING)
    logits = sum(term.bytes for term in phase.terms if term.name == _LOGITS)
    return lasting, logits, phase.bytes - lasting - logits


def reserved_bytes(phase: Phase, logits_share: float, other_share: float) -> int:
    """What PyTorch reserves for a phase when its allocator spreads logits and other passing terms by these shares."""
    lasting, logits, other = _parts(phase)
    spread = logits_share * logits + other_share * other
    return round(lasting + logits + other + spread + planning().cublas_workspace_bytes)


def outside_bytes(processes: int) -> int:
    """What lies on the card beside PyTorch's allocator: the CUDA context, and NCCL's buffers of several ranks."""
    constants = planning()
    return round(constants.cuda_context_bytes + (constants.nccl_buffer_bytes if processes > 1 else 0.0))


def spread_driver(x: Symbols, *, varying_lengths: bool = False) -> str:
    """What decides how far the allocator spreads: an entry of allocator_spread in planning.yaml."""
    if x.zero2 or x.zero3 or (x.fsdp and x.fsdp_version == 1):
        return "second_stream_full" if x.full else "second_stream_adapter"
    if varying_lengths:
        return "varying_lengths"
    return "fsdp2" if x.fsdp else "one_gpu"


def gpu_memory(x: Symbols, capacity_bytes: int, *, varying_lengths: bool = False, loading: bool = True) -> GpuMemory:
    """Phases, peak and the bands on one GPU (rank 0, which holds the largest shards).

    `varying_lengths`: batches change their shape from step to step and the allocator's segments cannot grow.
    `loading` False leaves the load phase out, for runs whose loader is not one of ours.
    """
    moments = tuple(phase for phase in phases(x) if loading or phase.name != "load")
    peak = max(moments, key=lambda phase: phase.bytes)
    constants = planning()
    spread = constants.spread(spread_driver(x, varying_lengths=varying_lengths))
    _, logits, other = _parts(peak)
    off = round(constants.allocated_band * (logits + other))
    outside = outside_bytes(x.W)

    def reserved(factor: float) -> int:
        return max(reserved_bytes(phase, factor * spread.logits, factor * spread.other) for phase in moments)

    low = reserved(spread.low)
    # the allocator gives blocks back before it fails: where the peak fits, it reserves no more than there is
    room = max(capacity_bytes - outside, low)
    return GpuMemory(
        phases=moments,
        peak_allocated_bytes=peak.bytes,
        peak_reserved_bytes=min(reserved(1.0), room),
        reserved_low_bytes=low - off,
        reserved_high_bytes=reserved(spread.high) + off,
        capacity_bytes=capacity_bytes,
        phase=peak.name,
        outside_bytes=outside,
        needed_low_bytes=low + outside,
        needed_high_bytes=max(reserved_bytes(p, spread.needed_logits, spread.needed_other) for p in moments)
        + off
        + outside,
        allocated_low_bytes=peak.bytes - off,
        allocated_high_bytes=peak.bytes + off,
    )
