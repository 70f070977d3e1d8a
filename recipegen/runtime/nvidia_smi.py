"""What nvidia-smi prints, as values. Formats: https://docs.nvidia.com/deploy/nvidia-smi/ and `nvidia-smi topo -h`.

Nothing here raises: a cell that is not understood is None, a row that is none is left out.
"""

from __future__ import annotations

import re
from typing import Any

from recipegen.spec.units import MIB

# The columns that are asked for, in their order. An old driver refuses the ones that it does not know: `refused_field`.
FIELDS = (
    "index", "name", "pci.bus_id", "memory.total", "memory.used", "memory.free", "driver_version", "compute_cap",
    "pcie.link.gen.current", "pcie.link.gen.max", "pcie.link.width.current", "pcie.link.width.max",
    "persistence_mode", "ecc.mode.current", "mig.mode.current", "power.limit",
)  # fmt: skip
_NEEDED = ("index", "name", "memory.total")
_REFUSED = re.compile(r'Field "([a-z0-9_.]{1,60})" is not a valid field to query')
_CUDA = re.compile(r"CUDA (?:UMD )?Version\s*:\s*([0-9]{1,3}\.[0-9]{1,3})")
_GPU = re.compile(r"GPU[0-9]{1,3}")
# `topo -p2p`: OK, or why not; the X of a GPU with itself is no pair.
_PEER_STATUS = re.compile(r"OK|CNS|GNS|TNS|NS|DR|U")
_PATH = re.compile(r"SYS|NODE|PHB|PXB|PIX|NV[0-9]{1,2}")
_ESCAPE = re.compile(r"\x1b\[[0-9;]*m")  # the header of a matrix is underlined
MEANING = {
    "CNS": "chipset not supported",
    "GNS": "GPU not supported",
    "TNS": "topology not supported",
    "NS": "not supported",
    "DR": "disabled by a driver option",
    "U": "unknown",
}


def refused_field(text: str) -> str | None:
    """The column that this driver does not know, when that is why it answered nothing."""
    found = _REFUSED.search(text)
    return found[1] if found and found[1] in FIELDS and found[1] not in _NEEDED else None


def gpus(text: str, fields: tuple[str, ...] = FIELDS) -> list[dict[str, Any]]:
    """The GPUs of `--query-gpu=FIELDS --format=csv,noheader,nounits`, memory in bytes."""
    found = []
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) != len(fields):
            continue
        row = dict(zip(fields, cells, strict=True))
        index, memory = _number(row["index"]), _mib(row["memory.total"])
        if index is None or memory is None or not row["name"]:
            continue
        found.append(
            {
                "index": index,
                "name": row["name"],
                "bus_id": _said(row.get("pci.bus_id")),
                "memory_total_bytes": memory,
                "memory_used_bytes": _mib(row.get("memory.used")),
                "memory_free_bytes": _mib(row.get("memory.free")),
                "driver_version": _said(row.get("driver_version")),
                "compute_capability": _capability(row.get("compute_cap")),
                "pcie_generation": _number(row.get("pcie.link.gen.current")),
                "pcie_generation_max": _number(row.get("pcie.link.gen.max")),
                "pcie_width": _number(row.get("pcie.link.width.current")),
                "pcie_width_max": _number(row.get("pcie.link.width.max")),
                "persistence": _switch(row.get("persistence_mode")),
                "ecc": _switch(row.get("ecc.mode.current")),
                "mig": _switch(row.get("mig.mode.current")),
                "power_limit_w": _real(row.get("power.limit")),
            }
        )
    return found


def cuda_version(text: str) -> str | None:
    """The newest CUDA that the driver runs, from the head of plain `nvidia-smi`."""
    found = _CUDA.search(text)
    return found[1] if found else None


def peers(text: str) -> list[dict[str, Any]]:
    """The ordered pairs of `nvidia-smi topo -p2p r`: OK, or one of MEANING."""
    return [
        {"from": row, "to": column, "status": cell}
        for row, column, cell in _matrix(text)
        if row != column and _PEER_STATUS.fullmatch(cell)
    ]


def links(text: str) -> list[dict[str, Any]]:
    """The pairs of GPUs in `nvidia-smi topo -m`, each once: SYS, NODE, PHB, PXB, PIX, or NV and a number of links."""
    return [
        {"a": row, "b": column, "path": cell}
        for row, column, cell in _matrix(text)
        if row < column and _PATH.fullmatch(cell)
    ]


def _matrix(text: str) -> list[tuple[int, int, str]]:
    """(row's GPU, column's GPU, cell). Columns of NICs and affinities stand behind those of the GPUs."""
    columns: list[int] = []
    cells = []
    for line in text.splitlines():
        words = _ESCAPE.sub("", line).split()
        names = [word for word in words if _GPU.fullmatch(word)]
        if not columns:
            # "CPU Affinity", "GPU NUMA ID" come later; the run of GPUs at the start is the header.
            lead = next((n for n, word in enumerate(words) if not _GPU.fullmatch(word)), len(words))
            columns = [int(word[3:]) for word in words[:lead]]
        elif words and words[0] in names:
            row = int(words[0][3:])
            cells += [(row, column, cell) for column, cell in zip(columns, words[1:], strict=False)]
        elif words and words[0].startswith("Legend"):
            break
    return cells


def _said(cell: str | None) -> str | None:
    """None for what nvidia-smi says of things that a card lacks: N/A, [N/A], [Not Supported], [Unknown Error], ..."""
    if cell is None or not cell or cell.startswith("[") or cell in ("N/A", "Not Supported", "Unknown"):
        return None
    return cell


def _number(cell: str | None) -> int | None:
    said = _said(cell)
    return int(said) if said and said.isascii() and said.isdigit() and len(said) < 12 else None


def _real(cell: str | None) -> float | None:
    said = _said(cell)
    return float(said) if said and re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,9})?", said) else None


def _mib(cell: str | None) -> int | None:
    number = _number(cell)
    return None if number is None else number * MIB


def _switch(cell: str | None) -> bool | None:
    return {"enabled": True, "disabled": False}.get((_said(cell) or "").lower())


def _capability(cell: str | None) -> str | None:
    said = _said(cell)
    return f"sm_{said.replace('.', '')}" if said and re.fullmatch(r"[0-9]{1,2}\.[0-9]", said) else None
