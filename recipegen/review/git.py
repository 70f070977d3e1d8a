"""What a repository holds at a revision, asked of git's plumbing. Nothing is checked out, fetched or written, and
nothing that the repository configures (hooks, filters, diff drivers, a file system monitor) is run.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from recipegen.catalog.bounded_yaml import shown
from recipegen.spec import RecipegenError

TIMEOUT_S = 60.0  # of one call of git
_MOST_OUTPUT = 256 * 2**20  # bytes that are taken of one answer
_MOST_SAID = 2000  # bytes of stderr that are read
_MOST_DAMAGED = 64  # objects that cannot be read, before the rest is given up
_LONGEST_REVISION = 1000  # characters
FILE, LINK, MODULE = "file", "link", "module"
_MODES = {"100644": FILE, "100755": FILE, "100664": FILE, "120000": LINK, "160000": MODULE}
# Configuration of the repository that would run or change something, whatever it says.
_SETTINGS = (
    "core.fsmonitor=false", "core.hooksPath=/dev/null", "core.quotePath=false", "core.pager=cat",
    "core.untrackedCache=false", "protocol.allow=never", "gc.auto=0", "maintenance.auto=false",
)  # fmt: skip
_ENVIRONMENT = {
    "GIT_ALLOW_PROTOCOL": "none",  # a partial clone does not fetch what it lacks
    "GIT_ASKPASS": "",
    "GIT_ATTR_NOSYSTEM": "1",
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_NO_REPLACE_OBJECTS": "1",
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_PAGER": "cat",
    "GIT_TERMINAL_PROMPT": "0",
    "LC_ALL": "C",
    "SSH_ASKPASS": "",
}
_KEPT = ("HOME", "PATH", "SYSTEMROOT", "TMPDIR", "USER", "XDG_CONFIG_HOME")
_KEPT_PREFIX = "GIT_CONFIG"  # where a person's own configuration lies, such as safe.directory


@dataclass(frozen=True)
class Entry:
    """What a tree has at a path: FILE, LINK or MODULE, and the object's name."""

    kind: str
    oid: str


@dataclass(frozen=True)
class Answer:
    """What a call of git wrote, and how it ended. `said` is the first line of stderr."""

    out: bytes
    code: int
    said: str


