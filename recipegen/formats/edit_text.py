"""One edit as replacements in the text of a file. What comes out is checked by formats/edits.py, which reads it again.

Comments inside a value that is replaced or deleted go with it, and so does the one behind it on a deleted line.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from recipegen.formats import scalars
from recipegen.formats.edit_tree import LINE_BREAK, Entry, Node
from recipegen.spec import Edit

Splice = tuple[int, int, str]  # from, to, what stands there then
_COLON = re.compile(r"[ \t]*:")
_GAP = re.compile(r"(?:\s|#[^\n\r\x85\u2028\u2029]*)*")  # what may stand between two signs of a flow collection
_STEP = 2  # blanks of indentation where a file shows none


class Unsafe(Exception):
    """This edit cannot be made by changing the text in place; the message says why."""


def newline_of(text: str) -> str:
    """What ends the first line; what is added ends so, too."""
    found = LINE_BREAK.search(text)
    return found[0] if found and found[0] in ("\n", "\r\n", "\r") else "\n"


def spliced(text: str, splices: list[Splice]) -> str:
    """`text` with the replacements, which do not overlap."""
    for start, end, replacement in sorted(splices, reverse=True):
        text = text[:start] + replacement + text[end:]
    return text


@dataclass(frozen=True)
class Page:
    """The text of a file with its tree, and how its author writes: line ends, indentation."""

    text: str
    root: Node
    is_json: bool
    newline: str  # what ends its lines

    # --- lines

    @cached_property
    def _starts(self) -> list[int]:
        return [0, *(found.end() for found in LINE_BREAK.finditer(self.text))]

    def line_start(self, at: int) -> int:
        """The offset of the first character of the line of `at`."""
        return self._starts[bisect_right(self._starts, at) - 1]

    def line_end(self, at: int) -> int:
        """The offset of what ends the line of `at`."""
        found = LINE_BREAK.search(self.text, at)
        return found.start() if found else len(self.text)

    def next_line(self, at: int) -> int:
        """The offset of the line after `at`, or `at` where that is the start of a line."""
        if at and at == self.line_start(at):
            return at
        found = LINE_BREAK.search(self.text, at)
        return found.end() if found else len(self.text)

    def before(self, at: int) -> str:
        """What stands on the line of `at` before it."""
        return self.text[self.line_start(at) : at]

    # --- how the author indents

    def _steps(self, node: Node, kind: str) -> Iterator[int]:
        for entry in node.entries:
            value = entry.value
            if node.kind == "mapping" and value.kind == kind and value.style == "block":
                first = value.entries[0].start if kind == "mapping" else self.dash(value.entries[0])
                if self.line_start(first) != self.line_start(entry.start):
                    yield len(self.before(first)) - len(self.before(entry.start))
            yield from self._steps(value, kind)

    def step(self, kind: str) -> int:
        """Blanks by which a mapping or list stands to the right of its key."""
        try:
            return next(self._steps(self.root, kind), _STEP)
        except Unsafe:
            return _STEP

    # --- values as text

    def key(self, key: str) -> str:
        return json.dumps(key) if self.is_json else scalars.scalar(key)

    def inline(self, value: Any, at: int) -> str:
        """`value` where it begins at `at`; in JSON of several lines a collection takes several lines."""
        if not self.is_json:
            return scalars.scalar(value)
        margin = re.match(r"[ \t]*", self.text[self.line_start(at) :])
        found = re.search(r"[\n\r]([ \t]+)", self.text)
        many = LINE_BREAK.search(self.text.rstrip()) is not None
        written = json.dumps(value, indent=(found[1] if found else _STEP) if many else None, allow_nan=False)
        return written.replace("\n", self.newline + (margin[0] if margin else ""))

    def lines(self, value: Any, indent: int) -> list[str]:
        """A list or mapping with something in it, in block style."""
        margin = " " * indent
        if not isinstance(value, Mapping):
            return [f"{margin}- {scalars.scalar(item)}" for item in value]
        found: list[str] = []
        for key, item in value.items():
            if is_filled(item):
                kind = "mapping" if isinstance(item, Mapping) else "list"
                found += [f"{margin}{scalars.scalar(key)}:", *self.lines(item, indent + self.step(kind))]
            else:
                found.append(f"{margin}{scalars.scalar(key)}: {scalars.scalar(item)}")
        return found

    def inserted(self, at: int, lines: list[str]) -> Splice:
        """Lines put before the line at `at`, which is the start of one or the end of the text."""
        block = self.newline.join(lines)
        if at == len(self.text) and not _ends_line(self.text):
            return (at, at, self.newline + block)
        return (at, at, block + self.newline)

    # --- signs

    def colon(self, entry: Entry) -> int:
        """The offset behind the colon of a key."""
        found = _COLON.match(self.text, entry.key_end)
        if not found:
            raise Unsafe("the key and its value are not written as `key: value`")
        return found.end()

    def dash(self, entry: Entry) -> int:
        """The offset of the dash of an item of a block list."""
        line = self.before(entry.value.start).rstrip(" \t")
        if not line.endswith("-"):
            raise Unsafe("the item does not stand on the line of its dash")
        return self.line_start(entry.value.start) + len(line) - 1


def is_filled(value: Any) -> bool:
    """True for a list or mapping with something in it."""
    return isinstance(value, (Mapping, list, tuple)) and len(value) > 0


def _ends_line(text: str) -> bool:
    return text.endswith(("\n", "\r", "\x85", "\u2028", "\u2029"))


def find(root: Node, path: tuple[str, ...]) -> tuple[Node, Entry]:
    """The entry at `path` and the collection it is in."""
    node, entry = root, None
    for part in path:
        if entry is not None:
            node = entry.value
        entry = node.entry(part)
        if entry is None:
            raise Unsafe(f"there is no {'.'.join(path)} here")
    if entry is None:
        raise Unsafe("the whole file cannot be edited as one value")
    return node, entry


def splices(page: Page, edit: Edit, values: Mapping[str, Any]) -> list[Splice]:
    """The replacements that make `edit`; `values` is what the text reads as."""
    if edit.op == "set":
        return _set(page, edit.path, edit.value)
    if edit.op == "rename":
        container, entry = find(page.root, edit.path)
        if container.kind != "mapping":
            raise Unsafe("an item of a list has no key")
        return [(entry.start, entry.key_end, _quoted_like(page, entry.start, edit.key) or page.key(edit.key))]
    if edit.op == "delete":
        return _delete(page, edit.path)
    return _insert(page, edit, values)


# --- set


def _set(page: Page, path: tuple[str, ...], value: Any) -> list[Splice]:
    container, entry = find(page.root, path)
    old, flat = entry.value, container.style == "flow"
    as_block = is_filled(value) and not flat and container.kind == "mapping" and not (old.inline and old.entries)
    if old.inline and not as_block:
        written = _quoted_like(page, old.start, value) if isinstance(value, str) else None
        return [(old.start, old.end, written or page.inline(value, old.start))]
    if container.kind == "mapping":
        sign = page.colon(entry)
    elif old.empty:
        sign = old.start
        if page.text[sign - 1 : sign] != "-":
            raise Unsafe("the item is not written")
    else:
        sign = page.dash(entry) + 1
    if flat:
        if not old.empty:
            raise Unsafe("a value inside of brackets")
        return [(sign, sign, f" {scalars.scalar(value)}")]
    # Behind the sign stand a value of one or several lines and a comment, or nothing and the value on the lines below.
    below = not old.empty and page.line_start(old.start) > page.line_start(sign)
    gone = [(sign, old.end, "")] if not old.empty else []
    rest = page.next_line(old.end)
    if below:
        first = page.line_start(old.start)
        if page.before(old.start).strip(" \t"):
            raise Unsafe("the value does not begin its line")
        gone, rest = [(first, rest, "")], first
    if not as_block:
        written = f" {scalars.scalar(value)}"
        return [(sign, old.end, written)] if gone and not below else [*gone, (sign, sign, written)]
    kind = "mapping" if isinstance(value, Mapping) else "list"
    lines = page.lines(value, len(page.before(entry.start)) + page.step(kind))
    if below:
        return [(gone[0][0], gone[0][1], page.newline.join(lines) + page.newline)]
    return [*gone, page.inserted(rest, lines)]


def _quoted_like(page: Page, at: int, value: str) -> str | None:
    """`value` in the quotes that stand at `at`; None where there are none or they cannot hold it."""
    quote = page.text[at : at + 1]
    if page.is_json or quote not in ("'", '"') or not (value.isprintable() and value.isascii()):
        return None
    if quote == "'":
        return "'" + value.replace("'", "''") + "'"
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'


# --- delete


def _delete(page: Page, path: tuple[str, ...]) -> list[Splice]:
    container, entry = find(page.root, path)
    if container.style == "flow":
        return _delete_flow(page, container, entry)
    start = entry.start if container.kind == "mapping" else page.dash(entry)
    end = page.next_line(entry.value.end)
    alone = len(container.entries) == 1
    if alone and len(path) > 1:
        return _set(page, path[:-1], {} if container.kind == "mapping" else [])
    if not page.before(start).strip(" \t"):
        return [(page.line_start(start), end, f"{{}}{page.newline}" if alone else "")]
    # The first of several on the line of a dash: `- a: 1`, and `b: 2` below it.
    position = container.entries.index(entry)
    if alone or position:
        raise Unsafe("it shares its line with something else")
    following = container.entries[1]
    begin = following.start if container.kind == "mapping" else page.dash(following)
    if page.text[end : page.line_start(begin)].strip():
        return [(start, page.line_end(entry.value.end), "")]  # comments stay between the dash and what follows
    return [(start, begin, "")]


def _brackets(page: Page, container: Node) -> None:
    if page.text[container.start] not in "{[":
        raise Unsafe("a pair without brackets, or an anchor before them")


def _comma(page: Page, at: int) -> int | None:
    """The offset of the comma behind `at`, if one comes next."""
    found = _GAP.match(page.text, at)
    after = found.end() if found else at
    return after if page.text[after : after + 1] == "," else None


def _delete_flow(page: Page, container: Node, entry: Entry) -> list[Splice]:
    _brackets(page, container)
    entries, end = container.entries, entry.value.end
    comma = _comma(page, end)
    if len(entries) == 1:
        inside = (container.start + 1, container.end - 1)
        around = page.text[inside[0] : entry.start] + page.text[end : inside[1]]
        if not around.replace(",", "").strip():
            return [(*inside, "")]
        return [(entry.start, comma + 1 if comma is not None else end, "")]
    if comma is not None:
        stop = comma + 1
        rest = page.text[stop : page.line_end(stop)]
        own_line = not page.before(entry.start).strip(" \t") and not rest.split("#")[0].strip(" \t")
        if own_line:
            return [(page.line_start(entry.start), page.next_line(stop), "")]
        return [(entry.start, stop + len(rest) - len(rest.lstrip(" \t")), "")]
    previous = entries[entries.index(entry) - 1]
    comma = _comma(page, previous.value.end)
    if comma is None:
        raise Unsafe("the comma before it was not found")
    line_end = page.line_end(end)
    rest = page.text[end:line_end]
    if not page.before(entry.start).strip(" \t") and not rest.split("#")[0].strip(" \t"):
        return [(comma, comma + 1, ""), (page.line_start(entry.start), page.next_line(end), "")]
    if page.text[comma + 1 : entry.start].strip():  # a comment stands between them
        return [(comma, comma + 1, ""), (entry.start, end, "")]
    return [(comma, end, "")]


# --- insert


def _insert(page: Page, edit: Edit, values: Mapping[str, Any]) -> list[Splice]:
    path, key, value = new_entry(edit, values)
    container = find(page.root, path)[1].value if path else page.root
    if container.kind == "scalar":  # null: new_entry has looked
        return _set(page, path, {key: value} if key else [value])
    if container.style == "flow":
        return _insert_flow(page, container, key, value)
    at, first = page.next_line(container.end), container.entries[0]
    if container.kind == "list":
        return [page.inserted(at, [f"{page.before(page.dash(first))}- {scalars.scalar(value)}"])]
    return [page.inserted(at, page.lines({key: value}, len(page.before(first.start))))]


def new_entry(edit: Edit, values: Mapping[str, Any]) -> tuple[tuple[str, ...], str, Any]:
    """Where an insertion really goes: the nearest collection that is there, the new key in it, and its value."""
    here: Any = values
    for depth, part in enumerate(edit.path):
        below = here.get(part) if isinstance(here, Mapping) else None
        if isinstance(here, list) and part.isdecimal() and int(part) < len(here):
            below = here[int(part)]
        elif here is not None and not isinstance(here, Mapping):
            raise Unsafe(f"{'.'.join(edit.path[:depth])} is not a mapping")
        if below is None and not (isinstance(here, Mapping) and part in here):
            value: Any = {edit.key: edit.value} if edit.key else [edit.value]
            for missing in reversed(edit.path[depth + 1 :]):
                value = {missing: value}
            return edit.path[:depth], part, value
        here = below
    if here is None or (isinstance(here, list) and not edit.key) or (isinstance(here, Mapping) and edit.key):
        if here and edit.key and edit.key in here:
            raise Unsafe(f"{edit.key} stands there already")
        return edit.path, edit.key, edit.value
    raise Unsafe(f"{'.'.join(edit.path) or 'the file'} is not a {'mapping' if edit.key else 'list'}")


def _insert_flow(page: Page, container: Node, key: str, value: Any) -> list[Splice]:
    _brackets(page, container)
    start = container.start + 1

    def element(at: int) -> str:
        written = page.inline(value, at)
        return f"{page.key(key)}: {written}" if key else written

    if not container.entries:
        return [(start, start, element(start))]
    last = container.entries[-1]
    end = last.value.end
    comma = _comma(page, end)
    behind = end if comma is None else comma + 1
    before, after = ("," if comma is None else ""), ("" if comma is None else ",")
    line_end = page.line_end(behind)
    if page.before(last.start).strip(" \t"):
        return [(behind, behind, f"{before} {element(last.start)}{after}")]
    new_line = f"{page.newline}{page.before(last.start)}{element(last.start)}{after}"
    if page.text[behind:line_end].split("#")[0].strip(" \t"):
        return [(behind, behind, before + new_line)]
    if line_end == behind:
        return [(behind, behind, before + new_line)]
    return [(behind, behind, before), (line_end, line_end, new_line)]  # a comment stays with what it is about
