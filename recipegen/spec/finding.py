"""What is said about a recipe: a finding of a rule, and the edits that would mend it."""

from __future__ import annotations

from dataclasses import dataclass
from dataclasses import field as _field
from enum import Enum
from typing import Any, Literal


class Severity(str, Enum):
    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


@dataclass(frozen=True)
class Edit:
    """One change of a YAML or JSON file, by key; formats/edits.py carries it out.

    set     the value at `path` becomes `value`
    rename  the key at `path` becomes `key`; its value stays
    delete  the key (or list item) at `path` goes, with its value
    insert  `value` under the new `key` of the mapping at `path`; with an empty `key` behind the last item of the list
            at `path`. What is missing on the way there is made.
    """

    file: str
    path: tuple[str, ...]  # keys, and positions in lists as text: ("datasets", "0", "path")
    op: Literal["set", "rename", "delete", "insert"]
    value: Any = _field(default=None, hash=False)  # None, bool, int, float, str, or lists and mappings of these
    key: str = ""


@dataclass(frozen=True)
class Finding:
    """One rule's answer. `reason` is one line with the numbers; `fix` says what to do; `excess` ranks near misses."""

    rule: str  # RG101
    severity: Severity
    family: str  # memory, host, disk, compat, learning, data, ...
    reason: str
    fix: str = ""
    source: str = ""
    field: str = ""  # Recipe field path, when one is to blame
    where: str = ""  # file:line, when there is one
    required_bytes: int = 0
    available_bytes: int = 0
    edits: tuple[Edit, ...] = ()  # a safe, mechanical fix; empty when a person has to decide