@dataclass(frozen=True)
class Repository:
    """`folder` is where git is run; `top` the top of the working tree, None for a bare repository."""

    folder: Path
    top: Path | None
    shallow: bool
    object_format: str

    def commit(self, revision: str) -> str:
        """The name of the commit that `revision` means. Raises RecipegenError where this clone has none."""
        check_revision(revision)
        answer = _git(self.folder, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}")
        oid = answer.out.decode("ascii", "replace").strip()
        if answer.code != 0 or not _is_oid(oid):
            why = " (or it is damaged)" if "corrupt" in answer.said or "unable" in answer.said else ""
            raise RecipegenError(f"git has no commit {shown(revision)} here{why}", fix=self._fetch(revision))
        return oid

    def has(self, revision: str) -> bool:
        """Whether this clone has a commit of that name."""
        try:
            self.commit(revision)
        except RecipegenError:
            return False
        return True

    def merge_base(self, one: str, other: str) -> str:
        """Where two revisions went apart. Raises RecipegenError where this clone does not know."""
        answer = _git(self.folder, "merge-base", "--end-of-options", self.commit(one), self.commit(other))
        oid = answer.out.decode("ascii", "replace").strip()
        if answer.code != 0 or not _is_oid(oid):
            what = f"{shown(one)} and {shown(other)} have no common commit here"
            raise RecipegenError(what, fix=self._fetch(one) if self.shallow else "Compare them as they are: A..B.")
        return oid

    def entries(self, commit: str) -> dict[str, Entry]:
        """Every file, link and submodule of a commit, by path from the top."""
        answer = _git(self.folder, "ls-tree", "-r", "-z", "--full-tree", "--end-of-options", commit)
        if answer.code != 0:
            raise RecipegenError(f"git cannot read the tree of {commit[:12]}: {answer.said}", fix=self._fetch(commit))
        found = {}
        for record in answer.out.split(b"\0"):
            head, separator, name = record.partition(b"\t")
            parts = head.split()
            if separator and len(parts) == 3:
                mode, oid = parts[0].decode("ascii", "replace"), parts[2].decode("ascii", "replace")
                found[os.fsdecode(name)] = Entry(_MODES.get(mode, FILE), oid)
        return found

    def names(self) -> tuple[list[str], set[str]]:
        """Paths of the working tree, from its top, that git keeps or would add; and those that a sparse checkout leaves
        out of it."""
        assert self.top is not None
        answer = _git(self.top, "ls-files", "-z", "-t", "--cached", "--others", "--exclude-standard")
        if answer.code != 0:
            raise RecipegenError(f"git cannot list the working tree: {answer.said}")
        names: dict[str, None] = {}
        left_out = set()
        for record in answer.out.split(b"\0"):
            tag, _, name = record.partition(b" ")
            if name and tag in (b"S", b"s"):
                left_out.add(os.fsdecode(name))
            elif name and not name.endswith(b"/"):
                names[os.fsdecode(name)] = None
        return list(names), left_out

    def contents(self, oids: Iterable[str], limit: int, total: int) -> Mapping[str, bytes | str]:
        """The content of blobs, or why there is none: larger than `limit` bytes, missing, damaged. Raises
        RecipegenError where all of them have more than `total` bytes."""
        wanted = list(dict.fromkeys(oids))
        found: dict[str, bytes | str] = {}
        sizes = dict(self._sizes(wanted))
        small = []
        for oid in wanted:
            size = sizes.get(oid)
            if size is None:
                found[oid] = "this clone does not have its content"
            elif size > limit:
                found[oid] = f"{size:,} bytes; at most {limit // 1024} KiB of a recipe's file are read"
            else:
                small.append(oid)
        if sum(sizes[oid] or 0 for oid in small) > total:
            raise RecipegenError(
                f"the files to compare have more than {total // 2**20} MiB", fix="Name the folders: `-- recipes/`."
            )
        damaged = 0
        while small:
            read = dict(self._blobs(small))
            found.update(read)
            small = [oid for oid in small if oid not in read]
            if small:  # git ends at the first object that is damaged
                damaged += 1
                for oid in small[: 1 if damaged < _MOST_DAMAGED else None]:
                    found[oid] = "its object in git is damaged"
                small = small[1:] if damaged < _MOST_DAMAGED else []
        return found

    def _sizes(self, oids: Sequence[str]) -> Iterator[tuple[str, int | None]]:
        left = list(oids)
        for _ in range(_MOST_DAMAGED):
            if not left:
                return
            answer = _git(self.folder, "cat-file", "--batch-check", given=left)
            lines = answer.out.splitlines()
            for oid, line in zip(left, lines, strict=False):
                parts = line.split()
                yield oid, int(parts[2]) if len(parts) == 3 and parts[1] == b"blob" else None
            left = left[len(lines) + 1 :]  # it ended at one that is damaged

    def _blobs(self, oids: Sequence[str]) -> Iterator[tuple[str, bytes]]:
        out = _git(self.folder, "cat-file", "--batch", given=oids).out
        at = 0
        for oid in oids:
            end = out.find(b"\n", at)
            parts = out[at:end].split() if end >= 0 else []
            if len(parts) != 3:
                return
            size = int(parts[2])
            if end + 1 + size > len(out):
                return
            yield oid, out[end + 1 : end + 1 + size]
            at = end + 1 + size + 1

    def _fetch(self, revision: str) -> str:
        if not self.shallow:
            return "`git log` shows those it has; `git fetch` brings those of a remote."
        return f"This clone is shallow: `git fetch --unshallow`, or {shown(revision)} alone with `git fetch origin`."


