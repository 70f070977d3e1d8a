"""What safetensors files hold, from their headers: how many parameters, in how many bytes. No tensor is read."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from recipegen.catalog.model_config import architecture_facts, parse_json
from recipegen.spec import RecipegenError

_LENGTH_BYTES = 8  # a safetensors file starts with the length of its JSON header, little endian
_BITS = re.compile(r"\d+")


@dataclass(frozen=True)
class Stored:
    """Totals over the weight files of a folder; 0 where it cannot be known."""

    parameters: int = 0
    bytes: int = 0


def bytes_of(counts: Mapping[str, int]) -> int:
    """Bytes of parameters counted by safetensors dtype (`BF16`, `F8_E4M3`, `I32`): the first number is the bits."""
    return sum(count * _bits(dtype) // 8 for dtype, count in counts.items())


def _bits(dtype: str) -> int:
    match = _BITS.search(dtype)
    return int(match.group()) if match else 8  # BOOL takes a byte


def stored_in(folder: Path) -> Stored:
    """Parameters and bytes of the safetensors files of a folder, or what the index of sharded files says.

    Raises RecipegenError for a file that is not what its name says (a Git LFS pointer, a broken download).
    """
    index = folder / "model.safetensors.index.json"
    files = sorted(folder.glob("*.safetensors"))
    if index.is_file():
        return _from_index(index, folder)
    parameters = size = 0
    for file in files:
        held = _header(file)
        parameters += held.parameters
        size += held.bytes
    return Stored(parameters, size)


def _from_index(index: Path, folder: Path) -> Stored:
    try:
        content = parse_json(index.read_bytes(), str(index))
    except OSError as error:
        raise RecipegenError(f"cannot be read: {error.strerror or error}", where=str(index)) from None
    shards = content.get("weight_map")
    names = {name for name in shards.values() if isinstance(name, str)} if isinstance(shards, dict) else set()
    # A shard is a file beside the index; anything else in a name is not followed.
    present = [folder / name for name in sorted(names) if Path(name).name == name and (folder / name).is_file()]
    if names and len(present) == len(names):
        held = [_header(path) for path in present]
        return Stored(sum(h.parameters for h in held), sum(h.bytes for h in held))
    metadata = content.get("metadata")
    metadata = metadata if isinstance(metadata, dict) else {}
    return Stored(_whole(metadata.get("total_parameters")), _whole(metadata.get("total_size")))


def _whole(value: object) -> int:
    """A size as the index states it; some writers use a float."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 2**63:
        return 0
    return int(value)


def _header(path: Path) -> Stored:
    limit = int(architecture_facts()["limits"]["header_bytes"])
    broken = RecipegenError(
        "not a safetensors file",
        where=str(path),
        fix="Download it again; a Git LFS pointer is a few lines of text.",
    )
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(_LENGTH_BYTES), "little")
            if not 2 <= length <= min(limit, path.stat().st_size - _LENGTH_BYTES):
                raise broken
            header: Any = json.loads(file.read(length))
    except (ValueError, RecursionError):
        raise broken from None
    except OSError as error:
        raise RecipegenError(f"cannot be read: {error.strerror or error}", where=str(path)) from None
    if not isinstance(header, dict):
        raise broken
    parameters = size = 0
    for name, tensor in header.items():
        if name == "__metadata__":
            continue
        shape = tensor.get("shape") if isinstance(tensor, dict) else None
        if not isinstance(shape, list) or not all(isinstance(n, int) and 0 <= n < 2**63 for n in shape):
            raise broken
        count = math.prod(shape)
        parameters += count
        size += count * _bits(str(tensor.get("dtype", ""))) // 8
    return Stored(parameters, size)
