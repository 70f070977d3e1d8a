"""recipe.lock: what made the folder, the digests of its files, and the resolved Recipe. JSON, keys sorted."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass

from recipegen import __version__
from recipegen.formats.plain import from_plain, to_plain
from recipegen.spec import Recipe, RecipegenError

FORMAT_VERSION = 1
NAME = "recipe.lock"


@dataclass(frozen=True)
class Lock:
    """The content of recipe.lock. `files` maps file names to SHA-256 digests (hex) as they were written."""

    format_version: int
    tool_version: str
    stack: str
    files: Mapping[str, str]
    recipe: Recipe


def digest(content: bytes) -> str:
    """SHA-256 of a file's bytes, in hex."""
    return hashlib.sha256(content).hexdigest()


def write(recipe: Recipe, files: Mapping[str, bytes]) -> str:
    """The text of recipe.lock for these files."""
    plain = to_plain(
        Lock(FORMAT_VERSION, __version__, recipe.stack, {name: digest(data) for name, data in files.items()}, recipe)
    )
    try:
        return json.dumps(plain, indent=1, sort_keys=True, allow_nan=False) + "\n"
    except ValueError as error:
        raise RecipegenError(f"the recipe holds a number that JSON cannot: {error}", where=NAME) from None


def read(content: bytes, where: str = NAME) -> Lock:
    """The lock in `content`. Raises RecipegenError when it is not one, or one of a newer format."""
    plain = _json(content, where)
    if isinstance(plain, dict) and isinstance(plain.get("format_version"), int):
        version = plain["format_version"]
        if version > FORMAT_VERSION:
            raise RecipegenError(
                f"format_version {version} is newer than this recipegen knows ({FORMAT_VERSION})",
                where=where,
                fix="Upgrade recipegen.",
            )
    return from_plain(Lock, plain, where)


def read_digests(content: bytes, where: str = NAME) -> dict[str, str]:
    """Only the digests of a lock; good also for a lock whose recipe this version cannot read."""
    plain = _json(content, where)
    files = plain.get("files") if isinstance(plain, dict) else None
    if not isinstance(files, dict) or not all(isinstance(v, str) for v in files.values()):
        raise RecipegenError("no digests of files in it", where=where)
    return dict(files)


def _json(content: bytes, where: str) -> object:
    try:
        return json.loads(content.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise RecipegenError(f"not a recipe.lock: {error}", where=where) from None
