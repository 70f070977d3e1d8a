"""Whether a review fails by the policy, and how loud it is. No policy, and nothing fails."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from recipegen.check.policy import Policy
from recipegen.review.difference import Experiment, RecipeDifference, Review, Status, Weight
from recipegen.review.sides import PolicyOf
from recipegen.spec import Finding, Severity, Verdict

STRICT = ("does_not_fit", "new_error", "unreadable")  # what fails with --strict, whatever the policy says
_LOUD = (Weight.DETAIL, Weight.NOTICE, Weight.ALARM)


def failures(review: Review, policy_of: PolicyOf, *, strict: bool = False) -> list[str]:
    """A line for every recipe and word of its policy that it fails for."""
    found = []
    for row in review.changed:
        said = dict.fromkeys(STRICT if strict else (), "--strict")
        for name in (row.name, row.before_name):  # a recipe does not get rid of its policy by moving
            policy = policy_of(name) if name else Policy()
            said.update({word: f"{policy.where} fails on {word}" for word in policy.fail_on})
        reasons = dict(_reasons(row))
        found += [f"{row.name}: {reasons[word]} ({why})" for word, why in said.items() if word in reasons]
    return found


def _reasons(row: RecipeDifference) -> Iterator[tuple[str, str]]:
    """The words that hold for a recipe, each with what there is to say of it."""
    if row.status is Status.UNREADABLE:
        yield "unreadable", row.problems[0] if row.problems else "it cannot be read"
    if row.verdict_after is Verdict.DOES_NOT_FIT:
        yield "does_not_fit", "it does not fit"
    if row.verdict_after is Verdict.TIGHT:
        yield "tight", "it is tight"
    for word, severity in (("new_error", Severity.ERROR), ("new_warning", Severity.WARNING)):
        first = _first(row.new, severity)
        if first is not None:
            yield word, f"{first.rule} at {first.where}: {first.reason}"
    if row.compatibility is not None and row.compatibility.resumes is False:
        yield "breaks_resume", "a checkpoint of before cannot be resumed"
    if row.experiment is Experiment.DIFFERENT:
        yield "different_experiment", "it is a different experiment"


def _first(findings: Iterable[Finding], severity: Severity) -> Finding | None:
    return next((found for found in findings if found.severity is severity), None)


def loudness(review: Review) -> Weight | None:
    """The weight of the most important thing there is to say; None where nothing changed."""
    weights = [weight for row in review.changed for weight in _weights(row)]
    return max(weights, key=_LOUD.index, default=None)


def reaches(review: Review, least: Weight) -> bool:
    """Whether a review is as loud as that."""
    loud = loudness(review)
    return loud is not None and _LOUD.index(loud) >= _LOUD.index(least)


def _weights(row: RecipeDifference) -> Iterator[Weight]:
    yield Weight.DETAIL
    if row.status in (Status.ADDED, Status.REMOVED):
        yield Weight.NOTICE
    newly = row.verdict_after is Verdict.DOES_NOT_FIT is not row.verdict_before
    if row.status is Status.UNREADABLE or newly or _first(row.new, Severity.ERROR):
        yield Weight.ALARM
    if _first(row.new, Severity.WARNING) or row.verdict_before is not row.verdict_after:
        yield Weight.NOTICE
    statements = [*row.meaning, *row.no_ops, *(row.compatibility.reasons if row.compatibility else ())]
    yield from (statement.weight for statement in statements)
