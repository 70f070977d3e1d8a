"""The estimate against published measurements: the promises, by group, and the rules of the scoring itself."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import accuracy
from benchmarks.rows import read_rows
from benchmarks.score import Group, Score
from recipegen.spec import Verdict

PUBLISHED = Path(__file__).parent.parent / "corpus" / "published"
ROWS = read_rows(PUBLISHED / "measurements.csv")


@pytest.fixture(scope="module")
def scored() -> Score:
    return accuracy.accuracy(ROWS)


def group(s: Score, name: str) -> Group:
    return next(g for g in s.groups if g.name == name)


@pytest.mark.parametrize(
    ("name", "median", "p90"),
    [
        (accuracy.SINGLE_STOCK, 0.06, 0.12),
        (accuracy.SINGLE_FUSED, 0.08, 0.15),
        (accuracy.SHARDED, 0.10, 0.20),
        (f"{accuracy.OFFLOAD}, assumed fields", 0.225, 0.375),
        (f"{accuracy.SINGLE_STOCK}, rows of equal length", 0.06, 0.12),
    ],
)
def test_errors_are_within_the_promise(scored: Score, name: str, median: float, p90: float) -> None:
    found = group(scored, name)
    assert found.n >= 4
    assert (found.median_abs_error or 1) <= median
    assert (found.p90_abs_error or 1) <= p90


def test_rows_are_expressed_or_named(scored: Score) -> None:
    assert len(scored.results) == len(ROWS) == 504
    assert scored.expressible_share >= 0.85
    assert all(r.why_not for r in scored.results if r.predicted_allocated_bytes is None)


def test_nothing_that_ran_out_of_memory_is_called_fits(scored: Score) -> None:
    assert [r.id for r in scored.false_fits()] == []


def test_what_ran_is_called_fits_or_tight(scored: Score) -> None:
    assert len(scored.false_does_not_fit) <= 0.05 * scored.ran_with_verdict


@pytest.mark.parametrize("metric", ["allocated", "reserved"])
def test_the_band_holds_nine_in_ten(scored: Score, metric: str) -> None:
    assert (group(scored, f"metric {metric}").band_coverage or 0) >= 0.9


def test_the_twelve_cases() -> None:
    twelve = accuracy.accuracy(read_rows(PUBLISHED / "twelve-cases.csv"))
    assert twelve.expressible_share == 1.0
    assert (group(twelve, "all").mean_abs_error or 1) <= 0.08


def test_measured_values_decide_no_group_and_nothing_expressible(scored: Score) -> None:
    """Measured values are permuted among the rows that have one; groups and reasons stay."""
    measured = [r for r in ROWS if r.measured_bytes is not None]
    values = [r.peak_mem_gb for r in measured]
    random.Random(1).shuffle(values)
    given = dict(zip((r.id for r in measured), values, strict=True))
    mixed = accuracy.accuracy(replace(r, peak_mem_gb=given.get(r.id, r.peak_mem_gb)) for r in ROWS)
    for before, after in zip(scored.results, mixed.results, strict=True):
        assert (before.groups, before.why_not, before.verdict) == (after.groups, after.why_not, after.verdict)


def test_an_assumed_row_is_never_called_fits(scored: Score) -> None:
    assert {r.verdict for r in scored.results if r.assumed} <= {Verdict.TIGHT, Verdict.DOES_NOT_FIT, Verdict.UNKNOWN}


def test_json_names_every_row(capsys: pytest.CaptureFixture[str]) -> None:
    assert accuracy.main([str(PUBLISHED / "twelve-cases.csv"), "--format", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [r["id"] for r in document["rows"]] == [f"C{n}" for n in range(1, 13)]
    wanted = {"id", "expressible", "why_not", "predicted_allocated_bytes", "predicted_reserved_bytes", "measured_bytes",
              "metric", "error", "verdict", "outcome"}  # fmt: skip
    assert all(wanted <= set(r) for r in document["rows"])
    assert {"false_fits", "false_does_not_fit", "expressible_share"} <= set(document)
    names = {"name", "n", "median_abs_error", "p90_abs_error", "max_abs_error", "band_coverage"}
    assert all(names <= set(g) for g in document["groups"])


def test_a_file_without_the_columns_is_one_line_and_exit_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wrong = tmp_path / "wrong.csv"
    wrong.write_text("id,model\n1,llama\n", encoding="utf-8")
    assert accuracy.main([str(wrong)]) == 2
    assert accuracy.main([str(tmp_path / "none.csv")]) == 2
    assert capsys.readouterr().err.count("error: ") == 2
