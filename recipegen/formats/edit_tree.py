"""Where the keys and values of a YAML or JSON file stand in its text, for edits that leave the rest untouched.

Only for text that formats/documents.py has read without complaint: no aliases, tags or repeated keys, bounded depth.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

import yaml

from recipegen.catalog.bounded_yaml import SafeLoader

# All that ends a line in YAML 1.1. In JSON only the first two can stand outside of a text, where lines matter.
LINE_BREAK = re.compile("\r\n|[\n\r\x85\u2028\u2029]")
_JSON_TOKEN = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"|[\[\]{},:]|[^\s"\[\]{},:]+')


@dataclass(frozen=True)
class Node:
    """A value. `start` and `end` are offsets; a value that is not written (`key:`) is empty, behind its sign."""

    kind: str  # scalar, mapping or list
    start: int
    end: int  # behind its last character; comments and blank lines after it are not part of it
    style: str = ""  # of scalars: "'", '"', "|", ">" or nothing; of the others "flow" or "block"
    entries: tuple[Entry, ...] = ()

    @property
    def empty(self) -> bool:
        return self.start == self.end

    @property
    def inline(self) -> bool:
        """True for what may stand behind its key as it is, and be replaced there."""
        return not self.empty and self.style not in ("|", ">", "block")

    def entry(self, key: str) -> Entry | None:
        return next((entry for entry in self.entries if entry.key == key), None)


@dataclass(frozen=True)
class Entry:
    """A key and its value, or an item of a list with its position as key; an item's key stands where its value does."""

    key: str
    start: int
    key_end: int
    value: Node


def tree(text: str, *, is_json: bool) -> Node:
    """The mapping at the top of `text`."""
    if is_json:
        return _json_value([*_JSON_TOKEN.finditer(text)][::-1])
    return _yaml_value(yaml.compose(text, Loader=SafeLoader), text)


# --- YAML


def _yaml_value(node: Any, text: str) -> Node:
    start, end = int(node.start_mark.index), int(node.end_mark.index)
    if isinstance(node, yaml.ScalarNode):
        if start == end:
            start = end = len(text[:start].rstrip(" \t"))
        elif node.style in ("|", ">"):
            end = _block_scalar_end(text, start, end)
        return Node("scalar", start, end, node.style or "")
    kind = "mapping" if isinstance(node, yaml.MappingNode) else "list"
    entries: list[Entry] = []
    if kind == "mapping":
        for key, value in node.value:
            found = _yaml_value(value, text)
            entries.append(Entry(str(key.value), int(key.start_mark.index), int(key.end_mark.index), found))
    else:
        for index, item in enumerate(node.value):
            found = _yaml_value(item, text)
            entries.append(Entry(str(index), found.start, found.start, found))
    if node.flow_style:
        return Node(kind, start, end, "flow", tuple(entries))
    return Node(kind, start, entries[-1].value.end, "block", tuple(entries))


def _block_scalar_end(text: str, start: int, end: int) -> int:
    """Blank lines behind a block scalar are its content only where its head says `+`."""
    head = LINE_BREAK.split(text[start:end], maxsplit=1)[0].split("#", 1)[0]
    return end if "+" in head else start + len(text[start:end].rstrip())


# --- JSON


def _json_value(tokens: list[re.Match[str]]) -> Node:
    """The next value; `tokens` is reversed, and what was read is taken off its end."""
    token = tokens.pop()
    if token[0] not in ("{", "["):
        return Node("scalar", token.start(), token.end(), '"' if token[0].startswith('"') else "")
    is_map, entries = token[0] == "{", list[Entry]()
    while tokens[-1][0] not in ("}", "]"):
        if tokens[-1][0] == ",":
            tokens.pop()
        key = tokens[-1]
        if is_map:
            del tokens[-2:]  # the key and its colon
        value = _json_value(tokens)
        name = json.loads(key[0]) if is_map else str(len(entries))
        entries.append(Entry(name, key.start(), key.end() if is_map else key.start(), value))
    end = tokens.pop().end()
    return Node("mapping" if is_map else "list", token.start(), end, "flow", tuple(entries))
