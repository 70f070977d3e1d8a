"""The gallery: a list of requests, the projects of those that are worth copying, and a table of all of them.

The list is recipes/gallery.yaml; everything else in that folder is made from it, so that a change of a formula, a
template or a profile shows up in a pull request as a change of recipes.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from recipegen.catalog.bounded_yaml import Document, read_mapping, shown
from recipegen.formats import gallery_md, lock
from recipegen.formats.lock import digest
from recipegen.project import atomic
from recipegen.project.files import EXECUTABLE, GENERATED, render
from recipegen.project.paths import check_name
from recipegen.spec import Decision, Method, RecipegenError, Request, Verdict

LIST = "gallery.yaml"
INDEX = "README.md"
_AXES = ("hardware", "model", "method", "sequence_len")
_SINGLE: Mapping[str, Any] = {"nodes": 1, "network": "none", "trainer": "axolotl"}
_TOP = ("format_version", "dataset", "dataset_format", "groups")
_PREFIX = "kentino-"  # every profile of the gallery has it, so the folders' names do without
_KIBI = 1024
_LINK = re.compile(r"\]\(([A-Za-z0-9._-]+/[A-Za-z0-9._-]+)\)")  # of the index, to a project
_WORDS = {"method": tuple(method.value for method in Method), "trainer": ("axolotl", "accelerate")}


@dataclass(frozen=True)
class Cell:
    """One request of the list. `folder` is where its project lies, relative to the gallery."""

    folder: PurePosixPath
    request: Request


@dataclass(frozen=True)
class Built:
    """`files` maps the names of the whole gallery, relative to it, to their content; `decisions` those of all cells."""

    files: Mapping[str, bytes]
    decisions: tuple[tuple[Cell, Decision], ...]
    projects: int


@dataclass(frozen=True)
class Differences:
    """Names of files, relative to the gallery."""

    missing: tuple[str, ...]
    changed: tuple[str, ...]
    extra: tuple[str, ...]

    def __bool__(self) -> bool:
        return bool(self.missing or self.changed or self.extra)


def read_list(path: Path) -> tuple[Cell, ...]:
    """The requests of gallery.yaml, in its order. Raises RecipegenError with file and line for what is not one."""
    document = read_mapping(path, what="the list of a gallery")
    values = document.values
    _known(document, (), values, _TOP)
    if values.get("format_version") != 1:
        raise RecipegenError("format_version must be 1", where=document.where("format_version"))
    groups = values.get("groups")
    if not isinstance(groups, list) or not groups:
        raise RecipegenError("groups must be a list", where=document.where("groups"))
    data = {"dataset": (_word(document, "dataset"),), "dataset_format": _word(document, "dataset_format")}
    cells = [cell for index, group in enumerate(groups) for cell in _cells(document, index, group, data)]
    seen: dict[PurePosixPath, Cell] = {}
    for cell in cells:
        if cell.folder in seen:
            raise RecipegenError(f"{cell.folder} is asked for twice", where=document.where("groups"))
        seen[cell.folder] = cell
    return tuple(cells)


def _cells(document: Document, index: int, group: Any, data: Mapping[str, Any]) -> Iterator[Cell]:
    place = ("groups", str(index))
    if not isinstance(group, Mapping):
        raise RecipegenError("a group must be a mapping", where=document.where(*place))
    _known(document, place, group, (*_AXES, *_SINGLE))
    axes = []
    for name in _AXES:
        value = group.get(name)
        if not isinstance(value, list) or not value:
            raise RecipegenError(f"{name} must be a list", where=document.where(*place, name))
        axes.append(value)
    single = {name: group.get(name, default) for name, default in _SINGLE.items()}
    for hardware, model, method, sequence_len in itertools.product(*axes):
        named = {"hardware": hardware, "model": model, "method": method, **single}
        for name, value in named.items():
            if not isinstance(value, type(_SINGLE.get(name, ""))) or isinstance(value, bool):
                raise RecipegenError(f"{name}: {shown(value)} is not understood", where=document.where(*place, name))
            if name in _WORDS and value not in _WORDS[name]:
                known = ", ".join(_WORDS[name])
                raise RecipegenError(
                    f"{name}: {shown(value)}", where=document.where(*place, name), fix=f"Known: {known}."
                )
        if isinstance(sequence_len, bool) or not isinstance(sequence_len, int) or sequence_len < 1:
            raise RecipegenError(f"{shown(sequence_len)} is no length", where=document.where(*place, "sequence_len"))
        request = Request(**named, **data, sequence_len=sequence_len)
        yield Cell(_folder(request), request)


def _folder(request: Request) -> PurePosixPath:
    """8x-rtx-4090/qwen3-14b-lora-4k."""
    box = request.hardware.removeprefix(_PREFIX) + (f"-{request.nodes}-nodes" if request.nodes > 1 else "")
    length = request.sequence_len or 0
    context = f"{length // _KIBI}k" if length % _KIBI == 0 else str(length)
    trainer = "" if request.trainer == "axolotl" else f"-{request.trainer}"
    name = f"{request.model.rpartition('/')[2].lower()}-{request.method}-{context}{trainer}"
    for part in (box, name):
        check_name(part)
    return PurePosixPath(box, name)


def _known(document: Document, place: tuple[str, ...], given: Mapping[str, Any], known: Sequence[str]) -> None:
    for key in given:
        if key not in known:
            raise RecipegenError(
                f"unknown key {shown(key)}", where=document.where(*place, str(key)), fix=f"Known: {', '.join(known)}."
            )


def _word(document: Document, key: str) -> str:
    value = document.values.get(key)
    if not isinstance(value, str) or not value:
        raise RecipegenError(f"{key} must be a word", where=document.where(key))
    return value


# --- building


def worth_copying(decision: Decision) -> bool:
    """Whether the gallery shows it as a project; the others are rows of the table."""
    return decision.verdict is Verdict.FITS and decision.recommended


def build(cells: Sequence[Cell], solve: Callable[[Request], Decision], pins: Mapping[str, str] | None = None) -> Built:
    """Decide and render every cell. `solve` as in the command line; nothing is written."""
    files: dict[str, bytes] = {}
    decisions = tuple((cell, solve(cell.request)) for cell in cells)
    chosen = [(cell, decision) for cell, decision in decisions if worth_copying(decision)]
    for cell, decision in chosen:
        for name, content in render(decision, pins=pins).items():
            if name in GENERATED:  # not the training scripts, which are those of templates/ in every project
                files[str(cell.folder / name)] = content
    rows = [(str(cell.folder), decision, worth_copying(decision)) for cell, decision in decisions]
    files[INDEX] = gallery_md.write(rows).encode("utf-8")
    return Built(files, decisions, len(chosen))


def compare(root: Path, built: Built) -> Differences:
    """What lies under `root` against what would be built: files of recipegen's own names, in the folders that the index
    links to or that are asked for. Everything else in there is somebody's, and neither looked at nor touched."""
    there = dict(_there(root, {str(PurePosixPath(name).parent) for name in built.files} - {"."}))
    return Differences(
        tuple(sorted(name for name in built.files if name not in there)),
        tuple(sorted(name for name, d in there.items() if name in built.files and digest(built.files[name]) != d)),
        tuple(sorted(name for name in there if name not in built.files)),
    )


