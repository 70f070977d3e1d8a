"""What /proc, /sys and lspci say, as values. Nothing here raises: what is not understood is left out."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any

from recipegen.spec.units import KIB

_MEMINFO = re.compile(r"^(\w+):\s+([0-9]{1,18}) kB$", re.MULTILINE)
_NAMES = {
    "ram_total_bytes": "MemTotal",
    "ram_available_bytes": "MemAvailable",
    "swap_total_bytes": "SwapTotal",
    "swap_free_bytes": "SwapFree",
}
_ACS_BRIDGE = re.compile(r"^([0-9a-f:.]{5,16}) .*bridge", re.IGNORECASE)
_NO_LIMIT = 2**60  # cgroup v1 says "no limit" with a number near 2^63
# What of the kernel's command line matters to copies between GPUs.
_KERNEL_WORDS = re.compile(r"(?:amd_iommu|intel_iommu|iommu|iommu\.\w+|pci|pcie_acs_override)=[\w,.:-]{1,80}")
_TORCH_LINE = "recipegen-torch "
_RATE = re.compile(r"([0-9]+(?:\.[0-9]+)?) Gb/sec")


def memory(meminfo: str) -> dict[str, int | None]:
    """RAM and swap in bytes, from /proc/meminfo."""
    found = {name: int(value) * KIB for name, value in _MEMINFO.findall(meminfo)}
    return {name: found.get(kernel) for name, kernel in _NAMES.items()}


def cgroup_paths(text: str) -> dict[str, str]:
    """From /proc/self/cgroup: the group's path of `memory` (version 1) and of `` (version 2)."""
    found = {}
    for line in text.splitlines():
        _, _, rest = line.partition(":")
        controllers, separator, path = rest.partition(":")
        if separator and ".." not in path.split("/"):
            for controller in controllers.split(","):
                if controller in ("", "memory"):
                    found[controller] = path
    return found


def limit(text: str) -> int | None:
    """A memory limit of a control group in bytes; None for none."""
    text = text.strip()
    if not text.isascii() or not text.isdigit() or len(text) > 25:
        return None
    number = int(text)
    return number if number < _NO_LIMIT else None


def reclaimable(stat: str) -> int:
    """Bytes of a control group's memory.stat that the kernel takes back when memory is short: inactive file pages."""
    for name in ("total_inactive_file", "inactive_file"):
        found = re.search(rf"^{name} ([0-9]{{1,18}})$", stat, re.MULTILINE)
        if found:
            return int(found[1])
    return 0


def processor(places: Iterable[tuple[str, str]]) -> dict[str, int | None]:
    """Sockets, physical cores and CPUs from each CPU's physical_package_id and core_id."""
    pairs = [(package.strip(), core.strip()) for package, core in places]
    return {
        "sockets": len({package for package, _ in pairs}) or None,
        "physical_cores": len(set(pairs)) or None,
        "logical_cpus": len(pairs) or None,
    }


def kernel_words(cmdline: str) -> list[str]:
    """The words of /proc/cmdline about IOMMU and PCIe ACS, no others."""
    return [word for word in cmdline.split() if _KERNEL_WORDS.fullmatch(word)]


def link_gbit_s(speed: str) -> float | None:
    """/sys/class/net/NAME/speed, which counts Mbit/s and says -1 for a link that is down or unknown."""
    text = speed.strip()
    return int(text) / 1000 if text.isascii() and text.isdigit() and int(text[:9]) > 0 else None


def port_gbit_s(rate: str) -> float | None:
    """/sys/class/infiniband/NAME/ports/1/rate, such as `200 Gb/sec (4X HDR)`."""
    found = _RATE.match(rate.strip())
    return float(found[1]) if found else None


def port_state(state: str) -> str | None:
    """`4: ACTIVE` of an InfiniBand port's state."""
    word = state.strip().rpartition(":")[2].strip().lower()
    return word if word.isalpha() else None


def acs_redirects(lspci: str) -> list[str] | None:
    """The bridges that send copies between GPUs up to the root (ACSCtl: ReqRedir+), from `lspci -vvv`. None when no
    bridge shows the register: it needs root."""
    found, seen, bridge = [], False, ""
    for line in lspci.splitlines():
        if line[:1].strip():
            head = _ACS_BRIDGE.match(line)
            bridge = head[1] if head else ""
        elif bridge and "ACSCtl:" in line:
            seen = True
            if "ReqRedir+" in line:
                found.append(bridge)
    return found if seen else None


def whole_disk(uevent_names: Iterable[str], name: str) -> str | None:
    """The disk behind a partition: the longest of `uevent_names` that `name` starts with (nvme0n1p2 -> nvme0n1)."""
    return max((disk for disk in uevent_names if name.startswith(disk)), key=len, default=None)


def torch_answer(text: str) -> dict[str, Any] | None:
    """The line that the child process of `collect` prints, see torch_child.py; without what is not of its kind, since
    that Python may print lines of its own."""
    for line in reversed(text.splitlines()):
        if line.startswith(_TORCH_LINE):
            try:
                found = json.loads(line.removeprefix(_TORCH_LINE))
            except (ValueError, RecursionError):
                return None
            return _torch_values(found) if isinstance(found, dict) else None
    return None


def _torch_values(found: dict[str, Any]) -> dict[str, Any]:
    def of(name: str, kind: type) -> Any:
        return found[name] if isinstance(found.get(name), kind) else None

    def rows(name: str, kinds: dict[str, type]) -> list[dict[str, Any]]:
        listed = found[name] if isinstance(found.get(name), list) else []
        return [
            {key: row[key] for key in kinds}
            for row in listed
            if isinstance(row, dict) and all(_is(row.get(key), kind) for key, kind in kinds.items())
        ]

    return {
        "installed": found.get("installed") is True,
        "version": of("version", str),
        "cuda_version": of("cuda_version", str),
        "cuda_available": of("cuda_available", bool),
        "devices": rows("devices", {"name": str, "memory_total_bytes": int, "compute_capability": str}),
        "bf16": of("bf16", bool),
        "peers": [
            row for row in rows("peers", {"from": int, "to": int, "status": str}) if row["status"] in ("OK", "NS")
        ],
        "problem": of("problem", str),
    }


def _is(value: object, kind: type) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool) and (not isinstance(value, int) or value >= 0)
