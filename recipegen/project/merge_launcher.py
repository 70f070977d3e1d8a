"""launch.sh with other values of its variables: the one edit of it that is merged.

A variable is a line `default NAME VALUE`. Where a person changed anything else, the file is theirs.
"""

from __future__ import annotations

import re

from recipegen.project.merge_file import Conflict, Kept, MergedFile

_LINE = re.compile(r"^default (?P<name>[A-Za-z_][A-Za-z0-9_]*) (?P<value>[^\n]*)$", re.MULTILINE)
_NAME = "launch.sh"


def merge_launcher(base: bytes, yours: bytes, new: bytes) -> MergedFile | None:
    """The new script with the person's values; None when they changed more than values, or one that is gone."""
    try:
        texts = [content.decode("utf-8") for content in (base, yours, new)]
    except UnicodeDecodeError:
        return None
    if _LINE.sub(r"default \g<name>", texts[0]) != _LINE.sub(r"default \g<name>", texts[1]):
        return None
    before, theirs, after = ({m["name"]: m["value"] for m in _LINE.finditer(text)} for text in texts)
    lines = {m["name"]: texts[1].count("\n", 0, m.start()) + 1 for m in _LINE.finditer(texts[1])}
    changed = {name: value for name, value in theirs.items() if value != before[name]}
    if not changed.keys() <= after.keys():
        return None
    conflicts, kept = [], []
    for name, value in changed.items():
        where = f"{_NAME}:{lines[name]}"
        if after[name] == before[name]:
            kept.append(Kept(where, name, value))
        elif after[name] != value:
            conflicts.append(Conflict(where, name, before[name], value, after[name]))
    content = _LINE.sub(lambda m: f"default {m['name']} {changed.get(m['name'], m['value'])}", texts[2])
    return MergedFile(content.encode("utf-8"), tuple(conflicts), tuple(kept), ())
