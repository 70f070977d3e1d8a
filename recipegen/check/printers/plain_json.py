"""For programs: docs/schemas/check.schema.json."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from recipegen import __version__
from recipegen.check.checking import Checked, Outcome
from recipegen.check.printers.shared import count, split_where
from recipegen.formats.plain import to_plain
from recipegen.spec import Estimate, Finding, Recipe, Severity

FORMAT_VERSION = 1


def as_json(
    outcome: Outcome, *, recipe: Callable[[Recipe], dict[str, Any]], estimate: Callable[[Estimate], dict[str, Any]]
) -> dict[str, Any]:
    """The document; `recipe` and `estimate` are those of `plan --format json`."""
    findings = outcome.all_findings()
    return {
        "format_version": FORMAT_VERSION,
        "tool_version": __version__,
        "command": "check",
        "verdict": outcome.verdict.value,
        "exit_code": outcome.exit_code,
        "counts": {
            **{severity.value: count(findings, severity) for severity in Severity},
            "ignored": sum(len(one.ignored) for one in outcome.checked),
        },
        "projects": [_project(one, recipe, estimate) for one in outcome.checked],
        "findings": _findings(outcome.findings),
        "skipped": [{"path": one.shown, "reason": one.reason} for one in outcome.skipped],
    }


def _project(
    one: Checked, recipe: Callable[[Recipe], dict[str, Any]], estimate: Callable[[Estimate], dict[str, Any]]
) -> dict[str, Any]:
    subject, assembled = one.subject, one.subject.assembled
    return {
        "name": one.project.name,
        "main": one.project.shown.get(one.project.main) or None,
        "files": [
            {"path": one.project.shown[name], "kind": one.project.kinds[name].value} for name in one.project.files
        ],
        "stack": subject.stack.name,
        "hardware": subject.cluster.name if subject.cluster else None,
        "gpus": subject.cluster.world_size if subject.cluster else None,
        "verdict": one.verdict.value,
        "failed": one.failed,
        "findings": _findings(one.findings),
        "ignored": _findings(one.ignored),
        "validation": list(one.ran),
        "verified": list(one.verified),
        "unknown": [{"field": u.path, "reason": u.reason, "where": u.where} for u in assembled.unknown],
        "defaults": sorted(assembled.defaults),
        "recipe": recipe(assembled.recipe) if assembled.recipe else None,
        "estimate": estimate(subject.estimate) if subject.estimate else None,
    }


def _findings(findings: Iterable[Finding]) -> list[dict[str, Any]]:
    return [finding(found) for found in findings]


def finding(found: Finding) -> dict[str, Any]:
    """A finding with its place in parts."""
    plain: dict[str, Any] = to_plain(found)
    path, line = split_where(found.where)
    return {**plain, "path": path or None, "line": line}
