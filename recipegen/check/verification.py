"""What no file shows and the recipe depends on: a note each, with the command that shows it on the machine.

With a probe of that machine (`recipegen hardware probe`) each note is answered: it becomes a line of what was checked,
or a finding with the number. What the probe could not find stays a note.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from recipegen.check.probe import Probe, ProbedDisk
from recipegen.check.registry import finding
from recipegen.check.subject import Subject
from recipegen.spec import Cluster, Estimate, Finding, Severity, Strategy
from recipegen.spec.units import GIB, MIB, gb, gib

RULE = "RG780"
# Answers of a probe: not "needs verification" any more, and their fix is no command.
_PROBED = "machine"
# Share of the host's RAM from which it matters what else lies there: pages and other programs rarely take half.
_WORTH_ASKING = 0.5
# Every CUDA 13.x runs on drivers of branch 580 and newer, every 12.x on 525 (minor version compatibility, Linux).
_DRIVER = "580"
_BRANCHES = {12: 525, 13: 580}
_DRIVER_SOURCE = "https://docs.nvidia.com/cuda/archive/13.0.0/cuda-toolkit-release-notes/ (CUDA driver)"
_SHM_SOURCE = "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html#shared-memory"
_P2P_SOURCE = "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html#gpu-direct"
_P2P_VARIABLES = ("NCCL_P2P_DISABLE", "NCCL_P2P_LEVEL")
_SHM_STOPS = 64 * MIB  # docker's own: NCCL's first collective fails
_SHM_ENOUGH = GIB  # what NCCL's documentation gives a container
_SAME_MEMORY = 0.03  # nvidia-smi counts 2% more than torch


@dataclass(frozen=True)
class Fulfilled:
    """What a probe says in favour of the recipe; shown with -v."""

    text: str


Answer = Finding | Fulfilled


def notes(subject: Subject, probe: Probe | None = None) -> Iterator[Finding]:
    """The findings of `answers`: the notes of a subject, or what a probe makes of them. None for a machine without
    GPUs, and none where nothing depends on it."""
    return (answer for answer in answers(subject, probe) if isinstance(answer, Finding))


def fulfilled(subject: Subject, probe: Probe | None) -> list[str]:
    """What the probe settled, a line each."""
    return [answer.text for answer in answers(subject, probe) if isinstance(answer, Fulfilled)]


def answers(subject: Subject, probe: Probe | None = None) -> Iterator[Answer]:
    """Every question about the machine, as a note or as the probe answers it."""
    cluster = subject.cluster
    if cluster is None or cluster.gpu.compute_capability == "cpu":
        return
    where = subject.main or next(iter(subject.files), "")
    yield from _driver(subject, probe, where)
    if probe is not None:
        yield from _gpus(subject, cluster, probe, where)
    yield from _transfers(subject, cluster, probe, where)
    if subject.estimate is not None:
        yield from _host(subject.estimate, probe, where)
        yield from _disk(subject, subject.estimate, probe, where)
    if probe is not None:
        for problem in probe.problems:
            yield _found(Severity.WARNING, f"the box of {probe.path}: {problem}", "", where)


# --- driver


def _driver(subject: Subject, probe: Probe | None, where: str) -> Iterator[Answer]:
    note = _note(
        f"the driver: it must be new enough for the CUDA of the installed torch {_torch(subject)}; CUDA 13.x needs "
        f"{_DRIVER} or newer",
        "nvidia-smi --query-gpu=driver_version --format=csv,noheader; "
        "python -c 'import torch; print(torch.version.cuda)'",
        where,
        _DRIVER_SOURCE,
    )
    if probe is None:
        yield note
        return
    if probe.driver is None:
        # Without a GPU that is said below, with its reason.
        if probe.gpus:
            yield note
        return
    cuda = probe.torch_cuda
    major = int(cuda.partition(".")[0]) if cuda else 13
    branch = _BRANCHES.get(major)
    what = f"CUDA {cuda} of the installed torch {probe.torch}" if cuda else f"CUDA 13.x of torch {_torch(subject)}"
    if branch is None:
        yield note
    elif int(probe.driver.partition(".")[0]) < branch:
        fix = f"install a driver of branch {branch} or newer"
        reason = f"driver {probe.driver}: {what} needs {branch} or newer"
        yield _found(Severity.ERROR, reason, fix, where, _DRIVER_SOURCE)
    else:
        yield Fulfilled(f"driver {probe.driver}: {what} needs {branch} or newer")


def _torch(subject: Subject) -> str:
    return str(subject.stack.pins["torch"]).partition("+")[0]


# --- GPUs


def _gpus(subject: Subject, cluster: Cluster, probe: Probe, where: str) -> Iterator[Answer]:
    wanted = _together(subject, cluster)
    if not probe.gpus:
        reason = f"{wanted} GPUs are needed on a node, and the probe found none: {probe.no_gpus}"
        yield _found(Severity.ERROR, reason, "run the probe on the training box", where)
        return
    if len(probe.gpus) < wanted:
        yield _found(
            Severity.ERROR,
            f"{wanted} processes on a node, and the box has {len(probe.gpus)} GPUs ({probe.gpus[0].name})",
            f"start {len(probe.gpus)}, or plan with the profile of this box "
            "(recipegen hardware probe --format yaml --out box.yaml)",
            where,
        )
    else:
        yield Fulfilled(f"{len(probe.gpus)} GPUs ({probe.gpus[0].name}) for {wanted} processes on a node")
    kinds = sorted({gpu.compute_capability for gpu in probe.gpus if gpu.compute_capability})
    if kinds and kinds != [cluster.gpu.compute_capability]:
        yield _found(
            Severity.WARNING,
            f"the box's GPUs are {', '.join(kinds)} ({probe.gpus[0].name}); the profile {cluster.name} is "
            f"{cluster.gpu.compute_capability} ({cluster.gpu.name}), so estimates and kernels are of another card",
            "check with --hardware of this box",
            where,
        )
    yield from _memory(subject, cluster, probe, where)


def _memory(subject: Subject, cluster: Cluster, probe: Probe, where: str) -> Iterator[Answer]:
    planned = cluster.gpu.memory_bytes
    least = min(probe.gpus, key=lambda gpu: gpu.memory_bytes)
    free = min(probe.gpus, key=lambda gpu: gpu.memory_bytes if gpu.free_bytes is None else gpu.free_bytes)
    left = free.memory_bytes if free.free_bytes is None else min(free.free_bytes, free.memory_bytes)
    cost = subject.estimate
    if cost is not None and left < planned and cost.gpu.needed_high_bytes > left:
        certain = cost.gpu.needed_low_bytes > left
        yield _short(
            Severity.ERROR if certain else Severity.WARNING,
            f"GPU {free.index} has {gib(left)} free of {gib(free.memory_bytes)}; the recipe needs "
            f"{gib(cost.gpu.needed_low_bytes)} to {gib(cost.gpu.needed_high_bytes)}",
            "end what holds the memory (nvidia-smi shows it), or check with --hardware of this box",
            where,
            cost.gpu.needed_high_bytes,
            left,
        )
    elif least.memory_bytes < planned * (1 - _SAME_MEMORY):
        yield _found(
            Severity.WARNING,
            f"GPU {least.index} has {gib(least.memory_bytes)}; the profile {cluster.name} counts on {gib(planned)}",
            "check with --hardware of this box",
            where,
        )
    else:
        yield Fulfilled(f"{gib(left)} free on the fullest GPU")


def _together(subject: Subject, cluster: Cluster) -> int:
    recipe = subject.assembled.recipe
    return recipe.parallelism.gpus_per_node if recipe else cluster.node.gpu_count


# --- the path between the GPUs


def _transfers(subject: Subject, cluster: Cluster, probe: Probe | None, where: str) -> Iterator[Answer]:
    together = _together(subject, cluster)
    if together < 2 or cluster.gpu.nvlink:
        return
    variables = _environment(subject)
    asked = [name for name in _P2P_VARIABLES if name in variables]
    off = variables.get("NCCL_P2P_DISABLE") == "1"
    if (cluster.gpu.peer_to_peer and not off) or (asked and not off):
        counted = "the profile counts on them" if cluster.gpu.peer_to_peer else f"{asked[0]} is set for them"
        note = _note(
            f"peer-to-peer transfers between the {together} GPUs of a node: {counted}"
            "; with the IOMMU or ACS on they hang or return wrong data",
            "nvidia-smi topo -p2p r",
            where,
        )
        if probe is None or not probe.peers:
            yield note
            return
        refused = {pair: status for pair, status in probe.peers.items() if status != "OK"}
        if not refused:
            yield from _working_peers(probe, where)
            return
        (a, b), status = min(refused.items())
        yield _found(
            Severity.WARNING,
            f"peer-to-peer: {counted}, but the driver says {status} between GPU {a} and {b} ({len(refused)} of "
            f"{len(probe.peers)} directions), so NCCL goes through host memory and steps take longer than estimated",
            "gpu_peer_to_peer: false in hardware_overrides, and the bus bandwidth that you measure",
            where,
            _P2P_SOURCE,
        )
    elif not off and probe is not None and probe.peers and all(status == "OK" for status in probe.peers.values()):
        yield Fulfilled("the driver offers peer-to-peer between all GPUs, although the profile does not count on it")
    yield from _shared_memory(together, probe, where)


def _working_peers(probe: Probe, where: str) -> Iterator[Answer]:
    if probe.translated or probe.redirects:
        why = "the IOMMU translates their addresses" if probe.translated else "PCIe ACS redirects them"
        yield _found(
            Severity.WARNING,
            f"peer-to-peer: the driver says OK, but {why}: copies hang or return wrong data",
            "IOMMU off or passthrough (kernel option iommu=pt), ACS off in the BIOS; else NCCL_P2P_DISABLE=1",
            where,
            _P2P_SOURCE,
        )
    else:
        yield Fulfilled(f"peer-to-peer: the driver says OK for all {len(probe.peers)} directions")


def _shared_memory(together: int, probe: Probe | None, where: str) -> Iterator[Answer]:
    note = _note(
        f"shared memory: without peer-to-peer the {together} processes exchange through /dev/shm; a container's 64 MiB "
        "stop NCCL at its start",
        "df -h /dev/shm",
        where,
        _SHM_SOURCE,
    )
    size = probe.shm_total_bytes if probe else None
    if size is None:
        yield note
    elif size < _SHM_ENOUGH:
        stops = size <= _SHM_STOPS
        said = "NCCL stops at its start" if stops else f"NVIDIA gives a container {_SHM_ENOUGH // GIB} GiB"
        yield _short(
            Severity.ERROR if stops else Severity.WARNING,
            f"{size / MIB:.0f} MiB of /dev/shm: without peer-to-peer {together} processes exchange through it; {said}",
            "docker run --shm-size=1g --ulimit memlock=-1, or --ipc=host; outside of a container: "
            "mount -o remount,size=1G /dev/shm",
            where,
            _SHM_ENOUGH,
            size,
            _SHM_SOURCE,
        )
    else:
        yield Fulfilled(f"{gib(size)} of /dev/shm for the exchange of {together} processes")


def _environment(subject: Subject) -> dict[str, Any]:
    facts = subject.fact("environment")
    recipe = subject.assembled.recipe
    stated = {one.name: one.value for one in recipe.launch.environment} if recipe else {}
    return {**stated, **(facts if isinstance(facts, dict) else {})}


# --- host and disk


def _host(cost: Estimate, probe: Probe | None, where: str) -> Iterator[Answer]:
    needed = cost.host.peak_bytes
    free = probe.ram_free_bytes if probe else None
    if probe is not None and free is not None:
        whose = "of the container's limit" if probe.ram_limited else "of the host's RAM"
        if free < needed:
            yield _short(
                Severity.ERROR,
                f"{gb(free)} {whose} were free at the probe, and {gb(needed)} per node are needed at the peak",
                "end what holds the RAM or raise the limit; plan with hardware_overrides: {host_ram_gib: ...}",
                where,
                needed,
                free,
            )
        else:
            yield Fulfilled(f"{gb(free)} {whose} free, {gb(needed)} per node are needed at the peak")
    elif needed > _WORTH_ASKING * cost.host.capacity_bytes:
        yield _note(
            f"free host RAM: {gb(needed)} of {gb(cost.host.capacity_bytes)} per node are needed at the "
            "peak, so other programs and containers' limits count",
            "free -g; cat /sys/fs/cgroup/memory.max",
            where,
        )


def _disk(subject: Subject, cost: Estimate, probe: Probe | None, where: str) -> Iterator[Answer]:
    recipe = subject.assembled.recipe
    needed = cost.disk.total_bytes
    if recipe is not None and recipe.parallelism.strategy is Strategy.ZERO3_NVME and recipe.deepspeed:
        disk = _disk_of(recipe.deepspeed.nvme_path, probe)
        yield from _swap(recipe.deepspeed.nvme_path or ".", cost.disk.swap_bytes, disk, where)
        if probe is not None and (not probe.disks or disk != probe.disks[0]):
            needed -= cost.disk.swap_bytes
    elif (probe is None or not probe.disks) and needed > _WORTH_ASKING * cost.disk.capacity_bytes:
        yield _note(
            f"free disk: {gb(needed)} of {gb(cost.disk.capacity_bytes)} per node are needed",
            "df -h .",
            where,
        )
    if probe is None or not probe.disks:
        return
    disk = probe.disks[0]
    if disk.free_bytes >= needed:
        yield Fulfilled(f"{gb(disk.free_bytes)} free at {disk.path}, {gb(needed)} per node are needed")
        return
    # The model's files may lie on another disk (HF_HOME), and may be there already.
    written = needed - cost.disk.download_bytes
    certain = disk.free_bytes < written
    yield _short(
        Severity.ERROR if certain else Severity.WARNING,
        f"{gb(disk.free_bytes)} are free at {disk.path}, and {gb(needed)} per node are needed "
        f"({gb(cost.disk.download_bytes)} of it for the model's files)",
        "fewer checkpoints (save_total_limit), or another disk" if certain else "HF_HOME on another disk",
        where,
        needed,
        disk.free_bytes,
    )


def _disk_of(path: str | None, probe: Probe | None) -> ProbedDisk | None:
    """The probed disk of `path`; the project's, which is probed first, for none."""
    if probe is None:
        return None
    return probe.disk_of(path) if path else next(iter(probe.disks), None)


