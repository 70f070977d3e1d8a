"""A probe for people: what was found, what is wrong, what could not be found."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from recipegen.runtime.nvidia_smi import MEANING
from recipegen.spec.units import gb, gib

_NAME = 22


def table(document: dict[str, Any]) -> Iterator[str]:
    """The lines."""
    for name, value in _rows(document):
        yield f"{name:{_NAME}}{_one_line(value)}"
    if document["problems"]:
        yield ""
        yield "wrong:"
        yield from (f"  {_one_line(problem)}" for problem in document["problems"])
    if document["not_found"]:
        yield ""
        yield "could not be found:"
        for row in document["not_found"]:
            yield f"  {_one_line(row['what']):{_NAME - 2}}{_one_line(row['reason'])}"


def _rows(document: dict[str, Any]) -> Iterator[tuple[str, str]]:
    for gpu in document["gpus"]:
        yield f"GPU {gpu['index']}", _gpu(gpu)
    driver = document["driver"]
    if driver["version"]:
        newest = f", CUDA up to {driver['cuda_version']}" if driver["cuda_version"] else ""
        yield "driver", driver["version"] + newest
    if document["cuda_visible_devices"] is not None:
        yield "CUDA_VISIBLE_DEVICES", document["cuda_visible_devices"] or "empty: no GPU is visible"
    pairs = document["peer_to_peer"]
    if pairs:
        states = Counter(pair["status"] for pair in pairs)
        said = ", ".join(f"{count} of {len(pairs)} {_status(status)}" for status, count in states.most_common())
        yield "peer-to-peer", f"{said} (as the driver says; no copy was made)"
    if document["links"]:
        paths = Counter(link["path"] for link in document["links"])
        yield "paths between GPUs", ", ".join(f"{count} x {path}" for path, count in paths.most_common())
    torch = document["torch"]
    if torch:
        yield "torch", _torch(torch)
    yield from _host(document["host"])
    if document["shm"]:
        yield "/dev/shm", f"{gib(document['shm']['total_bytes'])}, {gib(document['shm']['free_bytes'])} free"  # noqa: S108
    for disk in document["disks"]:
        if disk["free_bytes"] is not None:
            spins = {True: "reports that it rotates", False: "no NVMe"}
            kind = "NVMe" if disk["nvme"] else spins.get(disk["rotational"], "")
            device = f" ({', '.join(filter(None, (disk['device'], kind)))})" if disk["device"] else ""
            yield "disk", f"{gb(disk['free_bytes'])} free of {gb(disk['total_bytes'])} at {disk['path']}{device}"
    for link in document["network"]:
        rate = f"{link['gbit_s']:g} Gbit/s" if link["gbit_s"] else "speed unknown"
        yield "network", f"{link['name']}: {rate}, {link['state'] or 'state unknown'}"
    for port in document["infiniband"]:
        rate = f"{port['gbit_s']:g} Gbit/s" if port["gbit_s"] else "rate unknown"
        yield (
            "RDMA",
            f"{port['name']}/{port['port']}: {rate}, {port['state'] or 'state unknown'}, {port['layer'] or '?'}",
        )
    yield from _limits(document["limits"], document["iommu"])


def _gpu(gpu: dict[str, Any]) -> str:
    parts = [gpu["name"], gib(gpu["memory_total_bytes"])]
    if gpu["memory_used_bytes"] is not None:
        parts.append(f"{gib(gpu['memory_used_bytes'])} in use")
    if gpu["compute_capability"]:
        parts.append(gpu["compute_capability"])
    if gpu["pcie_generation_max"]:
        now = gpu["pcie_generation"]
        idle = f" (Gen{now} now: links slow down when idle)" if now and now < gpu["pcie_generation_max"] else ""
        parts.append(f"PCIe Gen{gpu['pcie_generation_max']} x{gpu['pcie_width'] or gpu['pcie_width_max'] or '?'}{idle}")
    parts += [
        f"{label} {'on' if gpu[name] else 'off'}"
        for name, label in (("persistence", "persistence"), ("ecc", "ECC"), ("mig", "MIG"))
        if gpu[name] is not None
    ]
    return ", ".join(parts)


def _status(status: str) -> str:
    return f"{status} ({MEANING[status]})" if status in MEANING else status


def _torch(torch: dict[str, Any]) -> str:
    parts = [str(torch["version"] or "broken")]
    parts.append(f"CUDA {torch['cuda_version']}" if torch["cuda_version"] else "no CUDA")
    if torch["devices"]:
        least = min(device["memory_total_bytes"] for device in torch["devices"])
        parts.append(f"{len(torch['devices'])} GPUs, {gib(least)} visible")
    if torch["bf16"] is not None:
        parts.append(f"bf16 {'yes' if torch['bf16'] else 'no'}")
    return ", ".join(parts)


def _host(host: dict[str, Any]) -> Iterator[tuple[str, str]]:
    if host["ram_total_bytes"] is not None:
        free = host["ram_available_bytes"]
        yield "host RAM", gib(host["ram_total_bytes"]) + (f", {gib(free)} available" if free is not None else "")
    if host["memory_limit_bytes"] is not None:
        used = host["memory_limit_used_bytes"]
        yield "container limit", gib(host["memory_limit_bytes"]) + (f", {gib(used)} in use" if used is not None else "")
    if host["swap_total_bytes"] is not None:
        yield "swap", gib(host["swap_total_bytes"]) if host["swap_total_bytes"] else "none"
    if host["physical_cores"]:
        yield (
            "CPU",
            f"{host['sockets']} socket{'s' if host['sockets'] != 1 else ''}, {host['physical_cores']} cores, "
            f"{host['logical_cpus']} threads, {host['usable_cpus']} usable here; "
            f"{host['numa_nodes'] or '?'} NUMA node{'s' if host['numa_nodes'] != 1 else ''}",
        )


def _limits(limits: dict[str, Any], iommu: dict[str, Any]) -> Iterator[tuple[str, str]]:
    locked, files = limits["locked_memory_bytes"], limits["open_files"]
    yield "locked memory", "unlimited" if locked is None else f"{gib(locked)} (ulimit -l)"
    yield "open files", "unlimited" if files is None else f"{files} (ulimit -n)"
    domains = Counter(one["kind"] for one in iommu["gpu_domains"] if one["kind"])
    said = "off" if not iommu["groups"] else f"on, {iommu['groups']} groups"
    if domains:
        said += ", GPUs: " + ", ".join(f"{count} {kind}" for kind, count in domains.most_common())
    if iommu["kernel_options"]:
        said += f"; kernel: {' '.join(iommu['kernel_options'])}"
    yield "IOMMU", said
    if iommu["acs_redirecting_bridges"] is not None:
        bridges = len(iommu["acs_redirecting_bridges"])
        yield "PCIe ACS", f"redirects at {bridges} bridges" if bridges else "redirects nowhere"


def _one_line(text: str) -> str:
    return "".join(c if c.isprintable() else "?" for c in " ".join(text.split()))
