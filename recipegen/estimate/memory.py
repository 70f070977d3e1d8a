"""GPU memory: the peak over phases, and what the card must have for it.

    allocated = max over phases of the sum of their terms
    reserved  = lasting + (1 + spread) x passing + cuBLAS workspace + CUDA context + NCCL buffers

`spread` is a band (low, central, high) from published pairs of nvidia-smi and torch's peak allocated; see
recipegen/catalog/planning.yaml. Capacity is what PyTorch sees of the card.
"""

from __future__ import annotations

from recipegen.catalog.planning import planning
from recipegen.estimate.lasting import LASTING
from recipegen.estimate.loss import logits_are_kept
from recipegen.estimate.phases import phases
from recipegen.estimate.symbols import Symbols
from recipegen.spec import GpuMemory, Phase


def reserved_bytes(phase: Phase, spread: float) -> int:
    """What PyTorch reserves for a phase when its allocator spreads the passing terms by `spread`."""
    lasting = sum(term.bytes for term in phase.terms if term.name in LASTING)
    passing = phase.bytes - lasting
    return round(lasting + (1.0 + spread) * passing + planning().cublas_workspace_bytes)


def outside_bytes(processes: int) -> int:
    """What lies on the card beside PyTorch's allocator: the CUDA context, and NCCL's buffers of several ranks."""
    constants = planning()
    return round(constants.cuda_context_bytes + (constants.nccl_buffer_bytes if processes > 1 else 0.0))


def gpu_memory(
    x: Symbols, capacity_bytes: int, *, varying_lengths: bool = False, loading: bool = True
) -> GpuMemory:
    """Phases, peak and the band of reserved bytes on one GPU (rank 0, which holds the largest shards).

    `varying_lengths`: batches change their shape from step to step, which fragments the allocator.
    `loading` False leaves the load phase out, for runs whose loader is not one of ours.
    """
    moments = tuple(phase for phase in phases(x) if loading or phase.name != "load")
    peak = max(moments, key=lambda phase: phase.bytes)
    band = planning().spread(sharded=x.fsdp or x.zero2 or x.zero3, logits=logits_are_kept(x))

    def reserved(spread: float) -> int:
        return max(reserved_bytes(phase, spread) for phase in moments)

    return GpuMemory(
        phases=moments,
        peak_allocated_bytes=peak.bytes,
        peak_reserved_bytes=reserved(band.central),
        reserved_low_bytes=reserved(band.low),
        reserved_high_bytes=reserved(band.high),
        capacity_bytes=capacity_bytes,
        phase=peak.name,
        outside_bytes=outside_bytes(x.W),
        allocated_low_bytes=peak.bytes,
        allocated_high_bytes=peak.bytes,
    )
