"""For a terminal: per recipe what it costs, what it means, what becomes of checkpoints, which fields and findings."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from recipegen.check.printers.text import COLOURS, VERDICTS, Paint
from recipegen.review.difference import (
    Compatibility,
    Effect,
    Experiment,
    RecipeDifference,
    Review,
    Statement,
    Status,
    Weight,
)  # fmt: skip
from recipegen.review.printers.numbers import Numbers, numbers
from recipegen.review.printers.shared import (
    by_weight,
    change_words,
    counted,
    experiment_words,
    label,
    newly_too_large,
    place,
    plural,
    safe,
    statuses,
)  # fmt: skip
from recipegen.spec import Finding, Severity, Verdict

Wrap = Callable[[str, str], Iterator[str]]
_STATUS = {
    Status.ADDED: "green",
    Status.REMOVED: "red",
    Status.CHANGED: "yellow",
    Status.RENAMED: "cyan",
    Status.UNCHANGED: "green",
    Status.UNREADABLE: "red",
}
_WEIGHT = {Weight.ALARM: "red", Weight.NOTICE: "yellow", Weight.DETAIL: "cyan"}
_EXPERIMENT = {Experiment.SAME_ORDER: "green", Experiment.COMPARABLE: "yellow", Experiment.DIFFERENT: "red"}
_INDENT = "  "
_MOST_CHANGES = 20  # fields of a recipe without -v; a new method moves that many, and the statements say what it is


def text(
    review: Review,
    *,
    paint: Paint = lambda said, _colour: said,
    wrap: Wrap,
    verbose: bool = False,
) -> Iterator[str]:
    """The lines. `wrap` gives a long text in lines behind an indent; `verbose`: details, numbers that did not change,
    findings that were there before, recipes without a change."""
    printer = _Printer(paint, wrap, verbose)
    yield from printer.summary(review)
    rows = review.recipes if verbose or len(review.recipes) == 1 else review.changed
    for row in rows:
        yield ""
        yield from printer.recipe(row)


@dataclass(frozen=True)
class _Printer:
    paint: Paint
    wrap: Wrap
    verbose: bool

    def summary(self, review: Review) -> Iterator[str]:
        said = f"{safe(review.base)} -> {safe(review.head)}: "
        if not review.recipes:
            yield said + "no recipe changed"
            return
        yield from self.wrap(f"{said}{plural(len(review.recipes), 'recipe')}: {statuses(review)}", "")
        for row in review.changed:
            if newly_too_large(row):
                yield self.paint("does not fit any more:", VERDICTS[Verdict.DOES_NOT_FIT]) + f" {safe(row.name)}"

    def recipe(self, row: RecipeDifference) -> Iterator[str]:
        name = safe(row.name)
        if row.before_name:
            name += f" (was {safe(row.before_name)})"
        status = self.paint(row.status.value.upper(), _STATUS[row.status])
        yield f"{status}  {name}  {self.verdicts(row)}"
        for problem in row.problems:
            yield from self.wrap(safe(problem), _INDENT)
        yield from self.conclusion(row)
        yield from self.effects(row)
        yield from self.statements(row.meaning)
        yield from self.changes(row)
        if row.compatibility is not None:
            yield from self.compatibility(row.compatibility)
        yield from self.statements(row.no_ops)
        yield from self.findings(row)

    def verdicts(self, row: RecipeDifference) -> str:
        old, new = row.verdict_before, row.verdict_after
        sides = [new] if row.status is Status.ADDED or old is new else [old, new]
        sides = [old] if row.status is Status.REMOVED else sides
        return " -> ".join(self.paint(label(verdict), VERDICTS[verdict]) for verdict in sides)

    def conclusion(self, row: RecipeDifference) -> Iterator[str]:
        if row.experiment is None or (row.status is Status.UNCHANGED and not self.verbose):
            return
        said = self.paint(experiment_words(row.experiment), _EXPERIMENT[row.experiment])
        if row.compatibility is not None:
            resumes = {
                True: self.paint("old checkpoints resume", "green"),
                False: self.paint("old checkpoints do not resume", "red"),
                None: self.paint("not known whether old checkpoints resume", "yellow"),
            }[row.compatibility.resumes]
            said += f"; {resumes}"
        yield _INDENT + said

    def effects(self, row: RecipeDifference) -> Iterator[str]:
        one_sided = row.status in (Status.ADDED, Status.REMOVED)
        shown = [one for one in row.effects if one.changed or self.verbose]
        width = max((len(one.name) for one in shown), default=0)
        for one in shown:
            yield f"{_INDENT}{one.name:{width}}  {self.effect(one, one_sided)}"

    def effect(self, one: Effect, one_sided: bool) -> str:
        told = numbers(one)
        return (told.single() if one_sided else told.arrow()) + self.why(one, told, one_sided)

    def why(self, one: Effect, told: Numbers, one_sided: bool) -> str:
        parts = [told.change, safe(one.because)]
        if told.band and (self.verbose or one_sided):
            parts.append(f"between {told.band}".replace(" to ", " and "))
        found = ", ".join(part for part in parts if part)
        return f" ({found})" if found else ""

    def statements(self, found: Iterable[Statement]) -> Iterator[str]:
        for one in by_weight(found):
            if one.weight is Weight.DETAIL and not self.verbose:
                continue
            where = f"{safe(one.where)}  " if one.where else ""
            yield from self._marked(one.weight.value, f"{one.rule}  {where}{safe(one.text)}", _WEIGHT[one.weight])

    def changes(self, row: RecipeDifference) -> Iterator[str]:
        shown = row.changes if self.verbose else row.changes[:_MOST_CHANGES]
        for change in shown:
            where = f"  {place(change)}" if place(change) else ""
            yield from self.wrap(f"{change_words(change)}{where}", _INDENT)
        if len(shown) < len(row.changes):
            yield f"{_INDENT}and {plural(len(row.changes) - len(shown), 'more field')} (-v)"

    def compatibility(self, one: Compatibility) -> Iterator[str]:
        for reason in one.reasons:
            where = f"{safe(reason.where)}  " if reason.where else ""
            colour = _WEIGHT[reason.weight]
            yield from self._marked("resume", f"{reason.rule}  {where}{safe(reason.text)}", colour)
        for change in one.ignored:
            said = f"{change_words(change)} is not seen by a resumed run, which keeps the checkpoint's"
            yield from self._marked("resume", said, "yellow")
        for rebuild in one.rebuild:
            yield from self._marked("data", safe(rebuild), "yellow")
        if one.same_output:
            said = "output_dir is that of before: the run looks for a checkpoint there and finds the old one"
            yield from self._marked("output", said, "red")
        for inference in one.inference:
            yield from self._marked("serving", safe(inference), "yellow")

    def findings(self, row: RecipeDifference) -> Iterator[str]:
        for word, found in (("new", row.new), ("fixed", row.fixed)):
            shown = [one for one in found if self.verbose or one.severity is not Severity.NOTE]
            for one in shown:
                yield from self.finding(word, one)
            if len(shown) < len(found):
                yield f"{_INDENT}{word}: {plural(len(found) - len(shown), 'note')} (-v)"
        if row.kept and not self.verbose:
            yield f"{_INDENT}as before: {counted(row.kept, *Severity)} (-v)"
        for one in row.kept if self.verbose else ():
            yield from self.finding("kept", one)

    def finding(self, word: str, one: Finding) -> Iterator[str]:
        colour = "green" if word == "fixed" else COLOURS[one.severity]
        said = f"{one.severity.value} {one.rule}  {safe(one.where)}  {safe(one.reason)}"
        yield from self._marked(word, said, colour)
        if one.fix and word == "new":
            yield from self.wrap(safe(one.fix), f"{_INDENT}         fix: ")

    def _marked(self, word: str, said: str, colour: str) -> Iterator[str]:
        """Wrapped, with the first word in colour; the colour is put on afterwards, for it has a length."""
        lines = list(self.wrap(f"{word:8} {said}", _INDENT))
        yield lines[0].replace(word, self.paint(word, colour), 1)
        yield from lines[1:]
