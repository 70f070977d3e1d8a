"""Predicted throughput: what is compared with what, and that nothing but the setup decides a prediction or a group."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.fit_throughput import FIRST, GRID, fit, points_of
from benchmarks.rows import COLUMNS, Row, read_rows
from benchmarks.throughput import (
    Speed,
    document,
    fitted,
    group,
    main,
    methods,
    order,
    orders,
    speed,
    speeds,
    strategies,
    text,
)

# https://github.com/AnswerDotAI/fsdp_qlora benchmarks_03_2024.md, two RTX 4090
ANSWER = {
    "source": "Answer.AI",
    "url": "https://github.com/AnswerDotAI/fsdp_qlora",
    "model": "Llama-2-7B",
    "params_b": "6.74",
    "method": "qlora",
    "lora_r": "64",
    "lora_targets": "q,k,v,up,down,gate",
    "framework": "fsdp_qlora train.py (PyTorch FSDP1)",
    "gpu": "RTX 4090",
    "gpu_mem_gb": "24",
    "n_gpus": "2",
    "n_nodes": "1",
    "interconnect": "pcie",
    "seq_len": "2048",
    "grad_accum": "unknown",
    "packing": "no",
    "act_checkpointing": "yes",
    "precision": "pure bf16 + nf4 base",
    "optimizer": "adamw",
    "fused_ce": "unknown",
    "attention": "unknown",
    "peak_mem_gb": "unknown",
    "mem_metric": "unknown",
    "step_time_s": "unknown",
    "outcome": "ran",
    "notes": "trust:A",
}


def row(name: str, strategy: str, micro: int, measured: float, **changes: str) -> Row:
    values = {
        **ANSWER,
        "id": name,
        "strategy": strategy,
        "micro_batch": str(micro),
        "tokens_per_s_per_gpu": str(measured),
        **changes,
    }
    return Row(**{column: values[column] for column in COLUMNS})


FSDP, DDP = row("fsdp", "fsdp", 10, 2250.2), row("ddp", "ddp", 8, 2330.2)
LORA = row("lora", "ddp", 4, 2399.5, method="lora", precision="pure bf16")


def write(path: Path, rows: list[Row]) -> Path:
    import csv

    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        writer.writerows([[getattr(r, c) for c in COLUMNS] for r in rows])
    return path


def test_published_rows_are_predicted_and_ordered() -> None:
    results = speeds([FSDP, DDP, LORA])
    assert [r.error for r in results] == pytest.approx([0, 0, 0], abs=0.15)
    found = order("strategies", results, strategies)
    assert (found.pairs, found.right, found.wrong) == (1, 1, ())


def test_measured_values_change_neither_predictions_nor_groups() -> None:
    rows = [FSDP, DDP, LORA]
    values = [r.tokens_per_s_per_gpu for r in rows]
    shuffled = [replace(r, tokens_per_s_per_gpu=v) for r, v in zip(rows, values[1:] + values[:1], strict=True)]
    before, after = speeds(rows), speeds(shuffled)
    assert [(r.predicted, r.groups, r.bound_by) for r in before] == [(r.predicted, r.groups, r.bound_by) for r in after]


def test_ids_and_sources_decide_nothing() -> None:
    renamed = replace(FSDP, id="x", source="somewhere", url="elsewhere")
    assert speed(renamed).predicted == speed(FSDP).predicted
    assert fitted(renamed) == fitted(FSDP)


def test_a_wrong_order_is_counted_and_named() -> None:
    slow = replace(DDP, tokens_per_s_per_gpu="1000")
    found = order("strategies", speeds([FSDP, slow]), strategies)
    assert (found.pairs, found.right, found.wrong) == (1, 0, (("fsdp", "ddp"),))


def test_a_tie_is_no_order() -> None:
    same = replace(DDP, tokens_per_s_per_gpu="2260")
    found = order("strategies", speeds([FSDP, same]), strategies)
    assert (found.pairs, found.ties) == (0, 1)


def test_rows_that_differ_in_more_than_the_strategy_are_not_comparable() -> None:
    other = replace(DDP, seq_len="4096")
    found = order("strategies", speeds([FSDP, other, LORA]), strategies)
    assert found.pairs == found.ties == 0
    batch = replace(LORA, method="qlora", id="q", precision="pure bf16 + nf4 base")
    assert order("methods", speeds([LORA, batch]), methods).pairs + order("m", speeds([LORA, batch]), methods).ties == 1


def test_a_row_that_cannot_be_expressed_is_named_with_its_reason() -> None:
    results = speeds([replace(FSDP, id="far", strategy="pipelines"), replace(FSDP, id="card", gpu="a new card")])
    assert all(r.why_not for r in results)
    lines = "\n".join(text(results, every_row=True))
    assert "far" in lines
    assert "card" in lines
    assert document(results)["expressible_share"] == 0


def test_rows_without_a_throughput_are_left_out() -> None:
    assert speeds([replace(FSDP, tokens_per_s_per_gpu="unknown")]) == []


def test_other_stacks_are_reported_apart() -> None:
    other = replace(FSDP, framework="torchtune", lora_targets="q,v", fused_ce="chunked", grad_accum="1")
    result = speed(other)
    assert result.why_not is None
    assert result.groups[0] == "other stacks"
    hugging_face = [o for o in orders([result, speed(DDP)]) if not o.name.startswith("all stacks")]
    assert all(o.pairs == 0 for o in hugging_face)


def test_the_json_has_a_row_and_its_groups(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = write(tmp_path / "rows.csv", [FSDP, DDP])
    assert main([str(file), "--format", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [r["id"] for r in found["rows"]] == ["fsdp", "ddp"]
    assert {g["name"] for g in found["groups"]} >= {"all", "HF stack", "HF stack: strategy ddp"}
    assert found["order"][0]["share"] == 1.0
    assert main([str(tmp_path / "none.csv")]) == 2


def test_a_fit_recovers_what_the_rows_were_made_with() -> None:
    """Rows whose throughput the model itself gives under other constants; the fit finds them again."""
    from unittest.mock import patch

    from benchmarks.throughput import predict
    from recipegen.catalog.planning import planning

    truth = replace(planning(), matmul_share=0.7)
    made = []
    for base in (
        row("a", "single", 4, 1, n_gpus="1"),
        row("b", "single", 8, 1, n_gpus="1", gpu="A100-80GB", gpu_mem_gb="80"),
    ):
        result: Speed = speed(base)
        assert result.setup is not None
        with patch("recipegen.estimate.compute.planning", lambda: truth):
            made.append((result.setup, predict(result.setup)[0]))
    found = fit(made)
    assert found["matmul_share"] == pytest.approx(0.7)
    assert found["overlap"] == FIRST["overlap"]
    assert set(found) == set(GRID)


def test_reading_keeps_the_rows(tmp_path: Path) -> None:
    assert read_rows(write(tmp_path / "rows.csv", [FSDP, DDP])) == [FSDP, DDP]


# --- the published rows

CORPUS = Path(__file__).parents[1] / "corpus" / "published" / "measurements.csv"


@pytest.fixture(scope="module")
def published() -> list[Speed]:
    return speeds(read_rows(CORPUS))


def test_hugging_face_rows_that_no_constant_was_fitted_on_are_met(published: list[Speed]) -> None:
    kept_back = group("kept back", (r for r in published if "HF stack, kept back" in r.groups))
    assert kept_back.n > 100
    assert kept_back.median_abs_error is not None
    assert kept_back.median_abs_error < 0.25


def test_strategies_are_put_in_the_order_in_which_they_were_measured(published: list[Speed]) -> None:
    same_gpus, per_gpu = orders(published)[:2]
    assert same_gpus.share == 1.0
    assert per_gpu.pairs >= 10
    assert per_gpu.share is not None
    assert per_gpu.share >= 0.9


def test_planning_holds_what_the_fit_finds(published: list[Speed]) -> None:
    """The constants in planning.yaml are the result of benchmarks.fit_throughput and of nothing else."""
    from recipegen.catalog.planning import planning

    found = fit([p for p in points_of(CORPUS) if fitted(p[0].row)])
    assert found == {name: pytest.approx(getattr(planning(), name)) for name in GRID}


def test_every_row_with_a_throughput_is_scored_or_named(published: list[Speed]) -> None:
    assert len(published) == sum(r.number("tokens_per_s_per_gpu") is not None for r in read_rows(CORPUS))
    assert all(r.why_not or r.groups for r in published)
