"""What a foreign file says of a recipe: values by Recipe field path, each with its place.

`formats.X.read` never raises for what a file holds: what cannot be read is a problem with file and line. Only what the
file states is in `values`; what it leaves out is filled by `assemble` with the trainer's own defaults.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from recipegen.spec import Recipe


@dataclass(frozen=True)
class Problem:
    """Something in a file that could not be taken as it stands. `key` is the file's own dotted key."""

    key: str
    where: str  # file:line
    reason: str


@dataclass(frozen=True)
class Reading:
    """One file. `values` maps Recipe field paths (`fsdp.state_dict_type`) to values of the types of those fields.

    values       what the file states and we model, under the path of the field it decides
    provenance   the same paths -> `file:line`
    facts        what the file states, we understand, and Recipe has no field for (int8 bases, FSDP wrap policy, engine
                 of the launcher, variables of a script), by names that the format's module lists
    fact_provenance  the names of facts -> `file:line`, where one key states them
    passthrough  keys that mean nothing to us, dotted, with their raw values; they are carried through untouched
    legacy       deprecated spellings that were understood: dotted key -> today's key, or `key: value`
    problems     what cannot be taken as it stands; the other keys are read all the same
    """

    format: str
    name: str
    values: Mapping[str, Any] = field(default_factory=dict)
    provenance: Mapping[str, str] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)
    fact_provenance: Mapping[str, str] = field(default_factory=dict)
    passthrough: Mapping[str, Any] = field(default_factory=dict)
    legacy: Mapping[str, str] = field(default_factory=dict)
    problems: tuple[Problem, ...] = ()


def at(recipe: Recipe, path: str) -> Any:
    """The value of a Recipe field path; None below a part that is None (`adapter.r` of a full fine-tune)."""
    value: Any = recipe
    for name in path.split("."):
        if value is None:
            return None
        value = getattr(value, name)
    return value


def restrict(recipe: Recipe, carries: Mapping[str, Callable[[Recipe], bool]]) -> dict[str, Any]:
    """What a file of a format that carries these paths says of `recipe`; each path where its condition holds."""
    return {path: at(recipe, path) for path, holds in carries.items() if holds(recipe)}
