"""`recipegen new`: a project folder, written whole or not at all."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Mapping
from pathlib import Path

from recipegen.formats import lock
from recipegen.project import atomic
from recipegen.project.files import EXECUTABLE, is_generated, render
from recipegen.project.paths import check_name, localize
from recipegen.spec import Decision, RecipegenError

_DIGEST_SHOWN = 12  # hex digits in NAME.bak-DIGEST


class Created(list[str]):
    """The names of the files that were written; `backups` maps each edited file to the name it was kept under."""

    def __init__(self, files: Iterable[str], backups: Mapping[str, str]) -> None:
        super().__init__(files)
        self.backups = dict(backups)

    @property
    def files(self) -> list[str]:
        """The names as a plain list."""
        return list(self)


def create(
    decision: Decision, folder: str | Path, force: bool = False, *, pins: Mapping[str, str] | None = None
) -> Created:
    """Write the project of `decision` into `folder` and return the names of its files, and of the backups.

    The last part of `folder` is the project's name. An existing folder with anything in it is refused unless `force`:
    then generated files are replaced, files of others are kept, and a generated file that was edited is first moved to
    NAME.bak-DIGEST. Raises RecipegenError; nothing is left half written.
    """
    place = Path(os.path.abspath(folder))
    check_name(place.name)
    backups: dict[str, str] = {}
    try:
        files = render(localize(decision, place), pins=pins)
        if place.is_symlink():
            raise RecipegenError("this is a link; a project needs a folder of its own", where=str(place))
        if place.is_dir() and any(place.iterdir()):
            backups = _replace(place, files, force)
        elif os.path.lexists(place) and not place.is_dir():
            raise RecipegenError("this exists and is not a folder", where=str(place))
        else:
            atomic.new_folder(place, files, EXECUTABLE)
    except OSError as error:
        reason = error.strerror or str(error)
        raise RecipegenError(f"cannot write the project: {reason}", where=str(error.filename or place)) from None
    return Created(files, backups)


def _replace(place: Path, files: Mapping[str, bytes], force: bool) -> dict[str, str]:
    """Write into a folder that has something in it; returns what was moved: name -> name of the backup, sorted."""
    if not force:
        raise RecipegenError(
            "this folder is not empty",
            where=str(place),
            fix="Choose another name, or --force to replace generated files (edited ones are kept as NAME.bak-DIGEST).",
        )
    atomic.recover(place)
    known = _known_digests(place)
    moves: dict[str, str] = {}
    removals: list[str] = []
    for name in sorted({*files, *known}):
        found = place / name
        if not os.path.lexists(found):
            continue
        mode = os.lstat(found).st_mode
        if stat.S_ISDIR(mode):
            if name in files:
                raise RecipegenError("a folder stands where a file must go", where=str(found))
            continue
        digest = lock.digest(found.read_bytes()) if stat.S_ISREG(mode) else None
        ours = digest is not None and (digest == known.get(name) or name == lock.NAME)
        if ours or (name in files and digest == lock.digest(files[name])):
            if name not in files:
                removals.append(name)
        else:
            moves[name] = backup_name(place, name, digest or "link")
    atomic.replace_files(place, files, EXECUTABLE, moves=moves, removals=removals)
    return moves


def _known_digests(place: Path) -> dict[str, str]:
    """Digests of recipe.lock; none when there is no lock, or one that cannot be read (then every file is kept)."""
    path = place / lock.NAME
    try:
        if not stat.S_ISREG(os.lstat(path).st_mode):
            return {}
        digests = lock.read_digests(path.read_bytes(), str(path))
    except (OSError, RecipegenError):
        return {}
    return {name: digest for name, digest in digests.items() if is_generated(name)}


def backup_name(place: Path, name: str, digest: str) -> str:
    """NAME.bak-DIGEST; the same content moved twice gets a number."""
    base = f"{name}.bak-{digest[:_DIGEST_SHOWN]}"
    candidate, number = base, 2
    while os.path.lexists(place / candidate):
        candidate, number = f"{base}-{number}", number + 1
    return candidate
