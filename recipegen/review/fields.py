"""One side of a recipe as a flat list of what it means: Recipe field path -> value, and where a file states it.

Two sides mean the same exactly when these are equal. What a person may write in several ways is brought to one form:
order of lists whose order means nothing, the name of a model of the catalogue, an environment by variable.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from functools import cache
from typing import Any

from recipegen.catalog.model import find
from recipegen.check.checking import Checked
from recipegen.check.file_findings import any_machine
from recipegen.formats.assemble import assemble
from recipegen.formats.axolotl_facts import FACTS
from recipegen.formats.reading import Reading
from recipegen.formats.recipe_yaml import PASSTHROUGH
from recipegen.review.difference import Change
from recipegen.spec import DatasetSpec, Estimate, ModelSpec, Recipe, RecipegenError

# Lists that are sets.
_UNORDERED = frozenset({"adapter.target_modules", "adapter.modules_to_save", "precision.fp32_modules", "eot_tokens"})
# What a DatasetSpec holds of the machine that measured it.
_MEASURED = frozenset({"rows", "lengths", "notes", "system_rows", "local"})
# Facts that Recipe says in its own words, and those that only follow from others.
_SAID = frozenset({"dataset_entries", "lora_target_linear", "fsdp_final_state_dict_type", "batch_size"})
_FACTS = frozenset(fact.name for fact in FACTS) - _SAID
# Facts whose silence means true (axolotl 0.19.0); the silence of every other means false or nothing.
_TRUE = frozenset({"peft_autocast_adapter_dtype", "low_cpu_mem_usage"})
# Parts of a Recipe that are there or not.
_PARTS = ("adapter", "fsdp", "deepspeed")
_TOLERANCE = 1e-9  # relative; 2.0e-4 and 0.0002 are one number
# Of the machine, or decided by nobody.
_NOT_MEANT = frozenset({"launch.main_process_port", "launch.bf16_capable"})


@dataclass(frozen=True)
class Meaning:
    """One side. `recipe`, `model` and `estimate` are None where nothing is known of them; then `values` hold what the
    files state, by the same paths."""

    values: Mapping[str, Any]
    places: Mapping[str, str]  # path -> file:line
    recipe: Recipe | None
    model: ModelSpec | None
    estimate: Estimate | None

    def get(self, path: str, default: Any = None) -> Any:
        """The value of a path; `default` where there is none."""
        value = self.values.get(path, default)
        return default if value is None else value

    def where(self, *paths: str) -> str:
        """The first place that a file states, of these paths or of what they are part of."""
        for path in paths:
            parts = path.split(".")
            for length in range(len(parts), 0, -1):
                place = self.places.get(".".join(parts[:length]))
                if place:
                    return place
        return ""


def meaning(checked: Checked, *, stated_only: bool = False) -> Meaning:
    """What a checked project means. `stated_only`: without the trainer's defaults, as for a side without a Recipe."""
    assembled = checked.subject.assembled
    recipe = None if stated_only else resolved(checked)
    main = checked.subject.readings.get(checked.subject.main)
    values: dict[str, Any] = {}
    if recipe is not None:
        values.update(_flat(recipe))
        values.pop("launch.environment", None)
    else:
        for reading in checked.subject.readings.values():
            values.update(_stated(reading))
        if main is not None:
            values.update(_stated(main))
    for path in _dropped(checked):
        values.pop(path, None)
    values.update(_facts(assembled.facts if main is None else main.facts))
    values.update(_environment(assembled.facts.get("environment")))
    shown = {
        path: checked.project.shown.get(name, name) + separator + line
        for path, place in {**assembled.fact_provenance, **assembled.provenance}.items()
        for name, separator, line in [place.rpartition(":")]
    }
    return Meaning(values, shown, recipe, assembled.model, None if stated_only else checked.subject.estimate)


def resolved(checked: Checked) -> Recipe | None:
    """The Recipe; without a machine that of one on which nothing is missing, so that defaults are filled in and data
    are compared. It has no estimate, and where both sides are like that the machine changes nothing between them."""
    subject = checked.subject
    if subject.assembled.recipe is not None or subject.cluster is not None:
        return subject.assembled.recipe
    names = sorted(subject.readings, key=lambda name: name != subject.main)
    return assemble(
        [subject.readings[name] for name in names],
        subject.stack,
        cluster=any_machine(subject),
        model=lambda _: subject.assembled.model,
        hardware="",
    ).recipe


