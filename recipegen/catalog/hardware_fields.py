"""The values a person may state about a machine: which there are, their types and limits. The table is fields.yaml."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from recipegen.catalog.bounded_yaml import shown
from recipegen.catalog.hardware_facts import Machine, read_table
from recipegen.spec import RecipegenError

# YAML 1.1 takes 1.5e9 for text: its numbers need a dot and a signed exponent (1.5e+9).
_SCIENTIFIC = re.compile(r"[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)[eE][-+]?[0-9]{1,3}")
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
    min_in_use: float = 0.0  # the least where the thing is there (check_together)


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
    """`value` if it is of the field's type and between its limits; else RecipegenError. `key` is what was written.

    Text in scientific notation (`1.5e9`, which YAML 1.1 does not take for a number) counts as the number it spells.
    """
    if field.type == "boolean":
        if not isinstance(value, bool):
            raise RecipegenError(f"{key} is {shown(value)}; it must be true or false ({field.about})", where=where)
        return value
    if isinstance(value, str) and _SCIENTIFIC.fullmatch(value):
        value = float(value)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise RecipegenError(f"{key} is {shown(value)}; it must be a number ({field.about})", where=where)
    if field.type == "integer" and not (isinstance(value, int) or value.is_integer()):
        raise RecipegenError(f"{key} is {shown(value)}; it must be a whole number ({field.about})", where=where)
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


def _nowhere(section: str, name: str) -> None:
    """Overrides have no file and no line."""


def check_together(machine: Machine, *, where: Callable[[str, str], str | None] = _nowhere, prefix: str = "") -> None:
    """Raises RecipegenError where facts that are sound one by one cannot be true together.

    Rates of what is there are not 0 (it would be free), and training is not faster than the vendor's peak. `where`
    gives the place of a fact by section and name; `prefix` stands before the names of GPU facts.
    """
    node, gpu = machine.node, machine.gpu
    in_use = ["bus_bandwidth_gb_s"] if machine.gpu_count > 1 else []
    has_disk = "nvme_gb" in node and node["nvme_gb"].value > 0
    in_use += ["nvme_read_gb_s", "nvme_write_gb_s"] if has_disk else []
    for name in in_use:
        field = fields()[name]
        if name in node and node[name].value < field.min_in_use:
            what = f"{machine.gpu_count} GPUs" if name == "bus_bandwidth_gb_s" else "nvme_gb above 0"
            raise RecipegenError(
                f"{name} is {shown(node[name].value)}; with {what} it must be at least {field.min_in_use:g} "
                f"({field.about})",
                where=where("node", name),
            )
    taken, memory = gpu.get("memory_taken_gib"), gpu["memory_gib"]
    if taken is not None and taken.value >= memory.value:
        raise RecipegenError(
            f"{prefix}memory_taken_gib is {shown(taken.value)}, and the GPU has {shown(memory.value)} GiB; it must be "
            f"less ({fields()['memory_taken_gib'].about})",
            where=where("gpu", "memory_taken_gib"),
        )
    training, spec = gpu.get("training_tflops"), gpu["spec_tflops"]
    if training is not None and training.value > spec.value:
        raise RecipegenError(
            f"{prefix}training_tflops is {shown(training.value)}, more than {prefix}spec_tflops {shown(spec.value)}; a "
            f"training step cannot be faster than the GPU's peak ({fields()['spec_tflops'].about})",
            where=where("gpu", "training_tflops"),
        )


def suggest(word: object, known: Iterable[str], *, limit: int = 3) -> str:
    """`Did you mean a, b?`, or all known words where none is near."""
    names = list(known)
    near = (
        difflib.get_close_matches(str(word).lower()[:100], names, n=limit, cutoff=0.6) if isinstance(word, str) else []
    )
    return f"Did you mean {' or '.join(near)}?" if near else f"Known: {', '.join(names)}"
