"""The path between the GPUs of a node: peer-to-peer, else shared memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from recipegen.check.probe import Probe
from recipegen.check.subject import Subject
from recipegen.check.verification.answer import BOX, Answer, different, good, note, short
from recipegen.spec import Cluster, Severity
from recipegen.spec.units import GIB, MIB, gib

_SHM_SOURCE = "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html#shared-memory"
_P2P_SOURCE = "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html#gpu-direct"
_P2P_VARIABLES = ("NCCL_P2P_DISABLE", "NCCL_P2P_LEVEL")
_SHM_STOPS = 64 * MIB  # docker's own: NCCL's first collective fails
_SHM_ENOUGH = GIB  # what NCCL's documentation gives a container


def answers(subject: Subject, cluster: Cluster, together: int, probe: Probe | None, where: str) -> Iterator[Answer]:
    """Nothing for one GPU, nor for NVLink."""
    if together < 2 or cluster.gpu.nvlink:
        return
    variables = _environment(subject)
    asked = [name for name in _P2P_VARIABLES if name in variables]
    off = variables.get("NCCL_P2P_DISABLE") == "1"
    offered = bool(probe and probe.peers) and not _refused(probe)
    if not off and (cluster.gpu.peer_to_peer or asked):
        counted = "the profile counts on them" if cluster.gpu.peer_to_peer else f"{asked[0]} is set for them"
        yield _peers(together, counted, probe, where)
    elif not off and offered:
        yield good("the driver offers peer-to-peer between all GPUs, although the profile does not count on it")
    yield from _shared_memory(together, probe, where, in_use=off or not offered)


def _peers(together: int, counted: str, probe: Probe | None, where: str) -> Answer:
    if probe is None or not probe.peers:
        return note(
            f"peer-to-peer transfers between the {together} GPUs of a node: {counted}"
            "; with the IOMMU or ACS on they hang or return wrong data",
            "nvidia-smi topo -p2p r",
            where,
        )
    refused = _refused(probe)
    if refused:
        (a, b), status = min(refused.items())
        return different(
            BOX,
            Severity.WARNING,
            f"peer-to-peer: {counted}, but the driver says {status} between GPU {a} and {b} ({len(refused)} of "
            f"{len(probe.peers)} directions), so NCCL goes through host memory and steps take longer than estimated",
            "gpu_peer_to_peer: false in hardware_overrides, and the bus bandwidth that you measure",
            where,
            _P2P_SOURCE,
        )
    if probe.translated or probe.redirects:
        why = "the IOMMU translates their addresses" if probe.translated else "PCIe ACS redirects them"
        return different(
            BOX,
            Severity.WARNING,
            f"peer-to-peer: the driver says OK, but {why}: copies hang or return wrong data",
            "IOMMU off or passthrough (kernel option iommu=pt), ACS off in the BIOS; else NCCL_P2P_DISABLE=1",
            where,
            _P2P_SOURCE,
        )
    return good(f"peer-to-peer: the driver says OK for all {len(probe.peers)} directions")


def _refused(probe: Probe | None) -> dict[tuple[int, int], str]:
    return {pair: status for pair, status in probe.peers.items() if status != "OK"} if probe else {}


def _shared_memory(together: int, probe: Probe | None, where: str, *, in_use: bool) -> Iterator[Answer]:
    """`in_use`: as far as is known, the GPUs exchange through it."""
    size = probe.shm_total_bytes if probe else None
    if size is None:
        yield note(
            f"shared memory: without peer-to-peer the {together} processes exchange through /dev/shm; a container's "
            "64 MiB stop NCCL at its start",
            "df -h /dev/shm",
            where,
            _SHM_SOURCE,
        )
    elif size < _SHM_ENOUGH:
        stops = size <= _SHM_STOPS
        said = "NCCL stops at its start" if stops else f"NVIDIA gives a container {_SHM_ENOUGH // GIB} GiB"
        yield short(
            BOX,
            Severity.ERROR if stops and in_use else Severity.WARNING,
            f"{size / MIB:.0f} MiB of /dev/shm: without peer-to-peer {together} processes exchange through it; {said}",
            "docker run --shm-size=1g --ulimit memlock=-1, or --ipc=host; outside of a container: "
            "mount -o remount,size=1G /dev/shm",
            where,
            _SHM_ENOUGH,
            size,
            _SHM_SOURCE,
        )
    else:
        yield good(f"{gib(size)} of /dev/shm for the exchange of {together} processes")


def _environment(subject: Subject) -> dict[str, Any]:
    facts = subject.fact("environment")
    recipe = subject.assembled.recipe
    stated = {one.name: one.value for one in recipe.launch.environment} if recipe else {}
    return {**stated, **(facts if isinstance(facts, dict) else {})}
