"""The probe: ask nvidia-smi, torch, /proc and /sys, and say what could not be found. Reads only; every wait is bounded.

The document is described by docs/schemas/hardware-probe.schema.json. A value that could not be found is null, and
`not_found` says why.
"""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from recipegen import __version__
from recipegen.runtime import nvidia_smi, system
from recipegen.runtime.commands import Answer, Command, bounded

FORMAT_VERSION = 1
_CHILD = Path(__file__).with_name("torch_child.py")
_LONGEST = 2**20  # bytes of a file under /proc or /sys
_MOST_CPUS = 4096


@dataclass(frozen=True)
class Box:
    """Where to look. `root` stands for / in tests; `python` is that of the training environment; `paths` are the
    folders whose disks are asked for, the project's first; `seconds` bound each command (torch has twice of it)."""

    root: Path = Path("/")
    python: str = sys.executable
    paths: tuple[str, ...] = (".",)
    seconds: float = 15.0

    def read(self, path: str) -> str | None:
        """The text of a file of /proc or /sys; None where there is none."""
        try:
            with open(self.root / path, "rb") as file:
                return file.read(_LONGEST).decode("utf-8", "replace")
        except (OSError, ValueError):
            return None

    def names(self, path: str) -> list[str]:
        """The entries of a folder, sorted."""
        try:
            return sorted(os.listdir(self.root / path))
        except OSError:
            return []


class _Missing:
    """What could not be found, in the order of asking."""

    def __init__(self) -> None:
        self.rows: list[dict[str, str]] = []

    def say(self, what: str, reason: str) -> None:
        self.rows.append({"what": what, "reason": reason})


def probe(box: Box | None = None) -> dict[str, Any]:
    """Everything that can be found out within the box's time. Never raises for anything that a machine lacks."""
    box = box or Box()
    missing = _Missing()
    query = Command(_query(nvidia_smi.FIELDS), box.seconds)
    others = {
        "head": Command(["nvidia-smi"], box.seconds),
        "peers": Command(["nvidia-smi", "topo", "-p2p", "r"], box.seconds),
        "links": Command(["nvidia-smi", "topo", "-m"], box.seconds),
        "torch": Command([box.python, "-c", _CHILD.read_text(encoding="utf-8")], 2 * box.seconds),
        "lspci": Command(["lspci", "-vvv"], box.seconds),
    }
    host = _host(box, missing)
    disks = [_disk(box, path, missing) for path in box.paths]
    network, ports = list(_network(box)), list(_ports(box))
    limits = _limits()
    gpus, reason = _gpus(box, query)
    answers = {name: command.answer() for name, command in others.items()}
    if not gpus:
        missing.say("GPUs", reason)
    peers = nvidia_smi.peers(answers["peers"].text)
    links = nvidia_smi.links(answers["links"].text)
    cuda = nvidia_smi.cuda_version(answers["head"].text) if gpus else None
    torch = _torch(answers["torch"], missing)
    if len(gpus) > 1 and not peers:
        missing.say("peer-to-peer", answers["peers"].problem or "nvidia-smi topo -p2p r prints no matrix")
        if torch and torch["peers"]:
            peers = torch["peers"]
    iommu = _iommu(box, gpus)
    iommu["acs_redirecting_bridges"] = system.acs_redirects(answers["lspci"].text)
    if gpus and iommu["acs_redirecting_bridges"] is None:
        missing.say("PCIe ACS", answers["lspci"].problem or "lspci shows it to root only: sudo lspci -vvv")
    return {
        "format_version": FORMAT_VERSION,
        "tool_version": __version__,
        "command": "hardware probe",
        "taken_at": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "gpus": gpus,
        "driver": {"version": gpus[0]["driver_version"] if gpus else None, "cuda_version": cuda},
        "cuda_visible_devices": os.environ.get("CUDA_VISIBLE_DEVICES"),
        "peer_to_peer": peers,
        "links": links,
        "torch": torch,
        "host": host,
        "shm": _space(box, "/dev/shm", missing, "/dev/shm"),  # noqa: S108
        "disks": disks,
        "network": network,
        "infiniband": ports,
        "limits": limits,
        "iommu": iommu,
        "problems": list(_problems(gpus, cuda, torch, answers["head"])),
        "not_found": missing.rows,
    }


def _query(fields: tuple[str, ...]) -> list[str]:
    return ["nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits"]


