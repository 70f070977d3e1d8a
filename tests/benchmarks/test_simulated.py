"""The scoring against simulated peaks: what is printed, what cannot be expressed."""

import json
from pathlib import Path

import pytest

from benchmarks import simulated

CORPUS = Path(__file__).parent.parent / "corpus"
GIVEN = CORPUS / "simulated-peaks-as-trained.csv"


def test_json_has_every_row_and_the_mean(capsys: pytest.CaptureFixture[str]) -> None:
    assert simulated.main([str(GIVEN), "--format", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert len(document["rows"]) == 29
    assert all(r["expressible"] and r["metric"] == "allocated" for r in document["rows"])
    assert 0 < document["mean_abs_error"] <= document["max_abs_error"] <= 0.06


def test_rows_are_printed_when_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert simulated.main([str(GIVEN)]) == 0
    groups = capsys.readouterr().out
    assert simulated.main([str(GIVEN), "--rows"]) == 0
    rows = capsys.readouterr().out
    assert "llama-3.3-70b" in rows
    assert "llama-3.3-70b" not in groups
    assert groups in rows


def test_a_row_that_cannot_be_expressed_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = GIVEN.read_text(encoding="utf-8").splitlines()
    odd = tmp_path / "odd.csv"
    odd.write_text("\n".join([lines[0], lines[1].replace("llama-3.3-70b", "nobodys-model-3b")]), encoding="utf-8")
    assert simulated.main([str(odd)]) == 0
    out = capsys.readouterr().out
    assert "expressible: 0.0% of 1 rows" in out
    assert "nobodys-model-3b" in out


def test_no_file_is_one_line_and_exit_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert simulated.main([str(tmp_path / "none.csv")]) == 2
    assert capsys.readouterr().err.startswith("error: ")
