"""What `recipegen hardware probe --format json` found on the training box, read without trust.

The file may come from anywhere, so every value that is not of its kind is as if it had not been found.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from recipegen.catalog.bounded_yaml import shown, shown_path
from recipegen.spec import RecipegenError

FORMAT_VERSION = 1
_LARGEST = 2**20  # bytes
_MOST = 2**62  # of a count of bytes
_MOST_ROWS = 4096
_HOW = "Write it with `recipegen hardware probe --format json --out box.json` on the box."
_VERSION = re.compile(r"[0-9]{1,6}(\.[0-9]{1,6}){0,3}")


@dataclass(frozen=True)
class ProbedGpu:
    """`memory_bytes` as torch sees it where torch was asked, else as nvidia-smi."""

    index: int
    name: str
    memory_bytes: int
    free_bytes: int | None
    compute_capability: str | None

    @property
    def left_bytes(self) -> int:
        """What is free of it; all, where that could not be found."""
        return self.memory_bytes if self.free_bytes is None else min(self.free_bytes, self.memory_bytes)


@dataclass(frozen=True)
class ProbedDisk:
    path: str
    total_bytes: int | None
    free_bytes: int
    device: str | None
    nvme: bool | None
    rotational: bool | None

    def same_as(self, other: ProbedDisk) -> bool:
        """Whether both paths lie on one file system, as far as the probe tells."""
        return self.path == other.path or (
            self.device is not None and (self.device, self.total_bytes) == (other.device, other.total_bytes)
        )


@dataclass(frozen=True)
class Probe:
    """None: could not be found there. `peers` are the (from, to) pairs of GPUs with what the driver says of them."""

    path: str
    taken_at: str
    gpus: tuple[ProbedGpu, ...]
    no_gpus: str
    driver: str | None
    peers: Mapping[tuple[int, int], str]
    translated: tuple[int, ...]  # GPUs whose addresses the IOMMU translates
    redirects: bool  # a bridge with PCIe ACS redirection
    torch: str | None
    torch_cuda: str | None  # None also for a build without CUDA
    torch_works: bool  # it sees GPUs through this driver
    shm_total_bytes: int | None
    ram_free_bytes: int | None
    ram_limited: bool
    disks: tuple[ProbedDisk, ...]
    problems: tuple[str, ...]

    def disk_of(self, path: str) -> ProbedDisk | None:
        """The disk that was asked for at `path`."""
        return next((disk for disk in self.disks if os.path.normpath(disk.path) == os.path.normpath(path)), None)


def read_probe(path: str | Path) -> Probe:
    """The probe at `path`. Raises RecipegenError for anything that is not the JSON of a probe."""
    place = shown_path(path)
    try:
        if not os.path.isfile(path):
            raise RecipegenError("no such file (a regular one)", where=place, fix=_HOW)
        with open(path, "rb") as file:
            content = file.read(_LARGEST + 1)
    except (OSError, ValueError) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
        raise RecipegenError(f"cannot be read: {reason}", where=place) from None
    if len(content) > _LARGEST:
        raise RecipegenError(f"larger than {_LARGEST // 2**20} MiB: no probe", where=place, fix=_HOW)
    try:
        document = json.loads(content.decode("utf-8"))
    except (ValueError, RecursionError):
        raise RecipegenError("no JSON of a hardware probe", where=place, fix=_HOW) from None
    if not isinstance(document, dict) or document.get("command") != "hardware probe":
        raise RecipegenError("JSON, but of no hardware probe", where=place, fix=_HOW)
    if document.get("format_version") != FORMAT_VERSION or document["format_version"] is True:
        raise RecipegenError(
            f"format_version is {shown(document.get('format_version'))}; this recipegen reads {FORMAT_VERSION}",
            where=place,
        )
    return _probe(place, document)


def _probe(place: str, document: Mapping[str, Any]) -> Probe:
    torch, host, iommu = (_mapping(document.get(name)) for name in ("torch", "host", "iommu"))
    driver, shm = _mapping(document.get("driver")), _mapping(document.get("shm"))
    free, limited = _ram(host)
    missing = [_text(row.get("reason")) for row in _rows(document, "not_found") if row.get("what") == "GPUs"]
    return Probe(
        path=place,
        taken_at=_text(document.get("taken_at")) or "",
        gpus=_gpus(document, torch),
        no_gpus=next((reason for reason in missing if reason), "no GPU was found"),
        driver=_version(driver.get("version")),
        peers={
            (row["from"], row["to"]): _text(row.get("status")) or "U"
            for row in _rows(document, "peer_to_peer")
            if _count(row.get("from")) is not None and _count(row.get("to")) is not None
        },
        translated=tuple(
            row["gpu"]
            for row in _rows(iommu, "gpu_domains")
            if _count(row.get("gpu")) is not None and (_text(row.get("kind")) or "").startswith("DMA")
        ),
        redirects=bool(iommu.get("acs_redirecting_bridges")),
        torch=_text(torch.get("version")),
        torch_cuda=_version(torch.get("cuda_version")),
        torch_works=torch.get("cuda_available") is True and bool(_rows(torch, "devices")),
        shm_total_bytes=_count(shm.get("total_bytes")),
        ram_free_bytes=free,
        ram_limited=limited,
        disks=_disks(document),
        problems=tuple(text for item in _list(document.get("problems")) if (text := _text(item))),
    )


def _gpus(document: Mapping[str, Any], torch: Mapping[str, Any]) -> tuple[ProbedGpu, ...]:
    seen: dict[str, int] = {}
    for row in _rows(torch, "devices"):
        # Torch numbers the GPUs by its own order: only the least of a kind is sure.
        name, memory = _text(row.get("name")), _count(row.get("memory_total_bytes"))
        if name and memory:
            seen[name] = min(memory, seen.get(name, memory))
    found = []
    for row in _rows(document, "gpus"):
        index, total = _count(row.get("index")), _count(row.get("memory_total_bytes"))
        if index is None or not total:
            continue
        name = _text(row.get("name")) or "GPU"
        capability = _text(row.get("compute_capability"))
        free = _count(row.get("memory_free_bytes"))
        found.append(ProbedGpu(index, name, min(total, seen.get(name, total)), free, capability))
    return tuple(found)


def _ram(host: Mapping[str, Any]) -> tuple[int | None, bool]:
    """What a program could take now, and whether the container's limit decides it."""
    available, limit = _count(host.get("ram_available_bytes")), _count(host.get("memory_limit_bytes"))
    left = None if limit is None else max(limit - (_count(host.get("memory_limit_used_bytes")) or 0), 0)
    if left is not None and (available is None or left < available):
        return left, True
    return available, False


def _disks(document: Mapping[str, Any]) -> tuple[ProbedDisk, ...]:
    return tuple(
        ProbedDisk(
            path,
            _count(row.get("total_bytes")),
            free,
            _text(row.get("device")),
            _switch(row.get("nvme")),
            _switch(row.get("rotational")),
        )
        for row in _rows(document, "disks")
        if (path := _text(row.get("path"))) and (free := _count(row.get("free_bytes"))) is not None
    )


def _mapping(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: object) -> list[Any]:
    return value[:_MOST_ROWS] if isinstance(value, list) else []


def _rows(values: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    return [row for row in _list(values.get(name)) if isinstance(row, dict)]


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MOST else None


def _switch(value: object) -> bool | None:
    return value if isinstance(value, bool) else None


def _text(value: object) -> str | None:
    return value[:1000] if isinstance(value, str) and value.strip() else None


def _version(value: object) -> str | None:
    return value if isinstance(value, str) and _VERSION.fullmatch(value) else None
