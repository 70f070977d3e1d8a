"""What all printers of a review say alike. Everything that stems from a file passes through `safe`."""

from __future__ import annotations

import math
import unicodedata
from collections import Counter
from collections.abc import Iterable
from typing import Any

from recipegen.check.printers.shared import counted, label, split_where
from recipegen.review.difference import Change, Effect, Experiment, RecipeDifference, Review, Statement, Status, Weight
from recipegen.review.pair import words
from recipegen.spec import Finding, Severity, Verdict

__all__ = ["counted", "label", "split_where"]

MEMORY, RUN, SPEED = "GPU memory needed at the peak", "time of the run", "throughput"  # names of effects
TOKENS = 100_000_000  # that the hours are of, where the length of a run is not known
VALUE = 120  # characters of a value; a whole chat template may be one
_READ = 4096  # characters of a text; printers clip it further where they have less room
_MARKS = 3  # combining marks in a row; no word of a language has more, and many cover the lines around
_STATUSES = (
    Status.CHANGED, Status.ADDED, Status.REMOVED, Status.RENAMED, Status.UNREADABLE, Status.UNCHANGED,
)  # fmt: skip


def safe(text: str) -> str:
    """On one line, with `?` for whatever does not print: control, bidi and zero-width characters. The beginning of what
    is too long to be read by anybody."""
    if len(text) > _READ:
        text = text[:_READ] + "..."
    if text.isascii() and text.isprintable():
        return " ".join(text.split())
    found, marks = [], 0
    for character in " ".join(text.split()):
        marks = marks + 1 if unicodedata.category(character) in ("Mn", "Me") else 0
        if marks <= _MARKS:
            found.append(character if character.isprintable() else "?")
    return "".join(found)


def clip(text: str, most: int) -> str:
    """`text`, or its beginning and `...`; between words where one is near."""
    if len(text) <= most:
        return text
    kept = text[: max(most - 3, 0)]
    whole, _, _ = kept.rpartition(" ")
    return (whole if 2 * len(whole) > len(kept) else kept).rstrip() + "..."


def value(of: Any, most: int = VALUE) -> str:
    """A value of a recipe: one line, not too long."""
    try:
        said = words(of)
    except ValueError:  # Python refuses to print an int of thousands of digits
        said = f"a number of {type(of).__name__} too long to print"
    return clip(safe(said), most) or '""'


def plural(count: int, word: str) -> str:
    """`1 recipe`, `2 recipes`."""
    return f"{count:,} {word}{'' if count == 1 else 's'}"


# --- one recipe


def verdict_words(verdict: Verdict) -> str:
    return label(verdict).lower()


def verdicts(row: RecipeDifference) -> str:
    """`fits -> does not fit`; one where there is one side, or both are the same."""
    old, new = verdict_words(row.verdict_before), verdict_words(row.verdict_after)
    if row.status is Status.ADDED or old == new:
        return new
    return old if row.status is Status.REMOVED else f"{old} -> {new}"


def experiment_words(experiment: Experiment | None) -> str:
    """As a line can begin with it."""
    return {
        Experiment.SAME_ORDER: "same data order",
        Experiment.COMPARABLE: "comparable",
        Experiment.DIFFERENT: "a different experiment",
        None: "not known",
    }[experiment]


def resume_words(row: RecipeDifference) -> str:
    """`yes`, `no`, `not known`; "" where there is nothing to resume from."""
    if row.compatibility is None:
        return ""
    return {True: "yes", False: "no", None: "not known"}[row.compatibility.resumes]


def effect(row: RecipeDifference, name: str) -> Effect | None:
    return next((one for one in row.effects if one.name == name), None)


def run_seconds(row: RecipeDifference) -> tuple[float | None, float | None]:
    """Of the whole run, before and after; None where it is not known, or not on that side."""
    run = effect(row, RUN)
    return (known(run.before), known(run.after)) if run is not None else (None, None)


def token_seconds(row: RecipeDifference) -> tuple[float | None, float | None]:
    """The same for TOKENS tokens, which needs no data."""
    speed = effect(row, SPEED)
    sides = (known(speed.before), known(speed.after)) if speed is not None else (None, None)
    old, new = (TOKENS / side if side else None for side in sides)
    return old, new


def known(number: float | None) -> float | None:
    """None for what is no number."""
    return number if number is not None and math.isfinite(number) else None


def change_words(change: Change) -> str:
    """`learning_rate: 1e-5 -> 2e-4`."""
    return f"{safe(change.path)}: {value(change.before)} -> {value(change.after)}"


def place(change: Change) -> str:
    """Where the new value is stated; the old one where no file states the new one."""
    return safe(change.where_after or change.where_before)


def blocking(row: RecipeDifference) -> tuple[Finding, ...]:
    """What the head side brings that stops a launch."""
    return tuple(found for found in row.new if found.severity is Severity.ERROR)


def alarms(row: RecipeDifference) -> tuple[Statement, ...]:
    return tuple(one for one in row.meaning if one.weight is Weight.ALARM)


def by_weight(statements: Iterable[Statement]) -> list[Statement]:
    order = list(Weight)
    return sorted(statements, key=lambda one: order.index(one.weight))


def head_problems(row: RecipeDifference) -> tuple[str, ...]:
    """What cannot be read where somebody can still change it."""
    return tuple(problem for problem in row.problems if not problem.startswith("before: "))


def newly_too_large(row: RecipeDifference) -> bool:
    return row.verdict_after is Verdict.DOES_NOT_FIT is not row.verdict_before


# --- all recipes


def urgent_first(rows: Iterable[RecipeDifference]) -> list[RecipeDifference]:
    """Those that stop somebody first: what no longer fits, what cannot be read, errors, alarms; then by name."""

    def key(row: RecipeDifference) -> tuple[Any, ...]:
        compatibility = row.compatibility
        return (
            not newly_too_large(row),
            row.status is not Status.UNREADABLE,
            -len(blocking(row)),
            -len(alarms(row)),
            row.verdict_before is row.verdict_after,
            not any(found.severity is Severity.WARNING for found in row.new),
            not (compatibility is not None and compatibility.resumes is False),
            row.experiment is not Experiment.DIFFERENT,
            _STATUSES.index(row.status),
            row.name,
        )

    return sorted(rows, key=key)


def common_folder(rows: Iterable[RecipeDifference]) -> str:
    """The folder that all of these are in, with a slash at its end; "" where there is none."""
    names = [row.name.split("/")[:-1] for row in rows]
    shared = []
    for parts in zip(*names, strict=False):
        if len(set(parts)) > 1:
            break
        shared.append(parts[0])
    return "/".join((*shared, "")) if shared else ""


def statuses(review: Review) -> str:
    """`9 changed, 1 added`."""
    counts = Counter(row.status for row in review.recipes)
    return ", ".join(f"{counts[status]:,} {status.value}" for status in _STATUSES if counts[status])