def _swap(path: str, needed: int, disk: ProbedDisk | None, where: str) -> Iterator[Answer]:
    if disk is None:
        yield _note(
            f"the NVMe disk: {gb(needed)} of swapped states must fit, and every step waits for its rate",
            f"df -h {shlex.quote(path)}; lsblk -d -o NAME,MODEL,SIZE,ROTA",
            where,
        )
        return
    if disk.free_bytes < needed:
        reason = f"{gb(disk.free_bytes)} are free at {disk.path}, and {gb(needed)} of swapped states must fit"
        fix = "a larger disk for deepspeed's nvme_path"
        yield _short(Severity.ERROR, reason, fix, where, needed, disk.free_bytes)
    elif disk.rotational or disk.nvme is False:
        reason = f"{disk.path} lies on no NVMe disk, and every step waits for the rate of the swapped states"
        yield _found(Severity.WARNING, reason, "deepspeed's nvme_path on an NVMe disk", where)
    else:
        yield Fulfilled(f"{gb(disk.free_bytes)} free at {disk.path}, {gb(needed)} of swapped states must fit")


# --- findings


def _note(reason: str, command: str, where: str, source: str = "") -> Finding:
    return finding(RULE, Severity.NOTE, reason, fix=command, where=where, source=source)


def _found(severity: Severity, reason: str, fix: str, where: str, source: str = "") -> Finding:
    return replace(finding(RULE, severity, reason, fix=fix, where=where, source=source), family=_PROBED)


def _short(severity: Severity, reason: str, fix: str, where: str, needed: int, there: int, source: str = "") -> Finding:
    """Something of which the box has too little, in bytes."""
    return replace(_found(severity, reason, fix, where, source), required_bytes=needed, available_bytes=there)
