"""Gathers a Reading key by key: each key of a file ends as a value, a fact, a problem, or untouched in passthrough."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from recipegen.catalog.bounded_yaml import shown
from recipegen.formats.documents import Document, KeyPath
from recipegen.formats.reading import Problem, Reading

AUTO = "auto"
Convert = Callable[[Any], Any]
# accelerate.utils.environment.str_to_bool, which every trainer of the family shares.
_TRUE = frozenset({"y", "yes", "t", "true", "on", "1"})
_FALSE = frozenset({"n", "no", "f", "false", "off", "0"})
_LONG = 2**63  # Python refuses to print numbers of thousands of digits


class Refused(ValueError):
    """A value that cannot be taken; the text completes `KEY: ...`."""


def whole(least: int | None = None) -> Convert:
    """A whole number of `least` or more. 5e8 is one (DeepSpeed's files are full of it), and so is the text "8"."""

    def convert(raw: Any) -> int:
        value = number()(raw)
        if isinstance(raw, int) or (isinstance(raw, str) and raw.isdecimal()):
            value = int(raw)  # exactly, also beyond 2**53
        if value != int(value):
            raise Refused(f"{shown(raw)} is not a whole number")
        if least is not None and value < least:
            raise Refused(f"{shown(raw)} is below {least}")
        return int(value)

    return convert


def number(least: float | None = None) -> Convert:
    """A finite number; text that is one counts (2e-4 is text in YAML 1.1, and the trainers convert it)."""

    def convert(raw: Any) -> float:
        if isinstance(raw, bool) or not isinstance(raw, (int, float, str)):
            raise Refused(f"{shown(raw)} is not a number")
        try:
            value = float(raw)
        except (ValueError, OverflowError):
            raise Refused(f"{shown(raw)} is not a number") from None
        if not math.isfinite(value):
            raise Refused(f"{shown(raw)} is not a finite number")
        if least is not None and value < least:
            raise Refused(f"{shown(raw)} is below {least:g}")
        return value

    return convert


def truth(raw: Any) -> bool:
    """true or false; yes, no, on, off, 1, 0 and their kin as text count, as in Accelerate's str_to_bool."""
    word = str(raw).lower() if isinstance(raw, (bool, str)) or raw in (0, 1) else ""
    if word in _TRUE or word in _FALSE:
        return word in _TRUE
    raise Refused(f"{shown(raw)} is neither true nor false")


def text(raw: Any) -> str:
    """A text that is not empty."""
    if not isinstance(raw, str) or not raw:
        raise Refused(f"{shown(raw)} is not a text")
    return raw


def word(raw: Any) -> str:
    """A text; a number is taken as its digits (`gpu_ids: 0`)."""
    return str(raw) if isinstance(raw, int) and not isinstance(raw, bool) and abs(raw) < _LONG else text(raw)


def one_of(*known: str) -> Convert:
    """One of these words."""

    def convert(raw: Any) -> str:
        if raw not in known or not isinstance(raw, str):
            raise Refused(f"{shown(raw)} is none of {', '.join(known)}")
        return raw

    return convert


def names(raw: Any) -> tuple[str, ...]:
    """A list of texts, or one text with commas."""
    items = [part.strip() for part in raw.split(",")] if isinstance(raw, str) else raw
    if not isinstance(items, list) or not all(isinstance(item, str) and item for item in items):
        raise Refused(f"{shown(raw)} is not a list of names")
    return tuple(items)


def anything(raw: Any) -> Any:
    """As it stands in the file."""
    return raw


@dataclass(frozen=True)
class Key:
    """One key of a file (dotted) and where it goes: a Recipe field path, a fact, or both.

    auto   "auto" is kept as a fact and never a value. A key without `fact` is only listed in the fact `auto`
    null   null is a value (`save_steps: null`); else it is as good as no key
    """

    key: str
    convert: Convert
    path: str = ""
    fact: str = ""
    auto: bool = False
    null: bool = False


class Collector:
    """Takes keys out of a document. Not for use after `reading`."""

    def __init__(self, format_name: str, document: Document) -> None:
        self.document = document
        self.values: dict[str, Any] = {}
        self.facts: dict[str, Any] = {}
        self._format = format_name
        self._provenance: dict[str, str] = {}
        self._passthrough: dict[str, Any] = {}
        self._legacy: dict[str, str] = {}
        self._problems: list[Problem] = [document.problem] if document.problem else []
        self._taken: set[KeyPath] = set()
        self._autos: list[str] = []

    # --- looking
    def raw(self, *path: str) -> Any:
        """What stands under a key; None for no such key and for null."""
        value: Any = self.document.values or {}
        for name in path:
            value = value.get(name) if isinstance(value, Mapping) else None
        return value

    def has(self, *path: str) -> bool:
        """True when the key stands in the file, be it null."""
        above = self.raw(*path[:-1]) if path[:-1] else self.document.values
        return isinstance(above, Mapping) and path[-1] in above

    # --- taking
    def take(self, *path: str) -> None:
        """Nothing below this key is passed through."""
        self._taken.add(path)

    def section(self, *path: str) -> bool:
        """True when a mapping stands there. Anything else but null is a problem."""
        value = self.raw(*path)
        if value is not None and not isinstance(value, Mapping):
            self.problem(path, f"{shown(value)} is not a mapping of keys to values")
        if not isinstance(value, Mapping) or not value:
            self.take(*path)
        return isinstance(value, Mapping)

    def keys(self, table: Iterable[Key], *section: str) -> None:
        """Every row of `table` whose key stands below `section`."""
        for row in table:
            self.key(row, (*section, *row.key.split(".")))

    def key(self, row: Key, path: KeyPath) -> Any:
        """`row`, found at `path`. Returns what was taken; None for nothing."""
        if not self.has(*path):
            return None
        raw = self.raw(*path)
        self.take(*path)
        if raw is None and not row.null:
            return None
        if row.auto and isinstance(raw, str) and raw.lower() == AUTO:
            self._autos.append(".".join(path))
            if row.fact:
                self.facts[row.fact] = AUTO
            return None
        value = self.converted(path, row.convert) if raw is not None else None
        if value is None and raw is not None:
            return None
        if row.path:
            self.value(row.path, value, path)
        if row.fact:
            self.facts[row.fact] = value
        return value

    def converted(self, path: KeyPath, convert: Convert) -> Any:
        """The value at `path`, or None with a problem noted. Takes the key."""
        self.take(*path)
        try:
            return convert(self.raw(*path))
        except Refused as refused:
            self.problem(path, str(refused))
            return None

    # --- putting
    def value(self, field: str, value: Any, path: KeyPath) -> None:
        """The file states `value` for the Recipe field, at the key `path`."""
        self.values[field] = value
        self._provenance[field] = self.document.where(path)

    def legacy(self, path: KeyPath, today: str) -> None:
        """The key is an old spelling of `today`."""
        self._legacy[".".join(path)] = today

    def problem(self, path: KeyPath, reason: str) -> None:
        """The key cannot be taken as it stands, and is not passed through."""
        self.take(*path)
        self.without_effect(path, reason)

    @property
    def problems(self) -> tuple[Problem, ...]:
        """Those found so far."""
        return tuple(self._problems)

    def without_effect(self, path: KeyPath, reason: str) -> None:
        """A problem with a key that is passed through all the same."""
        found = Problem(".".join(path), self.document.where(path), reason)
        if found not in self._problems:
            self._problems.append(found)

    def absorb(self, other: Reading, *section: str) -> None:
        """What another reader found in the mapping under `section`, which is then taken. Stated values stay."""
        self.take(*section)
        prefix = "".join(f"{name}." for name in section)
        for field, value in other.values.items():
            if field not in self.values:
                self.values[field] = value
                self._provenance[field] = other.provenance[field]
        autos = other.facts.get(AUTO, ())
        self._autos += [prefix + key for key in autos]
        self.facts = {**{name: fact for name, fact in other.facts.items() if name != AUTO}, **self.facts}
        self._passthrough |= {prefix + key: raw for key, raw in other.passthrough.items()}
        self._legacy |= {prefix + key: today for key, today in other.legacy.items()}
        self._problems += [Problem(prefix + p.key, p.where, p.reason) for p in other.problems]

    def reading(self) -> Reading:
        """What was taken; all other keys in passthrough."""
        rest = dict(_rest(self.document.values or {}, (), self._taken))
        autos = {AUTO: tuple(self._autos)} if self._autos else {}
        return Reading(
            self._format,
            self.document.name,
            self.values,
            self._provenance,
            {**self.facts, **autos},
            passthrough={**rest, **self._passthrough},
            legacy=self._legacy,
            problems=tuple(self._problems),
        )


def _rest(values: Mapping[str, Any], above: KeyPath, taken: set[KeyPath]) -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        path = (*above, str(name))
        if path in taken:
            continue
        if isinstance(value, Mapping) and value:
            yield from _rest(value, path, taken)
        else:
            yield ".".join(path), value
