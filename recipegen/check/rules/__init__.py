"""Rules about the files of a recipe: launching, checkpoints, what cannot run together, what is changed silently."""

from __future__ import annotations

from recipegen.check.rules import (
    checkpoint,
    compat,
    cross_file,
    launch,
    learning,
    precision,
    removed,
    sharding,
    silent,
    versions,
)
from recipegen.check.rules.registry import FileRule, all_file_rules, checks
from recipegen.check.rules.view import View
from recipegen.check.subject import Subject
from recipegen.spec import Finding

__all__ = [
    "FileRule",
    "View",
    "all_file_rules",
    "checkpoint",
    "compat",
    "cross_file",
    "find_file_rule",
    "findings",
    "launch",
    "learning",
    "precision",
    "removed",
    "sharding",
    "silent",
    "versions",
]


def findings(subject: Subject) -> tuple[Finding, ...]:
    """What every rule of this room says of the subject, each thing once."""
    view = View(subject)
    return tuple(dict.fromkeys(found for check in checks() for found in check(view)))


def find_file_rule(rule_id: str) -> FileRule | None:
    """The rule of that id (any case), or None."""
    return next((rule for rule in all_file_rules() if rule.id == rule_id.upper()), None)
