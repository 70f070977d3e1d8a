"""What all printers say alike."""

from __future__ import annotations

from collections.abc import Iterable

from recipegen.check.checking import Checked, Outcome
from recipegen.spec import Finding, Severity, Verdict

_PLURAL = {Severity.ERROR: "errors", Severity.WARNING: "warnings", Severity.NOTE: "notes"}


def split_where(where: str) -> tuple[str, int | None]:
    """`axolotl.yaml:7` as a path and a line; None where there is no line."""
    name, _, line = where.rpartition(":")
    return (name, int(line)) if name and line.isdecimal() else (where, None)


def count(findings: Iterable[Finding], severity: Severity) -> int:
    """How many of a severity."""
    return sum(f.severity is severity for f in findings)


def counted(findings: Iterable[Finding], *severities: Severity) -> str:
    """`1 error, 2 warnings`; empty when there is none."""
    found = tuple(findings)
    numbers = [(count(found, severity), severity) for severity in severities]
    return ", ".join(f"{n} {_PLURAL[s] if n > 1 else s.value}" for n, s in numbers if n)


def label(verdict: Verdict) -> str:
    """`DOES NOT FIT`; of `unknown` what is unknown."""
    return "NOT ESTIMATED" if verdict is Verdict.UNKNOWN else verdict.value.replace("_", " ").upper()


def verdict_line(one: Checked) -> str:
    """The verdict and what else fails."""
    said = counted(one.findings, Severity.ERROR, Severity.WARNING)
    nothing = "no errors, no warnings" if one.findings else "no findings"
    return f"{label(one.verdict)}, {said or nothing}"


def failure(outcome: Outcome) -> str:
    """The one line for stderr: why the exit code is not 0."""
    findings = outcome.all_findings()
    for severity in (Severity.ERROR, Severity.WARNING):
        first = next((f for f in findings if f.severity is severity), None)
        failed = [one for one in outcome.checked if one.failed]
        if first is not None and (severity is Severity.ERROR or any(one.strict for one in failed)):
            more = count(findings, severity) - 1
            return f"{first.where}: {first.reason}" + (f" (and {more} more)" if more else "")
        tight = next((one for one in failed if one.verdict is not Verdict.FITS), None)
        if severity is Severity.ERROR and tight is not None and tight.verdict is not Verdict.UNKNOWN:
            how = "; --accept-tight takes it" if tight.verdict is Verdict.TIGHT else ""
            return f"{tight.project.name}: {label(tight.verdict).lower()}{how}"
    unknown = next(one for one in outcome.checked if one.failed)
    return f"{unknown.project.name}: no estimate, and --strict asks for one"
