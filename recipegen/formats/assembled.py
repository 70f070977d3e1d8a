"""What `assemble` makes of the readings of one project: a Recipe, or the reasons why there is none."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from recipegen.spec import ModelSpec, Recipe


@dataclass(frozen=True)
class Unknown:
    """A field that no file states and no default decides. `reason` is one line that says what to state, and where."""

    path: str
    reason: str
    where: str = ""


@dataclass(frozen=True)
class Assembled:
    """One project as its trainer would see it.

    recipe       complete, or None when something that decides memory is unknown
    model        the shape of the model, or None when the catalogue does not know it and no config.json is at hand
    provenance   Recipe field path -> `file:line` of the value that won
    defaults     Recipe field paths that no file states: the trainer's own defaults of the stack
    unknown      what stands between the files and a recipe
    facts        facts of all readings; those of the trainer's file win
    fact_provenance  their places
    """

    recipe: Recipe | None
    model: ModelSpec | None
    provenance: Mapping[str, str] = field(default_factory=dict)
    defaults: frozenset[str] = frozenset()
    unknown: tuple[Unknown, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)
    fact_provenance: Mapping[str, str] = field(default_factory=dict)
