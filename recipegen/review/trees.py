"""Two trees of a repository, each a commit or the working tree, as those of their files that may be a recipe's: what
differs, and what a difference can reach.
"""

from __future__ import annotations

import os
import posixpath
import stat
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from recipegen.catalog.bounded_yaml import LARGE
from recipegen.check.policy import NAME as POLICY
from recipegen.review import mentions
from recipegen.review.git import FILE, LINK, MODULE, Entry, Repository, blob_name
from recipegen.source import Limits, may_be_recipe
from recipegen.spec import RecipegenError

# Of a model's folder, beside what may be a recipe's: what its shape and its turns are read from, without the weights.
CONFIG = "config.json"
_MODEL = (CONFIG, "model.safetensors.index.json", "tokenizer_config.json", "chat_template.jinja")
_MODEL_BYTES = 16 * 2**20  # the index of a model of 600 GB has 10 MB
MOST_FILES = 20_000  # files of a tree that may be a recipe's
_MOST_BYTES = 128 * 2**20  # content of all files that are looked at
_MOST_HASHED = 64 * 2**20  # bytes of one file of the working tree whose name in git is computed
_LFS = b"version https://git-lfs.github.com/spec/"
LIMITS = Limits(files=MOST_FILES)
_NOT_READ = {LINK: "a symbolic link, which is not followed", MODULE: "a submodule, whose files are not looked at"}


@dataclass
class Tree:
    """One side. `entries` are what may matter to a recipe, by path from the top. `folder` is the working tree, None for
    a commit."""

    repository: Repository
    entries: Mapping[str, Entry]
    folder: Path | None = None
    read: dict[str, bytes | str] = field(default_factory=dict)  # object -> content, or why there is none

    def contents(self, paths: Collection[str]) -> dict[str, bytes | str]:
        """Content of files, or the reason against reading it. Raises RecipegenError for too much."""
        wanted = [path for path in paths if self.entries[path].kind is FILE]
        if self.folder is not None:
            return {path: self._checked(_content(self.folder / path)) for path in wanted}
        fetch((self, wanted))
        return {path: self._checked(self.read[self.entries[path].oid]) for path in wanted}

    def texts(self, paths: Collection[str]) -> dict[str, bytes]:
        """Those that can be read."""
        return {path: said for path, said in self.contents(paths).items() if isinstance(said, bytes)}

    def refused(self, path: str) -> str:
        """Why the entry at a path is not looked at, by its kind alone."""
        return _NOT_READ.get(self.entries[path].kind, "")

    @staticmethod
    def _checked(content: bytes | str) -> bytes | str:
        if isinstance(content, bytes) and content.startswith(_LFS):
            return "a Git LFS pointer; its content is not in git, and nothing is fetched"
        return content


def fetch(*wanted: tuple[Tree, Collection[str]]) -> None:
    """Read files of commits, of all trees at once: a call of git costs more than most contents. The trees share what is
    read, by the first one's dictionary."""
    repository, read = wanted[0][0].repository, wanted[0][0].read
    for limit, of_model in ((LARGE.size_bytes, False), (_MODEL_BYTES, True)):
        oids = {
            tree.entries[path].oid
            for tree, paths in wanted
            for path in paths
            if tree.folder is None and tree.entries[path].kind is FILE and _of_model(path) is of_model
        }
        read.update(repository.contents(sorted(oids - read.keys()), limit, _MOST_BYTES))


def of_commits(repository: Repository, *commits: str) -> tuple[Tree, ...]:
    """What commits hold."""
    read: dict[str, bytes | str] = {}
    found = []
    for commit in commits:
        entries = {path: entry for path, entry in repository.entries(commit).items() if _matters(path, entry)}
        found.append(Tree(repository, entries, read=read))
    return tuple(found)


def of_working_tree(repository: Repository) -> tuple[Tree, set[str]]:
    """What lies in the working tree of what git keeps or would add; and the paths that a sparse checkout leaves out."""
    if repository.top is None:
        raise RecipegenError(
            "this repository has no working tree", fix="Give two revisions: `recipegen diff main...topic`."
        )
    names, left_out = repository.names()
    entries = {}
    real: dict[Path, bool] = {}
    for name in names:
        if _may_matter(name):
            entry = _entry(repository.top, name, real, repository.object_format)
            if entry is not None:
                entries[name] = entry
    return Tree(repository, entries, repository.top), left_out


def _matters(path: str, entry: Entry) -> bool:
    return entry.kind is MODULE or _may_matter(path)


def _may_matter(path: str) -> bool:
    return may_be_recipe(path, LIMITS) or _of_model(path) or posixpath.basename(path) == POLICY


def _of_model(path: str) -> bool:
    return posixpath.basename(path) in _MODEL


