"""From rows with a prediction and a measurement to errors by group, as text and as JSON.

Groups are given with each result, as functions of the input columns alone; nothing here looks at an error to decide
where a row belongs.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from recipegen.spec import Verdict
from recipegen.spec.units import GIB


@dataclass(frozen=True)
class Result:
    """One row after scoring. `why_not` is set when the row cannot be expressed as a recipe; then nothing else is.

    `low_bytes` and `high_bytes` bound the value that `metric` names; None where no band belongs to it.
    """

    id: str
    groups: tuple[str, ...] = ()
    why_not: str | None = None
    setup: str = ""
    assumed: tuple[str, ...] = ()
    predicted_allocated_bytes: int | None = None
    predicted_reserved_bytes: int | None = None
    low_bytes: int | None = None
    high_bytes: int | None = None
    measured_bytes: int | None = None
    metric: str | None = None
    verdict: Verdict | None = None
    outcome: str = ""
    outcome_is_inferred: bool = False
    flags: tuple[str, ...] = ()
    phase: str = ""

    @property
    def predicted_bytes(self) -> int | None:
        """The prediction of what was measured: allocated against allocated, everything else against reserved."""
        return self.predicted_allocated_bytes if self.metric == "allocated" else self.predicted_reserved_bytes

    @property
    def error(self) -> float | None:
        """Signed fraction of the measured value."""
        if self.measured_bytes is None or self.predicted_bytes is None:
            return None
        return self.predicted_bytes / self.measured_bytes - 1.0

    @property
    def in_band(self) -> bool | None:
        if self.measured_bytes is None or self.low_bytes is None or self.high_bytes is None:
            return None
        return self.low_bytes <= self.measured_bytes <= self.high_bytes


@dataclass(frozen=True)
class Group:
    """Errors of one group; shares and errors are fractions, None without rows."""

    name: str
    n: int
    median_abs_error: float | None
    mean_abs_error: float | None
    p90_abs_error: float | None
    max_abs_error: float | None
    median_error: float | None
    band_coverage: float | None


@dataclass(frozen=True)
class Score:
    """All rows and groups of one file."""

    results: tuple[Result, ...]
    groups: tuple[Group, ...] = field(default=())

    def _verdicts(self, outcome: str, *verdicts: Verdict, inferred: bool | None = None) -> list[Result]:
        return [
            r
            for r in self.results
            if r.outcome == outcome
            and r.verdict in verdicts
            and (inferred is None or r.outcome_is_inferred == inferred)
        ]

    def false_fits(self, inferred: bool | None = None) -> list[Result]:
        """Ran out of memory and is called fits."""
        return self._verdicts("oom", Verdict.FITS, inferred=inferred)

    @property
    def false_does_not_fit(self) -> list[Result]:
        """Ran and is called does_not_fit."""
        return self._verdicts("ran", Verdict.DOES_NOT_FIT)

    @property
    def ran_with_verdict(self) -> int:
        return len(self._verdicts("ran", Verdict.FITS, Verdict.TIGHT, Verdict.DOES_NOT_FIT))

    @property
    def expressible_share(self) -> float:
        return sum(r.why_not is None for r in self.results) / len(self.results) if self.results else 0.0


def percentile(values: Sequence[float], share: float) -> float:
    """The nearest-rank percentile: the smallest value that `share` of the values do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def group(name: str, results: Iterable[Result]) -> Group:
    members = [r for r in results if r.error is not None]
    errors = [r.error for r in members if r.error is not None]
    bands = [r.in_band for r in members if r.in_band is not None]
    sizes = [abs(e) for e in errors]
    return Group(
        name=name,
        n=len(errors),
        median_abs_error=statistics.median(sizes) if sizes else None,
        mean_abs_error=statistics.fmean(sizes) if sizes else None,
        p90_abs_error=percentile(sizes, 0.9) if sizes else None,
        max_abs_error=max(sizes, default=None),
        median_error=statistics.median(errors) if errors else None,
        band_coverage=statistics.fmean(bands) if bands else None,
    )


def score(results: Iterable[Result], order: Callable[[str], Any] = lambda _: 0) -> Score:
    """Results with their groups; `all` comes first, the others by `order` of their names, then as they appear."""
    rows = tuple(results)
    names = sorted(dict.fromkeys(name for r in rows for name in r.groups), key=order)
    return Score(rows, (group("all", rows), *(group(n, (r for r in rows if n in r.groups)) for n in names)))


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 5)


def document(command: str, s: Score, **more: Any) -> dict[str, Any]:
    """The JSON document of a score. Bytes are whole, errors signed fractions."""
    return {
        "format_version": 1,
        "command": command,
        "rows": [
            {
                "id": r.id,
                "expressible": r.why_not is None,
                "why_not": r.why_not,
                "setup": r.setup,
                "assumed": list(r.assumed),
                "groups": list(r.groups),
                "flags": list(r.flags),
                "phase": r.phase,
                "predicted_allocated_bytes": r.predicted_allocated_bytes,
                "predicted_reserved_bytes": r.predicted_reserved_bytes,
                "low_bytes": r.low_bytes,
                "high_bytes": r.high_bytes,
                "measured_bytes": r.measured_bytes,
                "metric": r.metric,
                "error": _rounded(r.error),
                "verdict": r.verdict.value if r.verdict else None,
                "outcome": r.outcome,
                "outcome_is_inferred": r.outcome_is_inferred,
            }
            for r in s.results
        ],
        "groups": [
            {
                "name": g.name,
                "n": g.n,
                "median_abs_error": _rounded(g.median_abs_error),
                "mean_abs_error": _rounded(g.mean_abs_error),
                "p90_abs_error": _rounded(g.p90_abs_error),
                "max_abs_error": _rounded(g.max_abs_error),
                "median_error": _rounded(g.median_error),
                "band_coverage": _rounded(g.band_coverage),
            }
            for g in s.groups
        ],
        "false_fits": len(s.false_fits()),
        "false_fits_inferred": len(s.false_fits(inferred=True)),
        "false_does_not_fit": len(s.false_does_not_fit),
        "ran_with_verdict": s.ran_with_verdict,
        "expressible_share": round(s.expressible_share, 5),
        **more,
    }


def percent(value: float | None, *, signed: bool = False) -> str:
    return "-" if value is None else f"{value:{'+' if signed else ''}.1%}"


def gib(value: int | None) -> str:
    return "-" if value is None else f"{value / GIB:.2f}"


def group_table(groups: Iterable[Group]) -> list[str]:
    """Lines of a table: a group a line. Errors are of the absolute relative error, except the signed median."""
    groups = tuple(groups)
    width = max([len(g.name) for g in groups] + [len("group")])
    columns = ("median", "p90", "worst", "mean", "bias", "in band")
    lines = [f"{'group':{width}} {'rows':>5} " + " ".join(f"{column:>8}" for column in columns)]
    lines.extend(
        f"{g.name:{width}} {g.n:5d} {percent(g.median_abs_error):>8} {percent(g.p90_abs_error):>8} "
        f"{percent(g.max_abs_error):>8} {percent(g.mean_abs_error):>8} {percent(g.median_error, signed=True):>8} "
        f"{percent(g.band_coverage):>8}"
        for g in groups
    )
    return lines
