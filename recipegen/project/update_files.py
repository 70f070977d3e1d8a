"""What becomes of one file of a project when it is updated.

Nobody edited it: the new text. Somebody did, and the new text is the old one: theirs stays. Both changed: merged by key
where the file has keys, else theirs stays and the new text goes beside it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import Enum

from recipegen.formats import launcher, lock, recipe_yaml
from recipegen.formats.lock import Lock, digest
from recipegen.project.files import configs
from recipegen.project.merge_file import Conflict, Kept, MergedFile, merge_file
from recipegen.project.merge_launcher import merge_launcher
from recipegen.spec import Decision, RecipegenError

# Nothing else needs these: whoever deleted them does without.
_OPTIONAL = frozenset({"launch.slurm", "README.md", "DECISION.md"})
_LAUNCHER = "launch.sh"


class Action(str, Enum):
    """What is done to a file."""

    WRITTEN = "written"  # it was not there
    REPLACED = "replaced"  # nobody had edited it
    MERGED = "merged"
    BESIDE = "kept"  # the new text is NAME.new
    REMOVED = "removed"  # not needed any more, and nobody had edited it
    SET_ASIDE = "set aside"  # not needed any more, and edited


@dataclass(frozen=True)
class Side:
    """One file: the digest it was generated with, what is there, what is generated now; None: no such file."""

    name: str
    known: str | None
    yours: bytes | None
    new: bytes | None


@dataclass(frozen=True)
class Row:
    """`beside` is the name of NAME.new or NAME.bak-DIGEST; `lost` are comments that are only in the latter."""

    name: str
    action: Action
    content: bytes = b""
    reason: str = ""
    conflicts: tuple[Conflict, ...] = ()
    kept: tuple[Kept, ...] = ()
    lost: tuple[str, ...] = ()
    beside: str = ""

    def with_beside(self, name: str) -> Row:
        return replace(self, beside=name)


def resolve(side: Side, locked: Lock, decision: Decision) -> Row | None:
    """What to do with a file; None: nothing."""
    name, yours, new = side.name, side.yours, side.new
    if yours is None or yours == new:
        return None if new is None or yours == new or _unwanted(side) else Row(name, Action.WRITTEN, new)
    edited = digest(yours) != side.known and name != lock.NAME
    if new is None:
        return Row(name, Action.SET_ASIDE if edited else Action.REMOVED, reason="the recipe has no use for it any more")
    if not edited:
        return Row(name, Action.REPLACED, new)
    if name == recipe_yaml.NAME or digest(new) == side.known:
        return None  # what was asked for is theirs to say; and of a text that is as before there is nothing to tell
    try:
        merged = _merged(name, yours, new, locked, decision) if side.known else None
    except RecipegenError as error:
        return Row(name, Action.BESIDE, new, str(error))
    if merged is None:
        reason = "edited, and the new text differs" if side.known else "somebody else's, and the recipe needs one"
        return Row(name, Action.BESIDE, new, reason)
    return Row(name, Action.MERGED, merged.content, "", merged.conflicts, merged.kept, merged.lost)


def _unwanted(side: Side) -> bool:
    return side.name in _OPTIONAL and side.known is not None


def _merged(name: str, yours: bytes, new: bytes, locked: Lock, decision: Decision) -> MergedFile | None:
    """None for a file that is not merged."""
    if name == _LAUNCHER:
        base = launcher.write(locked.recipe).encode("utf-8")
        return merge_launcher(base, yours, new) if digest(base) == locked.files.get(name) else None
    if name not in lock.KEPT:
        return None
    for base in _bases(name, locked, decision):
        return merge_file(name, base, yours, new, exact=digest(base) == locked.files.get(name))
    return None


def _bases(name: str, locked: Lock, decision: Decision) -> Iterator[bytes]:
    """The text as it was generated; of a lock that does not have it, the locked recipe as it is written today."""
    kept = locked.text(name)
    if kept is not None:
        yield kept
    else:
        texts = configs(replace(decision, recipe=locked.recipe))
        if name in texts:
            yield texts[name].encode("utf-8")