def _entry(top: Path, name: str, real: dict[Path, bool], object_format: str) -> Entry | None:
    """None where git would see nothing: no such file, or one behind a link to a folder."""
    path = top / name
    if path.parent not in real:
        real[path.parent] = os.path.realpath(path.parent) == str(path.parent)
    try:
        status = os.lstat(path)
        if not real[path.parent]:
            return None
        if stat.S_ISLNK(status.st_mode):
            return Entry(LINK, blob_name(os.fsencode(os.readlink(path)), object_format))
        if not stat.S_ISREG(status.st_mode):
            return None
    except (OSError, ValueError):
        return None
    content = _content(path, _MOST_HASHED)
    return Entry(FILE, blob_name(content, object_format) if isinstance(content, bytes) else "")


def _content(path: Path, limit: int = LARGE.size_bytes) -> bytes | str:
    try:
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                return "not a regular file"
            content = file.read(limit + 1)
    except (OSError, ValueError) as error:
        return f"cannot be read: {(error.strerror if isinstance(error, OSError) else None) or error}"
    return content if len(content) <= limit else f"more than {limit // 1024} KiB"


# --- what differs


@dataclass(frozen=True)
class Differing:
    """`paths` differ; `folders` are those of recipes that can mean something else, for a file of theirs differs or one
    that theirs name; `reached` are the latter."""

    paths: frozenset[str]
    folders: frozenset[str]
    reached: frozenset[str]


def differing(base: Tree, head: Tree, left_out: Collection[str], only: Collection[str]) -> Differing:
    """What differs between two trees. `only`: paths to which the recipes are limited, () for all."""
    paths = {
        path
        for path in {*base.entries, *head.entries} - set(left_out)
        if base.entries.get(path) != head.entries.get(path)
    }
    recipes = {path for path in paths if may_be_recipe(path, LIMITS)}
    folders = {posixpath.dirname(path) for path in recipes}
    reached: set[str] = set()
    if paths:
        same = {path for path, entry in base.entries.items() if path not in paths and entry.kind is FILE}
        scanned = _scanned(same, only)
        fetch((base, [*scanned, *(recipes & base.entries.keys())]), (head, recipes & head.entries.keys()))
        contents = base.texts(scanned)
        named = {*recipes, *(posixpath.dirname(path) for path in paths if _of_model(path) and posixpath.dirname(path))}
        # A file that names one that differs may itself be named from another folder.
        while named:
            found = mentions.naming(contents, named)
            reached |= {posixpath.dirname(path) for path, elsewhere in found.items() if elsewhere}
            contents = {path: content for path, content in contents.items() if path not in found}
            named = set(found)
    return Differing(frozenset(paths), frozenset(folders | reached), frozenset(reached))


def _scanned(paths: Iterable[str], only: Collection[str]) -> list[str]:
    """The files that may name others: all of them, or those of the recipes alone where there are too many."""
    wanted = [path for path in paths if may_be_recipe(path, LIMITS) and not path.endswith("recipe.lock")]
    if len(wanted) > MOST_FILES and only:
        wanted = [path for path in wanted if under(path, only)]
    if len(wanted) > MOST_FILES:
        raise RecipegenError(
            f"more than {MOST_FILES:,} files that may be a recipe's", fix="Name the folders: `-- recipes/`."
        )
    return wanted


def needed(tree: Tree, folders: Collection[str], left_out: Collection[str]) -> tuple[list[str], list[str]]:
    """The files of those folders that may be a recipe's, and further ones of the tree that they name."""
    files = {path for path, entry in tree.entries.items() if entry.kind is FILE and path not in left_out}
    own = sorted(path for path in files if posixpath.dirname(path) in folders and may_be_recipe(path, LIMITS))
    models = {posixpath.dirname(path) for path in files if posixpath.basename(path) == CONFIG}
    known = {path for path in files if may_be_recipe(path, LIMITS)} | (models - {""})
    seen, waiting = set(own), own
    further: set[str] = set()
    while waiting:
        texts = tree.texts([path for path in waiting if may_be_recipe(path, LIMITS) and not path.endswith(".lock")])
        found = mentions.named_by(texts, known) - seen
        seen |= found
        waiting = [path for path in found if path in files]
        further.update(waiting)
        for folder in found - files:
            further.update(f"{folder}/{name}" for name in _MODEL if f"{folder}/{name}" in files)
    return own, sorted(further - set(own))


def under(path: str, paths: Collection[str]) -> bool:
    """Whether a path is one of these, or below one; () is everything."""
    return not paths or any(one in ("", path) or path.startswith(f"{one}/") for one in paths)


def policies(tree: Tree) -> dict[str, bytes | str]:
    """Every policy of a tree by its folder, or why it cannot be read."""
    found = [path for path in tree.entries if posixpath.basename(path) == POLICY]
    contents = tree.contents(found)
    return {posixpath.dirname(path): contents.get(path, tree.refused(path)) for path in found}


def troubles(tree: Tree, paths: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Links and submodules among some paths: path and reason."""
    for path in paths:
        if path in tree.entries and tree.refused(path):
            yield path, tree.refused(path)
