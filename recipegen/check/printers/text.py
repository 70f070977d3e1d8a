"""For people: the verdict, the findings, the estimate."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from recipegen.check.checking import Checked, Outcome
from recipegen.check.printers.shared import counted, label, verdict_line
from recipegen.spec import Finding, Severity, Verdict
from recipegen.spec.units import gib, seconds

Paint = Callable[[str, str], str]  # text, colour name -> text
COLOURS = {Severity.ERROR: "red", Severity.WARNING: "yellow", Severity.NOTE: "cyan"}
VERDICTS = {Verdict.FITS: "green", Verdict.TIGHT: "yellow", Verdict.DOES_NOT_FIT: "red", Verdict.UNKNOWN: "magenta"}
_FIX = "           fix: "
_COMMAND = "           run: "


def text(
    outcome: Outcome,
    *,
    costs: Callable[[Checked], Iterator[str]],
    paint: Paint = lambda said, _colour: said,
    wrap: Callable[[str, str], Iterator[str]],
    verbose: bool = False,
) -> Iterator[str]:
    """The lines. `costs` gives the lines of a project's estimate, `wrap` a long text in lines behind an indent."""
    several = len(outcome.checked) > 1
    if several or outcome.findings:  # the verdict is always the first line
        yield _summary(outcome, paint)
    for found in outcome.findings:
        yield from _finding(found, paint, wrap)
    for one in outcome.checked:
        if several or outcome.findings:
            yield ""
        yield from _project(one, paint, wrap, costs, verbose=verbose, short=several and not verbose)
    if outcome.skipped and (verbose or not several):
        yield from wrap("not of a recipe: " + ", ".join(one.shown for one in outcome.skipped), "")


def _summary(outcome: Outcome, paint: Paint) -> str:
    verdicts = [one.verdict for one in outcome.checked]
    parts = [f"{verdicts.count(v)} {label(v).lower()}" for v in VERDICTS if v in verdicts]
    worst = paint(label(outcome.verdict), VERDICTS[outcome.verdict])
    said = counted(outcome.all_findings(), *Severity)
    recipes = f"{len(verdicts)} recipe{'s' if len(verdicts) != 1 else ''}"
    return f"{worst}  {recipes}: {', '.join(parts) or 'nothing could be read'}; {said or 'no findings'}"


def _project(
    one: Checked,
    paint: Paint,
    wrap: Callable[[str, str], Iterator[str]],
    costs: Callable[[Checked], Iterator[str]],
    *,
    verbose: bool,
    short: bool,
) -> Iterator[str]:
    line = verdict_line(one)
    verdict, _, rest = line.partition(", ")
    yield f"{paint(verdict, VERDICTS[one.verdict])}, {rest}  {one.project.name}"
    cluster = one.subject.cluster
    if cluster is not None and not short:
        yield f"      {cluster.summary()}"
    notes = 0
    for found in one.findings:
        if short and found.severity is Severity.NOTE:
            notes += 1
        else:
            yield from _finding(found, paint, wrap)
    if one.ignored:
        yield f"  {counted(one.ignored, *Severity)} ignored by comments in the files"
    if short:
        yield from _short(one, notes)
        return
    if verbose:
        for said in one.ran:
            yield from wrap(said if said.startswith("not run") else f"checked: {said}", "  ")
        for said in one.verified:
            yield from wrap(f"verified: {said}", "  ")
    if one.subject.estimate is not None and one.subject.assembled.recipe is not None:
        yield ""
        yield from costs(one)
        if verbose and one.subject.assembled.defaults:
            yield ""
            yield from wrap("defaults of the trainer: " + ", ".join(sorted(one.subject.assembled.defaults)), "  ")


def _short(one: Checked, notes: int) -> Iterator[str]:
    cost = one.subject.estimate
    if cost is not None:
        gpu = cost.gpu
        yield (
            f"  {gib(gpu.needed_low_bytes)} to {gib(gpu.needed_high_bytes)} of {gib(gpu.capacity_bytes)} per GPU, "
            f"{seconds(cost.time.step_s)} per step"
        )
    else:
        reason = next((unknown.reason for unknown in one.subject.assembled.unknown), "")
        yield f"  no estimate: {reason}" if reason else "  no estimate"
    if notes:
        yield f"  {notes} note{'s'[: notes - 1]} (-v)"


def _finding(found: Finding, paint: Paint, wrap: Callable[[str, str], Iterator[str]]) -> Iterator[str]:
    """Severity, rule, place, reason; then what to do."""
    lines = list(wrap(f"{found.severity.value:8} {found.rule}  {found.where}  {found.reason}", "  "))
    first = lines[0].replace(found.severity.value, paint(found.severity.value, COLOURS[found.severity]), 1)
    yield from (first, *lines[1:])
    if found.fix:
        if found.family == "verification":
            yield _COMMAND + found.fix  # a command stays on one line
        else:
            yield from wrap(found.fix, _FIX)
