"""recipe.lock: what made the folder, the digests of its files, the resolved Recipe, and the text of the files that
`update` merges by key. JSON, keys sorted."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from recipegen import __version__
from recipegen.formats.plain import from_plain, to_plain
from recipegen.spec import Recipe, RecipegenError

FORMAT_VERSION = 1
NAME = "recipe.lock"
# Files whose text is kept: what a person changed in them is told from what another version of recipegen writes.
KEPT = ("axolotl.yaml", "train.json", "accelerate.yaml", "deepspeed.json")


@dataclass(frozen=True)
class Lock:
    """The content of recipe.lock. `files` maps file names to SHA-256 digests (hex) as they were written; `lines` holds
    the lines of those of KEPT (none in a lock of an older version)."""

    format_version: int
    tool_version: str
    stack: str
    files: Mapping[str, str]
    recipe: Recipe
    lines: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def text(self, name: str) -> bytes | None:
        """The file as it was written; None where it is not kept, or is not what its digest says."""
        content = "\n".join(self.lines[name]).encode("utf-8") if name in self.lines else b""
        return content if content and digest(content) == self.files.get(name) else None


def digest(content: bytes) -> str:
    """SHA-256 of a file's bytes, in hex."""
    return hashlib.sha256(content).hexdigest()


def write(recipe: Recipe, files: Mapping[str, bytes]) -> str:
    """The text of recipe.lock for these files."""
    digests = {name: digest(data) for name, data in files.items()}
    lines = {name: tuple(files[name].decode("utf-8").split("\n")) for name in KEPT if name in files}
    plain = to_plain(Lock(FORMAT_VERSION, __version__, recipe.stack, digests, recipe, lines))
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
