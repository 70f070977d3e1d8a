"""What a person wants compared, and the two sides of it: the projects of each, read from a private copy of a commit's
files, from the working tree in place, or from paths.
"""

from __future__ import annotations

import os
import posixpath
import shutil
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from recipegen.catalog.bounded_yaml import shown, shown_path
from recipegen.check import policy
from recipegen.check.checking import refused
from recipegen.check.known import known_rules
from recipegen.check.policy import Policy
from recipegen.review import trees
from recipegen.review.git import MODULE, Repository, check_revision, open_repository
from recipegen.review.trees import Differing, Tree, under
from recipegen.source import Collected, Parsed, Project, Within, collect, collect_within, is_a_recipes, may_be_recipe
from recipegen.spec import RecipegenError, Severity

WORKING_TREE = "the working tree"
_HEAD = "HEAD"
_LONGEST_PART = 255  # bytes of a name, on every file system that matters


@dataclass(frozen=True)
class Wanted:
    """`old` and `new` are two paths; else `base` and `head` are revisions, where no head is the working tree, and
    `merge_base` stands for where they went apart. `paths` limit the recipes, from the current folder."""

    old: str = ""
    new: str = ""
    base: str = _HEAD
    head: str | None = None
    merge_base: bool = False
    paths: tuple[str, ...] = ()


@dataclass(frozen=True)
class Side:
    """`root` is where the names of a side begin. `files` are all that may be a recipe's there, `troubles` why one of
    them is not read, both by path from the root; `missed` are those of the latter that are surely a recipe's. `reached`
    are folders whose recipes may mean something else though their own files are the same."""

    label: str
    root: Path
    projects: tuple[Project, ...]
    files: frozenset[str] = frozenset()
    troubles: Mapping[str, str] = field(default_factory=dict)
    missed: frozenset[str] = frozenset()
    reached: frozenset[str] = frozenset()
    in_git: bool = True

    def path_of(self, project: Project) -> str:
        """The project's main file, or its first, from the root."""
        return self.inside(project, project.main or next(iter(project.files)))

    def inside(self, project: Project, name: str) -> str:
        """A file's path from the root, by its name in the project: from its folder, else from the top."""
        near, top = (posixpath.normpath(posixpath.join(start, name)) for start in (self.folder_of(project), ""))
        return top if top in self.files and near not in self.files else near

    def folder_of(self, project: Project) -> str:
        """The project's folder from the root; "." for the root."""
        return project.folder.relative_to(self.root).as_posix()

    def has(self, path: str) -> bool:
        """Whether there is anything at a path from the root."""
        return path in self.files or (not self.in_git and os.path.lexists(self.root / path))


PolicyOf = Callable[[str], Policy]  # of a path from the root


@dataclass(frozen=True)
class Sides:
    """Both, and the policy that holds: that of the base."""

    base: Side
    head: Side
    policy_of: PolicyOf


def wanted(words: Sequence[str], paths: Sequence[str] | None) -> Wanted:
    """What the words of a command line mean: `A...B`, `A..B`, `A B`, `A`, or two paths. `paths` are what stands behind
    `--`; without one, words behind the revisions are paths where they exist. Raises RecipegenError for what is neither.
    """
    revisions, given = list(words), list(paths or ())
    if paths is None and any(map(os.path.lexists, revisions)) and not _in_bare_repository():
        if len(revisions) == 2 and all(map(os.path.lexists, revisions)):
            return Wanted(old=revisions[0], new=revisions[1])
        first = next(at for at, word in enumerate(revisions) if os.path.lexists(word))
        revisions, given = revisions[:first], revisions[first:]
        for word in given:
            if not os.path.lexists(word):
                raise RecipegenError("no such file or folder", where=shown(word))
        if given and not revisions and _is_revision(given[0]):
            what = f"{shown(given[0])} is a path and a revision"
            raise RecipegenError(what, fix=f"Write `{given[0]} --` for the revision, `-- {given[0]}` for the path.")
    if len(revisions) > 2:
        raise RecipegenError(f"{shown(revisions[2])}: more than two revisions", fix="Paths come behind `--`.")
    merge_base = False
    if len(revisions) == 1 and ".." in revisions[0]:
        merge_base = "..." in revisions[0]
        base, _, head = revisions[0].partition("..." if merge_base else "..")
        revisions = [base or _HEAD, head or _HEAD]
    for revision in revisions:
        check_revision(revision)
        if ".." in revision:  # git allows it in no name
            raise RecipegenError(f"{shown(revision)} is no revision", fix="A range is A...B or A..B, alone.")
    return Wanted(
        base=revisions[0] if revisions else _HEAD,
        head=revisions[1] if len(revisions) == 2 else None,
        merge_base=merge_base,
        paths=tuple(given),
    )


