"""The comments of a person, carried from their YAML file into the merged one.

A comment is theirs when no line of the generated file says it. One behind a value goes behind that value again, one
on a line of its own goes above the key that it stood above, and what stood below the last key goes to the end.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

import yaml

from recipegen.catalog.bounded_yaml import SafeLoader
from recipegen.formats import documents
from recipegen.formats.documents import Document, KeyPath
from recipegen.formats.edit_text import newline_of
from recipegen.formats.edit_tree import LINE_BREAK

_COMMENT = re.compile(r"(?:(?<=[\s])|^)#[^\n\r\x85\u2028\u2029]*", re.MULTILINE)
_MOST = 200  # comments of a file that are carried over


@dataclass(frozen=True)
class Comment:
    """`line` counts from 1. `path`: of the key it is about; () at the end of the file, None in no known place."""

    line: int
    text: str
    own_line: bool
    path: KeyPath | None


def find(text: str, document: Document) -> list[Comment]:
    """All comments of a YAML text that `document` was read from."""
    lines = LINE_BREAK.split(text)
    at: dict[int, KeyPath] = {}
    for path, line in document.lines.items():
        if line not in at or len(path) < len(at[line]):
            at[line] = path
    keyed = sorted(at)
    found = []
    for start, comment in _spans(text):
        line = len(LINE_BREAK.findall(text, 0, start)) + 1
        own = lines[line - 1].lstrip().startswith("#")
        below = next((other for other in keyed if other > line), None)
        about = (at[below] if below else ()) if own else at.get(line)
        found.append(Comment(line, comment.rstrip(), own, about))
    return found


def _spans(text: str) -> Iterator[tuple[int, str]]:
    """Offset and text of each comment: what stands behind a `#` outside of every scalar."""
    position = 0
    for token in yaml.scan(text, Loader=SafeLoader):
        if isinstance(token, yaml.ScalarToken):
            start, end = token.start_mark.index, token.end_mark.index
            if token.style in ("|", ">"):  # its head may have a comment
                broken = LINE_BREAK.search(text, start)
                start = broken.start() if broken else start
            yield from _between(text, position, start)
            position = end
    yield from _between(text, position, len(text))


def _between(text: str, start: int, end: int) -> Iterator[tuple[int, str]]:
    for match in _COMMENT.finditer(text, start, end):
        yield match.start(), match[0]


def theirs(comments: Collection[Comment], generated: Collection[Comment]) -> list[Comment]:
    """Those that the generated file does not have."""
    known = {comment.text for comment in generated}
    return [comment for comment in comments if comment.text not in known]


def carry(comments: Collection[Comment], yours: Document, merged: bytes, name: str) -> tuple[bytes, list[Comment]]:
    """`merged` with the comments, and those that have no place in it. Its values stay as they are, whatever happens."""
    waiting = [comment for comment in comments if comment.text.isprintable() or "\t" in comment.text][:_MOST]
    left = [comment for comment in comments if comment not in waiting]
    document = documents.read(merged, name)
    placed = [comment for comment in waiting if _has_place(comment, yours, document)]
    left += [comment for comment in waiting if comment not in placed]
    content = _with(merged, document, placed)
    if _reads_as(content, document, name):
        return content, left
    kept: list[Comment] = []
    for comment in placed:  # one of them does harm where it would stand (behind the first line of a long text)
        if _reads_as(_with(merged, document, [*kept, comment]), document, name):
            kept.append(comment)
        else:
            left.append(comment)
    return _with(merged, document, kept), left


def _reads_as(content: bytes, document: Document, name: str) -> bool:
    return documents.read(content, name).values == document.values


def _has_place(comment: Comment, yours: Document, merged: Document) -> bool:
    if comment.path is None or (comment.path and comment.path not in merged.lines):
        return False
    # A place in a list means the same only while the list is the same.
    for length, part in enumerate(comment.path):
        if part.isdecimal() and isinstance(_at(yours, comment.path[:length]), list):
            return bool(_at(yours, comment.path[:length]) == _at(merged, comment.path[:length]))
    return True


def _at(document: Document, path: KeyPath) -> object:
    value: object = document.values
    for part in path:
        if isinstance(value, Mapping):
            value = value.get(part)
        elif isinstance(value, list) and part.isdecimal() and int(part) < len(value):
            value = value[int(part)]
        else:
            return None
    return value


def _with(content: bytes, document: Document, comments: Collection[Comment]) -> bytes:
    whole = content.decode("utf-8")
    newline = newline_of(whole)
    lines = whole.split(newline)
    above: dict[int, list[str]] = {}
    for comment in comments:
        line = document.lines[comment.path] if comment.path else len(lines)
        if comment.path and not comment.own_line:
            lines[line - 1] += f"  {comment.text}"
        else:
            above.setdefault(line, []).append(comment.text)
    out = []
    for number, text in enumerate(lines, start=1):
        margin = text[: len(text) - len(text.lstrip(" "))]
        out += [margin + comment for comment in above.get(number, ())]
        out.append(text)
    return newline.join(out).encode("utf-8")
