"""The rules of this room: checks that need a file's text or the trainers' own code. Their texts are rules.yaml."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

from recipegen.catalog.reading import load_yaml
from recipegen.spec import Finding, Severity

_LONGEST = 600  # characters of a message; a trainer's own error may be that long


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
    """A Finding of one of the checks. Texts become one printable line: they repeat what a file says."""
    family = check_rules()[rule].family
    return Finding(rule, severity, family, one_line(reason), one_line(fix), source, one_line(field), one_line(where))


def one_line(text: str) -> str:
    """Printable, and cut where it is too long for a message."""
    line = "".join(c if c.isprintable() else "?" for c in " ".join(text.split()))
    return line if len(line) <= _LONGEST else f"{line[: _LONGEST - 3]}..."