def _gpus(box: Box, query: Command) -> tuple[list[dict[str, Any]], str]:
    """The GPUs, or why there are none. A column that an old driver refuses is left out and the rest asked again."""
    fields: tuple[str, ...] = nvidia_smi.FIELDS
    answer = query.answer()
    while (refused := nvidia_smi.refused_field(answer.text)) in fields:  # ends: each turn takes a column away
        fields = tuple(name for name in fields if name != refused)
        answer = Command(_query(fields), box.seconds).answer()
    if answer.missing:
        return [], "no NVIDIA driver (nvidia-smi is not installed)"
    found = nvidia_smi.gpus(answer.text, fields)
    return found, "" if found else answer.problem or "nvidia-smi lists no GPU"


# --- host


def _host(box: Box, missing: _Missing) -> dict[str, Any]:
    memory = system.memory(box.read("proc/meminfo") or "")
    for name in ("ram_total_bytes", "ram_available_bytes"):
        if memory[name] is None:
            missing.say(name.replace("_", " "), "/proc/meminfo does not say (Linux only)")
    cpus = [name for name in box.names("sys/devices/system/cpu") if name.startswith("cpu") and name[3:].isdigit()]
    places = []
    for name in cpus[:_MOST_CPUS]:
        folder = f"sys/devices/system/cpu/{name}/topology"
        package, core = box.read(f"{folder}/physical_package_id"), box.read(f"{folder}/core_id")
        if package is not None and core is not None:
            places.append((package, core))
    processor = system.processor(places)
    if processor["physical_cores"] is None:
        missing.say("CPU cores", "/sys/devices/system/cpu does not say")
    nodes = [n for n in box.names("sys/devices/system/node") if n.startswith("node") and n[4:].isdigit()]
    return {
        **memory,
        **_memory_limit(box),
        **processor,
        "usable_cpus": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "numa_nodes": len(nodes) or None,
    }


def _memory_limit(box: Box) -> dict[str, int | None]:
    """The tightest limit of this process's control group and those above it, and what of it is in use."""
    groups = system.cgroup_paths(box.read("proc/self/cgroup") or "")
    found: list[tuple[int, int | None]] = []
    for controller, mounts, names in (
        ("memory", ("sys/fs/cgroup/memory",), ("memory.limit_in_bytes", "memory.usage_in_bytes")),
        ("", ("sys/fs/cgroup", "sys/fs/cgroup/unified"), ("memory.max", "memory.current")),
    ):
        # Inside of a container the mount is the group itself, whatever /proc/self/cgroup calls it: the last to try.
        path = groups.get(controller, "/").strip("/")
        parts = path.split("/") if path else []
        for mount in mounts:
            for depth in range(len(parts), -1, -1):
                folder = "/".join([mount, *parts[:depth]])
                limit = system.limit(box.read(f"{folder}/{names[0]}") or "")
                if limit is not None:
                    used = system.limit(box.read(f"{folder}/{names[1]}") or "")
                    kept = None if used is None else used - system.reclaimable(box.read(f"{folder}/memory.stat") or "")
                    found.append((limit, kept if kept is None else max(kept, 0)))
    if not found:
        return {"memory_limit_bytes": None, "memory_limit_used_bytes": None}
    tightest, used = min(found, key=lambda one: one[0] - (one[1] or 0))
    return {"memory_limit_bytes": tightest, "memory_limit_used_bytes": used}


def _space(box: Box, path: str, missing: _Missing, what: str) -> dict[str, Any] | None:
    place = str(box.root / path.lstrip("/")) if os.path.isabs(path) else path
    found = bounded(lambda: os.statvfs(place), 3.0)
    if found is None:
        missing.say(what, f"{path} cannot be read, or gives no answer in 3 s")
        return None
    return {"total_bytes": found.f_blocks * found.f_frsize, "free_bytes": found.f_bavail * found.f_frsize}


def _disk(box: Box, path: str, missing: _Missing) -> dict[str, Any]:
    """The file system that `path` lies on, and the block device behind it, where there is one."""
    whole = os.path.abspath(path)
    space = _space(box, whole, missing, f"disk of {path}") or {"total_bytes": None, "free_bytes": None}
    disk, rotational, nvme = None, None, None
    state = bounded(lambda: os.stat(box.root / whole.lstrip("/")), 3.0)
    if state is not None:
        uevent = box.read(f"sys/dev/block/{os.major(state.st_dev)}:{os.minor(state.st_dev)}/uevent") or ""
        name = next((line[8:].strip() for line in uevent.splitlines() if line.startswith("DEVNAME=")), "")
        disk = system.whole_disk(box.names("sys/block"), name) if name else None
        if disk:
            parts = box.names(f"sys/block/{disk}/slaves") or [disk]  # of a software RAID or a mapped device
            nvme = all(part.startswith("nvme") for part in parts)
            rotational = {"0": False, "1": True}.get((box.read(f"sys/block/{disk}/queue/rotational") or "").strip())
    if disk is None:
        missing.say(f"kind of disk of {path}", "no single block device stands behind it")
    return {"path": whole, **space, "device": disk, "rotational": rotational, "nvme": nvme}


