"""The fields of one recipe while it is put together: what files state, what defaults fill in, what stays unknown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from recipegen.catalog.stack import Stack
from recipegen.formats.assembled import Unknown
from recipegen.formats.reading import Reading
from recipegen.spec import Cluster, ModelSpec

_MISSING: Any = object()


class Blocked(Exception):
    """A field that a recipe cannot do without is not known; the reason is among the unknown ones."""


@dataclass
class Draft:
    """`format` is that of the trainer's file. Stated values win over defaults, whatever their value."""

    format: str
    stack: Stack
    cluster: Cluster | None
    values: dict[str, Any]
    provenance: dict[str, str]
    facts: dict[str, Any]
    fact_provenance: dict[str, str]
    table: Mapping[str, Any]  # Recipe field path -> the trainer's default
    rules: Mapping[str, Any]  # numbers of the defaults that depend on other fields
    defaults: set[str] = field(default_factory=set)
    unknown: list[Unknown] = field(default_factory=list)
    model_spec: ModelSpec | None = None
    passthrough: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    left: Mapping[str, Any] = field(default_factory=dict)  # what the reader of the trainer's file passed through
    deepspeed_auto: frozenset[str] = frozenset()  # keys of the DeepSpeed settings that say "auto"
    own_fsdp: bool = True  # False: only the file of `accelerate launch` switches FSDP on, with its defaults
    unclipped: bool = False  # DeepSpeed's settings say nothing of gradient_clipping
    blocked: bool = False

    @property
    def axolotl(self) -> bool:
        """The trainer is Axolotl."""
        return self.format == "axolotl"

    @property
    def model(self) -> ModelSpec:
        """The shape of the model. Raises Blocked when it is not known."""
        if self.model_spec is None:
            raise Blocked
        return self.model_spec

    def states(self, path: str) -> bool:
        """Some file states the field."""
        return path in self.values

    def take(self, path: str, otherwise: Any = _MISSING) -> Any:
        """The stated value, else `otherwise`, else the trainer's default. Raises Blocked when there is none at all."""
        if path in self.values:
            return self.values[path]
        value = self.table.get(path, _MISSING) if otherwise is _MISSING else otherwise
        if value is _MISSING:
            self.block(path, f"{path} is stated nowhere, and the trainer has no default for it")
            raise Blocked
        self.defaults.add(path)
        return value

    def need(self, path: str, key: str) -> Any:
        """`take` of a field that must not be None; `key` is the file's own word for it."""
        value = self.take(path)
        if value is None:
            self.defaults.discard(path)
            self.block(path, f"{key} is not stated, and the trainer has no default for it")
            raise Blocked
        return value

    def fact(self, name: str) -> Any:
        """A fact of the files; None for none."""
        return self.facts.get(name)

    def where(self, *names: str) -> str:
        """The place of the first of these fields or facts that has one."""
        places = (self.provenance.get(name) or self.fact_provenance.get(name) for name in names)
        return next((place for place in places if place), "")

    def trainers(self, path: str) -> None:
        """The trainer decides the field whatever a file says, so no file's line stands for it."""
        self.defaults.add(path)
        self.provenance.pop(path, None)

    def note(self, path: str, reason: str, *names: str) -> None:
        """Something is not known, but a recipe can be made without it."""
        item = Unknown(path, reason, self.where(*(names or (path,))))
        if item not in self.unknown:
            self.unknown.append(item)

    def block(self, path: str, reason: str, *names: str) -> None:
        """Something is not known that decides memory: there will be no recipe."""
        self.blocked = True
        self.note(path, reason, *names)


def merge(readings: Sequence[Reading]) -> tuple[dict[str, Any], dict[str, str], dict[str, Any], dict[str, str]]:
    """Values, their places, facts and their places; of two readings that state a thing the first one wins."""
    values: dict[str, Any] = {}
    provenance: dict[str, str] = {}
    facts: dict[str, Any] = {}
    fact_provenance: dict[str, str] = {}
    for reading in readings:
        for path, value in reading.values.items():
            if path not in values:
                values[path] = value
                provenance[path] = reading.provenance.get(path, reading.name)
        for name, value in reading.facts.items():
            if name not in facts:
                facts[name] = value
                fact_provenance[name] = reading.fact_provenance.get(name, reading.name)
    return values, provenance, facts, fact_provenance
