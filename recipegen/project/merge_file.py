"""One generated YAML or JSON file that a person edited: the new text, with what they changed.

What comes out is the new text, its order and its comments, in which the person's values are set by key.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from recipegen.formats import documents
from recipegen.formats import edits as edit_engine
from recipegen.project import merge_comments
from recipegen.project.merge import MISSING, Path, edits, merge
from recipegen.project.merge_comments import Comment
from recipegen.spec import RecipegenError

_BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True)
class Conflict:
    """A place where both changed something. `key` is dotted; MISSING where there is no value. The person's stays."""

    where: str
    key: str
    base: Any
    yours: Any
    new: Any


@dataclass(frozen=True)
class Kept:
    """A value of the person's that stays; MISSING where they took the key out."""

    where: str
    key: str
    value: Any


@dataclass(frozen=True)
class MergedFile:
    """`lost` are comments of the person's, as `file:line`, that have no place in `content`."""

    content: bytes
    conflicts: tuple[Conflict, ...]
    kept: tuple[Kept, ...]
    lost: tuple[str, ...]


def merge_file(name: str, base: bytes, yours: bytes, new: bytes, *, exact: bool) -> MergedFile:
    """The merged file. `exact`: `base` is the very text that was generated, not one that should say the same.

    Raises RecipegenError, with the line where there is one, when the person's file cannot be read or one of their
    values cannot be set in the new text.
    """
    theirs = documents.read(yours, name)
    merged = merge(_values(base, name), _values(yours, name), after := _values(new, name))
    content = edit_engine.apply(new, name, edits(name, after, merged.values))
    if documents.read(content, name).values != merged.values:
        raise RecipegenError("cannot be merged without changing something else", where=name)
    lost: list[Comment] = []
    if not name.endswith(".json"):
        content, lost = _with_comments(name, base, yours, content, exact)

    def where(path: Path) -> str:
        return theirs.where(path)

    return MergedFile(
        content,
        tuple(Conflict(where(c.path), ".".join(c.path), c.base, c.yours, c.new) for c in merged.clashes),
        tuple(Kept(where(path), ".".join(path), _value(theirs.values, path)) for path in merged.kept),
        tuple(f"{name}:{comment.line}" for comment in sorted(lost, key=lambda comment: comment.line)),
    )


def _values(content: bytes, name: str) -> Mapping[str, Any]:
    document = documents.read(content, name)
    if document.values is None:
        reason, where = (document.problem.reason, document.problem.where) if document.problem else ("not read", name)
        raise RecipegenError(reason, where=where)
    return document.values


def _with_comments(name: str, base: bytes, yours: bytes, merged: bytes, exact: bool) -> tuple[bytes, list[Comment]]:
    """Without the very text that was generated, a comment on a line of its own above a generated key may be ours of
    before: it counts as lost, so that the old file is kept."""
    texts = [content.removeprefix(_BOM).decode("utf-8") for content in (base, yours, merged)]
    read = [documents.read(text.encode("utf-8"), name) for text in texts]
    found = [merge_comments.find(text, document) for text, document in zip(texts, read, strict=True)]
    own = merge_comments.theirs(merge_comments.theirs(found[1], found[0]), found[2])
    certain = own
    if not exact:
        certain = [c for c in own if not c.own_line or (c.path and c.path not in read[0].lines)]
    content, lost = merge_comments.carry(certain, read[1], merged, name)
    return content, [*lost, *(comment for comment in own if comment not in certain)]


def _value(values: Any, path: Path) -> Any:
    for part in path:
        if not isinstance(values, dict) or part not in values:
            return MISSING
        values = values[part]
    return values
