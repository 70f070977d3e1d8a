"""A recipe's file as values and lines, or as the finding that says why it cannot be read."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import yaml

from recipegen.catalog import bounded_yaml
from recipegen.check.registry import finding
from recipegen.spec import Finding, RecipegenError, Severity


@dataclass(frozen=True)
class Document:
    """`values` is None when the file cannot be read; `problems` then says why."""

    name: str
    values: Mapping[str, Any] | None
    lines: Mapping[tuple[str, ...], int] = field(default_factory=dict)
    problems: tuple[Finding, ...] = ()

    def where(self, path: tuple[str, ...]) -> str:
        """`axolotl.yaml:7`, the line of the nearest key."""
        while path and path not in self.lines:
            path = path[:-1]
        return f"{self.name}:{self.lines[path]}" if path in self.lines else self.name


def read_yaml(content: bytes, name: str) -> Document:
    """A YAML mapping, bounded; see catalog/bounded_yaml.py for what is refused."""
    try:
        located = bounded_yaml.parse(content, name)
    except RecipegenError as error:
        return _unreadable(name, str(error))
    return Document(name, located.values, {tuple(map(str, path)): line for path, line in located.lines.items()})


def read_json(content: bytes, name: str) -> Document:
    """A JSON object; repeated keys, NaN and Infinity are refused."""
    if len(content) > bounded_yaml.LARGE.size_bytes:
        return _unreadable(name, f"{name}: {len(content)} bytes; at most {bounded_yaml.LARGE.size_bytes} are read")
    try:
        text = content.decode("utf-8-sig")
        values = json.loads(text, object_pairs_hook=_without_repeats, parse_constant=_refuse_constant)
    except json.JSONDecodeError as error:
        return _unreadable(name, f"{name}:{error.lineno}: not valid JSON: {error.msg}")
    except (ValueError, RecursionError) as error:
        return _unreadable(name, f"{name}: not valid JSON: {error}")
    if not isinstance(values, dict):
        return _unreadable(name, f"{name}: not a JSON object")
    return Document(name, values, _json_lines(text))


def _unreadable(name: str, message: str) -> Document:
    where, _, reason = message.partition(": ")
    problem = finding("RG706", Severity.ERROR, reason or message, where=where if reason else name)
    return Document(name, None, problems=(problem,))


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"the key {key!r} stands twice")
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError(f"{key} is not a finite number")
        found[key] = value
    return found


def _refuse_constant(word: str) -> None:
    raise ValueError(f"{word} is not a number of JSON")


def _json_lines(text: str) -> dict[tuple[str, ...], int]:
    """Lines of the keys. JSON is YAML but for tabs between values, which YAML refuses."""
    lines: dict[tuple[str, ...], int] = {}

    def visit(node: yaml.Node, path: tuple[str, ...]) -> None:
        if isinstance(node, yaml.MappingNode):
            for key, value in node.value:
                here = (*path, str(key.value))
                lines[here] = key.start_mark.line + 1
                visit(value, here)
        elif isinstance(node, yaml.SequenceNode):
            for index, item in enumerate(node.value):
                here = (*path, str(index))
                lines[here] = item.start_mark.line + 1
                visit(item, here)

    try:
        node = yaml.compose(text.replace("\t", " "), Loader=yaml.SafeLoader)
        if node is not None:
            visit(node, ())
    except (yaml.YAMLError, RecursionError):
        return {}  # values are read all the same; only the line numbers are missing
    return lines
