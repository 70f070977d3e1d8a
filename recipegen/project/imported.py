"""What `recipegen import` made of an existing setup, and the comparison of two assembled projects."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from recipegen.check.subject import Subject
from recipegen.formats.assembled import Assembled
from recipegen.formats.plain import to_plain
from recipegen.formats.secrets import is_secret, shown
from recipegen.spec import DatasetSpec, Decision, Recipe

__all__ = ["Changed", "Imported", "Pin", "differences", "is_secret", "leaves", "relocated", "same", "shown"]


@dataclass(frozen=True)
class Pin:
    """A field held fixed. `where` is empty for what no file states: the trainer's own default."""

    field: str
    value: Any  # plain
    otherwise: Any  # what would be decided; None also where the field does not exist then
    where: str = ""
    why: str = ""  # why it would be decided so


@dataclass(frozen=True)
class Changed:
    """Something of the original that the new project does not say, or says otherwise. `what` is a field or a key."""

    what: str
    was: Any
    now: Any
    reason: str
    where: str = ""


@dataclass(frozen=True)
class Imported:
    """`decision` is what is written. `otherwise` is the same training without pins, None with the reason `why_not`.

    `beyond` are fields that the files carry and recipe.yaml has no words for: `new --recipe` decides them again.
    """

    decision: Decision
    original: Subject
    pins: tuple[Pin, ...]
    changed: tuple[Changed, ...]
    beyond: Mapping[str, str]
    otherwise: Decision | None
    why_not: str = ""


def leaves(recipe: Recipe) -> dict[str, Any]:
    """Every field by its path. A part that is None is one field; data sets are their entries, variables their values;
    what is passed through is compared by key, and not here."""
    found: dict[str, Any] = {}

    def walk(part: Any, prefix: str) -> None:
        for field in dataclasses.fields(part):
            value = getattr(part, field.name)
            if dataclasses.is_dataclass(value):
                walk(value, f"{prefix}{field.name}.")
            else:
                found[f"{prefix}{field.name}"] = value

    walk(recipe, "")
    del found["passthrough"]
    found["datasets"] = [dict(data.entry) for data in recipe.datasets]
    del found["launch.environment"]
    for variable in recipe.launch.environment:
        if variable.value is not None:
            found[f"launch.environment.{variable.name}"] = variable.value
    return found


def differences(old: Assembled, new: Assembled) -> Iterator[tuple[str, Any, Any]]:
    """Field paths and facts (`fact:name`) of which the two say something else, with both values.

    Only facts that the old files state count: the new ones say more of how they start.
    """
    if old.recipe is None or new.recipe is None:
        raise ValueError("only complete recipes are compared")
    before, after = leaves(old.recipe), leaves(new.recipe)
    for path in dict.fromkeys((*before, *after)):
        if path.startswith("launch.environment.") and path not in before:
            yield path, None, after[path]
        elif not same(before.get(path), after.get(path)):
            yield path, before.get(path), after.get(path)
    for name, value in old.facts.items():
        if name != "environment" and not same(value, new.facts.get(name)):
            yield f"fact:{name}", value, new.facts.get(name)


def same(one: Any, other: Any) -> bool:
    """Equal as plain values; numbers to the last digits."""
    one, other = to_plain(one, for_print=True), to_plain(other, for_print=True)
    if isinstance(one, float) and isinstance(other, (int, float)) and not isinstance(other, bool):
        return math.isclose(one, other, rel_tol=1e-12, abs_tol=0)
    return bool(one == other)


def relocated(data: DatasetSpec, old: str, new: str) -> DatasetSpec:
    """The data set under another path."""

    def moved(value: object) -> object:
        if isinstance(value, (list, tuple)):
            return [moved(item) for item in value]
        return new if value == old else value

    entry = tuple((key, moved(value) if key in ("path", "data_files") else value) for key, value in data.entry)
    return dataclasses.replace(data, path=new, entry=entry)
