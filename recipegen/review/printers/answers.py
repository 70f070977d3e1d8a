"""The four questions of a review in the order in which people ask them, each answered on one line of markdown: does it
fit, is it a different experiment, do old checkpoints still resume, what does it cost in hours."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from recipegen.review.difference import Experiment, RecipeDifference, Status, Weight
from recipegen.review.printers.escape import path_code, prose
from recipegen.review.printers.numbers import hours, hours_arrow, numbers, share
from recipegen.review.printers.shared import (
    MEMORY,
    TOKENS,
    alarms,
    by_weight,
    effect,
    experiment_words,
    plural,
    run_seconds,
    token_seconds,
    verdict_words,
    verdicts,
)  # fmt: skip
from recipegen.spec import Verdict

Rows = Sequence[RecipeDifference]
_NAMED = 2  # recipes that a line names; the table has the others
_TOKENS = f"{TOKENS // 1_000_000} million tokens"
_NAME, _REASON = 42, 90  # characters; with them an answer takes two lines at most
_WORST = (Verdict.DOES_NOT_FIT, Verdict.TIGHT, Verdict.UNKNOWN, Verdict.FITS)


def answers(rows: Rows) -> Iterator[str]:
    """The lines. `rows` are those that changed, the most urgent first."""
    said: tuple[tuple[str, Callable[[Rows], str]], ...] = (
        ("Does it fit?", _fit),
        ("Is it a different experiment?", _experiment),
        ("Do old checkpoints still resume?", _resume),
        ("What does it cost?", _cost),
    )
    for question, answer in said:
        yield f"- **{question}** {answer(rows)}"


# --- does it fit


def _fit(rows: Rows) -> str:
    there = [row for row in rows if row.status is not Status.REMOVED]
    if not there:
        return "Nothing is left to fit."
    if len(rows) == 1:
        return _fit_of_one(rows[0])
    parts = []
    for verdict in _WORST:
        found = [row for row in there if row.verdict_after is verdict]
        if found:
            names = _names(found) if verdict is Verdict.DOES_NOT_FIT else ""
            verb = verdict_words(verdict) if verdict is not Verdict.DOES_NOT_FIT or len(found) == 1 else "do not fit"
            verb = "fit" if verdict is Verdict.FITS and len(found) > 1 else verb
            parts.append(f"{len(found)} {verb}{names}")
    worst = min((row.verdict_after for row in there), key=_WORST.index)
    return f"**{_yes_no(worst)}**: {', '.join(parts)}."


def _fit_of_one(row: RecipeDifference) -> str:
    peak = effect(row, MEMORY)
    said = f"**{_yes_no(row.verdict_after)}**"
    if " -> " in verdicts(row):
        said += f": {verdicts(row).replace('->', '→')}"
    if peak is None or peak.after is None:
        return said + "."
    told = numbers(peak)
    band = f" ({told.band})" if told.band else ""
    return f"{said}; {told.of(told.after)}{band} needed per GPU."


def _yes_no(verdict: Verdict) -> str:
    return {
        Verdict.FITS: "Yes",
        Verdict.TIGHT: "Tight",
        Verdict.DOES_NOT_FIT: "No",
        Verdict.UNKNOWN: "Not estimated",
    }[verdict]


# --- is it a different experiment


def _experiment(rows: Rows) -> str:
    known = [row for row in rows if row.experiment is not None]
    if not known:
        return "Nothing to compare with."
    if len(rows) == 1:
        return _of_one(rows[0])
    parts = []
    for kind in (Experiment.DIFFERENT, Experiment.COMPARABLE, Experiment.SAME_ORDER):
        found = [row for row in known if row.experiment is kind]
        if found:
            names = _names(found) if kind is Experiment.DIFFERENT else ""
            parts.append(f"{len(found)} {'different' if kind is Experiment.DIFFERENT else kind.value}{names}")
    different = any(row.experiment is Experiment.DIFFERENT for row in known)
    alarmed = sum(bool(alarms(row)) for row in known)
    tail = f"; alarms in {alarmed}" if alarmed else ""
    return f"**{'Yes' if different else 'No'}**: {', '.join(parts)}{tail}."


def _of_one(row: RecipeDifference) -> str:
    words = {
        Experiment.DIFFERENT: "Yes",
        Experiment.COMPARABLE: "No, comparable",
        Experiment.SAME_ORDER: f"No, {experiment_words(Experiment.SAME_ORDER)}",
        None: "Not known",
    }[row.experiment]
    heavy = [one for one in by_weight(row.meaning) if one.weight is not Weight.DETAIL]
    if not heavy:
        return f"**{words}**."
    more = f" ({len(heavy) - 1} more below)" if len(heavy) > 1 else ""
    return _ended(f"**{words}**: {prose(heavy[0].text, _REASON)}{more}")


# --- do old checkpoints still resume


def _resume(rows: Rows) -> str:
    known = [row for row in rows if row.compatibility is not None]
    if not known:
        return "There are none."
    if len(rows) == 1:
        return _resume_of_one(rows[0])
    parts = []
    for resumes, word in ((False, "cannot"), (None, "not known"), (True, "can")):
        found = [row for row in known if row.compatibility and row.compatibility.resumes is resumes]
        if found:
            parts.append(f"{len(found)} {word}{_names(found) if resumes is False else ''}")
    kinds = {row.compatibility.resumes for row in known if row.compatibility}
    worst = "No" if False in kinds else "Not known" if None in kinds else "Yes"
    return f"**{worst}**: {', '.join(parts)}."


def _resume_of_one(row: RecipeDifference) -> str:
    found = row.compatibility
    assert found is not None
    said = f"**{ {True: 'Yes', False: 'No', None: 'Not known'}[found.resumes] }**"
    if found.reasons:
        more = f" ({len(found.reasons) - 1} more below)" if len(found.reasons) > 1 else ""
        said += f": {prose(found.reasons[0].text, _REASON)}{more}"
    if found.resumes is not False and found.ignored:
        said += f"; a resumed run ignores {plural(len(found.ignored), 'changed value')}"
    if found.same_output:
        said += "; **the old checkpoints are still in its output folder**"
    return _ended(said)


# --- what does it cost in hours


def _cost(rows: Rows) -> str:
    if len(rows) == 1:
        return _cost_of_one(rows[0])
    runs = [(row, *run_seconds(row)) for row in rows]
    pairs = [(row, old, new) for row, old, new in runs if old is not None and new is not None]
    added = [new for row, _, new in runs if row.status is Status.ADDED and new is not None]
    if not pairs and not added:
        if all(token_seconds(row) == (None, None) for row in rows):
            return "Not known."
        return f"The length of the runs is not known without the data; the table has hours for {_TOKENS}."
    parts = []
    if pairs:
        total = _hours(sum(old for _, old, _ in pairs), sum(new for _, _, new in pairs))
        parts.append(f"{total} for {plural(len(pairs), 'run')}{_most(pairs)}")
    if added:
        parts.append(f"**{hours(sum(added))}** for {plural(len(added), 'new run')}")
    unknown = sum(row.status is not Status.REMOVED for row in rows) - len(pairs) - len(added)
    if unknown:
        parts.append(f"not known for {unknown}")
    return "; ".join(parts) + "."


def _most(pairs: Sequence[tuple[RecipeDifference, float, float]]) -> str:
    row, old, new = max(pairs, key=lambda one: (abs(one[2] - one[1]), one[0].name))
    if len(pairs) < 2 or old == new:
        return ""
    return f", most of it {path_code(row.name, _NAME)} {hours_arrow(old, new)}"


def _cost_of_one(row: RecipeDifference) -> str:
    if row.status is Status.REMOVED:
        return "Nothing any more."
    old, new = run_seconds(row)
    if new is not None:
        return f"{_hours(old, new)} for the run."
    was = f"; it was {hours(old)}" if old is not None else ""
    old, new = token_seconds(row)
    if new is None:
        return f"Not known{was}."
    return f"The length of the run is not known without the data{was}; {_hours(old, new)} for {_TOKENS}."


def _hours(old: float | None, new: float) -> str:
    moved = share(old, new) if old is not None else ""
    return f"**{hours_arrow(old, new)}**" + (f" ({moved})" if moved else "")


def _names(rows: Rows) -> str:
    """` (a, b and 3 more)`."""
    more = f" and {len(rows) - _NAMED} more" if len(rows) > _NAMED else ""
    return f" ({', '.join(path_code(row.name, _NAME) for row in rows[:_NAMED])}{more})"


def _ended(said: str) -> str:
    """With a full stop, unless something is left out at the end."""
    return said if said.endswith("...") else said + "."
