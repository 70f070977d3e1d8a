"""Two sides of one recipe, as its semantic difference."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from recipegen.check.checking import Checked
from recipegen.review.compatibility import compatibility
from recipegen.review.difference import Experiment, RecipeDifference, Status
from recipegen.review.effects import effects
from recipegen.review.fields import Meaning, changes, meaning, resolved
from recipegen.review.kinds import experiment_of
from recipegen.review.meaning import statements
from recipegen.review.no_ops import no_ops
from recipegen.review.pair import Pair
from recipegen.spec import Finding, Severity

_ORDER = (Experiment.SAME_ORDER, Experiment.COMPARABLE, Experiment.DIFFERENT)
_VERIFICATION = "verification"  # needs a look at the machine, whatever changed


def compare(name: str, before: Checked | None, after: Checked | None) -> RecipeDifference:
    """The difference of two checked projects; None: it is not on that side."""
    if before is None and after is None:
        raise ValueError("a recipe is on one side at least")
    if before is None or after is None:
        return _one_sided(name, before, after)
    unread = (*_unread(before, "before"), *_unread(after, "after"))
    if unread:
        return _unreadable(name, before, after, unread)
    both = resolved(before) is not None and resolved(after) is not None
    sides = [meaning(side, stated_only=not both) for side in (before, after)]
    found = changes(*sides)
    pair = Pair(sides[0], sides[1], {change.path: change for change in found})
    new, fixed, kept = _findings(before.findings, after.findings)
    dead = no_ops(pair, before, after)
    unchanged = not found and not dead and before.verdict is after.verdict and not _serious(new) and not _serious(fixed)
    return RecipeDifference(
        name=name,
        status=Status.UNCHANGED
        if unchanged
        else Status.CHANGED
        if both or _readable(before, after)
        else Status.UNREADABLE,
        verdict_before=before.verdict,
        verdict_after=after.verdict,
        changes=found,
        effects=effects(*sides),
        meaning=statements(pair) if found else (),
        experiment=experiment(pair),
        compatibility=compatibility(pair),
        no_ops=dead,
        new=new,
        fixed=fixed,
        kept=kept,
        problems=tuple(_problems(before, "before")) + tuple(_problems(after, "after")) if not both else (),
    )


def experiment(pair: Pair) -> Experiment:
    """How far apart the results are: the strongest class of a changed field, and the order of the rows."""
    found = [experiment_of(path) for path in pair.changes if not _idle(pair, path)]
    if "seed" in pair.changes and pair.after.get("val_set_size"):  # it splits other rows off
        found.append(Experiment.DIFFERENT)
    if pair.batch_factor != 1.0 or _other_bins(pair):
        found.append(Experiment.COMPARABLE)
    return max(found, key=_ORDER.index, default=Experiment.SAME_ORDER)


def _idle(pair: Pair, path: str) -> bool:
    """Betas of an optimizer and such follow from other fields; the batch is judged as a whole."""
    return path.startswith("precision.") and path != "precision.parameters" and pair.changed("method")


def _other_bins(pair: Pair) -> bool:
    """Packed rows fall into bins by micro-batch, ranks and attention."""
    if not (pair.before.get("packing") and pair.after.get("packing")):
        return False
    return pair.ranks_changed or pair.changed("micro_batch_size", "attention")


# --- sides without a partner, or without a Recipe


def _one_sided(name: str, before: Checked | None, after: Checked | None) -> RecipeDifference:
    side = after or before
    assert side is not None
    known = meaning(side)
    nothing = Meaning({}, {}, None, None, None)
    old, new = (nothing, known) if after else (known, nothing)
    return RecipeDifference(
        name=name,
        status=Status.ADDED if after else Status.REMOVED,
        verdict_before=before.verdict if before else RecipeDifference.verdict_before,
        verdict_after=after.verdict if after else RecipeDifference.verdict_after,
        effects=effects(old, new),
        new=after.findings if after else (),
        fixed=before.findings if before else (),
        problems=tuple(_problems(side, "")) if side.subject.assembled.recipe is None else (),
    )


def _unread(side: Checked, which: str) -> Iterator[str]:
    """Files that cannot be read at all: what they would say is not known, so nothing is concluded."""
    for name, document in side.subject.documents.items():
        if document.values is None:
            place = side.project.shown.get(name, name)
            yield f"{which}: {place}: {document.problem.reason if document.problem else 'cannot be read'}"


def _unreadable(name: str, before: Checked, after: Checked, problems: tuple[str, ...]) -> RecipeDifference:
    new, fixed, kept = _findings(before.findings, after.findings)
    return RecipeDifference(
        name=name,
        status=Status.UNREADABLE,
        verdict_before=before.verdict,
        verdict_after=after.verdict,
        new=new,
        fixed=fixed,
        kept=kept,
        problems=problems,
    )


def _readable(*sides: Checked) -> bool:
    """Something was read of every side: without a machine there is no Recipe, and still much to compare."""
    return all(any(reading.values for reading in side.subject.readings.values()) for side in sides)


def _problems(side: Checked, which: str) -> Iterator[str]:
    for unknown in side.subject.assembled.unknown:
        place = f"{unknown.where}: " if unknown.where else ""
        yield f"{which + ': ' if which else ''}{place}{unknown.reason}"


# --- findings


def _findings(
    before: Iterable[Finding], after: Iterable[Finding]
) -> tuple[tuple[Finding, ...], tuple[Finding, ...], tuple[Finding, ...]]:
    """New, fixed, kept. The same line first; then the same rule about the same field, whose numbers moved."""
    old, new = list(before), list(after)
    kept: list[Finding] = []
    for key in (_exact, _about):
        there = Counter(map(key, old))
        matched: Counter[tuple[str, ...]] = Counter()
        rest = []
        for found in new:
            if matched[key(found)] < there[key(found)]:
                matched[key(found)] += 1
                kept.append(found)
            else:
                rest.append(found)
        left = []
        for found in old:
            if matched[key(found)] > 0:
                matched[key(found)] -= 1
            else:
                left.append(found)
        old, new = left, rest
    return tuple(new), tuple(old), tuple(kept)


def _exact(found: Finding) -> tuple[str, ...]:
    return found.rule, found.severity.value, found.reason, found.field


def _about(found: Finding) -> tuple[str, ...]:
    return found.rule, found.severity.value, found.field or found.where.rpartition(":")[0].rpartition("/")[2]


def _serious(findings: Iterable[Finding]) -> bool:
    return any(f.severity is not Severity.NOTE and f.family != _VERIFICATION for f in findings)
