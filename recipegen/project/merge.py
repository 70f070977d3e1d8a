"""Three-way merge by key: what was generated, what people made of it, and what is generated now.

Mappings are merged key by key, at any depth; lists and scalars are one value each. Nothing of a person's is lost: a
value of theirs gives way only where it says what was generated before, or what is generated now.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from recipegen.spec import Edit


class Missing(Enum):
    """No such key."""

    MISSING = "not there"


MISSING = Missing.MISSING
Path = tuple[str, ...]
# A number of YAML 1.2 that YAML 1.1 reads as a text: the trainers take 2e-5 for a number.
_NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?\Z")


@dataclass(frozen=True)
class Clash:
    """A key that both sides changed, each to something else. MISSING: it is not there on that side."""

    path: Path
    base: Any
    yours: Any
    new: Any


@dataclass(frozen=True)
class Merged:
    """`kept` are the paths where a person's value stays and the new version has nothing against it."""

    values: dict[str, Any]
    clashes: tuple[Clash, ...]
    kept: tuple[Path, ...]


def merge(base: Mapping[str, Any], yours: Mapping[str, Any], new: Mapping[str, Any]) -> Merged:
    """The new values with what the person changed since the base; keys of the new first, in their order."""
    clashes: list[Clash] = []
    kept: list[Path] = []
    values = _mappings((), base, yours, new, clashes, kept)
    return Merged(values, tuple(clashes), tuple(kept))


def _mappings(
    path: Path,
    base: Mapping[str, Any],
    yours: Mapping[str, Any],
    new: Mapping[str, Any],
    clashes: list[Clash],
    kept: list[Path],
) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for key in dict.fromkeys((*new, *yours, *base)):
        before, theirs, after = (side.get(key, MISSING) for side in (base, yours, new))
        value = _one((*path, key), before, theirs, after, clashes, kept)
        if value is not MISSING:
            result[key] = value
    return result


def _one(path: Path, base: Any, yours: Any, new: Any, clashes: list[Clash], kept: list[Path]) -> Any:
    below = base if isinstance(base, Mapping) else {}
    if isinstance(yours, Mapping) and isinstance(new, Mapping):
        return _mappings(path, below, yours, new, clashes, kept)
    if isinstance(yours, Mapping) and new is MISSING and below:
        # The new version has no such section: of the person's only what they changed in it stays.
        return _mappings(path, below, yours, {}, clashes, kept) or MISSING
    if same(yours, base) or same(yours, new):
        return new
    if same(new, base):
        kept.append(path)
    else:
        clashes.append(Clash(path, base, yours, new))
    return yours


def same(one: Any, other: Any) -> bool:
    """Equal in meaning: 2e-5 (a text in YAML 1.1), 2.0e-05 and 0.00002 are one number; order of keys means nothing."""
    if isinstance(one, bool) or isinstance(other, bool) or one is MISSING or other is MISSING:
        return one is other
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, str) != isinstance(other, str):
        one, other = _number(one), _number(other)
    return bool(one == other)


def _number(value: Any) -> Any:
    return float(value) if isinstance(value, str) and _NUMBER.match(value) else value


def edits(file: str, old: Mapping[str, Any], new: Mapping[str, Any], path: Path = ()) -> Iterator[Edit]:
    """What turns a file that reads as `old` into one that reads as `new`; deletions last, so that no mapping is empty
    on the way."""
    for key, value in new.items():
        before = old.get(key, MISSING)
        if before is MISSING:
            yield Edit(file, path, "insert", value, key)
        elif isinstance(before, Mapping) and isinstance(value, Mapping) and before and value:
            yield from edits(file, before, value, (*path, key))
        elif not _equal(before, value):
            yield Edit(file, (*path, key), "set", value)
    gone = [key for key in old if key not in new]
    for key in gone:
        yield Edit(file, (*path, key), "delete")


def _equal(one: Any, other: Any) -> bool:
    """Equal in value and type."""
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(_equal(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_equal, one, other))
    return type(one) is type(other) and bool(one == other)
