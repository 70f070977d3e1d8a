"""`# recipegen: ignore[RG101]` in a file: behind a value for that line, on a line of its own for the whole file."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from recipegen.check.registry import finding
from recipegen.spec import Finding, Severity

_COMMENT = re.compile(r"(?:^|\s)#\s*recipegen:\s*ignore\b(?:\[(?P<rules>[^\]\n]*)\])?")
_NEVER = frozenset({"RG706", "RG783"})  # what could not be read, and what is wrong with these comments
_WHOLE_FILE = 0  # in place of a line


@dataclass(frozen=True)
class Ignores:
    """(file, line or 0, rule) of every comment; `problems` are findings about the comments themselves."""

    entries: frozenset[tuple[str, int, str]] = frozenset()
    problems: tuple[Finding, ...] = ()

    def covers(self, found: Finding) -> bool:
        """Whether a comment in the finding's own file takes it away."""
        if found.rule in _NEVER:
            return False
        name, line = _split(found.where)
        return (name, _WHOLE_FILE, found.rule) in self.entries or (name, line, found.rule) in self.entries


def read(files: Mapping[str, bytes], known_rules: Collection[str]) -> Ignores:
    """The comments of all files of a project."""
    entries: set[tuple[str, int, str]] = set()
    problems: list[Finding] = []
    for name, content in files.items():
        if b"recipegen:" not in content or name.endswith(".json"):
            continue
        for line, text in enumerate(content.decode("utf-8", "replace").split("\n"), 1):
            for found in _COMMENT.finditer(text):
                own_line = not text[: found.start()].strip()
                where = f"{name}:{line}"
                rules = [rule.strip().upper() for rule in (found["rules"] or "").split(",") if rule.strip()]
                problems += _problems(rules, where, known_rules)
                entries |= {(name, _WHOLE_FILE if own_line else line, rule) for rule in rules}
    return Ignores(frozenset(entries), tuple(problems))


def _problems(rules: list[str], where: str, known: Collection[str]) -> Iterator[Finding]:
    if not rules:
        yield finding("RG783", Severity.WARNING, "names no rule, so it does nothing", fix="ignore[RG101]", where=where)
    for rule in rules:
        if rule in _NEVER:
            yield finding("RG783", Severity.WARNING, f"{rule} cannot be ignored", where=where)
        elif rule not in known:
            near = difflib.get_close_matches(rule, known, n=1)
            fix = f"did you mean {near[0]}?" if near else "`recipegen explain` lists the rules"
            yield finding("RG783", Severity.WARNING, f"there is no rule {rule}", fix=fix, where=where)


def _split(where: str) -> tuple[str, int]:
    name, _, line = where.rpartition(":")
    return (name, int(line)) if name and line.isdigit() else (where, _WHOLE_FILE)
