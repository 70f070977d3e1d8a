"""The speed benchmark: its mixture is fixed and answered, its report says what it measured. Nothing here is timed."""

import json
from collections import Counter

import pytest

from benchmarks import speed
from recipegen.cli.solve import solve
from recipegen.spec import Verdict

START = speed.Start(empty_cpu_s=0.01, empty_mb=10.0, plan_cpu_s=0.2, plan_mb=30.0, import_ms=60.0, import_to_empty=6.0)
PLANS = speed.Plans(96, 192, 3000.0, 20.0, 15.0, 80.0, "a large model", None)


def test_the_mixture_is_the_same_every_time_and_has_no_request_twice() -> None:
    mixture = list(speed.requests())
    assert mixture == list(speed.requests())
    assert len(mixture) >= 40
    assert all(mixture.count(request) == 1 for request in mixture)
    both = Counter((r.method, r.trainer) for r in mixture)
    assert len(both) == len(speed.METHODS) * len(speed.TRAINERS)
    assert len({(r.hardware, r.trainer) for r in mixture}) == len(speed.MACHINES) * len(speed.TRAINERS)


def test_every_request_of_the_mixture_is_answered_and_some_do_not_fit() -> None:
    verdicts = Counter(solve(request).verdict for request in speed.requests())
    assert verdicts[Verdict.FITS] > verdicts[Verdict.DOES_NOT_FIT] > 0


def test_plans_are_counted_whole_passes_at_a_time() -> None:
    found = speed.time_plans(list(speed.requests())[:2], seconds=0)
    assert found.different_requests == found.plans == 2
    assert found.plans_per_minute == pytest.approx(60e3 / found.mean_ms)
    assert found.slowest.startswith(speed.MODELS[0])


def test_the_start_of_processes_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speed, "REPEATS", 1)
    start = speed.time_start()
    assert start.cpu_ratio > 1  # a plan does more than nothing
    assert start.memory_ratio > 1
    assert start.import_ms > 0


def test_the_json_says_what_the_text_says(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(speed, "time_start", lambda: START)
    monkeypatch.setattr(speed, "time_plans", lambda *_, **__: PLANS)
    monkeypatch.setattr(speed, "pin", lambda: None)
    assert speed.main(["--format", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["plans"]["plans_per_minute"] == 3000
    assert document["import"]["ms"] == 60
    assert document["cold_start"]["cpu_ratio"] == pytest.approx(20)
    assert speed.main([]) == 0
    said = capsys.readouterr().out
    assert "3,000 per minute" in said
    assert "promise of 50 ms: NOT kept" in said
    assert "(20.0 x)" in said
