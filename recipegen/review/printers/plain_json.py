"""For programs: docs/schemas/diff.schema.json. Every number has its unit beside it, enums are their values."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Any

from recipegen import __version__
from recipegen.check.printers.plain_json import finding
from recipegen.review.difference import Change, Compatibility, Effect, RecipeDifference, Review, Statement, Status
from recipegen.review.printers.shared import known, split_where

FORMAT_VERSION = 1
_MOST_BITS = 64  # of a whole number; longer ones are text, for Python refuses to print thousands of digits


def plain_json(review: Review) -> dict[str, Any]:
    """The document of `diff` and `review`."""
    counts = Counter(row.status for row in review.recipes)
    return {
        "format_version": FORMAT_VERSION,
        "tool_version": __version__,
        "command": "diff",
        "base": review.base,
        "head": review.head,
        "counts": {status.value: counts[status] for status in Status},
        "recipes": [_recipe(row) for row in review.recipes],
    }


def _recipe(row: RecipeDifference) -> dict[str, Any]:
    return {
        "name": row.name,
        "status": row.status.value,
        "before_name": row.before_name or None,
        "verdict_before": None if row.status is Status.ADDED else row.verdict_before.value,
        "verdict_after": None if row.status is Status.REMOVED else row.verdict_after.value,
        "experiment": row.experiment.value if row.experiment else None,
        "effects": [_effect(one) for one in row.effects],
        "meaning": _statements(row.meaning),
        "compatibility": _compatibility(row.compatibility) if row.compatibility else None,
        "changes": [_change(one) for one in row.changes],
        "no_ops": _statements(row.no_ops),
        "findings": {
            "new": [finding(one) for one in row.new],
            "fixed": [finding(one) for one in row.fixed],
            "kept": [finding(one) for one in row.kept],
        },
        "problems": list(row.problems),
    }


def _effect(one: Effect) -> dict[str, Any]:
    return {
        "name": one.name,
        "unit": one.unit,
        "before": known(one.before),
        "after": known(one.after),
        "after_low": known(one.low),
        "after_high": known(one.high),
        "because": one.because,
    }


def _statements(found: Iterable[Statement]) -> list[dict[str, Any]]:
    return [
        {
            "rule": one.rule,
            "weight": one.weight.value,
            "text": one.text,
            "paths": list(one.paths),
            "where": _where(one.where),
        }
        for one in found
    ]


def _compatibility(one: Compatibility) -> dict[str, Any]:
    return {
        "resumes": one.resumes,
        "reasons": _statements(one.reasons),
        "ignored": [_change(change) for change in one.ignored],
        "rebuild": list(one.rebuild),
        "same_output": one.same_output,
        "inference": list(one.inference),
    }


def _change(one: Change) -> dict[str, Any]:
    return {
        "path": one.path,
        "before": _value(one.before),
        "after": _value(one.after),
        "where_before": _where(one.where_before),
        "where_after": _where(one.where_after),
    }


def _where(where: str) -> dict[str, Any] | None:
    path, line = split_where(where)
    return {"path": path, "line": line} if path else None


def _value(value: Any) -> Any:
    """Whatever a file can state, as JSON can: what it has no form for, as text."""
    if isinstance(value, Enum):
        return _value(value.value)
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, int):
        return value if value.bit_length() <= _MOST_BITS else hex(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, Mapping):
        return {str(key): _value(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_value(item) for item in value]
    if isinstance(value, (set, frozenset)):
        return sorted(map(str, value))
    return str(value)
