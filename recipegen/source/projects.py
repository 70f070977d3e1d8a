"""Files as projects: one for each trainer's main file of a folder, with the files that belong to it.

An auxiliary file (accelerate, DeepSpeed, scripts) joins the main file that names it, over other auxiliary files too, or
the only main file of its folder. What nobody names is a project of its own. `recipe.yaml` and `recipe.lock` belong to
every main file of their folder.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from recipegen.catalog.bounded_yaml import shown_path
from recipegen.formats import documents, launch_read
from recipegen.formats.documents import Document
from recipegen.formats.reading import Reading
from recipegen.source import beside
from recipegen.source.classify import Kind, classify, is_document
from recipegen.source.files import Limits, Reader, Refused, Skipped, SourceFile
from recipegen.source.within import Within
from recipegen.spec import RecipegenError

_SHARED = (Kind.RECIPE, Kind.LOCK, Kind.REQUIREMENTS)
_LONGEST_NAME = 1024  # characters of a path that a file names
# Where a document names another file: path of keys.
_NAMING: Mapping[Kind, tuple[tuple[str, ...], ...]] = {
    Kind.AXOLOTL: (("deepspeed",),),
    Kind.ARGUMENTS: (("deepspeed",), ("fsdp_config",)),
    Kind.ACCELERATE: (("deepspeed_config", "deepspeed_config_file"),),
}


@dataclass(frozen=True)
class Project:
    """One recipe's files. `files` are by their names as seen from `folder`; `shown` are their paths as a person gave
    them. `main` is the trainer's own file, "" when there is none. `documents` and `scripts` are what was read of them.
    Files of kind OTHER lie beside them: what source/beside.py took of the model's and the checkpoint's folders.
    `within` is the tree that nothing is read outside of, None for a person's own files.
    """

    name: str
    folder: Path
    main: str
    files: Mapping[str, bytes]
    kinds: Mapping[str, Kind]
    shown: Mapping[str, str]
    documents: Mapping[str, Document] = field(default_factory=dict)
    scripts: Mapping[str, Reading] = field(default_factory=dict)
    within: Within | None = None

    def of_kind(self, *kinds: Kind) -> list[str]:
        """The names of the files of these kinds."""
        return [name for name, kind in self.kinds.items() if kind in kinds]


@dataclass(frozen=True)
class Collected:
    """Everything that was found under the named paths."""

    projects: tuple[Project, ...]
    refused: tuple[Refused, ...] = ()
    skipped: tuple[Skipped, ...] = ()


def collect(paths: Sequence[str | Path], limits: Limits | None = None) -> Collected:
    """The projects under `paths`: folders, single files, or a mixture.

    Raises RecipegenError for a path that does not exist, and for more files than the limits allow.
    """
    reader = Reader(limits or Limits())
    reader.read(paths)
    return _Grouping(reader, [Path(path) for path in paths if Path(path).is_dir()]).collected()


# Content and name of a file -> what was read of it. Two trees share most of their files.
Parsed = dict[tuple[bytes, str], tuple[Kind, "Document | None", "Reading | None"]]


def collect_within(
    within: Within, names: Sequence[str], limits: Limits | None = None, parsed: Parsed | None = None
) -> Collected:
    """The projects that the files `names` of a tree are, with the files of the tree that they name. Nothing outside of
    it is opened; paths are shown as seen from its top. `parsed` is filled, and used.

    Raises RecipegenError for more files than the limits allow.
    """
    reader = Reader(limits or Limits(), within=within)
    for name in names:
        reader.add(within.root / name, within.root, explicit=False)
    return _Grouping(reader, [within.root], parsed).collected()


def collect_given(folder: Path, contents: Mapping[str, bytes]) -> Collected:
    """The projects that files with these contents would be in `folder`, whatever lies there under their names."""
    reader = Reader()
    place = Path(os.path.realpath(folder))
    for name, content in contents.items():
        reader.files[place / name] = SourceFile(place / name, shown_path(folder / name), content)
    return _Grouping(reader, [folder]).collected()


class _Grouping:
    """What is known of all files while they are put together."""

    def __init__(self, reader: Reader, folders: list[Path], parsed: Parsed | None = None) -> None:
        self.reader = reader
        self.parsed: Parsed = {} if parsed is None else parsed
        self.within = reader.within
        self.roots = [Path(os.path.realpath(folder)) for folder in (*folders, Path(os.curdir))]
        self.documents: dict[Path, Document] = {}
        self.values = 0  # keys and items of lists in all of them
        self.scripts: dict[Path, Reading] = {}
        self.kinds: dict[Path, Kind] = {}
        self.called: dict[Path, dict[Path, str]] = {}  # file -> files it names -> as it names them

    def collected(self) -> Collected:
        waiting = list(self.reader.files.values())
        while waiting:  # a file that is named joins the files, and may name others
            file = waiting.pop(0)
            if file.path not in self.kinds:
                self._look_at(file)
                waiting += self._named_by(file)
        projects = [project for folder in self._folders() for project in self._of_folder(folder)]
        claimed = {project.folder / name for project in projects for name in project.files}
        skipped = [
            Skipped(file.shown, "none of the formats that are known here")
            for path, file in self.reader.files.items()
            if self.kinds[path] is Kind.OTHER and Path(os.path.normpath(path)) not in claimed
        ]
        return Collected(tuple(projects), tuple(self.reader.refused), tuple(skipped))

    def _look_at(self, file: SourceFile) -> None:
        key = file.content, file.path.name
        if key not in self.parsed:
            self.parsed[key] = _read(*key)
        kind, document, script = self.parsed[key]
        if document is not None:
            self.documents[file.path] = document
            self.values += len(document.lines)
            if self.values > self.reader.limits.values:
                raise RecipegenError(
                    f"with this file more than {self.reader.limits.values} values in all",
                    where=file.shown,
                    fix="Name the folders of the recipes.",
                )
        if script is not None:
            self.scripts[file.path] = script
        self.kinds[file.path] = kind

    def _named_by(self, file: SourceFile) -> list[SourceFile]:
        names = self._names(file)
        found = self.called.setdefault(file.path, {})
        for name in names:
            other = self._find(name, file)
            if other is not None and other.path != file.path:
                found[other.path] = name
        return [self.reader.files[path] for path in found]

    def _names(self, file: SourceFile) -> list[str]:
        kind, names = self.kinds[file.path], []
        document = self.documents.get(file.path)
        for path in _NAMING.get(kind, ()) if document else ():
            value: Any = document.values if document else None
            for key in path:
                value = value.get(key) if isinstance(value, Mapping) else None
            names.append(value)
        if kind.is_script:
            facts = self.scripts[file.path].facts
            names += [facts.get("config_file"), facts.get("deepspeed_config_file"), *facts.get("config_files", ())]
        return [
            n for n in names if isinstance(n, str) and 0 < len(n) < _LONGEST_NAME and "\0" not in n and "{" not in n
        ]

    def _find(self, name: str, file: SourceFile) -> SourceFile | None:
        """The file that `name` means: beside the one that names it, else below a folder that was named."""
        if os.path.isabs(name) or name.startswith("~"):
            return None
        if self.within is not None:
            path = self.within.file(file.folder, name)
            inside = path is not None and path.is_relative_to(self.within.root)
            return self.reader.add(path, self.within.root, explicit=False) if path is not None and inside else None
        shown_folder = Path(file.shown).parent
        for root in dict.fromkeys((file.folder, *self.roots)):
            path = Path(os.path.normpath(root / name))
            if not path.is_relative_to(root) and path not in self.reader.files:
                continue
            if path in self.reader.files:
                return self.reader.files[path]
            try:
                if not path.is_file():
                    continue
            except (OSError, ValueError):
                continue
            return self.reader.add(shown_folder / name if root == file.folder else path, root, explicit=False)
        return None

    # --- folders

    def _folders(self) -> list[Path]:
        return list(dict.fromkeys(path.parent for path in self.reader.files))

    def _of_folder(self, folder: Path) -> Iterator[Project]:
        here = [path for path in self.reader.files if path.parent == folder and self.kinds[path] is not Kind.OTHER]
        shared = [path for path in here if self.kinds[path] in _SHARED]
        mains = [path for path in here if self.kinds[path].is_main]
        others = [path for path in here if path not in shared and path not in mains]
        parts = self._components(others)
        if not mains:
            yield from self._without_main(folder, parts, others, shared)
            return
        left = list(parts)
        for main in mains:
            mine = parts if len(mains) == 1 else [part for part in parts if self._touch(main, part)]
            left = [part for part in left if part not in mine]
            yield self._project(folder, main, [main, *(path for part in mine for path in part), *shared], mains)
        for part in left:
            if not self._named_from_elsewhere(part):
                yield self._project(folder, None, part, mains)

    def _without_main(
        self, folder: Path, parts: list[list[Path]], others: list[Path], shared: list[Path]
    ) -> Iterator[Project]:
        intent = [path for path in shared if self.kinds[path] is not Kind.REQUIREMENTS]
        counts = [sum(self.kinds[path] is kind for path in others) for kind in (Kind.ACCELERATE, Kind.DEEPSPEED)]
        scripts = [path for path in others if self.kinds[path].is_script]
        if intent or (scripts and max(counts) <= 1):
            if others or intent:
                yield self._project(folder, None, [*others, *shared], [])
            return
        for part in parts:
            if not self._named_from_elsewhere(part):
                yield self._project(folder, None, part, [])

    def _components(self, paths: list[Path]) -> list[list[Path]]:
        """Auxiliary files that name one another."""
        parts: list[list[Path]] = []
        for path in paths:
            joined = [part for part in parts if self._touch(path, part)]
            parts = [part for part in parts if part not in joined]
            parts.append([*(one for part in joined for one in part), path])
        return parts

    def _touch(self, path: Path, part: list[Path]) -> bool:
        return any(other in self.called[path] or path in self.called[other] for other in part)

    def _named_from_elsewhere(self, part: list[Path]) -> bool:
        """A DeepSpeed file of a common folder belongs to the recipes that name it; a named one is still looked at."""
        return not any(self.reader.files[path].explicit for path in part) and any(
            path in called and source.parent != path.parent for source, called in self.called.items() for path in part
        )

    def _project(self, folder: Path, main: Path | None, paths: list[Path], mains: list[Path]) -> Project:
        """With the files of other folders that these name, under the names they use."""
        members = {path: path.name for path in paths}
        waiting = list(paths)
        while waiting:
            for other, name in self.called[waiting.pop()].items():
                if other not in members and other not in mains and self.kinds[other] is not Kind.OTHER:
                    members[other] = name.removeprefix("./") if other.parent != folder else other.name
                    waiting.append(other)
        files = {called: self.reader.files[path] for path, called in members.items()}
        own = self.reader.files
        shown = str(Path(own[paths[0]].shown).parent)
        scripts_only = main is None and len(paths) > 1
        alone = main is not None and len(mains) == 1 and not any(own[path].explicit for path in paths)
        name = shown if (alone or scripts_only) and shown != "." else own[main or paths[0]].shown
        documents = {
            called: Document(called, document.values, document.lines, document.problem)
            for path, called in members.items()
            if (document := self.documents.get(path)) is not None
        }
        scripts = {called: self.scripts[path] for path, called in members.items() if path in self.scripts}
        near = beside.collect(folder, documents.values(), scripts.values(), self.within)
        near = {called: content for called, content in near.items() if called not in files}
        return Project(
            name=name,
            folder=folder,
            main=main.name if main else "",
            files={**{called: file.content for called, file in files.items()}, **near},
            kinds={**{called: self.kinds[path] for path, called in members.items()}, **dict.fromkeys(near, Kind.OTHER)},
            shown={
                **{called: file.shown for called, file in files.items()},
                **{called: os.path.normpath(os.path.join(shown, called)) for called in near},
            },
            documents=documents,
            scripts=scripts,
            within=self.within,
        )


def _read(content: bytes, name: str) -> tuple[Kind, Document | None, Reading | None]:
    document = documents.read(content, name) if is_document(content, name) else None
    kind = classify(content, name, document)
    script = launch_read.read(content, name) if kind.is_script else None
    return kind, document if kind is not Kind.LOCK else None, script
