"""Bytes of files that somebody else may have written: regular files only, bounded, never outside the named folder.

A file is opened without blocking and judged by what was opened, so a pipe, a device or a link that is exchanged
meanwhile is refused and not waited for.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from recipegen.catalog.bounded_yaml import LARGE, shown_path
from recipegen.source.within import Within
from recipegen.spec import RecipegenError

# Endings of files that may be part of a recipe; of others in a folder nothing is read.
_YAML, _JSON, _SCRIPTS = (".yaml", ".yml"), (".json",), (".sh", ".bash", ".slurm", ".sbatch")
_LOCK = "recipe.lock"
_REQUIREMENTS = "requirements.txt"
# Folders that hold no recipe: caches, environments, and what a run leaves behind.
_NOT_ENTERED = frozenset({"node_modules", "__pycache__", "venv", "last_run_prepared", "wandb", "mlruns", "runs"})
_CHECKPOINT = "checkpoint-"
# JSON that lies beside a model or a checkpoint, or belongs to other tools.
_FOREIGN = frozenset(
    {
        "adapter_config.json", "added_tokens.json", "config.json", "generation_config.json", "merges.json",
        "model.safetensors.index.json", "package-lock.json", "package.json", "preprocessor_config.json",
        "processor_config.json", "pytorch_model.bin.index.json", "special_tokens_map.json", "tokenizer.json",
        "tokenizer_config.json", "trainer_state.json", "tsconfig.json", "vocab.json",
    }
)  # fmt: skip
_FLAGS = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)


@dataclass(frozen=True)
class Limits:
    """What is read at most: bytes of a file and of all, files, values in all of them, entries of folders that are
    looked at, levels of folders. A thousand recipes of the gallery hold 4 MB and 60,000 values; a value takes 1 kB."""

    file_bytes: int = LARGE.size_bytes
    total_bytes: int = 8 * 2**20
    values: int = 250_000
    files: int = 1000
    entries: int = 100_000
    depth: int = 12


@dataclass(frozen=True)
class SourceFile:
    """`shown` is the path as it was named (`runs/a/axolotl.yaml`); `explicit` when itself was named, not its folder."""

    path: Path
    shown: str
    content: bytes
    explicit: bool = False

    @property
    def folder(self) -> Path:
        return self.path.parent


@dataclass(frozen=True)
class Refused:
    """A file that was not read. `certain`: it was named, or its ending says that it is a recipe's."""

    shown: str
    folder: Path
    reason: str
    certain: bool


@dataclass(frozen=True)
class Skipped:
    """A file that was read and is no recipe's."""

    shown: str
    reason: str


