"""Workflow commands of GitHub Actions for what the head side brings: new findings, alarms, files that cannot be read.

One line each, errors first, since GitHub shows ten of a kind for a step; escaped as `recipegen check` does it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from recipegen.check.checking import ORDER
from recipegen.check.printers.github import annotation, command
from recipegen.review.difference import RecipeDifference, Review, Statement, Status, Weight
from recipegen.review.printers.shared import alarms, head_problems, safe, split_where, urgent_first
from recipegen.spec import Finding, Severity

_PLACE = re.compile(r"(?:after: )?(.{1,1000}?:[0-9]{1,9}): (.*)", re.DOTALL)  # how a problem begins


def github(review: Review) -> Iterator[str]:
    """The commands, each once: recipes may share a file. A review without anything new gives none."""
    yield from dict.fromkeys(_commands(review))


def _commands(review: Review) -> Iterator[str]:
    rows = urgent_first(review.changed)
    for row in rows:
        if row.status is Status.UNREADABLE:
            yield from (_problem(row, problem) for problem in head_problems(row))
    new = [found for row in rows for found in row.new]
    for found in new:
        if found.severity is Severity.ERROR:
            yield _finding(found)
    for row in rows:
        for statement in _statements(row):
            yield _statement(statement)
    for found in sorted(new, key=lambda found: ORDER[found.severity]):
        if found.severity is not Severity.ERROR:
            yield _finding(found)


def _problem(row: RecipeDifference, problem: str) -> str:
    found = _PLACE.fullmatch(problem)
    path, line = split_where(found[1]) if found else ("", None)
    said = found[2] if found else problem
    return command("error", safe(said), file=path, line=str(line) if line else "", title=safe(row.name))


def _statements(row: RecipeDifference) -> Iterator[Statement]:
    """Alarms; of why old checkpoints do not resume the first one says enough."""
    yield from alarms(row)
    reasons = row.compatibility.reasons if row.compatibility is not None else ()
    first = next((reason for reason in reasons if reason.weight is Weight.ALARM), None)
    if first is not None:
        yield replace(first, text=f"checkpoints of before cannot be resumed: {first.text}")


def _finding(found: Finding) -> str:
    return annotation(replace(found, reason=safe(found.reason), fix=safe(found.fix)))


def _statement(statement: Statement) -> str:
    path, line = split_where(statement.where)
    return command("warning", safe(statement.text), file=path, line=str(line) if line else "", title=statement.rule)
