"""A YAML file somebody else wrote, read without trust: bounded, no aliases, no duplicate keys, a line for every key."""

from __future__ import annotations

import os
import stat
from collections.abc import Hashable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from recipegen.spec import RecipegenError

MAX_BYTES = 64 * 1024
MAX_DEPTH = 12
MAX_NODES = 4096
MAX_SHOWN = 60  # characters of a value that an error repeats

SafeLoader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
KeyPath = tuple[str | int, ...]


@dataclass(frozen=True)
class Document:
    """The mapping a file holds, and where each of its keys stands."""

    path: str
    values: dict[str, Any]
    lines: dict[KeyPath, int]  # (key, key or index, ...) -> line, counted from 1

    def where(self, *key_path: str | int) -> str:
        """`file.yaml:7` of the innermost known part of `key_path`."""
        for length in range(len(key_path), -1, -1):
            line = self.lines.get(tuple(key_path[:length]))
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
    """Read the YAML mapping in `path`; `what` names the kind of file in errors (`a hardware profile`).

    Raises RecipegenError, with the line where there is one, for: no such file, not a regular file, larger than
    MAX_BYTES, not UTF-8, broken YAML, several documents, aliases, merge keys, tags, duplicate or non-text keys, too
    deep or too many values, anything but a mapping at the top.
    """
    place = shown_path(path)
    text = _read_text(path, place, what)
    try:
        _check_events(text, place)
        node = yaml.compose(text, Loader=SafeLoader)
        if not isinstance(node, yaml.MappingNode):
            raise RecipegenError(f"{what} is a mapping of keys to values", where=place)
        lines: dict[KeyPath, int] = {}
        _collect_lines(node, (), lines, place)
        values = yaml.load(text, Loader=SafeLoader)  # noqa: S506 (it is a safe loader)
    except yaml.MarkedYAMLError as error:
        mark: Any = error.problem_mark or error.context_mark
        where = f"{place}:{mark.line + 1}" if mark else place
        raise RecipegenError(f"not valid YAML: {error.problem or error.context}", where=where) from None
    except yaml.YAMLError as error:
        raise RecipegenError(f"not valid YAML: {error}", where=place) from None
    except (ValueError, OverflowError, RecursionError) as error:  # e.g. the date 2020-99-99
        raise RecipegenError(f"a value cannot be read: {error}", where=place) from None
    return Document(place, values, lines)


def _read_text(path: str | Path, place: str, what: str) -> str:
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            raise RecipegenError(f"{what} must be a regular file", where=place)
        with open(path, "rb") as file:
            data = file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
        raise RecipegenError(f"cannot read {what}: {reason}", where=place) from None
    if len(data) > MAX_BYTES:
        raise RecipegenError(f"{what} is larger than {MAX_BYTES // 1024} KiB", where=place)
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise RecipegenError(f"{what} is not UTF-8 text (byte {error.start})", where=place) from None


def _check_events(text: str, place: str) -> None:
    """Refuse what would make composing or constructing expensive. Events are read one by one, without recursion."""
    depth = nodes = documents = 0
    for event in yaml.parse(text, Loader=SafeLoader):
        mark: Any = event.start_mark
        where = f"{place}:{mark.line + 1}"
        if isinstance(event, yaml.AliasEvent):
            raise RecipegenError("aliases (*name) are not allowed here; write the value out", where=where)
        if isinstance(event, yaml.DocumentStartEvent):
            documents += 1
            if documents > 1:
                raise RecipegenError("more than one YAML document", where=where)
        if isinstance(event, yaml.NodeEvent):
            nodes += 1
            if nodes > MAX_NODES:
                raise RecipegenError(f"more than {MAX_NODES} values", where=where)
            tag = getattr(event, "tag", None)
            if tag is not None and tag != "!":
                raise RecipegenError(f"tags are not allowed here: {shown(tag)}", where=where)
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth > MAX_DEPTH:
                raise RecipegenError(f"nested deeper than {MAX_DEPTH} levels", where=where)
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1


def _line(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1 if node.start_mark is not None else 1


def _collect_lines(node: yaml.Node, path: KeyPath, lines: dict[KeyPath, int], place: str) -> None:
    lines.setdefault(path, _line(node))
    if isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            _collect_lines(item, (*path, index), lines, place)
    if not isinstance(node, yaml.MappingNode):
        return
    seen: set[Hashable] = set()
    for key_node, value_node in node.value:
        where = f"{place}:{_line(key_node)}"
        if not isinstance(key_node, yaml.ScalarNode) or key_node.tag != "tag:yaml.org,2002:str":
            raise RecipegenError("a key is not plain text; put it in quotes", where=where)
        key = key_node.value
        if key in seen:
            raise RecipegenError(f"the key {shown(key)} stands twice", where=where)
        seen.add(key)
        inner = (*path, key)
        lines[inner] = _line(key_node)
        _collect_lines(value_node, inner, lines, place)
