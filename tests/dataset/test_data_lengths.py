"""Sequence length, loss, packing, steps and validation rows."""

from __future__ import annotations

import itertools
import json
import random
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from data_samples import chat
from hypothesis import given
from hypothesis import strategies as st
from tiny_tokenizers import make_tokenizer_folder

from recipegen.dataset import (
    loss_report,
    measure,
    packing_efficiency,
    propose_sequence_len,
    steps_per_epoch,
    summarise,
    validation_rows,
)
from recipegen.dataset.facts import facts, limit
from recipegen.dataset.lengths import Sample
from recipegen.spec import DataFormat, Lengths, ModelSpec, Severity

CANDIDATES = (2048, 4096, 8192, 16384, 32768)


def lengths_of(values: list[int]) -> Lengths:
    made = summarise(values, "tokenizer")
    assert made is not None
    return made


@given(st.lists(st.integers(0, 100_000), min_size=1, max_size=200))
def test_the_histogram_is_exact_at_every_candidate(values: list[int]) -> None:
    lengths = lengths_of(values)
    for bound in (512, 1024, *CANDIDATES):
        assert lengths.rows_longer_than(bound) == sum(v > bound for v in values)
        assert lengths.tokens_beyond(bound) == sum(v for v in values if v > bound)
    assert sum(rows for _, rows, _ in lengths.histogram) == len(values)
    assert lengths.total_tokens == sum(values)
    assert lengths.longest == max(values)
    assert sum(v <= lengths.p99 for v in values) >= 0.99 * len(values)


@given(st.lists(st.integers(1, 60_000), min_size=1, max_size=300))
def test_the_proposed_length_is_the_smallest_that_covers_99_percent(values: list[int]) -> None:
    proposed, reason = propose_sequence_len(lengths_of(values))
    covered = {c: sum(v <= c for v in values) / len(values) for c in CANDIDATES}
    enough = [c for c in CANDIDATES if covered[c] >= 0.99]
    assert proposed == (enough[0] if enough else 32768)
    assert "%" in reason


def test_the_models_own_limit_bounds_the_proposal() -> None:
    lengths = lengths_of([6000] * 100)
    assert propose_sequence_len(lengths)[0] == 8192
    proposed, reason = propose_sequence_len(lengths, longest_supported=4096)
    assert proposed == 4096
    assert "only 0.0% of rows" in reason
    assert propose_sequence_len(lengths, longest_supported=1024)[0] == 1024
    assert propose_sequence_len(None)[0] == 2048


@pytest.mark.parametrize(("long_rows", "severity"), [(0, None), (1, None), (3, Severity.WARNING), (60, Severity.ERROR)])
def test_lost_rows_are_told_and_many_ask_for_a_longer_sequence(long_rows: int, severity: Severity | None) -> None:
    report = loss_report(lengths_of([2000] * (1000 - long_rows) + [9000] * long_rows), 4096)
    assert report.rows_lost == long_rows
    assert report.tokens_lost == 9000 * long_rows
    assert report.rows_share == pytest.approx(long_rows / 1000)
    assert report.severity is severity
    assert ("dropped" in report.message) == bool(long_rows)


def test_the_loss_of_a_sample_is_scaled_to_all_rows() -> None:
    report = loss_report(lengths_of([10] * 90 + [5000] * 10), 4096, rows=1000)
    assert (report.rows_lost, report.tokens_lost) == (100, 500_000)


def test_completion_rows_are_cut_and_not_lost() -> None:
    lengths = lengths_of([10_000] * 5 + [64 * 2048 + 7])
    report = loss_report(lengths, 2048, DataFormat.COMPLETION)
    assert (report.rows_lost, report.tokens_lost) == (0, 7)
    assert "keeps the first 64 pieces of 2048 tokens (131072 tokens) of each row" in report.message
    assert steps_per_epoch(6, lengths, 2048, 1, False, cuts_long_rows=True) == 5 * 5 + 64
    assert loss_report(lengths, 4096, DataFormat.COMPLETION).message.startswith("no tokens are lost: rows longer than")


@pytest.mark.parametrize("packing", [True, False])
def test_a_row_gives_no_more_steps_than_the_pieces_that_are_read_of_it(packing: bool) -> None:
    lengths = lengths_of([100 * 2048] * 3)
    assert loss_report(lengths, 2048, DataFormat.COMPLETION).tokens_lost == 3 * 36 * 2048
    assert steps_per_epoch(3, lengths, 2048, 1, packing, cuts_long_rows=True) == 3 * 64
    assert steps_per_epoch(30, lengths, 2048, 4, packing, cuts_long_rows=True) == 30 * 64 // 4


def test_packing_counts_by_hand() -> None:
    assert packing_efficiency(lengths_of([1024] * 10), 2048) == 1.0
    assert packing_efficiency(lengths_of([1024] * 3), 2048) == pytest.approx(0.75)
    assert packing_efficiency(lengths_of([1100] * 4), 2048) == pytest.approx(1100 / 2048)
    # 200 rows at most share a sequence
    assert packing_efficiency(lengths_of([4] * 400), 2048) == pytest.approx(800 / 2048)
    # rows that do not fit are not there
    assert packing_efficiency(lengths_of([2048, 5000]), 2048) == 1.0


@given(st.lists(st.integers(1, 2048), min_size=1, max_size=120))
def test_packing_is_near_first_fit_decreasing(values: list[int]) -> None:
    bins: list[int] = []
    for value in sorted(values, reverse=True):
        for index, room in enumerate(bins):
            if room >= value:
                bins[index] -= value
                break
        else:
            bins.append(2048 - value)
    packed = sum(values) / 2048 / packing_efficiency(lengths_of(values), 2048)
    assert packed >= sum(values) / 2048 - 1e-9
    assert round(packed) <= len(bins) * 1.15 + 1.5  # rows of a histogram bin count as equal
    assert round(packed) >= len(bins) * 0.85 - 1.5


