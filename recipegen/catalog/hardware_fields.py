"""The values a person may state about a machine: which there are, their types and limits. The table is fields.yaml."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from recipegen.catalog.bounded_yaml import shown
from recipegen.catalog.hardware_facts import read_table
from recipegen.spec import RecipegenError

GPU_PREFIX = "gpu_"  # the override `gpu_memory_gib` states the GPU's `memory_gib`


@dataclass(frozen=True)
class Field:
    """One row of fields.yaml. `section` is gpu, node or network."""

    name: str
    section: str
    type: str  # number, integer, boolean
    about: str
    min: float = -math.inf
    max: float = math.inf


@cache
def fields() -> dict[str, Field]:
    """Every field by its name."""
    return {
        name: Field(name=name, section=section, **row)
        for section, rows in read_table("fields").items()
        for name, row in rows.items()
    }


@cache
def override_fields() -> dict[str, Field]:
    """Every override key with its field: node fields under their own name, GPU fields with the prefix `gpu_`."""
    return {f"{GPU_PREFIX}{name}" if field.section == "gpu" else name: field for name, field in fields().items()}


def check(field: Field, key: str, value: Any, *, where: str | None = None) -> float | int | bool:
    """`value` if it is of the field's type and between its limits; else RecipegenError. `key` is what was written."""
    if field.type == "boolean":
        if not isinstance(value, bool):
            raise RecipegenError(f"{key} is {shown(value)}; it is true or false ({field.about})", where=where)
        return value
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise RecipegenError(f"{key} is {shown(value)}; it is a number ({field.about})", where=where)
    if field.type == "integer" and not (isinstance(value, int) or value.is_integer()):
        raise RecipegenError(f"{key} is {shown(value)}; it is a whole number ({field.about})", where=where)
    if not field.min <= value <= field.max:  # also refuses nan
        raise RecipegenError(
            f"{key} is {shown(value)}; it must lie between {field.min:g} and {field.max:g} ({field.about})", where=where
        )
    return int(value) if field.type == "integer" else float(value)


def check_overrides(overrides: Mapping[str, Any] | None) -> dict[str, float | int | bool]:
    """The overrides, each known and sane. RecipegenError names the first that is not, with near keys."""
    if overrides is None:
        return {}
    if not isinstance(overrides, Mapping):
        raise RecipegenError(f"hardware overrides are a mapping of keys to values, not {shown(overrides)}")
    checked: dict[str, float | int | bool] = {}
    for key, value in overrides.items():
        field = override_fields().get(key) if isinstance(key, str) else None
        if field is None:
            raise RecipegenError(f"unknown hardware override {shown(key)}", fix=suggest(key, override_fields()))
        checked[key] = check(field, key, value)
    return checked


def suggest(word: object, known: Iterable[str], *, limit: int = 3) -> str:
    """`Did you mean a, b?`, or all known words where none is near."""
    names = list(known)
    near = (
        difflib.get_close_matches(str(word).lower()[:100], names, n=limit, cutoff=0.6) if isinstance(word, str) else []
    )
    return f"Did you mean {' or '.join(near)}?" if near else f"Known: {', '.join(names)}"
