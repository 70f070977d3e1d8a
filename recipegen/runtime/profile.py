"""From a probe to a profile that --hardware takes: the nearest GPU of the catalogue, with what was measured."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

from recipegen.catalog import gpu_names, load_cluster
from recipegen.catalog.hardware_fields import fields
from recipegen.spec import RecipegenError
from recipegen.spec.units import GB, GIB, MIB

# Words of a card's name that do not tell its kind: vendor, family, memory type and size.
_IDLE_WORDS = re.compile(
    r"nvidia|geforce|quadro|tesla|graphics|blackwell|generation|workstation|edition|sxm\d?|hbm\d?e?"
)
_SIZE = re.compile(r"[0-9]+gb")
_MEMORY_SAYS_OTHERWISE = 0.1  # share by which a card of the same name may differ before its memory is written down
# What the driver keeps of a card: 0.35 to 0.64 GiB on the cards where both numbers are known (facts: RTX 4090, RTX Pro
# 6000), so torch sees that much less than nvidia-smi.
_DRIVER_KEEPS_GIB = 0.65
_NEVER_ALL = 0.99  # share of a card's memory that a profile may say is held: of a full card there is nothing to plan
_HELD = 256 * MIB  # from which on memory in use is worth a line


def nearest_gpu(name: str, memory_bytes: int) -> tuple[str, list[str]] | None:
    """The catalogue's GPU whose name stands in the card's `name`, and the words of the card's name that it lacks.

    Of several the one with most words wins, then the one nearest in memory. None for none.
    """
    words = _words(name)
    best: tuple[tuple[int, float], str, list[str]] | None = None
    for key in gpu_names():
        gpu = load_cluster(f"1x-{key}").gpu
        own = {word for word in _words(gpu.name) if not _SIZE.fullmatch(word)}
        if not own <= set(words):
            continue
        left = [w for w in words if w not in own and not _IDLE_WORDS.fullmatch(w) and not _SIZE.fullmatch(w)]
        rank = (len(own), -abs(gpu.memory_bytes - memory_bytes))
        if best is None or rank > best[0]:
            best = (rank, key, left)
    return (best[1], best[2]) if best else None


def _words(name: str) -> list[str]:
    return re.findall(r"[a-z0-9]+", re.sub(r"([0-9]+) (?=gb\b)", r"\1", name.lower()))


def profile_yaml(document: dict[str, Any]) -> str:
    """The profile as YAML. RecipegenError where no GPU was found, or none of the catalogue is like it."""
    gpus = document["gpus"]
    if not gpus:
        reason = next((row["reason"] for row in document["not_found"] if row["what"] == "GPUs"), "none was found")
        raise RecipegenError(f"no profile without a GPU: {reason}", fix="Run it on the training box.")
    ((name, _count),) = Counter(gpu["name"] for gpu in gpus).most_common(1)
    cards = [gpu for gpu in gpus if gpu["name"] == name]
    near = nearest_gpu(name, cards[0]["memory_total_bytes"])
    if near is None:
        raise RecipegenError(
            f"no GPU of the catalogue is like {name}",
            fix="Describe it in full (docs/hardware.md, a profile of your own); its rates are yours to measure.",
        )
    return "\n".join(_lines(document, name, cards, near[0], near[1])) + "\n"


def _lines(
    document: dict[str, Any], name: str, cards: list[dict[str, Any]], key: str, left: list[str]
) -> Iterator[str]:
    known = load_cluster(f"1x-{key}").gpu
    host = document["host"]
    others = len(document["gpus"]) - len(cards)
    yield f"# Written by recipegen {document['tool_version']} hardware probe, {document['taken_at']}."
    yield f"# measured: read from this box. What is not here: recipegen hardware show {len(cards)}x-{key}."
    if left:
        yield f"# The card calls itself {_one_line(name)}; {key} is only the nearest: check its rates."
    if others:
        yield f"# {others} more GPUs are of another kind; this profile is about the {len(cards)} of this one."
    yield "format_version: 1"
    yield f"name: {json.dumps(f'{len(cards)} x {_one_line(name)}, as probed')}"
    yield f"source: {json.dumps('recipegen hardware probe, ' + document['taken_at'])}"
    yield "gpu:"
    yield f"  like: {key}"
    yield f"  name: {json.dumps(known.name if not left else _one_line(name))}"
    yield from (f"  {line}" for line in _gpu(document, cards, known))
    yield f"gpu_count: {len(cards)}  # measured: nvidia-smi"
    limit, total = host["memory_limit_bytes"], host["ram_total_bytes"]
    if total and (limit is None or total <= limit):
        yield _stated("host_ram_gib", total / GIB, "measured: /proc/meminfo, MemTotal")
    elif limit:
        yield _stated("host_ram_gib", limit / GIB, "measured: limit of the control group (container)")
    if host["sockets"]:
        yield _stated("sockets", host["sockets"], "measured: /sys/devices/system/cpu")
    if host["physical_cores"]:
        yield _stated("physical_cores", host["physical_cores"], "measured: /sys/devices/system/cpu")
    disk = document["disks"][0] if document["disks"] else None
    if disk and disk["free_bytes"] is not None:
        yield _stated("nvme_gb", disk["free_bytes"] / GB, f"measured: free at {_one_line(disk['path'])}")
    yield "# Not measured: bus_bandwidth_gb_s (all_reduce_perf -b 512M -e 4G -g N, last column), host_to_device_gb_s,"
    yield "# nvme_read_gb_s, nvme_write_gb_s."


def _gpu(document: dict[str, Any], cards: list[dict[str, Any]], known: Any) -> Iterator[str]:
    indices = {card["index"] for card in cards}
    seen = [d for d in (document["torch"] or {}).get("devices", []) if d["name"] == cards[0]["name"]]
    least, memory = min(card["memory_total_bytes"] for card in cards) / GIB, known.memory_bytes / GIB
    if seen:
        memory = min(device["memory_total_bytes"] for device in seen) / GIB
        yield _stated("memory_gib", memory, "measured: torch, total_memory")
    elif abs(least - memory) > _MEMORY_SAYS_OTHERWISE * memory:
        memory = least - _DRIVER_KEEPS_GIB
        why = f"nvidia-smi's {least:.2f} GiB, less {_DRIVER_KEEPS_GIB} that the driver keeps"
        yield _stated("memory_gib", memory, why)
    held = max(card["memory_used_bytes"] or 0 for card in cards)
    if held > _HELD:
        why = "measured: in use by something else when this was written"
        yield _stated("memory_taken_gib", held / GIB, why, most=_NEVER_ALL * memory)
    capability = cards[0]["compute_capability"]
    if capability:
        yield f"compute_capability: {capability}  # measured: nvidia-smi"
    generation = min((card["pcie_generation_max"] for card in cards if card["pcie_generation_max"]), default=None)
    if generation:
        yield _stated("pcie_generation", generation, "measured: nvidia-smi, the most that card and slot agree on")
    pairs = [p for p in document["peer_to_peer"] if p["from"] in indices and p["to"] in indices]
    if pairs:
        works = all(pair["status"] == "OK" for pair in pairs)
        yield f"peer_to_peer: {str(works).lower()}  # measured: nvidia-smi topo -p2p r; no copy was made"
    links = [link for link in document["links"] if link["a"] in indices and link["b"] in indices]
    if links:
        joined = all(link["path"].startswith("NV") for link in links)
        yield f"nvlink: {str(joined).lower()}  # measured: nvidia-smi topo -m"


def _one_line(text: str) -> str:
    return "".join(c if c.isprintable() else "?" for c in " ".join(text.split()))[:200]


def _stated(key: str, value: float, why: str, most: float = math.inf) -> str:
    """A line of the profile; a comment where no profile may have this value."""
    field = fields()[key]
    written = str(value) if field.type == "integer" else f"{value:.2f}"
    most = min(most, field.max)
    if field.min <= float(written) <= most:
        return f"{key}: {written}  # {why}"
    return f"# {key}: {written} is left out, a profile takes {field.min:g} to {most:.2f} ({why})"
