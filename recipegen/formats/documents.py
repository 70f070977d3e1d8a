"""A YAML or JSON file that somebody else wrote, as values and lines, or as the problem that says why it cannot be read.

Both readers are bounded alike (catalog/bounded_yaml.py: 1 MiB, 20 levels, 100,000 values with what aliases stand for),
so whoever walks what they return may recurse. Nothing in a file raises. Anchors, aliases and merge keys (`<<`) are read
as the trainers read them.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from recipegen.catalog import bounded_yaml
from recipegen.formats.reading import Problem
from recipegen.spec import RecipegenError

LIMITS = bounded_yaml.LARGE
KeyPath = tuple[str, ...]
# What valid JSON is made of, as far as lines are concerned: texts, signs, other words, ends of lines.
_TOKEN = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"|[\[\]{},:]|[^\s"\[\]{},:]+|\n')


@dataclass(frozen=True)
class Document:
    """`values` is None when the file cannot be read; `problem` then says why."""

    name: str
    values: Mapping[str, Any] | None
    lines: Mapping[KeyPath, int] = field(default_factory=dict)  # (key, key or index as text, ...) -> line, from 1
    problem: Problem | None = None

    def where(self, path: KeyPath) -> str:
        """`axolotl.yaml:7`, the line of the nearest key."""
        while path and path not in self.lines:
            path = path[:-1]
        return f"{self.name}:{self.lines[path]}" if path in self.lines else self.name

    def inner(self, key: str) -> Document:
        """The mapping under a top-level key as a document of its own, with the lines of this file."""
        found = (self.values or {}).get(key)
        lines = {path[1:]: line for path, line in self.lines.items() if path[:1] == (key,)}
        return Document(self.name, found if isinstance(found, Mapping) else {}, lines)


def read(content: bytes, name: str, *, aliases: bool = True) -> Document:
    """JSON for a name that ends in `.json`, else YAML: as Accelerate and Transformers choose."""
    return read_json(content, name) if name.endswith(".json") else read_yaml(content, name, aliases=aliases)


def read_yaml(content: bytes, name: str, *, aliases: bool = True) -> Document:
    """A YAML mapping, bounded; see catalog/bounded_yaml.py for what is refused."""
    try:
        located = bounded_yaml.parse(content, name, limits=LIMITS, aliases=aliases)
    except RecipegenError as error:
        return _unreadable(name, str(error))
    if not all(map(_encodable, _texts(located.values))):
        return _unreadable(name, f"{name}: a text holds half of a character (an unpaired surrogate)")
    return Document(name, located.values, {tuple(map(str, path)): line for path, line in located.lines.items()})


def read_json(content: bytes, name: str) -> Document:
    """A JSON object; repeated keys, NaN, Infinity and numbers beyond a float are refused."""
    if len(content) > LIMITS.size_bytes:
        return _unreadable(name, f"{name}: {len(content)} bytes; at most {LIMITS.size_bytes} are read")
    try:
        text = content.decode("utf-8-sig")
        values = json.loads(
            text,
            object_pairs_hook=_without_repeats,
            parse_constant=_refuse_constant,
            parse_float=_finite,
            parse_int=_short,
        )
        _check_size(values)
    except json.JSONDecodeError as error:
        return _unreadable(name, f"{name}:{error.lineno}: not valid JSON: {error.msg}")
    except UnicodeDecodeError as error:
        return _unreadable(name, f"{name}: not UTF-8 text (byte {error.start})")
    except RecursionError:
        return _unreadable(name, f"{name}: nested deeper than {LIMITS.depth} levels")
    except ValueError as error:
        return _unreadable(name, f"{name}: not valid JSON: {error}")
    if not isinstance(values, dict):
        return _unreadable(name, f"{name}: not a JSON object")
    if not all(map(_encodable, _texts(values))):
        return _unreadable(name, f"{name}: a text holds half of a character (an unpaired surrogate)")
    return Document(name, values, _json_lines(text))


def _unreadable(name: str, message: str) -> Document:
    rest = message.removeprefix(name)
    line, separator, reason = rest.partition(": ")
    where, reason = (name + line, reason) if separator and re.fullmatch(r"(:\d+)?", line) else (name, message)
    return Document(name, None, problem=Problem("", where, reason))


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"the key {bounded_yaml.shown(key)} stands twice")
        found[key] = value
    return found


def _refuse_constant(word: str) -> None:
    raise ValueError(f"{word} is not a number of JSON")


def _short(word: str) -> int:
    if len(word) > bounded_yaml.MAX_NUMBER:
        raise ValueError(f"a number of {len(word)} characters")
    return int(word)


def _finite(word: str) -> float:
    value = float(word)
    if not math.isfinite(value):
        raise ValueError(f"{bounded_yaml.shown(word)} is larger than a number can be")
    return value


def _check_size(value: Any) -> None:
    """Refuse what is deeper or larger than YAML may be. Without recursion: the value is not trusted yet."""
    nodes, waiting = 0, [(value, 1)]
    while waiting:
        item, depth = waiting.pop()
        nodes += 1
        if nodes > LIMITS.nodes:
            raise ValueError(f"more than {LIMITS.nodes} values")
        if not isinstance(item, (dict, list)):
            continue
        if depth > LIMITS.depth:
            raise ValueError(f"nested deeper than {LIMITS.depth} levels")
        if isinstance(item, dict):
            nodes += len(item)
        waiting += [(inner, depth + 1) for inner in (item.values() if isinstance(item, dict) else item)]


def _texts(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    if isinstance(value, dict):
        return [text for key, item in value.items() for text in (key, *_texts(item))]
    return [text for item in value for text in _texts(item)] if isinstance(value, list) else []


def _encodable(text: str) -> bool:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _json_lines(text: str) -> dict[KeyPath, int]:
    """Lines of the keys and list items of valid JSON."""
    lines: dict[KeyPath, int] = {}
    path: list[Any] = []  # of each open object its current key, of each open list its current index
    is_list: list[bool] = []
    line, at_key = 1, False
    for sign in _TOKEN.findall(text):
        if sign == "\n":
            line += 1
        elif sign in "}]":
            path.pop()
            is_list.pop()
            at_key = False
        elif sign == ":":
            at_key = False
        elif sign == ",":
            if is_list[-1]:
                path[-1] += 1
            at_key = not is_list[-1]
        elif at_key:
            path[-1] = json.loads(sign)
            lines[tuple(map(str, path))] = line
        else:
            if is_list and is_list[-1]:
                lines[tuple(map(str, path))] = line
            if sign in "{[":
                is_list.append(sign == "[")
                path.append(0 if sign == "[" else "")
                at_key = sign == "{"
    return lines
