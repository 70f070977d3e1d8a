"""The comment on a pull request: four answers, what blocks, one table; all else is folded.

It fits one screen, whatever the size of the change: what is not folded takes at most SCREEN px. A screen of 1,080 px
leaves about that under the bars of the desktop, the browser and GitHub. On GitHub a line takes 24 px and holds some
110 characters (WIDTH), a row of a table takes 37 px and holds some 106. So the list of what blocks has at most BLOCKING
lines and the table ROWS rows, less one for each line of that list and its heading; everything is clipped, so that a
line of text wraps once and a row never. What is left out is counted, and is below, folded.

GitHub takes comments of 65,536 characters (65,537 and the API says 422). When there are more recipes than that holds,
the most urgent are kept and the rest is counted. Text of recipes is escaped: see escape.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from recipegen.review.difference import Experiment, RecipeDifference, Review, Status
from recipegen.review.printers.answers import answers
from recipegen.review.printers.escape import code, path_code, prose
from recipegen.review.printers.folded import folded_recipe, folded_recipes, size
from recipegen.review.printers.numbers import hours_arrow, numbers
from recipegen.review.printers.shared import (
    MEMORY,
    TOKENS,
    blocking,
    common_folder,
    effect,
    head_problems,
    plural,
    resume_words,
    run_seconds,
    statuses,
    token_seconds,
    urgent_first,
    verdicts,
)  # fmt: skip

SCREEN = 890  # px
WIDTH = 110  # characters on a line
ROWS = 10  # of the table
BLOCKING = 3  # findings above it
LONGEST = 65_536  # characters of a comment

_TAG = re.compile(r"[a-z0-9 :_./-]{1,200}")  # as the poster finds it again
_TITLE, _CELL, _PLACE, _BECAUSE = 48, 42, 55, 36  # characters
_SIDE = 40  # of what a person named a side
_SHORT = {
    Experiment.SAME_ORDER: "same order",
    Experiment.COMPARABLE: "comparable",
    Experiment.DIFFERENT: "different",
}
_NO_RULE = "not read"  # instead of a rule's id, for a file


def markdown(review: Review, *, tag: str | None = None) -> str:
    """The comment. `tag` is hidden on the first line. Raises ValueError for a tag that would not stay hidden."""
    lines = []
    if tag is not None:
        if not _TAG.fullmatch(tag):
            raise ValueError(f"{tag!r} is no tag: lower-case letters, digits and :_./- only")
        lines += [f"<!-- {tag} -->"]
    rows = urgent_first(review.changed)
    lines += list(_visible(review, rows))
    left = LONGEST - size("\n".join(lines)) - 1
    folded = folded_recipe(rows[0], left) if len(rows) == 1 else folded_recipes(rows, left)
    return "\n".join([*lines, *folded]) + "\n"


def _visible(review: Review, rows: Sequence[RecipeDifference]) -> Iterator[str]:
    yield f"### recipegen: {_title(review, rows)}"
    yield ""
    if not rows:
        yield f"From {_sides(review)} no recipe means anything else."
        return
    folder = common_folder(rows) if len(rows) > 1 else ""
    shown = [replace(row, name=row.name.removeprefix(folder)) for row in rows]
    yield from answers(shown)
    stops = list(dict.fromkeys(_stops(rows)))  # recipes may share a file
    yield from _blocking(stops)
    yield ""
    most = ROWS - (1 + min(len(stops), BLOCKING) if stops else 0)
    yield from _effects(rows[0], most) if len(rows) == 1 else _recipes(shown, most, folder)
    unchanged = len(review.recipes) - len(rows)
    yield ""
    yield f"{_sides(review)}{f'; {unchanged} unchanged' if unchanged else ''}"


def _title(review: Review, rows: Sequence[RecipeDifference]) -> str:
    if len(rows) != 1:
        return f"{plural(len(review.recipes), 'recipe')}: {statuses(review)}" if rows else "nothing changed"
    was = f" (was {path_code(rows[0].before_name, _TITLE)})" if rows[0].before_name else ""
    return f"{path_code(rows[0].name, _TITLE)} {rows[0].status.value}{was}"


def _sides(review: Review) -> str:
    return f"{code(review.base, _SIDE)} → {code(review.head, _SIDE)}"


def _blocking(found: Sequence[str]) -> Iterator[str]:
    if not found:
        return
    yield ""
    yield f"**Blocking: {len(found)}**"
    yield ""
    yield from found[:BLOCKING]
    if len(found) > BLOCKING:
        yield f"- and {len(found) - BLOCKING} more, below"


def _stops(rows: Sequence[RecipeDifference]) -> Iterator[str]:
    """What stops a launch and was not there before, with its place."""
    for row in rows:
        for finding in blocking(row):
            place = path_code(finding.where or row.name, _PLACE)
            yield f"- {finding.rule} {place} {prose(finding.reason, WIDTH)}"
        if row.status is Status.UNREADABLE:
            for problem in head_problems(row) if row.problems else ("no recipe can be read",):
                yield f"- {_NO_RULE}: {path_code(row.name, _TITLE)} {prose(problem, WIDTH)}"


# --- the table


def _effects(row: RecipeDifference, most: int) -> Iterator[str]:
    """Of one recipe: the numbers that changed, or what a new one needs."""
    shown = [one for one in row.effects if one.changed]
    if not shown:
        yield "No number of the estimate moves." if row.effects else "There is no estimate."
        return
    if row.status in (Status.ADDED, Status.REMOVED):
        yield f"| | {'needs' if row.status is Status.ADDED else 'needed'} |"
        yield "|---|--:|"
        for one in shown[:most]:
            yield f"| {one.name} | {numbers(one).single()} |"
    else:
        yield "| | before | after | change |"
        yield "|---|--:|--:|---|"
        for one in shown[:most]:
            told = numbers(one)
            because = prose(one.because, _BECAUSE, cell=True) if one.because else ""
            change = ", ".join(part for part in (told.change, because) if part)
            yield f"| {one.name} | {told.of(told.before)} | {told.of(told.after)} | {change} |"
    if len(shown) > most:
        yield ""
        yield f"{plural(len(shown) - most, 'more number')} below."


def _recipes(rows: Sequence[RecipeDifference], most: int, folder: str) -> Iterator[str]:
    """Of several recipes: one row each, the most urgent ones."""
    known = any(run_seconds(row) != (None, None) for row in rows)
    where = f" in {path_code(folder, _CELL - len('recipe in'), cell=True)}" if folder else ""
    what = "hours" if known else f"per {TOKENS // 1_000_000}M tokens"
    yield f"| recipe{where} | fits | GPU memory | experiment | resumes | {what} |"
    yield "|---|---|--:|---|---|--:|"
    for row in rows[:most]:
        compared = row.status.value if row.experiment is None else _SHORT[row.experiment]
        cost = hours_arrow(*(run_seconds(row) if known else token_seconds(row))) or "-"
        yield (
            f"| {path_code(row.name, _CELL, cell=True)} | {verdicts(row).replace('->', '→')} | {_memory(row)} "
            f"| {compared} | {resume_words(row) or '-'} | {cost} |"
        )
    if len(rows) > most:
        yield ""
        yield f"{plural(len(rows) - most, 'more recipe')} below."


def _memory(row: RecipeDifference) -> str:
    peak = effect(row, MEMORY)
    if peak is None:
        return "-"
    told = numbers(peak)
    if row.status in (Status.ADDED, Status.REMOVED):
        return told.single()
    return told.arrow().replace("->", "→")