def write(root: Path, built: Built, found: Differences) -> None:
    """Make the differences go away. A project is replaced whole or not at all."""
    folders = {str(PurePosixPath(name).parent) for name in (*found.missing, *found.changed, *found.extra)} - {"."}
    for folder in sorted(folders):
        files = {PurePosixPath(n).name: c for n, c in built.files.items() if str(PurePosixPath(n).parent) == folder}
        place = root / folder
        if not place.exists():
            atomic.new_folder(place, files, EXECUTABLE)
            continue
        extra = [PurePosixPath(n).name for n in found.extra if str(PurePosixPath(n).parent) == folder]
        atomic.replace_files(place, files, EXECUTABLE, moves={}, removals=extra)
        for empty in (place, place.parent):
            if not files and empty != root and not any(empty.iterdir()):
                empty.rmdir()
    if INDEX in (*found.missing, *found.changed):
        atomic.replace_files(root, {INDEX: built.files[INDEX]}, (), moves={}, removals=())


def _there(root: Path, asked: Collection[str]) -> Iterator[tuple[str, str]]:
    """Names of the gallery's files, relative to `root`, with their digests. Of a project that is not asked for any
    more, only what is still as it was generated: an edited file is somebody's."""
    index = root / INDEX
    linked: set[str] = set()
    if index.is_file():
        content = index.read_bytes()
        yield INDEX, digest(content)
        linked = set(_LINK.findall(content.decode("utf-8", "replace")))
    for folder in sorted(linked | set(asked)):
        place = root / folder
        if not place.is_dir() or place.is_symlink():
            continue
        generated = None if folder in asked else _generated(place)
        for path in sorted(place.iterdir()):
            if path.name in GENERATED and path.is_file() and not path.is_symlink():
                found = digest(path.read_bytes())
                if generated is None or path.name == lock.NAME or generated.get(path.name) == found:
                    yield f"{folder}/{path.name}", found


def _generated(place: Path) -> Mapping[str, str]:
    """The digests of a project's recipe.lock; none where it cannot be read."""
    try:
        return lock.read_digests((place / lock.NAME).read_bytes(), str(place / lock.NAME))
    except (OSError, RecipegenError):
        return {}
