"""Every rule of the rooms that check, by id: what `--explain` prints and what a policy may name."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from recipegen.check import rules as file_rules
from recipegen.check.registry import check_rules
from recipegen.rules import all_rules


@dataclass(frozen=True)
class KnownRule:
    """`severity` is the usual one; empty where a rule has several."""

    id: str
    severity: str
    family: str
    title: str
    doc: str
    source: str


@cache
def known_rules() -> dict[str, KnownRule]:
    """All rules, in the order of their ids."""
    found = [KnownRule(r.id, r.severity.value, r.family, r.title, r.doc, r.source) for r in all_rules()]
    found += [
        KnownRule(r.id, r.severity.value, r.family, r.title, r.doc, r.source) for r in file_rules.all_file_rules()
    ]
    found += [KnownRule(r.id, "", r.family, r.title, " ".join(r.doc.split()), "") for r in check_rules().values()]
    return {rule.id: rule for rule in sorted(found, key=lambda rule: rule.id)}
