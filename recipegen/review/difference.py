"""The semantic difference of two recipes, and of two sets of them: frozen objects, nothing is printed or decided here.

Everything is said of the assembled `Recipe`, so equal meanings are equal however they are written.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any

from recipegen.spec import Finding, Verdict


class Status(str, Enum):
    """What happened to a recipe between the sides."""

    ADDED = "added"
    REMOVED = "removed"
    CHANGED = "changed"
    RENAMED = "renamed"  # the same meaning under another name
    UNCHANGED = "unchanged"  # the same meaning: formatting, comments, spelled-out defaults
    UNREADABLE = "unreadable"  # a side, or both, gives no Recipe; `problems` say why


class Weight(str, Enum):
    """How much a statement matters to whoever reviews."""

    ALARM = "alarm"  # somebody must have meant it, or it is a mistake
    NOTICE = "notice"
    DETAIL = "detail"


class Experiment(str, Enum):
    """What the results of both sides can be held against. Never "the same run": a seed does not fix an adapter."""

    SAME_ORDER = "same data order"  # same mathematics, same rows in the same steps
    COMPARABLE = "comparable"  # same model, data and validation rows; hyperparameters or order differ
    DIFFERENT = "a different experiment"


@dataclass(frozen=True)
class Change:
    """One Recipe field that means something else. `path` is a Recipe field path, or one below it
    (`datasets.0.path`, `passthrough.axolotl.KEY`), or `environment.NCCL_P2P_DISABLE`, `facts.output_dir`; `where` is
    file:line, "" where no file states the value."""

    path: str
    before: Any
    after: Any
    where_before: str = ""
    where_after: str = ""


@dataclass(frozen=True)
class Effect:
    """A number of the estimate on both sides; None: not known. `unit` is bytes, s, tokens/s, sequences, rows, tokens,
    steps, parameters, or bytes per step. `low`/`high` are the ends of the band of the after side, where there is one.
    `because` says what moved it: the term of a sum, or the fields."""

    name: str
    unit: str
    before: float | None
    after: float | None
    low: float | None = None
    high: float | None = None
    because: str = ""

    @property
    def changed(self) -> bool:
        return self.before != self.after


@dataclass(frozen=True)
class Statement:
    """One line about what a change means. `rule` is a stable id of the kind of statement (RV101), `paths` the Recipe
    field paths behind it, `where` its place on the head side."""

    rule: str
    weight: Weight
    text: str
    paths: tuple[str, ...] = ()
    where: str = ""


@dataclass(frozen=True)
class Compatibility:
    """What becomes of what an earlier run left. `resumes` None: not known. `reasons` say why not, `ignored` are changed
    values that a resumed run does not see, `rebuild` why prepared data must be made again, `same_output` whether an old
    checkpoint lies where this run looks for one, `inference` what changes for who uses the result."""

    resumes: bool | None
    reasons: tuple[Statement, ...] = ()
    ignored: tuple[Change, ...] = ()
    rebuild: tuple[str, ...] = ()
    same_output: bool = False
    inference: tuple[str, ...] = ()


@dataclass(frozen=True)
class RecipeDifference:
    """One recipe. `effects` hold every number, changed or not, in a fixed order; `changes` every field, in the
    order of Recipe. `new`, `fixed` and `kept` are findings of `check`, with places of the side that they are of."""

    name: str
    status: Status
    before_name: str = ""  # where it differs: a renamed recipe
    verdict_before: Verdict = Verdict.UNKNOWN
    verdict_after: Verdict = Verdict.UNKNOWN
    changes: tuple[Change, ...] = ()
    effects: tuple[Effect, ...] = ()
    meaning: tuple[Statement, ...] = ()
    experiment: Experiment | None = None
    compatibility: Compatibility | None = None
    no_ops: tuple[Statement, ...] = ()
    new: tuple[Finding, ...] = ()
    fixed: tuple[Finding, ...] = ()
    kept: tuple[Finding, ...] = ()
    problems: tuple[str, ...] = ()


@dataclass(frozen=True)
class Review:
    """All recipes of two sides, by name; `base` and `head` are as a person named the sides."""

    base: str
    head: str
    recipes: tuple[RecipeDifference, ...]

    @property
    def changed(self) -> tuple[RecipeDifference, ...]:
        """Those a reviewer has to look at."""
        return tuple(one for one in self.recipes if one.status is not Status.UNCHANGED)
