"""What a rule is: one small function with an id, a severity, a family, a source and a doc that `explain` prints."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache

from recipegen.catalog.stack import Stack
from recipegen.spec import Cluster, Estimate, Finding, ModelSpec, Recipe, Severity


@dataclass(frozen=True)
class Context:
    """What a rule may look at. `estimate` is None for the rules that are asked before anything is estimated.

    `generated` False: the recipe was read from files that somebody else wrote. What was merely never run, or is not
    what recipegen would choose, is then no error.
    """

    recipe: Recipe
    model: ModelSpec
    cluster: Cluster
    stack: Stack
    estimate: Estimate | None = None
    generated: bool = True

    @property
    def costs(self) -> Estimate:
        """The estimate, for rules that are only asked with one."""
        assert self.estimate is not None
        return self.estimate


@dataclass(frozen=True)
class Shortage:
    """Something of which there is too little, in bytes."""

    reason: str
    fix: str
    required_bytes: int
    available_bytes: int


@dataclass(frozen=True)
class Milder:
    """A reason that is less severe than the rule usually is."""

    reason: str
    fix: str
    severity: Severity


Said = str | tuple[str, str] | Shortage | Milder
Check = Callable[[Context], Iterable[Finding]]


@dataclass(frozen=True)
class Rule:
    """`needs_estimate` False: the recipe alone is enough, so a candidate can be rejected before it is priced.

    `generated_only`: the rule keeps what recipegen writes to what it knows; it says nothing of a file that somebody
    else wrote, which may well run.
    """

    id: str
    family: str
    severity: Severity
    title: str
    doc: str
    source: str
    needs_estimate: bool
    check: Check
    generated_only: bool = False


_RULES: dict[str, Rule] = {}


def rule(
    rule_id: str,
    family: str,
    severity: Severity,
    *,
    source: str,
    needs_estimate: bool = False,
    generated_only: bool = False,
    field: str = "",
) -> Callable[[Callable[[Context], Iterable[Said]]], Check]:
    """Register a check. It yields a reason, a (reason, fix) pair, a Shortage with its numbers, or something Milder.
    `field` is the Recipe field that is to blame, where it is one."""

    def register(function: Callable[[Context], Iterable[Said]]) -> Check:
        doc = " ".join((function.__doc__ or "").split())
        title = function.__name__.replace("_", " ")

        def check(context: Context) -> Iterable[Finding]:
            for said in function(context):
                if isinstance(said, Shortage):
                    yield Finding(
                        rule_id, severity, family, said.reason, said.fix, source, field,
                        required_bytes=said.required_bytes, available_bytes=said.available_bytes,
                    )  # fmt: skip
                elif isinstance(said, Milder):
                    yield Finding(rule_id, said.severity, family, said.reason, said.fix, source, field)
                else:
                    reason, fix = (said, "") if isinstance(said, str) else said
                    yield Finding(rule_id, severity, family, reason, fix, source, field)

        if rule_id in _RULES:
            raise ValueError(f"two rules are called {rule_id}")
        _RULES[rule_id] = Rule(rule_id, family, severity, title, doc, source, needs_estimate, check, generated_only)
        all_rules.cache_clear()
        return check

    return register


@cache
def all_rules() -> tuple[Rule, ...]:
    """Every rule, by id."""
    return tuple(_RULES[key] for key in sorted(_RULES))


def find_rule(rule_id: str) -> Rule | None:
    """The rule of that id (any case), or None."""
    return _RULES.get(rule_id.upper())
