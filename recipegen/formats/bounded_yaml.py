"""YAML that a person wrote: read safely, within bounds, and with the line of every key."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import yaml

from recipegen.spec import RecipegenError

MAX_BYTES = 2**20
MAX_DEPTH = 20


@dataclass(frozen=True)
class Located:
    """A loaded value and the lines (from 1) of its keys, by path of keys and list positions."""

    value: Any
    lines: dict[tuple[str, ...], int] = field(default_factory=dict)

    def line(self, *path: str) -> int:
        """The line of a key, or of the nearest key above it."""
        while path and path not in self.lines:
            path = path[:-1]
        return self.lines.get(path, 1)


def load(content: bytes, name: str) -> Located:
    """One YAML document. Raises RecipegenError with `name` and the line.

    Refuses what configuration does not need and an attacker does: aliases (they multiply), tags that build objects,
    repeated keys, deep nesting, more than 1 MiB.
    """
    if len(content) > MAX_BYTES:
        raise RecipegenError(f"{len(content)} bytes; at most {MAX_BYTES} are read", where=name)
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise RecipegenError(f"not UTF-8: {error.reason} at byte {error.start}", where=name) from None
    try:
        _refuse_aliases(text, name)
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        lines: dict[tuple[str, ...], int] = {}
        if node is not None:
            _walk(node, (), lines, name)
        return Located(yaml.safe_load(text), lines)
    except yaml.MarkedYAMLError as error:
        where = f"{name}:{_line(error.problem_mark)}"
        raise RecipegenError(f"not valid YAML: {error.problem}", where=where) from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise RecipegenError(f"not valid YAML: {error}", where=name) from None


def _line(mark: Any) -> int:
    """The line of a mark, from 1; PyYAML's marks count from 0 and may be absent."""
    return 1 if mark is None else int(mark.line) + 1


def _refuse_aliases(text: str, name: str) -> None:
    """Before anything is built: an alias of an alias is how a small file becomes a large one."""
    depth = 0
    for event in yaml.parse(text, Loader=yaml.SafeLoader):
        if isinstance(event, yaml.AliasEvent):
            raise RecipegenError("aliases (*name) are not read here", where=f"{name}:{_line(event.start_mark)}")
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        if depth > MAX_DEPTH:
            raise RecipegenError(f"nested deeper than {MAX_DEPTH}", where=f"{name}:{_line(event.start_mark)}")


def _walk(node: yaml.Node, path: tuple[str, ...], lines: dict[tuple[str, ...], int], name: str) -> None:
    if isinstance(node, yaml.MappingNode):
        seen: set[str] = set()
        for key, value in node.value:
            line = _line(key.start_mark)
            if not isinstance(key, yaml.ScalarNode):
                raise RecipegenError("a key must be a single value", where=f"{name}:{line}")
            if key.value in seen:
                raise RecipegenError(f"the key {key.value} appears twice", where=f"{name}:{line}")
            seen.add(key.value)
            inner = (*path, key.value)
            lines[inner] = line
            _walk(value, inner, lines, name)
    elif isinstance(node, yaml.SequenceNode):
        for position, item in enumerate(node.value):
            inner = (*path, str(position))
            lines[inner] = _line(item.start_mark)
            _walk(item, inner, lines, name)
