"""What can be said of a question about the machine: it is open, it is answered well, or the box is another."""

from __future__ import annotations

from dataclasses import dataclass, replace

from recipegen.check.registry import finding, one_line
from recipegen.spec import Finding, Severity

# Open questions, and by what the box differs: a memory, RAM or disk that is too small decides the verdict.
OPEN, BOX, MEMORY, HOST, DISK = "RG780", "RG784", "RG785", "RG786", "RG787"


@dataclass(frozen=True)
class Good:
    """What a probe says in favour of the recipe; shown with -v."""

    text: str


Answer = Finding | Good


def good(text: str) -> Good:
    """One printable line: it repeats what a probe says."""
    return Good(one_line(text))


def note(reason: str, command: str, where: str, source: str = "") -> Finding:
    """An open question with the command that answers it."""
    return finding(OPEN, Severity.NOTE, reason, fix=command, where=where, source=source)


def different(rule: str, severity: Severity, reason: str, fix: str, where: str, source: str = "") -> Finding:
    """The box is not what the recipe needs."""
    return finding(rule, severity, reason, fix=fix, where=where, source=source)


def short(
    rule: str, severity: Severity, reason: str, fix: str, where: str, needed: int, there: int, source: str = ""
) -> Finding:
    """Something of which the box has too little, in bytes."""
    found = different(rule, severity, reason, fix, where, source)
    return replace(found, required_bytes=needed, available_bytes=there)
