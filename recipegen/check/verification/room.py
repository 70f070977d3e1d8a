"""Room on the host: RAM and disks."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from recipegen.check.probe import Probe, ProbedDisk
from recipegen.check.subject import Subject
from recipegen.check.verification.answer import DISK, HOST, Answer, different, good, note, short
from recipegen.spec import Estimate, Severity, Strategy
from recipegen.spec.units import gb

# Share of the host's RAM from which it matters what else lies there: pages and other programs rarely take half.
_WORTH_ASKING = 0.5


def ram(cost: Estimate, probe: Probe | None, where: str) -> Iterator[Answer]:
    """Is as much free as is needed at the peak?"""
    needed = cost.host.peak_bytes
    free = probe.ram_free_bytes if probe else None
    if probe is not None and free is not None:
        whose = "of the container's limit" if probe.ram_limited else "of the host's RAM"
        if free < needed:
            yield short(
                HOST,
                Severity.ERROR,
                f"{gb(free)} {whose} were free at the probe, and {gb(needed)} per node are needed at the peak",
                "end what holds the RAM or raise the limit; plan with hardware_overrides: {host_ram_gib: ...}",
                where,
                needed,
                free,
            )
        else:
            yield good(f"{gb(free)} {whose} free, {gb(needed)} per node are needed at the peak")
    elif needed > _WORTH_ASKING * cost.host.capacity_bytes:
        yield note(
            f"free host RAM: {gb(needed)} of {gb(cost.host.capacity_bytes)} per node are needed at the "
            "peak, so other programs and containers' limits count",
            "free -g; cat /sys/fs/cgroup/memory.max",
            where,
        )


def disk(subject: Subject, cost: Estimate, probe: Probe | None, where: str) -> Iterator[Answer]:
    """Do checkpoints, model and swapped states find room?"""
    recipe = subject.assembled.recipe
    needed = cost.disk.total_bytes
    project = next(iter(probe.disks), None) if probe else None
    if recipe is not None and recipe.parallelism.strategy is Strategy.ZERO3_NVME and recipe.deepspeed:
        path = recipe.deepspeed.nvme_path
        swap = probe.disk_of(path) if probe and path else project
        yield from _swap(path or ".", cost.disk.swap_bytes, swap, where)
        if project is None or swap is None or not swap.same_as(project):
            needed -= cost.disk.swap_bytes
    elif project is None and needed > _WORTH_ASKING * cost.disk.capacity_bytes:
        yield note(f"free disk: {gb(needed)} of {gb(cost.disk.capacity_bytes)} per node are needed", "df -h .", where)
    if project is None:
        return
    if project.free_bytes >= needed:
        yield good(f"{gb(project.free_bytes)} free at {project.path}, {gb(needed)} per node are needed")
        return
    # The model's files may lie on another disk (HF_HOME), and may be there already.
    certain = project.free_bytes < needed - cost.disk.download_bytes
    yield short(
        DISK,
        Severity.ERROR if certain else Severity.WARNING,
        f"{gb(project.free_bytes)} are free at {project.path}, and {gb(needed)} per node are needed "
        f"({gb(cost.disk.download_bytes)} of it for the model's files)",
        "fewer checkpoints (save_total_limit), or another disk" if certain else "HF_HOME on another disk",
        where,
        needed,
        project.free_bytes,
    )


def _swap(path: str, needed: int, found: ProbedDisk | None, where: str) -> Iterator[Answer]:
    """DeepSpeed's nvme_path: room and rate."""
    if found is None:
        yield note(
            f"the NVMe disk: {gb(needed)} of swapped states must fit, and every step waits for its rate",
            f"df -h {shlex.quote(path)}; lsblk -d -o NAME,MODEL,SIZE,ROTA",
            where,
        )
        return
    if found.free_bytes < needed:
        reason = f"{gb(found.free_bytes)} are free at {found.path}, and {gb(needed)} of swapped states must fit"
        fix = "a larger disk for deepspeed's nvme_path"
        yield short(DISK, Severity.ERROR, reason, fix, where, needed, found.free_bytes)
    elif found.rotational or found.nvme is False:
        reason = f"{found.path} lies on no NVMe disk, and every step waits for the rate of the swapped states"
        yield different(DISK, Severity.WARNING, reason, "deepspeed's nvme_path on an NVMe disk", where)
    else:
        yield good(f"{gb(found.free_bytes)} free at {found.path}, {gb(needed)} of swapped states must fit")
