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
    lasting = logits = other = 0
    for term in phase.terms:
        if term.name in LASTING:
            lasting += term.bytes
        elif term.name == _LOGITS:
            logits += term.bytes
        else:
            other += term.bytes
    return lasting, logits, other


def reserved_bytes(phase: Phase, logits_share: float, other_share: float) -> int:
    """What PyTorch reserves for a phase when its allocator spreads logits and other passing terms by these shares."""
    return _reserved(_parts(phase), logits_share, other_share)


def _reserved(parts: tuple[int, int, int], logits_share: float, other_share: float) -> int:
    lasting, logits, other = parts
    spread = logits_share * logits + other_share * other
    return round(lasting + logits + other + spread + planning().cublas_workspace_bytes)


def outside_bytes(processes: int) -> int:
    """What lies on the card beside PyTorch's allocator: the CUDA context, and NCCL's buffers of several ranks."""
    constants = planning()
    return round(constants.cuda_context_bytes + (constants.nccl_buffer_bytes if processes > 1 else 0.0))


def spread_driver(x: Symbols, habit: str | None = None) -> str:
    """What decides how far the allocator spreads: an entry of allocator_spread in planning.yaml.

    `habit` is one that a trainer of its own has (varying_lengths, emptied_cache, shifted_logits); a second stream
    outweighs it.
    """
    if x.zero2 or x.zero3 or (x.fsdp and x.fsdp_version == 1):
        return "second_stream_full" if x.full else "second_stream_adapter"
    if habit:
        return habit
    return "fsdp2" if x.fsdp else "one_gpu"


def gpu_memory(
    x: Symbols, capacity_bytes: int, *, habit: str | None = None, typical_length: float = 1.0, loading: bool = True
) -> GpuMemory:
    """Phases, peak and the bands on one GPU (rank 0, which holds the largest shards).

    `habit`: see `spread_driver`; the trainers that are generated have none. `typical_length`: a usual batch's tokens
    over those of the longest, for lengths that vary.
    `loading` False leaves the load phase out, for runs whose loader is not one of ours.
    """
    moments = tuple(phase for phase in phases(x) if loading or phase.name != "load")
    parts = [_parts(phase) for phase in moments]
    peak = max(moments, key=lambda phase: phase.bytes)
    constants = planning()
    spread, band = constants.spread(spread_driver(x, habit)), constants.allocated_band
    logits = spread.logits + spread.typical * typical_length
    outside = outside_bytes(x.W)

    def reserved(logits_share: float, other_share: float) -> int:
        return max(_reserved(p, logits_share, other_share) for p in parts)

    def allocated(share: float) -> int:
        return max(round(p[0] + (1 + share) * (p[1] + p[2])) for p in parts)

    low = reserved(spread.low * logits, spread.low * spread.other)
    # the allocator gives blocks back before it fails: where the peak fits, it reserves no more than there is
    room = max(capacity_bytes - outside, low)
    return GpuMemory(
        phases=moments,
        peak_allocated_bytes=peak.bytes,
        peak_reserved_bytes=min(reserved(logits, spread.other), room),
        reserved_low_bytes=reserved(spread.low * logits - band, spread.low * spread.other - band),
        reserved_high_bytes=reserved(spread.high * logits + band, spread.high * spread.other + band),
        capacity_bytes=capacity_bytes,
        phase=peak.name,
        outside_bytes=outside,
        needed_low_bytes=low + outside,
        needed_high_bytes=reserved(spread.needed_logits + band, spread.needed_other + band) + outside,
        allocated_low_bytes=allocated(-band),
        allocated_high_bytes=allocated(band),
    )
