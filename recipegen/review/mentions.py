"""Which files name which: what a change can reach, and what has to be there to read a recipe. By text alone, so it may
find too much and nothing is parsed for it; what a file really names is decided in source/.
"""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Collection, Iterator, Mapping

_ENDS = b" \t\r\n\"'=,:[]{}()<>|;&`"  # what a name without quotes does not hold
_WIDE_ENDS = b"\r\n\"'"  # nor one in quotes
_OF_A_NAME = re.compile(rb"[\w.-]")
_LONGEST = 1024  # bytes of a name
_WORDS = re.compile(r"\"([^\"\n]{1,1024})\"|'([^'\n]{1,1024})'|:[ \t]+([^\s\"'#][^\n#]*)|([^\s\"'=,:\[\]{}()<>|;&`]+)")


def naming(contents: Mapping[str, bytes], named: Collection[str]) -> dict[str, bool]:
    """Those of the files `contents` (by path from the top) that may name one of the paths `named`, and whether one of
    another folder. A path may be a folder: a model's."""
    by_name: dict[bytes, set[str]] = {}
    for path in named:
        by_name.setdefault(os.fsencode(posixpath.basename(path)), set()).add(path)
    found: dict[str, bool] = {}
    for path, content in contents.items():
        folder = posixpath.dirname(path)
        meant = {one for needle, paths in by_name.items() for one in _meant_by(content, needle, folder, paths)}
        if meant:
            found[path] = any(posixpath.dirname(one) != folder for one in meant)
    return found


def _meant_by(content: bytes, needle: bytes, folder: str, paths: Collection[str]) -> Iterator[str]:
    for name in _around(content, needle):
        yield from (path for path in _meant(name, folder) if path in paths)
        parts = [part for part in name.split("/") if part not in ("", ".", "..") and "$" not in part]
        if len(parts) > 1:  # behind a variable, or words before the path
            tail = "/".join(parts)
            yield from (path for path in paths if path == tail or path.endswith(f"/{tail}"))


def _around(content: bytes, needle: bytes) -> Iterator[str]:
    """Words of a text that end with `needle`, with what may be a path before it."""
    found: set[bytes] = set()
    at = content.find(needle)
    while needle and at >= 0:
        end = at + len(needle)
        before = content[max(at - 1, 0) : at]
        if _OF_A_NAME.match(before) or _OF_A_NAME.match(content[end : end + 1]):
            pass  # part of a longer name
        elif before == b"/":
            found.update(content[_start(content, at, ends) : end].strip() for ends in (_ENDS, _WIDE_ENDS))
        else:
            found.add(needle)
        at = content.find(needle, end)
    return (os.fsdecode(word) for word in found)


def _start(content: bytes, at: int, ends: bytes) -> int:
    start = at
    while start > max(0, at - _LONGEST) and content[start - 1] not in ends:
        start -= 1
    return start


def _meant(name: str, folder: str) -> tuple[str, ...]:
    """From the folder of the file that says it, and from the top."""
    if "/" not in name and name not in (".", ".."):
        return (f"{folder}/{name}", name) if folder else (name,)
    return tuple(dict.fromkeys(posixpath.normpath(posixpath.join(start, name)) for start in (folder, "")))


def named_by(contents: Mapping[str, bytes], known: Collection[str]) -> set[str]:
    """Those of the paths `known` that the files may name, by the folder of the file or by the top."""
    names = {posixpath.basename(path) for path in known}
    found: set[str] = set()
    for path, content in contents.items():
        folder = posixpath.dirname(path)
        for word in _words(content.decode("utf-8", "surrogateescape")):
            if posixpath.basename(word.rstrip("/")) in names:
                found.update(one for one in _behind_variables(word, folder) if one in known)
    return found


def _words(text: str) -> set[str]:
    found = {"".join(groups).strip() for groups in _WORDS.findall(text)}  # one group of a match holds it
    return found.union(*(word.split() for word in found if " " in word))


def _behind_variables(word: str, folder: str) -> Iterator[str]:
    yield from _meant(word, folder)
    if "$" in word and "/" in word:
        yield from _meant("/".join(part for part in word.split("/") if "$" not in part), folder)
