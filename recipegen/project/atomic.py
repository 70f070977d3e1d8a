"""Writes that leave the old state or the new one, whatever interrupts them.

A new folder is written beside its place and renamed. A folder that exists keeps files that are not ours, so it cannot
be swapped as a whole: the new files are staged in it, and one rename of the stage to JOURNAL commits them. What was
committed is finished by `recover`, which every later command runs first; launch.sh refuses to start before that.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from recipegen.formats.launcher import JOURNAL
from recipegen.spec import RecipegenError

_STAGE = ".recipegen-stage-"
_PLAN = "plan.json"


@dataclass(frozen=True)
class _Plan:
    """What a journal still has to do; its fields are the keys of PLAN."""

    moves: dict[str, str]
    removals: list[str]
    files: list[str]


def write_file(path: Path, content: bytes, *, executable: bool = False, mode: int | None = None) -> None:
    """Create `path`, which must not exist (nor be a link), and get its bytes onto the disk.

    Its permissions are `mode`, from the first moment never more than that; None leaves them to the umask.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0)
    usual = 0o777 if executable else 0o666
    descriptor = os.open(path, flags, usual if mode is None else usual & mode)
    with os.fdopen(descriptor, "wb") as file:
        if mode is not None:
            os.fchmod(file.fileno(), mode)
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Get a folder's entries onto the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def new_folder(folder: Path, files: Mapping[str, bytes], executable: Iterable[str]) -> None:
    """Create `folder` (absent or empty) with `files`, all or nothing."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    stage = _stage(folder.parent, f".{folder.name}{_STAGE}", files, executable)
    try:
        os.rename(stage, folder)  # replaces an empty folder; fails on anything else
        sync_folder(folder.parent)
    except BaseException:
        shutil.rmtree(stage, ignore_errors=True)
        raise


def replace_files(
    folder: Path,
    files: Mapping[str, bytes],
    executable: Iterable[str],
    *,
    moves: Mapping[str, str],
    removals: Iterable[str],
    modes: Mapping[str, int] | None = None,
) -> None:
    """Put `files` into an existing `folder`, after moving `moves` (old name -> new name) and deleting `removals`.

    `modes` are the permissions of files that keep theirs, by name.
    """
    plan = _Plan(dict(moves), sorted(removals), list(files))
    staged = {**files, _PLAN: json.dumps(asdict(plan)).encode("utf-8")}
    stage = _stage(folder, _STAGE, staged, executable, modes)
    try:
        os.rename(stage, folder / JOURNAL)  # the commit
    except BaseException:
        shutil.rmtree(stage, ignore_errors=True)
        raise
    sync_folder(folder)
    recover(folder)


def recover(folder: Path) -> bool:
    """Finish a write that was interrupted after its commit, and clear one that was not. True when there was one.

    Every step may be repeated: a move whose source is gone was done, a staged file that is gone is in place.
    """
    for leftover in folder.glob(f"{_STAGE}*"):
        if leftover.is_dir() and not leftover.is_symlink():
            shutil.rmtree(leftover, ignore_errors=True)
    journal = folder / JOURNAL
    if journal.is_symlink() or not (journal / _PLAN).is_file():
        if journal.is_dir() and not journal.is_symlink():
            shutil.rmtree(journal, ignore_errors=True)  # everything was applied, only the clearing was interrupted
        return False
    plan = _read_plan(journal)
    for old, new in plan.moves.items():
        if os.path.lexists(folder / old) and not os.path.lexists(folder / new):
            os.rename(folder / old, folder / new)
    for name in plan.removals:
        (folder / name).unlink(missing_ok=True)
    for name in plan.files:
        if (journal / name).is_file():
            os.replace(journal / name, folder / name)
    sync_folder(folder)
    (journal / _PLAN).unlink()
    shutil.rmtree(journal)
    return True


def _read_plan(journal: Path) -> _Plan:
    """The journal's plan; refused when a name in it leaves the folder (somebody else wrote it)."""
    try:
        plan = json.loads((journal / _PLAN).read_bytes())
        moves, removals, files = dict(plan["moves"]), list(plan["removals"]), list(plan["files"])
        names = [*moves, *moves.values(), *removals, *files]
        if not all(isinstance(name, str) and name == os.path.basename(name) and name.strip(".") for name in names):
            raise ValueError("a name in it leaves the folder")
    except (ValueError, KeyError, TypeError) as error:
        raise RecipegenError(f"not a journal of recipegen: {error}", where=str(journal), fix="Remove it.") from None
    return _Plan(moves, removals, files)


def _stage(
    parent: Path,
    prefix: str,
    files: Mapping[str, bytes],
    executable: Iterable[str],
    modes: Mapping[str, int] | None = None,
) -> Path:
    """A new folder in `parent` with all files on the disk; removed again when that fails."""
    marked = frozenset(executable)
    stage = parent / f"{prefix}{secrets.token_hex(6)}"
    os.mkdir(stage)
    try:
        for name, content in files.items():
            write_file(stage / name, content, executable=name in marked, mode=(modes or {}).get(name))
        sync_folder(stage)
    except BaseException:
        shutil.rmtree(stage, ignore_errors=True)
        raise
    return stage