@dataclass
class Reader:
    """Reads files one by one and keeps what it refused. A file is read once, however often it is named. With `within`
    nothing outside of that tree is read, and paths are shown as seen from its top."""

    limits: Limits = field(default_factory=Limits)
    within: Within | None = None
    files: dict[Path, SourceFile] = field(default_factory=dict)
    refused: list[Refused] = field(default_factory=list)
    _entries: int = 0
    _total: int = 0  # bytes of the files

    def read(self, paths: Sequence[str | Path]) -> None:
        """Everything that `paths` name. Raises RecipegenError for a path that does not exist."""
        for name in paths:
            path = Path(name)
            try:
                exists, is_folder = os.path.lexists(path), path.is_dir()
            except (OSError, ValueError) as error:
                reason = error.strerror if isinstance(error, OSError) else str(error)
                raise RecipegenError(f"cannot be read: {reason}", where=shown_path(path)) from None
            if not exists:
                raise RecipegenError("no such file or folder", where=shown_path(path))
            if is_folder:
                self._folder(path)
            else:
                self.add(path, Path(os.path.realpath(path.parent)), explicit=True)

    def add(self, path: Path, root: Path, *, explicit: bool) -> SourceFile | None:
        """One file, which may be a link to a place inside of `root`, or of the current folder when it was named."""
        shown = shown_path(path if self.within is None else self.within.shown(path))
        parent = Path(os.path.realpath(path.parent))
        if parent / path.name in self.files:
            return self.files[parent / path.name]
        if len(self.files) >= self.limits.files:
            raise self._too_much(f"more than {self.limits.files} files", root)
        certain = explicit or is_a_recipes(path.name)
        try:
            target = Path(os.path.realpath(path))
            roots = (root, Path(os.path.realpath(os.curdir))) if explicit else (root,)
            outside = path.is_symlink() and not any(target.is_relative_to(one) for one in roots)
            if outside or (self.within is not None and not self.within.contains(path)):
                self.refused.append(Refused(shown, parent, "a link to a place outside of this folder", certain))
                return None
            content = self._bytes(target)
        except (OSError, ValueError) as error:
            reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
            self.refused.append(Refused(shown, parent, f"cannot be read: {reason}", certain))
            return None
        if isinstance(content, str):
            self.refused.append(Refused(shown, parent, content, certain))
            return None
        self._total += len(content)
        if self._total > self.limits.total_bytes:
            raise self._too_much(f"files of more than {self.limits.total_bytes // 2**20} MiB in all", root)
        found = SourceFile(parent / path.name, shown, content, explicit)
        self.files[found.path] = found
        return found

    def _too_much(self, what: str, root: Path) -> RecipegenError:
        place = shown_path(root if self.within is None else self.within.shown(root))
        return RecipegenError(what, where=place, fix="Name the folders of the recipes.")

    def _bytes(self, path: Path) -> bytes | str:
        """The content, or the reason against reading it."""
        try:
            handle = os.open(path, _FLAGS)
        except OSError as error:
            if error.errno == errno.ENXIO:  # a socket
                return "not a regular file"
            raise
        with os.fdopen(handle, "rb", buffering=0) as file:
            status = os.fstat(handle)
            if not stat.S_ISREG(status.st_mode):
                return "not a regular file"
            limit = self.limits.file_bytes
            if status.st_size > limit:
                return f"{status.st_size:,} bytes; at most {limit // 1024} KiB of a recipe's file are read"
            content = b""
            while len(content) <= limit and (more := file.read(limit + 1 - len(content))):
                content += more
        if len(content) > limit:  # it grew, or lies in a file system that states no size
            return f"more than {limit // 1024} KiB"
        return "a binary file" if b"\0" in content else content

    def _folder(self, top: Path) -> None:
        root = Path(os.path.realpath(top))
        for path in self._candidates(top, 0):
            self.add(path, root, explicit=False)

    def _candidates(self, folder: Path, depth: int) -> Iterator[Path]:
        """Files that may be a recipe's, folder by folder in the order of names. Links to folders are not followed."""
        try:
            with os.scandir(folder) as entries:
                listed = []
                for entry in entries:
                    self._entries += 1
                    if self._entries > self.limits.entries:
                        raise RecipegenError(
                            f"more than {self.limits.entries} entries",
                            where=shown_path(folder),
                            fix="Name the folders of the recipes.",
                        )
                    listed.append(entry)
                listed.sort(key=lambda entry: entry.name)
                folders = [e.name for e in listed if e.is_dir(follow_symlinks=False) and _entered(e.name)]
                names = [e.name for e in listed if not e.is_dir(follow_symlinks=False) and _may_be_recipe(e.name)]
        except OSError as error:
            place = shown_path(folder)
            self.refused.append(Refused(place, folder, f"cannot be read: {error.strerror}", certain=False))
            return
        yield from (folder / name for name in names)
        if depth < self.limits.depth:
            for name in folders:
                yield from self._candidates(folder / name, depth + 1)


def _entered(name: str) -> bool:
    return not (name.startswith((".", _CHECKPOINT)) or name in _NOT_ENTERED)


def is_a_recipes(name: str) -> bool:
    """Whether a file's name says that it is a recipe's, and it is missed where it cannot be read; JSON may be data."""
    return name == _LOCK or os.path.splitext(name)[1] in (*_YAML, *_SCRIPTS)


def may_be_recipe(path: str, limits: Limits | None = None) -> bool:
    """Whether the file at a path, seen from a folder that is named, would be read with that folder. With `/`."""
    *folders, name = path.split("/")
    return len(folders) <= (limits or Limits()).depth and all(map(_entered, folders)) and _may_be_recipe(name)


def _may_be_recipe(name: str) -> bool:
    if name.startswith(".") or name in _FOREIGN:
        return False
    return name in (_LOCK, _REQUIREMENTS) or name.endswith((*_YAML, *_JSON, *_SCRIPTS))


def read_bounded(path: Path, limits: Limits | None = None) -> bytes:
    """One regular file, within the limits. Raises RecipegenError with the reason."""
    try:
        content = Reader(limits or Limits())._bytes(Path(os.path.realpath(path)))
    except (OSError, ValueError) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
        raise RecipegenError(f"cannot be read: {reason}", where=shown_path(path)) from None
    if isinstance(content, str):
        raise RecipegenError(content, where=shown_path(path))
    return content
