"""What is said about a recipe: a finding of a rule."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Severity(str, Enum):
    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


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
