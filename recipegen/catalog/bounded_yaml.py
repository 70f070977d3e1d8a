"""A YAML file somebody else wrote, read without trust: bounded, no duplicate keys, a line for every key.

Aliases are refused, or allowed within the same bounds: what they stand for counts as if it were written out.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from recipegen.spec import RecipegenError

MAX_SHOWN = 60  # characters of a value that an error repeats
MAX_NUMBER = 400  # characters of a number; a float ends at 309 digits, and Python reads 1:59:59:... in quadratic time

SafeLoader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
KeyPath = tuple[str, ...]
_OCTAL = re.compile(r"[-+]?0[0-9_]+")
_NUMBERS = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")
_MERGE = "tag:yaml.org,2002:merge"


@dataclass(frozen=True)
class Limits:
    """The largest file, the deepest nesting and the most values that are read."""

    size_bytes: int
    depth: int
    nodes: int


SMALL = Limits(64 * 1024, 12, 4096)  # a profile
LARGE = Limits(2**20, 20, 100_000)  # a recipe's files


@dataclass(frozen=True)
class Document:
    """The mapping a file holds, and where each of its keys stands."""

    path: str
    values: dict[str, Any]
    lines: dict[KeyPath, int]  # (key, key or index as text, ...) -> line, counted from 1

    def where(self, *key_path: str | int) -> str:
        """`file.yaml:7` of the innermost known part of `key_path`."""
        keys = tuple(str(key) for key in key_path)
        for length in range(len(keys), -1, -1):
            line = self.lines.get(keys[:length])
            if line is not None:
                return f"{self.path}:{line}"
        return self.path


def shown(value: object) -> str:
    """`value` for an error message: one line, no control characters, not longer than MAX_SHOWN."""
    try:
        text = str(value) if isinstance(value, (Path, bool)) or value is None else repr(value)
    except ValueError:  # Python refuses to print an int of thousands of digits
        text = f"a number of {type(value).__name__} too long to print"
    text = "".join(character if character.isprintable() else "?" for character in " ".join(text.split()))
    return text if len(text) <= MAX_SHOWN else text[: MAX_SHOWN - 3] + "..."


def shown_path(path: str | Path) -> str:
    """A path for an error message: as it is, but on one line."""
    return "".join(character if character.isprintable() else "?" for character in str(path))


def read_mapping(path: str | Path, *, what: str) -> Document:
    """`parse` of the file at `path`, within SMALL. Raises RecipegenError also for no such or not a regular file."""
    place = shown_path(path)
    return parse(_read_bytes(path, place, what), place, what=what, limits=SMALL)


def parse(
    content: bytes, place: str, *, what: str = "this file", limits: Limits = LARGE, aliases: bool = False
) -> Document:
    """The YAML mapping in `content`; `place` is its name and `what` the kind of file in errors (`a hardware profile`).

    Raises RecipegenError, with the line where there is one, for: larger than the limits, not UTF-8, broken YAML,
    several documents, aliases and merge keys (unless `aliases`), tags, duplicate or non-text keys, whole numbers with a
    leading zero (octal in YAML 1.1), too deep or too many values, anything but a mapping at the top.

    With `aliases` their values are values of their own, and `<<` merges as in PyYAML: a key that is written out wins,
    then the first mapping of a list. Such values have the lines of their anchor.
    """
    text = _text(content, place, what, limits)
    try:
        shared = _check_events(text, place, limits, aliases)
        node = yaml.compose(text, Loader=SafeLoader)
        if not isinstance(node, yaml.MappingNode):
            raise RecipegenError(f"{what} is a mapping of keys to values", where=place)
        lines: dict[KeyPath, int] = {}
        _collect_lines(node, (), lines, place, aliases)
        values = yaml.load(text, Loader=SafeLoader)  # noqa: S506 (it is a safe loader)
        if shared:
            values = _unshared(values)
    except yaml.MarkedYAMLError as error:
        mark: Any = error.problem_mark or error.context_mark
        where = f"{place}:{mark.line + 1}" if mark else place
        raise RecipegenError(f"not valid YAML: {error.problem or error.context}", where=where) from None
    except yaml.YAMLError as error:
        raise RecipegenError(f"not valid YAML: {error}", where=place) from None
    except (ValueError, OverflowError, RecursionError) as error:  # e.g. the date 2020-99-99
        raise RecipegenError(f"a value cannot be read: {error}", where=place) from None
    return Document(place, values, lines)


def _read_bytes(path: str | Path, place: str, what: str) -> bytes:
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            raise RecipegenError(f"{what} must be a regular file", where=place)
        with open(path, "rb") as file:
            return file.read(SMALL.size_bytes + 1)
    except (OSError, ValueError) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
        raise RecipegenError(f"cannot read {what}: {reason}", where=place) from None


def _text(content: bytes, place: str, what: str, limits: Limits) -> str:
    if len(content) > limits.size_bytes:
        raise RecipegenError(f"{what} is larger than {limits.size_bytes // 1024} KiB", where=place)
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise RecipegenError(f"{what} is not UTF-8 text (byte {error.start})", where=place) from None


@dataclass
class _Open:
    """A collection whose end has not come yet, or a finished value: its anchor, values in it, levels below it."""

    anchor: str | None
    before: int
    levels: int = 0


def _check_events(text: str, place: str, limits: Limits, aliases: bool) -> bool:
    """Refuse what would make composing or constructing expensive; say whether there are aliases. Events are read one by
    one, without recursion, and an alias counts as all that it stands for."""
    depth = nodes = documents = 0
    open_ones: list[_Open] = []
    anchors: dict[str, tuple[int, int] | None] = {}  # name -> (values, levels); None while it is open
    shared = False

    def finished(anchor: str | None, values: int, levels: int) -> None:
        if anchor is not None:
            anchors[anchor] = (values, levels)
        if open_ones:
            open_ones[-1].levels = max(open_ones[-1].levels, levels)

    for event in yaml.parse(text, Loader=SafeLoader):
        mark: Any = event.start_mark
        where = f"{place}:{mark.line + 1}"
        if isinstance(event, yaml.AliasEvent):
            if not aliases:
                raise RecipegenError("aliases (*name) are not allowed here; write the value out", where=where)
            meant = anchors.get(str(event.anchor), (1, 0))  # one that is not there is found while composing
            if meant is None:
                raise RecipegenError(f"{shown(event.anchor)} is inside of what it stands for", where=where)
            shared, nodes = True, nodes + meant[0]
            if nodes > limits.nodes:
                raise RecipegenError(f"more than {limits.nodes} values, with what aliases stand for", where=where)
            if depth + meant[1] > limits.depth:
                raise RecipegenError(f"nested deeper than {limits.depth} levels, with aliases", where=where)
            finished(None, *meant)
            continue
        if isinstance(event, yaml.DocumentStartEvent):
            documents += 1
            if documents > 1:
                raise RecipegenError("more than one YAML document", where=where)
        if isinstance(event, yaml.NodeEvent):
            nodes += 1
            if nodes > limits.nodes:
                raise RecipegenError(f"more than {limits.nodes} values", where=where)
            tag = getattr(event, "tag", None)
            if tag is not None and tag != "!":
                raise RecipegenError(f"tags are not allowed here: {shown(tag)}", where=where)
        if isinstance(event, yaml.ScalarEvent):
            finished(event.anchor, 1, 0)
        elif isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth > limits.depth:
                raise RecipegenError(f"nested deeper than {limits.depth} levels", where=where)
            open_ones.append(_Open(event.anchor, nodes))
            if event.anchor is not None:
                anchors[event.anchor] = None
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
            ended = open_ones.pop()
            finished(ended.anchor, nodes - ended.before + 1, ended.levels + 1)
    return shared


def _unshared(value: Any) -> Any:
    """The same with every list and mapping an object of its own: whoever changes one changes no other."""
    if isinstance(value, dict):
        return {key: _unshared(item) for key, item in value.items()}
    return [_unshared(item) for item in value] if isinstance(value, list) else value


def _line(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1 if node.start_mark is not None else 1


def _collect_lines(node: yaml.Node, path: KeyPath, lines: dict[KeyPath, int], place: str, merges: bool) -> None:
    lines.setdefault(path, _line(node))
    if isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            _collect_lines(item, (*path, str(index)), lines, place, merges)
    if isinstance(node, yaml.ScalarNode):
        _refuse_long(node, place)
        _refuse_octal(node, place)
    if not isinstance(node, yaml.MappingNode):
        return
    for key_node, value_node in _pairs(node, place, merges):
        inner = (*path, key_node.value)
        lines[inner] = _line(key_node)
        _collect_lines(value_node, inner, lines, place, merges)


def _pairs(node: yaml.MappingNode, place: str, merges: bool) -> Iterator[tuple[yaml.ScalarNode, yaml.Node]]:
    """The keys and values of a mapping, then those of the mappings that it merges where none of these has the key."""
    seen: set[Hashable] = set()
    merged: list[yaml.Node] = []
    for key_node, value_node in node.value:
        where = f"{place}:{_line(key_node)}"
        if merges and key_node.tag == _MERGE:
            merged[:0] = value_node.value if isinstance(value_node, yaml.SequenceNode) else [value_node]
            continue
        if not isinstance(key_node, yaml.ScalarNode) or key_node.tag != "tag:yaml.org,2002:str":
            raise RecipegenError("a key is not plain text; put it in quotes", where=where)
        if key_node.value in seen:
            raise RecipegenError(f"the key {shown(key_node.value)} stands twice", where=where)
        seen.add(key_node.value)
        yield key_node, value_node
    for other in merged:
        if not isinstance(other, yaml.MappingNode):
            raise RecipegenError("<< merges mappings, and this is none", where=f"{place}:{_line(node)}")
        for key_node, value_node in _pairs(other, place, merges):
            if key_node.value not in seen:
                seen.add(key_node.value)
                yield key_node, value_node


def _refuse_long(node: yaml.ScalarNode, place: str) -> None:
    if node.tag in _NUMBERS and len(node.value) > MAX_NUMBER:
        raise RecipegenError(f"a number of {len(node.value)} characters", where=f"{place}:{_line(node)}")


def _refuse_octal(node: yaml.ScalarNode, place: str) -> None:
    """010 is 8 to YAML 1.1 and 10 to whoever wrote it."""
    if node.tag != "tag:yaml.org,2002:int" or not _OCTAL.fullmatch(node.value):
        return
    plain = node.value.replace("_", "").lstrip("+")
    sign, digits = ("-", plain[1:]) if plain.startswith("-") else ("", plain)
    raise RecipegenError(
        f"{shown(node.value)[1:-1]} starts with 0, which YAML reads as an octal number",
        where=f"{place}:{_line(node)}",
        fix=f"Write {sign}{digits.lstrip('0')[:MAX_SHOWN] or '0'}, or put it in quotes if it is text.",
    )