def changes(before: Meaning, after: Meaning) -> tuple[Change, ...]:
    """Every path whose value differs, in the order of Recipe."""
    old, new = _whole(before.values, after.values)
    return tuple(
        Change(path, old.get(path), new.get(path), before.where(path), after.where(path))
        for path in [*old, *(path for path in new if path not in old)]
        if not same(old.get(path), new.get(path))
    )


def _whole(*sides: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Both sides, with a part that only one of them has (an adapter, an engine's settings) as one value."""
    found: list[dict[str, Any]] = [{}, {}]
    parts = [name for name in _PARTS if _has(sides[0], name) is not _has(sides[1], name)]
    for values, into in zip(sides, found, strict=True):
        for path, value in values.items():
            part = next((name for name in parts if path.startswith(f"{name}.")), None)
            if part is None:
                into[path] = value
            else:
                into.setdefault(part, {})[path.removeprefix(f"{part}.")] = value
    return found[0], found[1]


def _has(values: Mapping[str, Any], part: str) -> bool:
    return any(path.startswith(f"{part}.") for path in values)


def same(one: Any, other: Any) -> bool:
    """Equal in meaning: numbers within rounding, whatever their type; lists item by item."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, (int, float)) and isinstance(other, (int, float)):
        return math.isclose(one, other, rel_tol=_TOLERANCE, abs_tol=0.0)
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    return bool(one == other)


# --- one side


def _flat(recipe: Recipe) -> Iterator[tuple[str, Any]]:
    for field in fields(recipe):
        value = getattr(recipe, field.name)
        if field.name == "datasets":
            for index, spec in enumerate(value):
                yield from _dataset(f"datasets.{index}", spec)
        elif field.name == "passthrough":
            for file, keys in value.items():
                yield from _mapping(f"passthrough.{file}", keys)
        elif field.name == "model":
            yield "model", canonical(value)
        else:
            yield from _parts(field.name, value)


def _parts(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    if is_dataclass(value) and not isinstance(value, type):
        for field in fields(value):
            if f"{path}.{field.name}" not in _NOT_MEANT:
                yield from _parts(f"{path}.{field.name}", getattr(value, field.name))
    elif path in _UNORDERED:
        yield path, tuple(sorted(value))
    elif value is not None:
        yield path, value


def _dataset(path: str, spec: DatasetSpec) -> Iterator[tuple[str, Any]]:
    for field in fields(spec):
        if field.name == "entry":
            yield from _mapping(f"{path}.entry", {k: v for k, v in spec.entry if k not in ("path", "split")})
        elif field.name not in _MEASURED:
            yield f"{path}.{field.name}", getattr(spec, field.name)


def _mapping(path: str, values: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _mapping(f"{path}.{key}", value)
        elif value is not None:
            yield f"{path}.{key}", value


def _stated(reading: Reading) -> Iterator[tuple[str, Any]]:
    """What one file states, in the form of `_flat`."""
    for path, value in reading.values.items():
        if path == "datasets" and isinstance(value, tuple):
            for index, spec in enumerate(value):
                if isinstance(spec, DatasetSpec):
                    yield from _dataset(f"datasets.{index}", spec)
        elif path == "model":
            yield path, canonical(value)
        elif path != "launch.environment":
            yield from _parts(path, value)


def _facts(facts: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in facts.items():
        silent = value is (name in _TRUE) or value is None or value == ()
        if name in _FACTS and not silent:
            yield f"facts.{name}", value.value if isinstance(value, Enum) else value


def _dropped(checked: Checked) -> Iterator[str]:
    """Keys that the trainer drops mean nothing."""
    for found in (*checked.findings, *checked.ignored):
        if found.rule in ("RG701", "RG703") and found.field:
            for file in PASSTHROUGH:
                yield f"passthrough.{file}.{found.field}"


def _environment(variables: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(variables, Mapping):
        for name, value in variables.items():
            yield f"environment.{name}", value


@cache
def canonical(model: str) -> str:
    """The catalogue's name of a model that it knows by several; any other name as it is."""
    try:
        path = find(model)
    except RecipegenError:  # of several organisations
        return model
    return path.stem.replace("--", "/", 1) if path else model
