"""`recipegen update`: an old project as this recipegen would write it, with everything that people changed in it.

What a file was when it was generated is what tells an edit from an old text: recipe.lock has the digest of every file,
and the text of those that are merged by key. All files of a project are written together, or none.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from recipegen import __version__
from recipegen.catalog.bounded_yaml import LARGE
from recipegen.formats import lock, recipe_yaml
from recipegen.formats.launcher import JOURNAL
from recipegen.formats.lock import Lock, digest
from recipegen.formats.plain import to_plain
from recipegen.project import atomic
from recipegen.project.create import backup_name
from recipegen.project.files import EXECUTABLE, is_generated, render
from recipegen.project.imported import leaves, same, shown
from recipegen.project.merge_file import Conflict, Kept
from recipegen.project.paths import localize
from recipegen.project.update_files import Action, Row, Side, resolve
from recipegen.source.files import read_bounded
from recipegen.spec import Decision, Recipe, RecipegenError

_NEW = "Make it with `recipegen new NAME --recipe FILE --force`, which keeps edited files as *.bak-DIGEST."


@dataclass(frozen=True)
class FieldChange:
    """A field of the Recipe that the lock says otherwise than what is decided now; plain values."""

    path: str
    before: Any
    after: Any


@dataclass(frozen=True)
class Update:
    """What would be written. `rows` are the files that change or that somebody must look at, by name."""

    folder: Path
    locked: Lock
    decision: Decision
    changes: tuple[FieldChange, ...]
    rows: tuple[Row, ...]
    files: Mapping[str, bytes]
    moves: Mapping[str, str]
    removals: tuple[str, ...]
    modes: Mapping[str, int]
    seen: Mapping[str, bytes | None] = field(repr=False)  # what was there when this was made

    @property
    def up_to_date(self) -> bool:
        return not (self.files or self.moves or self.removals)

    @property
    def conflicts(self) -> tuple[Conflict, ...]:
        return tuple(conflict for row in self.rows for conflict in row.conflicts)

    @property
    def kept(self) -> tuple[Kept, ...]:
        return tuple(kept for row in self.rows for kept in row.kept)

    @property
    def unresolved(self) -> tuple[Row, ...]:
        """Files in which a person's text stands against a new one."""
        return tuple(row for row in self.rows if row.conflicts or row.action is Action.BESIDE)


def read_lock(folder: Path) -> Lock:
    """recipe.lock of a project. Raises RecipegenError, one line, when there is none that can be read."""
    if not folder.is_dir():
        raise RecipegenError("there is no such folder", where=str(folder), fix="Give the folder of a project.")
    path = folder / lock.NAME
    content = _content(path)
    if content is None:
        what = "has no recipe.lock, so what was edited in it cannot be told from what was generated"
        raise RecipegenError(what, where=str(folder), fix=_NEW)
    if len(content) > LARGE.size_bytes:
        raise RecipegenError(f"is larger than {LARGE.size_bytes} bytes; it is no recipe.lock", where=str(path))
    return lock.read(content, str(path))


def read_request(folder: Path) -> bytes:
    """recipe.yaml of a project. Raises RecipegenError when there is none."""
    content = _content(folder / recipe_yaml.NAME)
    if content is None:
        raise RecipegenError("there is no recipe.yaml to plan from", where=str(folder), fix="Restore it first.")
    return content


