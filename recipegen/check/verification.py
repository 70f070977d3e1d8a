"""What no file shows and the recipe depends on: a note each, with the command that shows it on the machine."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import Any

from recipegen.check.registry import finding
from recipegen.check.subject import Subject
from recipegen.spec import Cluster, Estimate, Finding, Severity, Strategy
from recipegen.spec.units import gb

RULE = "RG780"
# Share of the host's RAM from which it matters what else lies there: pages and other programs rarely take half.
_WORTH_ASKING = 0.5
# Every CUDA 13.x runs on drivers of branch 580 and newer (minor version compatibility, Linux).
_DRIVER = "580"
_DRIVER_SOURCE = "https://docs.nvidia.com/cuda/archive/13.0.0/cuda-toolkit-release-notes/ (CUDA driver)"
_SHM_SOURCE = "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html#shared-memory"
_P2P_VARIABLES = ("NCCL_P2P_DISABLE", "NCCL_P2P_LEVEL")


def notes(subject: Subject) -> Iterator[Finding]:
    """The notes of a subject; none for a machine without GPUs, and none where nothing depends on it."""
    cluster = subject.cluster
    if cluster is None or cluster.gpu.compute_capability == "cpu":
        return
    where = subject.main or next(iter(subject.files), "")
    yield _note(
        f"the driver: it must be new enough for the CUDA of the installed torch {_torch(subject)}; CUDA 13.x needs "
        f"{_DRIVER} or newer",
        "nvidia-smi --query-gpu=driver_version --format=csv,noheader; "
        "python -c 'import torch; print(torch.version.cuda)'",
        where,
        _DRIVER_SOURCE,
    )
    yield from _transfers(subject, cluster, where)
    if subject.estimate is not None:
        yield from _host(subject.estimate, where)
        yield from _disk(subject, subject.estimate, where)


def _torch(subject: Subject) -> str:
    return str(subject.stack.pins["torch"]).partition("+")[0]


def _transfers(subject: Subject, cluster: Cluster, where: str) -> Iterator[Finding]:
    recipe = subject.assembled.recipe
    together = recipe.parallelism.gpus_per_node if recipe else cluster.node.gpu_count
    if together < 2 or cluster.gpu.nvlink:
        return
    variables = _environment(subject)
    asked = [name for name in _P2P_VARIABLES if name in variables]
    off = variables.get("NCCL_P2P_DISABLE") == "1"
    if (cluster.gpu.peer_to_peer and not off) or (asked and not off):
        yield _note(
            f"peer-to-peer transfers between the {together} GPUs of a node: "
            + ("the profile counts on them" if cluster.gpu.peer_to_peer else f"{asked[0]} is set for them")
            + "; with the IOMMU or ACS on they hang or return wrong data",
            "nvidia-smi topo -p2p r",
            where,
        )
        return
    yield _note(
        f"shared memory: without peer-to-peer the {together} processes exchange through /dev/shm; a container's 64 MiB "
        "stop NCCL at its start",
        "df -h /dev/shm",
        where,
        _SHM_SOURCE,
    )


def _environment(subject: Subject) -> dict[str, Any]:
    facts = subject.fact("environment")
    recipe = subject.assembled.recipe
    stated = {one.name: one.value for one in recipe.launch.environment} if recipe else {}
    return {**stated, **(facts if isinstance(facts, dict) else {})}


def _host(cost: Estimate, where: str) -> Iterator[Finding]:
    if cost.host.peak_bytes > _WORTH_ASKING * cost.host.capacity_bytes:
        yield _note(
            f"free host RAM: {gb(cost.host.peak_bytes)} of {gb(cost.host.capacity_bytes)} per node are needed at the "
            "peak, so other programs and containers' limits count",
            "free -g; cat /sys/fs/cgroup/memory.max",
            where,
        )


def _disk(subject: Subject, cost: Estimate, where: str) -> Iterator[Finding]:
    recipe = subject.assembled.recipe
    if recipe is not None and recipe.parallelism.strategy is Strategy.ZERO3_NVME and recipe.deepspeed:
        path = recipe.deepspeed.nvme_path or "."
        yield _note(
            f"the NVMe disk: {gb(cost.disk.swap_bytes)} of swapped states must fit, and every step waits for its rate",
            f"df -h {shlex.quote(path)}; lsblk -d -o NAME,MODEL,SIZE,ROTA",
            where,
        )
    elif cost.disk.total_bytes > _WORTH_ASKING * cost.disk.capacity_bytes:
        yield _note(
            f"free disk: {gb(cost.disk.total_bytes)} of {gb(cost.disk.capacity_bytes)} per node are needed",
            "df -h .",
            where,
        )


def _note(reason: str, command: str, where: str, source: str = "") -> Finding:
    return finding(RULE, Severity.NOTE, reason, fix=command, where=where, source=source)
