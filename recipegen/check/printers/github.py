"""Workflow commands of GitHub Actions: an annotation for each finding, the worst first.

https://docs.github.com/en/actions/reference/workflow-commands-for-github-actions. A message escapes %, CR and LF; a
property `:` and `,` too (actions/toolkit, packages/core/src/command.ts). GitHub shows ten of a kind for a step.
"""

from __future__ import annotations

from collections.abc import Iterator

from recipegen.check.checking import ORDER, Outcome
from recipegen.check.printers.shared import split_where, verdict_line
from recipegen.spec import Finding, Severity, Verdict

_COMMANDS = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.NOTE: "notice"}
_VERDICTS = {Verdict.DOES_NOT_FIT: "error", Verdict.TIGHT: "warning"}


def github(outcome: Outcome) -> Iterator[str]:
    """The commands, one a line: the verdicts, then the findings."""
    for one in outcome.checked:
        path = one.project.shown.get(one.project.main, "")
        yield command(_VERDICTS.get(one.verdict, "notice"), verdict_line(one), file=path, title=one.project.name)
    for found in sorted(outcome.all_findings(), key=lambda f: ORDER[f.severity]):
        yield annotation(found)


def annotation(found: Finding) -> str:
    """The command of a finding."""
    path, line = split_where(found.where)
    message = f"{found.reason} ({found.fix})" if found.fix else found.reason
    return command(
        _COMMANDS[found.severity],
        message,
        file=path,
        line=str(line) if line else "",
        title=f"{found.rule} {found.family}",
    )


def command(level: str, message: str, **properties: str) -> str:
    """One workflow command: error, warning or notice."""
    stated = ",".join(f"{key}={_property(value)}" for key, value in properties.items() if value)
    return f"::{level}{' ' if stated else ''}{stated}::{_data(message)}"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
