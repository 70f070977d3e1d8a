"""`.recipegen.yaml`: what a team wants of its recipes. Severities of rules, what is tolerated, budgets.

    severities: {RG705: error, RG714: "off"}
    strict: false          # warnings fail
    accept_tight: false    # `tight` passes
    budgets: {max_peak_gib: 30, max_hours: 48, max_host_gb: 700, max_disk_gb: 2000}
    review: {fail_on: [does_not_fit, new_error, breaks_resume]}   # of `recipegen diff` and `recipegen review`

It is read from the folder of the recipe, else from the folders above it up to the current one.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from recipegen.catalog.bounded_yaml import Document, parse, shown, shown_path
from recipegen.check.registry import finding
from recipegen.source import read_bounded
from recipegen.spec import Estimate, Finding, RecipegenError, Severity
from recipegen.spec.units import GB, GIB

NAME = ".recipegen.yaml"
OFF = "off"
_KEYS = ("severities", "strict", "accept_tight", "budgets", "review")
_REVIEW_KEYS = ("fail_on",)
# What a review can fail for.
REVIEW_FAILS = (
    "does_not_fit", "tight", "new_error", "new_warning", "breaks_resume", "different_experiment", "unreadable",
)  # fmt: skip
_HOUR_S = 3600.0
_MOST = 1e300  # below the largest float


@dataclass(frozen=True)
class Budget:
    """A limit: what it is about, its unit, and the value of an estimate in that unit (None: not known)."""

    what: str
    unit: str
    value: Any


BUDGETS: Mapping[str, Budget] = {
    "max_peak_gib": Budget("GPU memory at the peak, the planning value", "GiB", lambda e: e.gpu.needed_bytes / GIB),
    "max_hours": Budget("time of the whole run", "h", lambda e: e.time.total_s and e.time.total_s / _HOUR_S),
    "max_host_gb": Budget("host RAM at the peak, per node", "GB", lambda e: e.host.peak_bytes / GB),
    "max_disk_gb": Budget("disk, per node", "GB", lambda e: e.disk.total_bytes / GB),
}


@dataclass(frozen=True)
class Policy:
    """`severities` maps rule ids to a severity, or None for `off`; `fail_on` holds words of REVIEW_FAILS. `where` is
    the file, "" for the defaults."""

    severities: Mapping[str, Severity | None] = field(default_factory=dict)
    strict: bool = False
    accept_tight: bool = False
    budgets: Mapping[str, float] = field(default_factory=dict)
    fail_on: tuple[str, ...] = ()
    where: str = ""

    def applied(self, findings: Collection[Finding]) -> list[Finding]:
        """The findings with the severities of this policy; without those that are off."""
        changed = []
        for found in findings:
            severity = self.severities.get(found.rule, found.severity)
            if severity is not None:
                changed.append(replace(found, severity=severity))
        return changed

    def exceeded(self, cost: Estimate, where: str) -> Iterator[Finding]:
        """A finding for every budget that the estimate is above."""
        for key, limit in self.budgets.items():
            budget = BUDGETS[key]
            value = budget.value(cost)
            if value is not None and value > limit:
                reason = f"{budget.what}: {value:,.1f} {budget.unit}, and {key} of the policy is {limit:g}"
                yield finding("RG782", Severity.ERROR, reason, where=where, source=self.where)


def find(folder: Path) -> Path | None:
    """The policy that holds for recipes of `folder`."""
    here, top = Path(os.path.realpath(folder)), Path(os.path.realpath(os.curdir))
    folders = [here]
    if here.is_relative_to(top):
        folders += [parent for parent in here.parents if parent.is_relative_to(top)]
    return next((one / NAME for one in folders if (one / NAME).is_file()), None)


def read(path: Path, known_rules: Collection[str]) -> Policy:
    """The policy in a file. Raises RecipegenError with file and line for anything that is not one."""
    return of_bytes(read_bounded(path), shown_path(path), known_rules)


def of_bytes(content: bytes, place: str, known_rules: Collection[str]) -> Policy:
    """The policy in the content of a file that is called `place`."""
    if not content.strip():
        return Policy(where=place)
    document = parse(content, place, what="a policy")
    values = document.values
    for key in values:
        if key not in _KEYS:
            raise _unknown(document, (key,), key, _KEYS)
    return Policy(
        severities=dict(_severities(document, known_rules)),
        strict=_truth(document, "strict"),
        accept_tight=_truth(document, "accept_tight"),
        budgets=dict(_budgets(document)),
        fail_on=_fail_on(document),
        where=place,
    )


def _unknown(document: Document, path: tuple[str, ...], name: str, known: Collection[str]) -> RecipegenError:
    near = difflib.get_close_matches(name, known, n=1)
    fix = f"Did you mean {near[0]}?" if near else f"Known: {', '.join(list(known)[:12])}."
    return RecipegenError(f"unknown {shown(name)}", where=document.where(*path), fix=fix)


def _mapping(document: Document, key: str) -> Mapping[str, Any]:
    value = document.values.get(key) or {}
    if not isinstance(value, Mapping):
        raise RecipegenError(f"{key} must be a mapping", where=document.where(key))
    return value


def _severities(document: Document, known: Collection[str]) -> Iterator[tuple[str, Severity | None]]:
    words = [severity.value for severity in Severity]
    for rule, word in _mapping(document, "severities").items():
        if rule not in known:
            raise _unknown(document, ("severities", rule), rule, known)
        if word is False or word == OFF:  # YAML 1.1 reads off as false
            yield rule, None
        elif word in words:
            yield rule, Severity(word)
        else:
            where = document.where("severities", rule)
            raise RecipegenError(f"{shown(word)} must be one of {', '.join([*words, OFF])}", where=where)


def _truth(document: Document, key: str) -> bool:
    value = document.values.get(key, False)
    if not isinstance(value, bool):
        raise RecipegenError(f"{key}: {shown(value)} must be true or false", where=document.where(key))
    return value


def _budgets(document: Document) -> Iterator[tuple[str, float]]:
    for key, value in _mapping(document, "budgets").items():
        if key not in BUDGETS:
            raise _unknown(document, ("budgets", key), key, BUDGETS)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < _MOST:
            where = document.where("budgets", key)
            raise RecipegenError(f"{key}: {shown(value)} must be a number above 0 and below {_MOST:g}", where=where)
        yield key, float(value)


def _fail_on(document: Document) -> tuple[str, ...]:
    review = _mapping(document, "review")
    for key in review:
        if key not in _REVIEW_KEYS:
            raise _unknown(document, ("review", key), key, _REVIEW_KEYS)
    words = review.get("fail_on") or []
    where = document.where("review", "fail_on")
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise RecipegenError("review.fail_on must be a list of words", where=where)
    for index, word in enumerate(words):
        if word not in REVIEW_FAILS:
            raise _unknown(document, ("review", "fail_on", str(index)), word, REVIEW_FAILS)
    return tuple(dict.fromkeys(words))