def _network(box: Box) -> Iterator[dict[str, Any]]:
    """The physical interfaces: those with a device behind them."""
    for name in box.names("sys/class/net"):
        folder = f"sys/class/net/{name}"
        if (box.root / folder / "device").exists():
            state = (box.read(f"{folder}/operstate") or "").strip() or None
            yield {"name": name, "state": state, "gbit_s": system.link_gbit_s(box.read(f"{folder}/speed") or "")}


def _ports(box: Box) -> Iterator[dict[str, Any]]:
    for name in box.names("sys/class/infiniband"):
        for port in box.names(f"sys/class/infiniband/{name}/ports"):
            folder = f"sys/class/infiniband/{name}/ports/{port}"
            yield {
                "name": name,
                "port": port,
                "state": system.port_state(box.read(f"{folder}/state") or ""),
                "gbit_s": system.port_gbit_s(box.read(f"{folder}/rate") or ""),
                "layer": (box.read(f"{folder}/link_layer") or "").strip() or None,
            }


def _limits() -> dict[str, Any]:
    """The soft limits of this process, which the launcher inherits. null: unlimited."""

    def soft(which: int) -> int | None:
        value = resource.getrlimit(which)[0]
        return None if value == resource.RLIM_INFINITY else value

    return {"locked_memory_bytes": soft(resource.RLIMIT_MEMLOCK), "open_files": soft(resource.RLIMIT_NOFILE)}


def _iommu(box: Box, gpus: list[dict[str, Any]]) -> dict[str, Any]:
    """`gpu_domains`: what the IOMMU does with each GPU's addresses (DMA, DMA-FQ: translates; identity: does not)."""
    groups = box.names("sys/kernel/iommu_groups")
    domains = []
    for gpu in gpus:
        # nvidia-smi writes eight digits of domain in capitals, /sys four.
        address = (gpu["bus_id"] or "").lower()[-12:]
        kind = box.read(f"sys/bus/pci/devices/{address}/iommu_group/type") if address else None
        domains.append({"gpu": gpu["index"], "kind": kind.strip() if kind else None})
    return {
        "groups": len(groups),
        "gpu_domains": domains,
        "kernel_options": system.kernel_words(box.read("proc/cmdline") or ""),
    }


# --- torch and the driver


def _torch(answer: Answer, missing: _Missing) -> dict[str, Any] | None:
    found = system.torch_answer(answer.text)
    if found is None:
        missing.say("torch", answer.problem or "the child process gave no answer")
        return None
    if not found["installed"]:
        missing.say("torch", "not installed for this Python (--python names another)")
        return None
    return {name: value for name, value in found.items() if name != "installed"}


def _problems(
    gpus: list[dict[str, Any]], cuda: str | None, torch: dict[str, Any] | None, head: Answer
) -> Iterator[str]:
    """What is wrong with the box itself, whatever the recipe."""
    if "Driver/library version mismatch" in head.text:
        yield "the driver's kernel module and its libraries have different versions: reboot, or reload the module"
    kinds = sorted({gpu["name"] for gpu in gpus})
    if len(kinds) > 1:
        yield f"GPUs of different kinds: {', '.join(kinds)}; a step waits for the slowest"
    versions = sorted({gpu["driver_version"] for gpu in gpus if gpu["driver_version"]})
    if len(versions) > 1:
        yield f"different driver versions: {', '.join(versions)}"
    if any(gpu["mig"] for gpu in gpus):
        yield "MIG is on: a process sees a slice of a GPU, which no profile describes"
    for gpu in gpus:
        now, most = gpu["pcie_width"], gpu["pcie_width_max"]
        if now and most and now < most:
            yield f"GPU {gpu['index']} is linked by {now} PCIe lanes of {most}"
    if torch is None:
        return
    if torch["problem"]:
        yield f"torch: {torch['problem']}"
    if gpus and torch["cuda_version"] is None:
        yield f"torch {torch['version']} is a build without CUDA"
    elif gpus and torch["cuda_available"] is False:
        yield f"torch {torch['version']} (CUDA {torch['cuda_version']}) cannot use the GPUs"
    elif torch["devices"] and len(torch["devices"]) < len(gpus):
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        why = "" if visible is None else f" (CUDA_VISIBLE_DEVICES={visible})"
        yield f"torch sees {len(torch['devices'])} of {len(gpus)} GPUs{why}"
    wanted = torch["cuda_version"]
    if (
        cuda
        and wanted
        and wanted.partition(".")[0].isdigit()
        and int(wanted.partition(".")[0]) > int(cuda.split(".")[0])
    ):
        yield f"torch is built for CUDA {wanted}, the driver runs up to {cuda}"
