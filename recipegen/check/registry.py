"""The rules of this room: checks that need a file's text or the trainers' own code. Their texts are rules.yaml."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

from recipegen.catalog.reading import load_yaml
from recipegen.spec import Finding, Severity


@dataclass(frozen=True)
class CheckRule:
    """What `recipegen explain` prints of a check."""

    id: str
    family: str
    title: str
    doc: str


@cache
def check_rules() -> dict[str, CheckRule]:
    """Every check by its id. The ids continue those of the room `rules`."""
    table = load_yaml(Path(__file__).parent / "rules.yaml")
    return {rule_id: CheckRule(rule_id, **row) for rule_id, row in table.items()}


def finding(
    rule: str, severity: Severity, reason: str, *, fix: str = "", where: str = "", field: str = "", source: str = ""
) -> Finding:
    """A Finding of one of the checks."""
    return Finding(rule, severity, check_rules()[rule].family, reason, fix, source, field, where)
