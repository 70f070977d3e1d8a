"""What a recipe costs: memory, host, disk, traffic, time. Bytes are whole numbers; rates say their unit."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Verdict(str, Enum):
    """`tight` is inside the measured error band of the estimate."""

    FITS = "fits"
    TIGHT = "tight"
    DOES_NOT_FIT = "does_not_fit"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Term:
    """One named part of a sum. `basis` says where the formula comes from (a section, a measurement's id)."""

    name: str
    phase: str
    bytes: int
    basis: str


@dataclass(frozen=True)
class Phase:
    """One moment of a step; its bytes are the sum of its terms."""

    name: str
    terms: tuple[Term, ...]

    @property
    def bytes(self) -> int:
        return sum(term.bytes for term in self.terms)


@dataclass(frozen=True)
class GpuMemory:
    """Peak per GPU: the maximum over phases, never a sum of maxima. Bytes.

    *allocated* and *reserved* are PyTorch's (`max_memory_allocated`, `max_memory_reserved`); the card must have what is
    reserved and `outside_bytes` beside it (CUDA context, NCCL). `peak_*` are planning values, `*_low/high` bound them
    with the coverage that docs/accuracy.md states. On a card with room more is reserved than is needed: the verdict
    compares `needed_low_bytes` and `needed_high_bytes` with `capacity_bytes`, which is what PyTorch sees of the card.
    """

    phases: tuple[Phase, ...]
    peak_allocated_bytes: int
    peak_reserved_bytes: int
    reserved_low_bytes: int
    reserved_high_bytes: int
    capacity_bytes: int
    phase: str
    outside_bytes: int = 0
    needed_low_bytes: int = 0
    needed_high_bytes: int = 0
    allocated_low_bytes: int = 0
    allocated_high_bytes: int = 0

    @property
    def terms(self) -> tuple[Term, ...]:
        """The terms of the peak phase."""
        return next(p.terms for p in self.phases if p.name == self.phase)

    @property
    def needed_bytes(self) -> int:
        """What the card must have: the planning value."""
        return self.peak_reserved_bytes + self.outside_bytes

    @property
    def verdict(self) -> Verdict:
        if self.needed_high_bytes <= self.capacity_bytes:
            return Verdict.FITS
        return Verdict.TIGHT if self.needed_low_bytes <= self.capacity_bytes else Verdict.DOES_NOT_FIT


@dataclass(frozen=True)
class HostMemory:
    """Host RAM of the first node: the peak while loading, the steady state while training, the peak while saving
    (the steady state and what rank 0 gathers).

    `page_cache_bytes` is apart: pages of the checkpoint's files, which the system drops when memory is short. With less
    than that free the files are read from the disk more than once.
    """

    load_peak_bytes: int
    steady_bytes: int
    capacity_bytes: int
    terms: tuple[Term, ...]
    page_cache_bytes: int = 0
    save_peak_bytes: int = 0

    @property
    def peak_bytes(self) -> int:
        return max(self.load_peak_bytes, self.steady_bytes, self.save_peak_bytes)


@dataclass(frozen=True)
class Disk:
    """Disk per node."""

    download_bytes: int
    prepared_bytes: int
    checkpoint_bytes: int  # one checkpoint
    checkpoints_kept: int  # save_total_limit + 1: the new one is written before the oldest goes
    swap_bytes: int  # NVMe offload
    capacity_bytes: int
    result_bytes: int = 0  # the model that is saved after the last step, and the merged one after an adapter run

    @property
    def total_bytes(self) -> int:
        checkpoints = self.checkpoint_bytes * self.checkpoints_kept
        return self.download_bytes + self.prepared_bytes + checkpoints + self.swap_bytes + self.result_bytes


@dataclass(frozen=True)
class Collective:
    """One kind of transfer per optimizer step. `bytes_per_step` crosses the bottleneck link of one GPU (or NIC)."""

    operation: str  # all_gather, reduce_scatter, all_reduce, host_to_device, device_to_host, nvme_read, nvme_write
    what: str  # parameters, gradients, states
    group: str  # node, network, world, host
    count_per_step: int
    bytes_per_step: int
    seconds: float


@dataclass(frozen=True)
class Traffic:
    collectives: tuple[Collective, ...]


@dataclass(frozen=True)
class Time:
    """`step_s` is one optimizer step; `bound_by` says in words what it waits for. `parts_s` maps names to seconds."""

    step_s: float
    tokens_per_s: float  # over all GPUs
    steps_per_epoch: int | None
    epoch_s: float | None
    total_s: float | None
    bound_by: str
    mfu: float
    parts_s: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True)
class Estimate:
    gpu: GpuMemory
    host: HostMemory
    disk: Disk
    traffic: Traffic
    time: Time
    verdict: Verdict
    total_parameters: int
    trainable_parameters: int