def _in_bare_repository() -> bool:
    """Where HEAD is a file, and no recipe."""
    try:
        return open_repository().top is None
    except RecipegenError:
        return False


def _is_revision(word: str) -> bool:
    try:
        return open_repository().has(word)
    except RecipegenError:
        return False


@contextmanager
def opened(asked: Wanted, *, everything: bool = False, policy_file: Path | None = None) -> Iterator[Sides]:
    """Both sides, as long as the block runs: then what was copied of a commit is removed. `everything`: the recipes
    that nothing of a difference can reach, too.

    Raises RecipegenError for revisions and paths that are not there, and for a policy that is none.
    """
    if asked.old:
        yield Sides(_paths(asked.old), _paths(asked.new), _one_policy(policy_file))
        return
    folder = Path(os.path.realpath(tempfile.mkdtemp(prefix="recipegen-")))
    try:
        yield _revisions(asked, folder, everything, policy_file)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


# --- two paths


def _paths(path: str) -> Side:
    found = collect([path])
    root = Path(os.path.realpath(path))
    root = root if root.is_dir() else root.parent
    troubles = {
        **{one.shown: one.reason for one in found.skipped if not os.path.isdir(path)},
        **{one.where: one.reason for one in refused(found) if one.severity is Severity.ERROR},
    }
    if not found.projects and not troubles:
        raise RecipegenError("no file of a recipe", where=shown_path(path))
    return Side(shown_path(path), root, found.projects, troubles=troubles, missed=frozenset(troubles), in_git=False)


def _one_policy(policy_file: Path | None) -> PolicyOf:
    path = policy_file or (Path(policy.NAME) if Path(policy.NAME).is_file() else None)
    one = policy.read(path, known_rules()) if path else Policy()
    return lambda _: one


# --- revisions


def _revisions(asked: Wanted, folder: Path, everything: bool, policy_file: Path | None) -> Sides:
    repository = open_repository()
    only = _from_top(asked.paths, repository)
    base_commit = repository.commit(asked.base)
    head_commit = repository.commit(asked.head) if asked.head is not None else None
    if asked.merge_base and head_commit is not None:
        base_commit = repository.merge_base(asked.base, asked.head or _HEAD)
    left_out: set[str] = set()
    if head_commit is not None:
        base, head = trees.of_commits(repository, base_commit, head_commit)
    else:
        (base,) = trees.of_commits(repository, base_commit)
        head, left_out = trees.of_working_tree(repository)
    differ = trees.differing(base, head, left_out, only)
    folders = differ.folders
    if everything:
        folders = frozenset(posixpath.dirname(path) for tree in (base, head) for path in tree.entries)
    policy_of = _one_policy(policy_file) if policy_file else _policy_of(base)
    parsed: Parsed = {}
    return Sides(
        _side(asked.base, base, folder / "base", folders, differ, left_out, only, head.folder, parsed),
        _side(asked.head or WORKING_TREE, head, folder / "head", folders, differ, left_out, only, None, parsed),
        policy_of,
    )