def plan(folder: Path, locked: Lock, decision: Decision, *, pins: Mapping[str, str] | None = None) -> Update:
    """What an update of the project in `folder` to `decision` would write. Nothing is written.

    `decision` has its paths as seen from here, `pins` are as for `render`. Raises RecipegenError for a link or a folder
    where a file should be.
    """
    decision = localize(decision, folder)
    new = render(decision, pins=pins)
    known = {name: known for name, known in locked.files.items() if is_generated(name)}
    seen = {name: _content(folder / name) for name in sorted({*new, *known, lock.NAME})}
    rows, files, moves, removals = [], dict[str, bytes](), dict[str, str](), []
    for name, yours in seen.items():
        side = Side(name, known.get(name), yours, new.get(name))
        row = resolve(side, locked, decision)
        if row is None:
            continue
        if row.action is Action.SET_ASIDE or row.lost:
            row = row.with_beside(backup_name(folder, name, digest(yours or b"")))
            moves[name] = row.beside
        if row.action is Action.REMOVED:
            removals.append(name)
        elif row.action is Action.BESIDE:
            row, moved = _beside(folder, row, known.get(name))
            moves |= moved
            files[row.beside] = row.content
        elif row.action is not Action.SET_ASIDE:
            files[name] = row.content
        rows.append(row)
    modes = {name: mode for name in files if (mode := _mode(folder / name)) is not None}
    changes = tuple(_changes(locked.recipe, decision.recipe))
    return Update(folder, locked, decision, changes, tuple(rows), files, moves, tuple(removals), modes, seen)


def _beside(folder: Path, row: Row, before: str | None) -> tuple[Row, dict[str, str]]:
    """The new text as NAME.new; what a person has under that name is moved away first."""
    name = f"{row.name}.new"
    moved = {}
    if os.path.lexists(folder / name):
        there = _content(folder / name)
        if there is None or digest(there) not in (before, digest(row.content)):
            moved[name] = backup_name(folder, name, digest(there or b""))
    return row.with_beside(name), moved


def write(update: Update) -> None:
    """Write it, all or nothing. Raises RecipegenError when a file changed since the plan; then nothing is written."""
    try:
        for name, content in update.seen.items():
            if _content(update.folder / name) != content:
                raise RecipegenError(
                    "this changed meanwhile; nothing is written", where=str(update.folder / name), fix="Run it again."
                )
        atomic.replace_files(
            update.folder,
            update.files,
            EXECUTABLE,
            moves=update.moves,
            removals=update.removals,
            modes=update.modes,
        )
    except OSError as error:
        reason = error.strerror or str(error)
        raise RecipegenError(
            f"cannot write the project: {reason}", where=str(error.filename or update.folder)
        ) from None


def interrupted(folder: Path) -> bool:
    """Whether a write of this project was committed and not finished."""
    return (folder / JOURNAL / "plan.json").is_file()


def recover(folder: Path) -> None:
    """Finish it."""
    try:
        atomic.recover(folder)
    except OSError as error:
        reason = error.strerror or str(error)
        raise RecipegenError(f"cannot finish what was interrupted: {reason}", where=str(folder)) from None


def _changes(before: Recipe, after: Recipe) -> Iterator[FieldChange]:
    old, new = leaves(before), leaves(after)
    for sides, recipe in ((old, before), (new, after)):
        for file, keys in recipe.passthrough.items():
            sides |= {f"passthrough.{file}.{key}": value for key, value in keys.items()}
    for path in dict.fromkeys((*old, *new)):
        if not same(old.get(path), new.get(path)):
            yield FieldChange(path, shown(path, to_plain(old.get(path))), shown(path, to_plain(new.get(path))))


def versions(update: Update) -> Iterator[FieldChange]:
    """What wrote the project, and what would write it now, where that differs."""
    for name, old, new in (
        ("recipegen", update.locked.tool_version, __version__),
        ("stack", update.locked.stack, update.decision.recipe.stack),
    ):
        if old != new:
            yield FieldChange(name, old, new)


# --- files


def _content(path: Path) -> bytes | None:
    """The bytes of a regular file; None when there is none. Links and folders are refused."""
    try:
        status = os.lstat(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise RecipegenError(f"cannot be read: {error.strerror}", where=str(path)) from None
    if stat.S_ISLNK(status.st_mode):
        raise RecipegenError(
            "this is a link, and nothing is written through links", where=str(path), fix="Put the file itself there."
        )
    if not stat.S_ISREG(status.st_mode):
        raise RecipegenError("this is not a file, and one must go there", where=str(path), fix="Move it away.")
    return read_bounded(path)


def _mode(path: Path) -> int | None:
    try:
        return stat.S_IMODE(os.lstat(path).st_mode)
    except OSError:
        return None
