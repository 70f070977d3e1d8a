"""Changes of a YAML or JSON file by key, in its text: comments, order, quotes, indentation, line ends, a byte order
mark and a missing last newline stay as their author wrote them.

The text is changed by the places PyYAML gives for every node, and read again after every edit: a change that would
leave a file that no longer reads, or any other value than the edited one different, is refused.
"""

from __future__ import annotations

import copy
import difflib
from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Any

import yaml

from recipegen.catalog.bounded_yaml import MAX_SHOWN, shown
from recipegen.formats import documents
from recipegen.formats.documents import Document
from recipegen.formats.edit_text import Page, Unsafe, new_entry, newline_of, spliced, splices
from recipegen.formats.edit_tree import tree
from recipegen.formats.scalars import one_line
from recipegen.spec import Edit, RecipegenError

MAX_EDITS = 200  # of one file at once: each costs a reading of the file,
MAX_WORK = 4 * 2**20  # and so many bytes are read in all (2 s a MiB and edit); one edit is always made
MAX_REASON = 300  # characters of what an error repeats
_BOM = b"\xef\xbb\xbf"


def apply(content: bytes, name: str, edits: Iterable[Edit]) -> bytes:
    """`content` after the edits, each made on the result of the one before; `name` decides between JSON and YAML.

    Raises RecipegenError with file and line, and changes nothing, when the file cannot be read or an edit cannot be
    made safely: no such key, a key that is there already, `? key` notation, a text that reads back differently; and
    for a file with aliases, where one place of the text is several of the values.
    """
    edits = tuple(edits)
    most = min(MAX_EDITS, max(1, MAX_WORK // max(1, len(content))))
    if len(edits) > most:
        raise RecipegenError(f"{len(edits)} edits of one file; at most {most} are made at once", where=name)
    document = documents.read(content, name, aliases=False)
    if document.values is None:
        reason, where = (document.problem.reason, document.problem.where) if document.problem else ("not read", name)
        raise RecipegenError(reason, where=where)
    mark = _BOM if content.startswith(_BOM) else b""
    text = content.removeprefix(_BOM).decode("utf-8")
    newline = newline_of(text)
    for edit in edits:
        if edit.file != name:
            raise RecipegenError(f"an edit of {shown(edit.file)} is none of this file", where=name)
        text, document = _edited(text, document, edit, newline)
    return mark + text.encode("utf-8")


def _edited(text: str, document: Document, edit: Edit, newline: str) -> tuple[str, Document]:
    name, is_json, values = document.name, document.name.endswith(".json"), document.values or {}
    what = f"{edit.op} {one_line('.'.join(filter(None, (*edit.path, edit.key))))[:MAX_SHOWN]}"
    where = document.where(edit.path)
    try:
        expected = edited(values, edit)
        page = Page(text, tree(text, is_json=is_json), is_json, newline)
        changed = spliced(text, splices(page, edit, values))
        for candidate in _endings(text, changed):
            reread = documents.read(candidate.encode("utf-8"), name, aliases=False)
            if reread.values is not None and same(reread.values, expected):
                return candidate, reread
    except (Unsafe, RecipegenError, ValueError, TypeError, RecursionError, yaml.YAMLError) as error:
        raise RecipegenError(f"cannot {what}: {one_line(error)[:MAX_REASON]}", where=where) from None
    raise RecipegenError(f"cannot {what} without changing something else", where=where, fix="Edit it by hand.")


def _endings(old: str, new: str) -> list[str]:
    """The text as it is, and first without its last line end where the file had none."""
    bare = new.removesuffix("\n").removesuffix("\r")
    return [bare, new] if bare != new and not old.endswith(("\n", "\r")) else [new]


# --- the same edit of values


def edited(values: Mapping[str, Any], edit: Edit) -> dict[str, Any]:
    """What a file with these values reads as after `edit`, keys in their order. Raises Unsafe for what is not there."""
    found = copy.deepcopy(dict(values))
    if edit.op == "insert":
        path, key, value = new_entry(edit, values)
        container = _at(found, path)
        if container is None:
            _put(_at(found, path[:-1]), path[-1], plain({key: value} if key else [value]))
        elif isinstance(container, list):
            container.append(plain(value))
        else:
            container[key] = plain(value)
        return found
    if not edit.path:
        raise Unsafe("the whole file cannot be edited as one value")
    container, last = _at(found, edit.path[:-1]), edit.path[-1]
    if not _holds(container, last):
        raise Unsafe(f"there is no {'.'.join(edit.path)} here")
    if edit.op == "set":
        _put(container, last, plain(edit.value))
    elif edit.op == "delete":
        del container[int(last) if isinstance(container, list) else last]
    else:
        _rename(container, last, edit.key)
    return found


def _rename(container: Any, old: str, new: str) -> None:
    if not isinstance(container, dict) or not new:
        raise Unsafe("only a key of a mapping can be renamed, and to a name")
    if new in container:
        raise Unsafe(f"{new} stands there already")
    items = [(new if key == old else key, value) for key, value in container.items()]
    container.clear()
    container.update(items)


def _holds(container: Any, key: str) -> bool:
    if isinstance(container, list):
        return key.isdecimal() and str(int(key)) == key and int(key) < len(container)
    return isinstance(container, dict) and key in container


def _at(values: Any, path: tuple[str, ...]) -> Any:
    for part in path:
        if not _holds(values, part):
            raise Unsafe(f"there is no {'.'.join(path)} here")
        values = values[int(part) if isinstance(values, list) else part]
    return values


def _put(container: Any, key: str, value: Any) -> None:
    container[int(key) if isinstance(container, list) else key] = value


def plain(value: Any) -> Any:
    """`value` as it comes back from a file: a tuple as a list, an Enum as its value."""
    if isinstance(value, Enum):
        return plain(value.value)
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, (list, tuple)) else value


def same(one: Any, other: Any) -> bool:
    """Equal in value, type and order of keys; not-a-number equals itself."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other or (one != one and other != other))


# --- shown before it is written


def diff(old: bytes, new: bytes, name: str) -> str:
    """A unified diff; empty when nothing changes. Characters that would steer a terminal are shown as U+FFFD."""
    before, after = (_lines(content) for content in (old, new))
    found = difflib.unified_diff(before, after, f"a/{_visible(name)}", f"b/{_visible(name)}")
    return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in found)


def _lines(content: bytes) -> list[str]:
    text = _visible(content.decode("utf-8", errors="replace"))
    return [line + "\n" for line in text.split("\n")[:-1]] + ([text.rsplit("\n", 1)[-1]] if text[-1:] != "\n" else [])


def _visible(text: str) -> str:
    return "".join(c if c.isprintable() or c in "\t\r\n" else "\ufffd" for c in text)