def _from_top(paths: Sequence[str], repository: Repository) -> tuple[str, ...]:
    """Paths as seen from the top of the repository, "" for the top itself."""
    found = []
    for path in paths:
        if repository.top is None:
            below = os.path.normpath(path)
        else:
            parent, name = os.path.split(os.path.abspath(path))
            below = os.path.relpath(os.path.join(os.path.realpath(parent), name), repository.top)
        if below.split(os.sep)[0] == os.pardir or os.path.isabs(below):
            raise RecipegenError("outside of this repository", where=shown_path(path))
        found.append("" if below == os.curdir else below)
    return tuple(found)


def _side(
    label: str,
    tree: Tree,
    copy: Path,
    folders: Collection[str],
    differ: Differing,
    left_out: Collection[str],
    only: tuple[str, ...],
    beside: Path | None,
    parsed: Parsed,
) -> Side:
    own, further = trees.needed(tree, folders, left_out)
    troubles = dict(trees.troubles(tree, differ.paths))
    if tree.folder is None:
        troubles.update(_copied(tree, [*own, *further], copy))
    else:
        troubles.update((path, said) for path, said in tree.contents(own).items() if isinstance(said, str))
    root = tree.folder or copy
    root.mkdir(exist_ok=True)
    within = Within(root, beside)
    found = collect_within(within, [path for path in own if path not in troubles], trees.LIMITS, parsed)
    troubles.update(_refused(found, root))
    side = Side(
        label,
        root,
        found.projects,
        frozenset(path for path in tree.entries if may_be_recipe(path, trees.LIMITS)),
        {path: why for path, why in troubles.items() if path in differ.paths},
        frozenset(path for path in troubles if _missed(tree, path) and under(path, only)),
        differ.reached,
    )
    return replace(side, projects=tuple(one for one in side.projects if _concerns(side, one, only)))


def _missed(tree: Tree, path: str) -> bool:
    entry = tree.entries.get(path)
    return is_a_recipes(posixpath.basename(path)) or (entry is not None and entry.kind is MODULE)


def _copied(tree: Tree, paths: Collection[str], copy: Path) -> Iterator[tuple[str, str]]:
    """Write files of a commit as plain files; those that cannot be, with the reason."""
    copy.mkdir()
    for path, content in tree.contents(paths).items():
        if isinstance(content, str):
            yield path, content
            continue
        try:
            target = copy.joinpath(*_parts(path))
            target.parent.mkdir(parents=True, exist_ok=True)
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
            with os.fdopen(os.open(target, flags, 0o600), "wb") as file:
                file.write(content)
        except (OSError, ValueError) as error:
            reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
            yield path, f"its name cannot be used here: {reason}"


def _parts(path: str) -> list[str]:
    """Of a path in a tree, which anybody may have written."""
    parts = path.split("/")
    for part in parts:
        if part in ("", os.curdir, os.pardir) or "\0" in part or part.lower() == ".git":
            raise ValueError(f"{shown(part)} is no name of a file")
        if len(os.fsencode(part)) > _LONGEST_PART:
            raise ValueError("it is too long")
    return parts


def _refused(found: Collected, root: Path) -> Iterator[tuple[str, str]]:
    for one in found.refused:
        if one.certain and one.folder.is_relative_to(root):
            folder = one.folder.relative_to(root).as_posix()
            name = one.shown.rpartition("/")[2]
            yield posixpath.normpath(posixpath.join(folder, name)), one.reason


def _concerns(side: Side, project: Project, only: Collection[str]) -> bool:
    """Whether a file of a project lies under the paths that a person named."""
    return any(under(side.inside(project, name), only) for name in project.files)


def _policy_of(tree: Tree) -> PolicyOf:
    known = known_rules()
    contents = trees.policies(tree)
    read: dict[str, Policy] = {}

    def of(path: str) -> Policy:
        parts = [part for part in path.split("/") if part not in ("", ".")]
        for length in range(len(parts), -1, -1):
            folder = "/".join(parts[:length])
            if folder in contents and folder not in read:
                place = shown_path(posixpath.join(folder, policy.NAME))
                content = contents[folder]
                if isinstance(content, str):
                    raise RecipegenError(content, where=place)
                read[folder] = policy.of_bytes(content, place, known)
            if folder in read:
                return read[folder]
        return Policy()

    return of
