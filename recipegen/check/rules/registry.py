"""What a check-only rule is: one small function on a View, with an id, a severity, a family, a source and its doc.

These rules need what a `Recipe` does not hold: which file says what, scripts, words that a trainer drops, the
checkpoint folder. A rule that can be said of a Recipe is in the room `rules`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache

from recipegen.check.rules.view import View
from recipegen.rules import find_rule
from recipegen.spec import Finding, Severity

_LONGEST = 600  # characters of a text; it may repeat what a file says


@dataclass(frozen=True)
class Said:
    """One thing that a rule says. `severity` None is the rule's own; `place` is file:line."""

    reason: str
    fix: str = ""
    place: str = ""
    field: str = ""
    severity: Severity | None = None


Function = Callable[[View], Iterable[Said]]


@dataclass(frozen=True)
class FileRule:
    """A rule of this room; the same words as recipegen.rules.Rule, so that `explain` prints both alike."""

    id: str
    family: str
    severity: Severity
    title: str
    doc: str
    source: str
    check: Callable[[View], Iterator[Finding]]


_RULES: dict[str, FileRule] = {}
_SUBSTITUTES: list[Callable[[View], Iterator[Finding]]] = []


def rule(
    rule_id: str, family: str, severity: Severity, *, source: str, title: str = ""
) -> Callable[[Function], Function]:
    """Register a check under its own id. Its title is its name, its doc the docstring."""

    def register(function: Function) -> Function:
        if rule_id in _RULES or find_rule(rule_id):
            raise ValueError(f"two rules are called {rule_id}")

        def check(view: View) -> Iterator[Finding]:
            for said in function(view):
                yield _finding(rule_id, family, said.severity or severity, source, said)

        words = title or function.__name__.replace("_", " ")
        doc = " ".join((function.__doc__ or "").split())
        _RULES[rule_id] = FileRule(rule_id, family, severity, words, doc, source, check)
        all_file_rules.cache_clear()
        return function

    return register


def in_place_of(rule_id: str) -> Callable[[Function], Function]:
    """Say what the rule of the room `rules` would say, of files that no Recipe can be made of (an unknown model)."""
    asked = find_rule(rule_id)
    assert asked is not None, f"there is no rule {rule_id}"

    def register(function: Function) -> Function:
        def check(view: View) -> Iterator[Finding]:
            if view.subject.assembled.recipe is None:
                for said in function(view):
                    yield _finding(asked.id, asked.family, said.severity or asked.severity, asked.source, said)

        _SUBSTITUTES.append(check)
        return function

    return register


@cache
def all_file_rules() -> tuple[FileRule, ...]:
    """Every rule of this room, by id."""
    return tuple(_RULES[key] for key in sorted(_RULES))


def checks() -> tuple[Callable[[View], Iterator[Finding]], ...]:
    """Everything that is asked of a view."""
    return (*(rule.check for rule in all_file_rules()), *_SUBSTITUTES)


def _finding(rule_id: str, family: str, severity: Severity, source: str, said: Said) -> Finding:
    return Finding(
        rule_id, severity, family, _line(said.reason), _line(said.fix), source, _line(said.field), _line(said.place)
    )


def _line(text: str) -> str:
    line = "".join(c if c.isprintable() else "?" for c in " ".join(text.split()))
    return line if len(line) <= _LONGEST else f"{line[: _LONGEST - 3]}..."