def test_steps_per_epoch() -> None:
    lengths = lengths_of([1024] * 100)
    assert steps_per_epoch(1000, lengths, 2048, 16, packing=False) == 63
    assert steps_per_epoch(1000, lengths, 2048, 16, packing=True) == 32
    assert steps_per_epoch(1, lengths, 2048, 128, packing=True) == 1
    assert steps_per_epoch(1000, None, 2048, 16, packing=True) == 63
    half_lost = lengths_of([1024] * 50 + [9000] * 50)
    assert steps_per_epoch(1000, half_lost, 2048, 10, packing=False) == 50


@pytest.mark.parametrize(
    ("rows", "held"), [(None, 0), (999, 0), (1000, 50), (5000, 50), (7001, 71), (50_000, 500), (10**7, 500)]
)
def test_validation_rows(rows: int | None, held: int) -> None:
    assert validation_rows(rows) == held


def test_the_sample_is_fair_and_the_same_each_time() -> None:
    def run() -> list[int]:
        sample = Sample(1000)
        for row in range(20_000):
            slot = sample.slot()
            if slot is not None:
                sample.put(slot, row)
        return sample._lengths

    first = run()
    assert first == run()
    assert len(set(first)) == 1000
    assert sum(first) / 1000 == pytest.approx(10_000, rel=0.06)  # mean of uniform: sd of the mean is 183
    assert sum(row < 5000 for row in first) == pytest.approx(250, abs=50)


def test_a_large_file_is_sampled_in_constant_memory(model: ModelSpec, tmp_path: Path) -> None:
    cap = limit("sampled_rows")
    rows, rng = cap * 3, random.Random(3)
    path = tmp_path / "large.jsonl"
    with path.open("w") as stream:
        for _ in range(rows):
            stream.write(json.dumps({"text": "word " * rng.randrange(1, 40)}) + "\n")
    measure(path, model=model, max_rows=50)  # caches
    seen: list[tuple[int, int]] = []
    tracemalloc.start()
    spec = measure(path, model=model, progress=lambda done, total: seen.append((done, total)))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert (spec.rows, spec.lengths and spec.lengths.rows_measured) == (rows, cap)
    assert peak < 12 << 20
    assert spec.lengths is not None
    assert spec.lengths.total_tokens == pytest.approx(spec.lengths.mean * rows, rel=1e-6)
    assert any(f"sample of {cap} rows" in note for note in spec.notes)
    assert all(done <= total == path.stat().st_size for done, total in seen)
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    assert seen[-1][0] == path.stat().st_size


def test_max_rows_checks_the_first_rows_and_counts_all(model: ModelSpec, write: Callable[..., Path]) -> None:
    rows = [chat("a", "b")] * 30
    for path in (write("d.jsonl", rows), write("d.json", json.dumps(rows))):
        spec = measure(path, model=model, max_rows=10)
        assert (spec.rows, spec.lengths and spec.lengths.rows_measured) == (30, 10)
        assert any("only the first 10 of 30 rows" in note for note in spec.notes)
    broken = write("e.jsonl", "".join(json.dumps(r) + "\n" for r in rows) + "{broken\n")
    assert measure(broken, model=model, max_rows=30).rows == 31


def test_without_a_tokenizer_lengths_are_an_estimate_that_says_so(model: ModelSpec, write: Callable[..., Path]) -> None:
    spec = measure(write("d.jsonl", [{"text": "word " * 400}]), model=model)
    assert spec.lengths is not None
    assert spec.lengths.basis == "estimate"
    assert 400 <= spec.lengths.longest <= 700
    assert any("estimated from characters" in note for note in spec.notes)


def test_a_template_costs_tokens_for_every_turn(model: ModelSpec, write: Callable[..., Path]) -> None:
    def longest(*words: str) -> int:
        spec = measure(write("d.jsonl", [chat(*words)]), model=model)
        assert spec.lengths is not None
        return spec.lengths.longest

    per_turn = facts()["templates"]["llama3"]["per_turn"]
    assert longest("a", "b", "a", "b") - longest("a", "b") == 2 * (per_turn + 1)


def test_the_models_own_tokenizer_counts_where_it_is_at_hand(
    model: ModelSpec, write: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write("d.jsonl", [{"text": "The capital of Norway is Oslo."}])
    hub = tmp_path / "hub"
    monkeypatch.setenv("HF_HUB_CACHE", str(hub))
    snapshot = hub / "models--example--llama-3-instruct" / "snapshots" / "abc"
    make_tokenizer_folder(snapshot)
    make_tokenizer_folder(tmp_path / "folder")
    from tokenizers import Tokenizer

    exact = len(Tokenizer.from_file(str(snapshot / "tokenizer.json")).encode("The capital of Norway is Oslo.").ids) + 1
    for spec in (
        measure(path, model=model),
        measure(path, model=replace(model, id=str(tmp_path / "folder"))),
        measure(path, model=model, tokenizer_path=tmp_path / "folder" / "tokenizer.json"),
    ):
        assert spec.lengths is not None
        assert (spec.lengths.basis, spec.lengths.longest) == ("tokenizer", exact)


def test_the_files_of_the_corpus(corpus: Path, model: ModelSpec) -> None:
    counts = {
        p.name: measure(p, model=model).rows for p in itertools.chain(corpus.glob("*.jsonl"), corpus.glob("*.csv"))
    }
    assert counts == {
        "alpaca.jsonl": 4,
        "messages.jsonl": 4,
        "sharegpt.jsonl": 3,
        "completion.jsonl": 3,
        "pairs.csv": 3,
        "segments.jsonl": 2,
    }
