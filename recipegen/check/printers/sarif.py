"""SARIF 2.1.0, as code scanning reads it: https://docs.oasis-open.org/sarif/sarif/v2.1.0/sarif-v2.1.0.html."""

from __future__ import annotations

import hashlib
from pathlib import PurePath
from typing import Any
from urllib.parse import quote

from recipegen import __version__
from recipegen.check.checking import Outcome
from recipegen.check.known import KnownRule, known_rules
from recipegen.check.printers.shared import split_where
from recipegen.spec import Finding, Severity

SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
VERSION = "2.1.0"
_LEVELS = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.NOTE: "note"}
_USUAL = "warning"
_FINGERPRINT = "recipegenFinding/v1"


def sarif(outcome: Outcome) -> dict[str, Any]:
    """One run with the rules that spoke and their results; what comments ignore is there, as suppressed."""
    found = [(f, False) for f in outcome.all_findings()]
    found += [(f, True) for one in outcome.checked for f in one.ignored]
    ids = sorted({f.rule for f, _ in found})
    index = {rule: position for position, rule in enumerate(ids)}
    return {
        "$schema": SCHEMA,
        "version": VERSION,
        "runs": [
            {
                "tool": {
                    "driver": {
                        "name": "recipegen",
                        "semanticVersion": __version__,
                        "informationUri": "https://github.com/recipegen/recipegen",
                        "rules": [_rule(rule, known_rules().get(rule)) for rule in ids],
                    }
                },
                "columnKind": "unicodeCodePoints",
                "results": [_result(f, index[f.rule], ignored) for f, ignored in found],
            }
        ],
    }


def _rule(rule_id: str, known: KnownRule | None) -> dict[str, Any]:
    if known is None:
        return {"id": rule_id}
    level = _LEVELS[Severity(known.severity)] if known.severity else _USUAL
    described: dict[str, Any] = {
        "id": rule_id,
        "name": "".join(word.capitalize() for word in known.title.split()),
        "shortDescription": {"text": known.title},
        "fullDescription": {"text": known.doc},
        "defaultConfiguration": {"level": level},
        "properties": {"tags": [known.family]},
    }
    if known.source:
        described["help"] = {"text": f"{known.doc} Source: {known.source}"}
    return described


def _result(found: Finding, index: int, ignored: bool) -> dict[str, Any]:
    path, line = split_where(found.where)
    message = f"{found.reason}. Fix: {found.fix}" if found.fix else found.reason
    result: dict[str, Any] = {
        "ruleId": found.rule,
        "ruleIndex": index,
        "level": _LEVELS[found.severity],
        "message": {"text": message},
        "partialFingerprints": {_FINGERPRINT: _fingerprint(found, path)},
    }
    if path:
        place: dict[str, Any] = {"artifactLocation": _artifact(path)}
        if line:
            place["region"] = {"startLine": line}
        result["locations"] = [{"physicalLocation": place}]
    if ignored:
        result["suppressions"] = [{"kind": "inSource"}]
    return result


def _artifact(path: str) -> dict[str, str]:
    pure = PurePath(path)
    if pure.is_absolute():
        return {"uri": "file://" + quote(pure.as_posix())}
    return {"uri": quote(pure.as_posix()), "uriBaseId": "%SRCROOT%"}


def _fingerprint(found: Finding, path: str) -> str:
    """The same for a finding that only moved to another line."""
    return hashlib.sha256("\0".join((found.rule, path, found.field, found.reason)).encode()).hexdigest()[:32]