def open_repository(folder: Path | None = None) -> Repository:
    """The repository around a folder, by default the current one. Raises RecipegenError where there is none, and where
    git is not installed or refuses it."""
    folder = Path(os.path.realpath(folder or os.curdir))
    answer = _git(
        folder, "rev-parse", "--is-inside-work-tree", "--is-shallow-repository", "--show-object-format", "--show-cdup"
    )
    lines = answer.out.decode("utf-8", "replace").split("\n")
    if answer.code != 0 or len(lines) < 3:
        if "not a git repository" in answer.said or not answer.said:
            raise RecipegenError(
                "not inside a git repository", where=shown(folder), fix="Compare two paths: `recipegen diff OLD NEW`."
            )
        raise RecipegenError(f"git: {answer.said.removeprefix('fatal: ')}", where=shown(folder))
    inside, shallow, object_format, *above = lines
    top = Path(os.path.realpath(folder / (above[0] if above else ""))) if inside == "true" else None
    return Repository(top or folder, top, shallow == "true", object_format)


def check_revision(revision: str) -> None:
    """Raises RecipegenError for what cannot be a revision, before git sees it."""
    if not revision or revision.startswith("-") or not revision.isprintable() or len(revision) > _LONGEST_REVISION:
        raise RecipegenError(f"{shown(revision)} is no revision", fix="Give a branch, a tag or a commit.")


def blob_name(content: bytes, object_format: str) -> str:
    """The name that git gives to a file's content."""
    import hashlib

    digest = hashlib.new("sha256" if object_format == "sha256" else "sha1", usedforsecurity=False)
    digest.update(b"blob %d\0" % len(content) + content)
    return digest.hexdigest()


def _is_oid(text: str) -> bool:
    return len(text) in (40, 64) and all(character in "0123456789abcdef" for character in text)


# --- the call


def _git(folder: Path, command: str, *arguments: str, given: Sequence[str] = ()) -> Answer:
    """One call. `given` are lines for its stdin. Raises RecipegenError where git is missing, hangs or says too much."""
    program = shutil.which("git")
    if program is None:
        raise RecipegenError("git is not installed", fix="Install it, or compare two paths.")
    settings = [word for setting in _SETTINGS for word in ("-c", setting)]
    with tempfile.TemporaryFile() as stdin, tempfile.TemporaryFile() as stderr:
        stdin.write("".join(f"{line}\n" for line in given).encode("ascii"))
        stdin.seek(0)
        try:
            process = subprocess.Popen(  # noqa: S603 (an argument array, no shell)
                [program, "--no-pager", *settings, command, *arguments],
                stdin=stdin,
                stdout=subprocess.PIPE,
                stderr=stderr,
                cwd=folder,
                env=_environment(),
            )
        except (OSError, ValueError) as error:
            raise RecipegenError(f"git cannot be run: {error}") from None
        late = threading.Event()

        def stop() -> None:
            late.set()
            process.kill()

        timer = threading.Timer(TIMEOUT_S, stop)
        timer.start()
        try:
            assert process.stdout is not None
            with process.stdout:
                out = process.stdout.read(_MOST_OUTPUT + 1)
            too_much = len(out) > _MOST_OUTPUT
            if too_much:
                process.kill()
            code = process.wait()
        finally:
            timer.cancel()
            if process.poll() is None:
                process.kill()
                process.wait()
        if late.is_set():
            raise RecipegenError(f"git {command} took longer than {TIMEOUT_S:.0f} s")
        if too_much:
            raise RecipegenError(f"git {command} answered more than {_MOST_OUTPUT // 2**20} MiB")
        return Answer(out, code, _said(stderr))


def _said(stderr: IO[bytes]) -> str:
    stderr.seek(0)
    lines = stderr.read(_MOST_SAID).decode("utf-8", "replace").splitlines()
    first = next((line for line in lines if line.strip()), "")
    return "".join(character if character.isprintable() else "?" for character in first.strip())


def _environment() -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if key in _KEPT or key.startswith(_KEPT_PREFIX)}
    return {**kept, **_ENVIRONMENT}
