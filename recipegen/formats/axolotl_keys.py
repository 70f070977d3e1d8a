"""The keys of one Axolotl file while it is read: what was understood, from which line, and what is left over.

Conversions are those of Axolotl's pydantic models (lax mode): "2e-4", which YAML 1.1 reads as text, is a float where
a float is wanted, "yes" is a bool, 1.0 an int; a number is never text.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import Any

from recipegen.catalog.bounded_yaml import shown
from recipegen.formats.reading import Problem, Reading

Convert = Callable[[Any], Any]
Path = tuple[str, ...]

_WORDS = {
    **dict.fromkeys(("true", "t", "yes", "y", "on", "1"), True),
    **dict.fromkeys(("false", "f", "no", "n", "off", "0"), False),
}
_INT = re.compile(r"[-+]?\d+(_\d+)*(\.0*)?")
_MAX_DIGITS = 20  # of an int written as text; every count of a recipe is far below
# Mappings that are looked into key by key; of any other mapping the whole is one value.
_OPENED = (
    ("fsdp_config",),
    ("gradient_checkpointing_kwargs",),
    ("accelerator_config",),
    ("accelerator_config", "gradient_accumulation_kwargs"),
    ("peft",),
    ("peft", "loftq_config"),
    ("model_quantization_config_kwargs",),
)


def boolean(value: Any) -> bool:
    """true or false."""
    if isinstance(value, bool):
        return value
    if isinstance(value, (int, float)) and value in (0, 1):
        return bool(value)
    if isinstance(value, str) and value.strip().lower() in _WORDS:
        return _WORDS[value.strip().lower()]
    raise ValueError("it must be true or false")


def whole(value: Any) -> int:
    """A whole number."""
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, str) and len(value) <= _MAX_DIGITS and _INT.fullmatch(value.strip()):
        return int(value.strip().partition(".")[0])
    raise ValueError("it must be a whole number")


def at_least(least: int) -> Convert:
    """A whole number that is not below `least`."""

    def convert(value: Any) -> int:
        number = whole(value)
        if number < least:
            raise ValueError(f"it must be {least} or more")
        return number

    return convert


def number(value: Any) -> float:
    """A finite number."""
    try:
        found = float(value) if isinstance(value, (int, float, str)) else math.nan
    except (ValueError, OverflowError):
        found = math.nan
    if not math.isfinite(found):
        raise ValueError("it must be a number")
    return found


def text(value: Any) -> str:
    """Text; a number or a bool is not (pydantic refuses both)."""
    if not isinstance(value, str):
        raise ValueError("it must be text; put it in quotes")
    return value


def texts(value: Any) -> tuple[str, ...]:
    """A list of texts."""
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise ValueError("it must be a list of texts")
    return tuple(value)


def text_or_texts(value: Any) -> tuple[str, ...]:
    """One text or a list of them."""
    return (value,) if isinstance(value, str) else texts(value)


def mapping(value: Any) -> dict[str, Any]:
    """A mapping, as it is."""
    if not isinstance(value, dict):
        raise ValueError("it must be a mapping")
    return dict(value)


def as_is(value: Any) -> Any:
    """Whatever is written."""
    return value


def entries(value: Any) -> tuple[tuple[tuple[str, Any], ...], ...]:
    """A list of data sets, each as `DatasetSpec.entry` has it: pairs in the order they are written."""
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise ValueError("it must be a list of mappings")
    return tuple(tuple(item.items()) for item in value)


class Keys:
    """The keys of a file under today's names. Legacy spellings are moved first, the reader takes what it knows."""

    def __init__(self, name: str, values: Mapping[str, Any], where: Callable[[Path], str]) -> None:
        """`where` says `file:line` of a path of the file."""
        self._name, self._file, self._where = name, values, where
        self._raw: dict[Path, Any] = {}
        self._origin: dict[Path, Path] = {}
        self._taken: set[Path] = set()
        self._values: dict[str, Any] = {}
        self._provenance: dict[str, str] = {}
        self._facts: dict[str, Any] = {}
        self._fact_places: dict[str, str] = {}
        self._legacy: dict[str, str] = {}
        self._problems: list[Problem] = []
        self._open((), values)

    def _open(self, above: Path, values: Mapping[str, Any]) -> None:
        for key, value in values.items():
            path = (*above, key)
            self._origin[path] = path
            self._raw[path] = value
            if path in _OPENED and isinstance(value, dict):
                self._open(path, value)

    # --- looking
    def has(self, key: str) -> bool:
        """True when the key is written, be it empty (which overrides a default of Axolotl's)."""
        return _path(key) in self._raw

    def raw(self, key: str) -> Any:
        """The value as it stands; None when the key is missing or empty. Axolotl takes empty text for nothing."""
        value = self._raw.get(_path(key))
        return None if isinstance(value, str) and not value else value

    def below(self, key: str) -> tuple[str, ...]:
        """The names directly below an opened mapping."""
        above = _path(key)
        return tuple(path[-1] for path in self._raw if path[:-1] == above)

    def read(self, key: str, convert: Convert) -> Any:
        """The converted value; None when there is none, or none of this type (a problem). Takes the key."""
        value = self.raw(key)
        if self.has(key):
            self._taken.add(_path(key))
        if value is None:
            return None
        try:
            return convert(value)
        except ValueError as error:
            self.problem(key, f"{key} is {shown(value)}: {error}")
            return None

    def stated(self, field: str) -> Any:
        """The value of a Recipe field that was stated, else None."""
        return self._values.get(field)

    def stated_fact(self, name: str) -> Any:
        """A fact that was stated, else None."""
        return self._facts.get(name)

    # --- saying
    def value(self, field: str, key: str, convert: Convert) -> Any:
        """`read`, stated as the value of a Recipe field."""
        found = self.read(key, convert)
        if found is not None:
            self.state(field, found, key)
        return found

    def state(self, field: str, value: Any, key: str) -> None:
        """The value of a Recipe field that `key` decides."""
        self._values[field] = value
        self._provenance[field] = self.where(key)

    def fact(self, name: str, key: str, convert: Convert) -> Any:
        """`read`, stated as a fact."""
        found = self.read(key, convert)
        if found is not None:
            self.note(name, found, key)
        return found

    def note(self, name: str, value: Any, *keys: str) -> None:
        """A fact that follows from `keys`; the first of them that is written stands for it."""
        self._facts[name] = value
        key = next((key for key in keys if self.has(key)), None)
        if key is not None:
            self._fact_places[name] = self.where(key)

    def take(self, *keys: str) -> None:
        """These keys are understood; nothing more is to be said of them."""
        self._taken.update(_path(key) for key in keys if self.has(key))

    def problem(self, key: str, reason: str) -> None:
        """`key` cannot be taken as it stands."""
        problem = Problem(self.spelling(key), self.where(key), reason)
        if problem not in self._problems:  # a key may be looked at twice
            self._problems.append(problem)

    # --- legacy
    def put(self, key: str, value: Any, source: str) -> None:
        """Let `key` be read as `value`, which `source` says; `source` itself is taken by whoever calls."""
        self._raw[_path(key)] = value
        self._origin[_path(key)] = self._origin.get(_path(source), _path(source))

    def legacy(self, old: str, new: str) -> None:
        """`old` is a deprecated spelling that was understood; today it is `new`."""
        self._legacy[self.spelling(old)] = new

    def rename(self, old: str, new: str) -> None:
        """Read the deprecated `old` as `new`; a `new` that is there wins, as in Axolotl."""
        if self.raw(old) is None:
            return
        if self.raw(new) is None:
            self.put(new, self._raw[_path(old)], old)
        self.legacy(old, new)
        self.take(old)

    # --- where
    def spelling(self, key: str) -> str:
        """The dotted key as the file spells it."""
        return ".".join(self._origin.get(_path(key), _path(key)))

    def where(self, key: str) -> str:
        """`axolotl.yaml:7`; the file alone for a key that is not in it."""
        return self._where(self._origin.get(_path(key), _path(key)))

    def reading(self) -> Reading:
        """All of it; what nobody took is passed through."""
        return Reading(
            format="axolotl",
            name=self._name,
            values=self._values,
            provenance=self._provenance,
            facts=self._facts,
            fact_provenance=self._fact_places,
            passthrough=dict(_left(self._file, (), self._taken)),
            legacy=self._legacy,
            problems=tuple(self._problems),
        )


def _path(key: str) -> Path:
    return tuple(key.split(".")) if key else ()


def _left(values: Mapping[str, Any], above: Path, taken: set[Path]) -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    for key, value in values.items():
        path = (*above, key)
        if path in taken:
            continue
        if path in _OPENED and isinstance(value, dict) and value:
            found += _left(value, path, taken)
        else:
            found.append((".".join(path), value))
    return found
