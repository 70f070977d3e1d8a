"""What a comment folds away: everything there is to say of a recipe, within what GitHub takes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain, islice

from recipegen.review.difference import Change, Effect, RecipeDifference, Statement, Status
from recipegen.review.printers.escape import code, html_code, path_code, prose
from recipegen.review.printers.numbers import numbers
from recipegen.review.printers.shared import by_weight, counted, plural, resume_words, value, verdicts
from recipegen.spec import Finding, Severity

_NAME, _VALUE, _PLACE, _TEXT = 80, 80, 100, 300  # characters
_MOST = 40  # lines of one list
_MOST_OF_ONE = 8_000  # characters of one recipe among several
_FRAME = 100  # characters around a part: tags, blank lines, what is left out
_END = 400  # characters that are kept for the last words
_CLOSE = ["", "</details>"]

Section = tuple[str, int, Iterator[str]]  # what <summary> says, how many lines, the lines


def size(text: str) -> int:
    """Characters as JavaScript counts them (UTF-16), which is never less than Python does."""
    return len(text.encode("utf-16-le", "replace")) // 2


def folded_recipe(row: RecipeDifference, most: int) -> Iterator[str]:
    """One recipe in at most so many characters: each part folded for itself."""
    for summary, lines in _sections(row, most):
        yield ""
        yield f"<details><summary>{summary}</summary>"
        yield ""
        yield from lines
        yield from _CLOSE


def folded_recipes(rows: Sequence[RecipeDifference], most: int) -> Iterator[str]:
    """Several, most urgent first, in at most so many characters: whole ones, then one line each, then a count."""
    if not rows:
        return
    opening = ["", f"<details><summary>All {plural(len(rows), 'recipe')}</summary>", ""]
    yield from opening
    left = most - _size(opening) - _size(_CLOSE) - _END
    kept_for_lines = min(_size(map(_line, rows)), left // 2)
    position = 0
    for row in rows:
        whole = _whole(row)
        if _size(whole) > left - kept_for_lines:
            break
        yield from whole
        left -= _size(whole)
        position += 1
    rest = rows[position:]
    lines = list(_while_there_is_room(map(_line, rest), left))
    yield from lines
    if lines:
        yield ""
    if len(lines) < len(rest):
        yield f"And {plural(len(rest) - len(lines), 'recipe')} that a comment has no room for: see `recipegen diff`."
        yield ""
    yield "</details>"


def _while_there_is_room(lines: Iterable[str], left: int) -> Iterator[str]:
    for line in lines:
        left -= _size([line])
        if left < 0:
            return
        yield line


def _size(lines: Iterable[str]) -> int:
    return sum(size(line) + 1 for line in lines)


def _whole(row: RecipeDifference) -> list[str]:
    """Folded for itself, with the numbers that moved."""
    summary = f"{html_code(row.name, _NAME)} {row.status.value}, {verdicts(row).replace('->', '→')}"
    lines = [f"<details><summary>{summary}</summary>", ""]
    if _compared(row):
        lines += [_compared(row), ""]
    moved = replace(row, effects=tuple(one for one in row.effects if one.changed))
    for title, found in _sections(moved, _MOST_OF_ONE):
        lines += [f"**{title}**", "", *found, ""]
    return [*lines, "</details>", ""]


def _line(row: RecipeDifference) -> str:
    verdict = verdicts(row).replace("->", "→")
    compared = f"; {_compared(row)}" if _compared(row) else ""
    return f"- {path_code(row.name, _NAME)} {row.status.value}, {verdict}{compared}"


def _compared(row: RecipeDifference) -> str:
    """`comparable; old checkpoints resume: yes`."""
    parts = [f"was {path_code(row.before_name, _NAME)}"] if row.before_name else []
    parts += [row.experiment.value] if row.experiment else []
    parts += [f"old checkpoints resume: {resume_words(row)}"] if resume_words(row) else []
    return "; ".join(parts)


# --- one recipe


def _sections(row: RecipeDifference, most: int) -> Iterator[tuple[str, list[str]]]:
    """Parts that have something to say, in at most so many characters; what there is no room for is counted."""
    said: tuple[Callable[[RecipeDifference], Section], ...] = (
        _problems,
        _meaning,
        _checkpoints,
        _fields,
        _numbers,
        _findings,
    )
    left = most
    for part in said:
        title, count, lines = part(row)
        if count:
            left -= size(title) + _FRAME
            kept = list(_while_there_is_room(islice(lines, _MOST), left))
            left -= _size(kept)
            if count > len(kept):
                kept.append(f"- and {count - len(kept)} more")
            yield title, kept


def _problems(row: RecipeDifference) -> Section:
    lines = (f"- not read: {prose(problem, _TEXT)}" for problem in row.problems)
    return "What cannot be read", len(row.problems), lines


def _meaning(row: RecipeDifference) -> Section:
    found = [*by_weight(row.meaning), *row.no_ops]
    return f"What it means: {plural(len(found), 'statement')}", len(found), map(_statement, found)


def _statement(one: Statement) -> str:
    place = f" {path_code(one.where, _PLACE)}" if one.where else ""
    return f"- {one.weight.value} {one.rule}{place} {prose(one.text, _TEXT)}"


def _checkpoints(row: RecipeDifference) -> Section:
    one = row.compatibility
    if one is None:
        return "", 0, iter(())
    output = ["- output: a checkpoint of before lies where this run looks for one"] if one.same_output else []
    lines = chain(
        output,
        map(_statement, one.reasons),
        (f"- data: {prose(said, _TEXT)}" for said in one.rebuild),
        (f"- serving: {prose(said, _TEXT)}" for said in one.inference),
        (f"- not seen by a resumed run: {_change(change)}" for change in one.ignored),
    )
    count = len(output) + sum(map(len, (one.reasons, one.rebuild, one.inference, one.ignored)))
    return "Checkpoints, data and serving", count, lines


def _fields(row: RecipeDifference) -> Section:
    lines = (f"- {_change(change)}" for change in row.changes)
    return plural(len(row.changes), "changed field"), len(row.changes), lines


def _change(change: Change) -> str:
    where = change.where_after or change.where_before
    place = f" ({path_code(where, _PLACE)})" if where else ""
    old, new = (code(value(side, _VALUE), _VALUE) for side in (change.before, change.after))
    return f"{code(change.path, _NAME)}: {old} → {new}{place}"


def _numbers(row: RecipeDifference) -> Section:
    """With the band; of one recipe those that did not change, too."""
    one_sided = row.status in (Status.ADDED, Status.REMOVED)
    return "Numbers", len(row.effects), (_number(one, one_sided) for one in row.effects)


def _number(one: Effect, one_sided: bool) -> str:
    told = numbers(one)
    said = told.single() if one_sided else told.arrow()
    band = f"between {told.band}".replace(" to ", " and ") if told.band else ""
    because = prose(one.because, _TEXT) if one.because else ""
    found = ", ".join(part for part in (told.change, because, band) if part)
    return f"- {one.name}: {said.replace('->', '→')}{f' ({found})' if found else ''}"


def _findings(row: RecipeDifference) -> Section:
    parts = [f"{len(found)} {word}" for word, found in (("new", row.new), ("fixed", row.fixed)) if found]
    kept = [f"as before: {counted(row.kept, *Severity)}"] if row.kept else []
    lines = chain(
        (f"- {said}" for said in kept),
        (_finding("new", found) for found in row.new),
        (_finding("fixed", found) for found in row.fixed),
    )
    return f"Findings: {', '.join([*parts, *kept])}", len(row.new) + len(row.fixed) + len(kept), lines


def _finding(word: str, one: Finding) -> str:
    place = f" {path_code(one.where, _PLACE)}" if one.where else ""
    fix = f". Fix: {prose(one.fix, _TEXT)}" if one.fix and word == "new" else ""
    return f"- {word} {one.severity.value} {one.rule}{place} {prose(one.reason, _TEXT)}{fix}"
