"""`recipegen check --fix`: the safe fixes of all projects of an outcome, and writing them.

A file that several recipes name (a DeepSpeed JSON of a common folder) is changed once.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from recipegen.check.checking import Outcome
from recipegen.check.fix import attempt
from recipegen.project import atomic
from recipegen.spec import Finding, RecipegenError


@dataclass(frozen=True)
class Change:
    """One file. `path` is where it lies, `shown` how a person named it."""

    path: Path
    shown: str
    old: bytes
    new: bytes


@dataclass(frozen=True)
class Fixes:
    """`made` are the findings that `changes` mend; `left` those whose fix could not be made beside them, and why."""

    changes: tuple[Change, ...]
    diff: str
    made: tuple[Finding, ...]
    left: tuple[tuple[Finding, str], ...] = ()


def collect(outcome: Outcome) -> Fixes:
    """What the edits of the findings would change. Reads and writes nothing: the bytes are those that were checked."""
    contents: dict[str, bytes] = {}
    places: dict[str, Path] = {}
    findings: dict[tuple[str, str, str], Finding] = {}
    for one in outcome.checked:
        project = one.project
        for name, content in project.files.items():
            shown = project.shown[name]
            contents.setdefault(shown, content)
            places.setdefault(shown, Path(os.path.normpath(project.folder / name)))
        for found in one.findings:
            edits = tuple(replace(edit, file=project.shown.get(edit.file, edit.file)) for edit in found.edits)
            if edits:
                findings.setdefault((found.rule, found.where, found.reason), replace(found, edits=edits))
    fixed = attempt(contents, findings.values())
    changes = tuple(Change(places[shown], shown, contents[shown], new) for shown, new in fixed.files.items())
    return Fixes(changes, fixed.diff, fixed.made, fixed.left)


def write(fixes: Fixes) -> None:
    """Write the changed files, those of one folder all or none.

    Raises RecipegenError, before anything is written, for a file that is a link or is not what was checked any more.
    Permissions stay; who owns a file becomes who runs this.
    """
    folders: dict[Path, list[Change]] = {}
    for change in fixes.changes:
        folders.setdefault(change.path.parent, []).append(change)
    for folder in folders:
        with _said(folder):
            atomic.recover(folder)
    modes = {change.path: _unchanged(change) for change in fixes.changes}
    for folder, changes in folders.items():
        for change in changes:
            _unchanged(change)
        with _said(folder):
            atomic.replace_files(
                folder,
                {change.path.name: change.new for change in changes},
                (),
                moves={},
                removals=(),
                modes={change.path.name: modes[change.path] for change in changes},
            )


def _unchanged(change: Change) -> int:
    """The permissions of a file that still is what was checked."""
    with _said(change.path, change.shown):
        status = os.lstat(change.path)
        if stat.S_ISLNK(status.st_mode):
            raise RecipegenError(
                "this is a link, and nothing is written through links", where=change.shown, fix="Name the file itself."
            )
        if not stat.S_ISREG(status.st_mode) or _content(change.path, len(change.old)) != change.old:
            raise RecipegenError(
                "this changed while it was checked; nothing is written", where=change.shown, fix="Run it again."
            )
    return stat.S_IMODE(status.st_mode)


def _content(path: Path, size: int) -> bytes:
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0))
    with os.fdopen(descriptor, "rb") as file:
        return file.read(size + 1)


class _said:
    """An OSError as one line."""

    def __init__(self, place: Path, shown: str | None = None) -> None:
        self.shown = shown or str(place)

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, OSError):
            reason = error.strerror or str(error)
            raise RecipegenError(f"cannot write the fixes: {reason}", where=self.shown) from None


def as_json(fixes: Fixes, *, written: bool) -> dict[str, object]:
    """`fixes` and `diff` of docs/schemas/check.schema.json."""
    return {"fixes": list(_rows(fixes, written)), "diff": fixes.diff}


def _rows(fixes: Fixes, written: bool) -> Iterator[Mapping[str, object]]:
    states = [(one, "written" if written else "shown", "") for one in fixes.made]
    states += [(one, "left", why) for one, why in fixes.left]
    for found, state, why in states:
        yield {
            "rule": found.rule,
            "where": found.where,
            "reason": found.reason,
            "fix": found.fix,
            "files": sorted({edit.file for edit in found.edits}),
            "state": state,
            "why": why,
        }
