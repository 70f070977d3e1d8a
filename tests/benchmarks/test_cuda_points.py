"""The CUDA measurements, as far as they go without a card: what a card would run, what is printed, what is written."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks import cuda_points
from benchmarks.accuracy import training_memory
from benchmarks.cuda_points import Outcome, measure, row_of, run_step, table, write_rows
from benchmarks.cuda_recipes import NOT_STEPS, POINTS, Chosen, Point, choose, recipe_of
from benchmarks.rows import read_rows
from benchmarks.setup import understand
from recipegen.catalog import load_model, load_stack
from recipegen.estimate.memory import gpu_memory
from recipegen.estimate.symbols import symbols
from recipegen.spec import Dtype, Method, ModelSpec, Strategy
from recipegen.spec.units import GIB

CARD = {"name": "A Card 24GB", "total_bytes": 24 * GIB, "free_bytes": 23 * GIB, "triton": True}
RESULT: dict[str, Any] = {
    "allocated_bytes": 10 * GIB, "reserved_bytes": 11 * GIB, "nvidia_smi_bytes": 12 * GIB, "step_s": 0.5,
    "losses": [6.0, 5.9], "finite": True, "trainable_parameters": 1, "versions": {"torch": "2.13.0"},
}  # fmt: skip
BY_NAME = {point.name: point for point in POINTS}


def tiny() -> ModelSpec:
    return replace(
        load_model("Llama-3.2-1B"),
        num_hidden_layers=2, hidden_size=64, intermediate_size=128, num_attention_heads=4, num_key_value_heads=2,
        head_dim=16, vocab_size=512, num_parameters=0,
    )  # fmt: skip


def tiny_point(name: str) -> Chosen:
    point, model = BY_NAME[name], tiny()
    recipe = recipe_of(point, model, 64, 2)
    return Chosen(point, model, 16, recipe, gpu_memory(symbols(model, recipe, load_stack()), 8 * GIB))


# --- what a card runs


@pytest.mark.parametrize("gib", [8, 16, 24, 32, 96, 140])
def test_every_point_has_a_recipe_that_the_estimate_puts_on_the_card(gib: int) -> None:
    assert len(POINTS) == 8
    for point in POINTS:
        chosen = choose(point, gib * GIB)
        assert chosen is not None, point.name
        assert chosen.memory.needed_high_bytes <= 0.9 * gib * GIB
        assert chosen.recipe.method is point.method
        assert chosen.recipe.loss_kernel is point.kernel
        assert chosen.recipe.activation_checkpointing is point.checkpointing
        assert chosen.recipe.parallelism.world_size == 1
        assert not chosen.recipe.packing
        assert chosen.model.num_hidden_layers <= chosen.layers_of


@pytest.mark.parametrize("point", POINTS, ids=lambda point: point.name)
def test_a_larger_card_runs_nothing_smaller(point: Point) -> None:
    sizes = [choose(point, gib * GIB) for gib in (8, 16, 24, 32, 96, 140)]
    rank = [point.shapes.index(_shape(c)) for c in sizes if c is not None]
    assert rank == sorted(rank, reverse=True)


def _shape(chosen: Chosen) -> tuple[str, int]:
    return chosen.model.id.rpartition("/")[2], chosen.model.num_hidden_layers


def test_the_large_vocabulary_is_what_that_point_is_about() -> None:
    chosen = choose(BY_NAME["large-vocabulary"], 24 * GIB)
    assert chosen is not None
    largest = max((t for p in chosen.memory.phases for t in p.terms), key=lambda t: t.bytes)
    assert largest.name == "logits_and_loss"


def test_a_card_too_small_for_anything_gets_nothing() -> None:
    assert all(choose(point, GIB // 2) is None for point in POINTS)
    assert all("nothing small enough" in line for line in cuda_points.dry_run(0.5))


# --- the run


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_points, "missing", lambda point: "")
    monkeypatch.setattr(cuda_points, "_simulated", lambda chosen, triton: (9 * GIB, ""))


def run(points: tuple[Point, ...], *, free_gib: float = 23, seconds: float = 600) -> tuple[list[Outcome], list[float]]:
    given: list[float] = []

    def work(chosen: Chosen, seconds: float) -> dict[str, Any]:
        given.append(seconds)
        return RESULT

    card = CARD | {"free_bytes": round(free_gib * GIB)}
    return measure(points, card, seconds=seconds, work=work, say=lambda line: None), given


@pytest.mark.usefixtures("installed")
def test_the_time_is_shared_and_nothing_starts_after_it() -> None:
    outcomes, given = run(POINTS)
    assert all(o.ran for o in outcomes)
    assert len(given) == 8
    assert given[0] <= 600 / len(POINTS)
    assert max(given) < 600
    late, none = run(POINTS, seconds=0)
    assert not none
    assert {o.skipped for o in late} == {"the time is up"}


@pytest.mark.usefixtures("installed")
def test_a_point_that_does_not_fit_is_named_with_the_reason() -> None:
    outcomes, given = run(POINTS[:1], free_gib=0.5)
    assert not given
    assert "full" in table(outcomes)[1]
    assert "skipped: not even its smallest shape fits this card" in table(outcomes)[1]


def test_a_package_that_is_not_there_is_named() -> None:
    point = replace(POINTS[0], needs=("a_package_of_no_name",))
    assert "a_package_of_no_name" in cuda_points.missing(point)


@pytest.mark.usefixtures("installed")
def test_the_table_sets_estimate_and_simulation_beside_the_measurement() -> None:
    outcomes, _ = run((BY_NAME["lora"],))
    chosen = outcomes[0].chosen
    assert chosen is not None
    line = table(outcomes)[1]
    assert chosen.label in line
    assert f"{chosen.estimated_bytes / GIB:.2f} ({chosen.estimated_bytes / (10 * GIB) - 1:+.1%})" in line
    assert "9.00 (-10.0%)" in line
    assert "11.00" in line
    assert "12.00" in line


def test_failures_and_doubts_are_said() -> None:
    chosen = tiny_point("full")
    failed = Outcome("full", chosen=chosen, result={"error": "RuntimeError: no kernel", "oom": False})
    doubtful = Outcome("lora", chosen=chosen, result=RESULT | {"finite": False}, not_simulated="no torch")
    lines = "\n".join(table([failed, doubtful]))
    assert "failed" in lines
    assert "RuntimeError: no kernel" in lines
    assert "lora: not simulated: no torch" in lines
    assert "lora: the loss was not finite" in lines


# --- the file


@pytest.mark.usefixtures("installed")
def test_rows_are_read_again_as_they_were_meant(tmp_path: Path) -> None:
    outcomes, _ = run(POINTS)
    rows = [row for row in (row_of(o, CARD) for o in outcomes) if row is not None]
    write_rows(tmp_path / "points.csv", rows)
    again = read_rows(tmp_path / "points.csv")
    assert again == rows
    assert len({row.id for row in again}) == 8
    for row, outcome in zip(again, outcomes, strict=True):
        assert outcome.chosen is not None
        assert row.unit == "GiB"
        assert row.metric == "allocated"
        assert row.measured_bytes == 10 * GIB
        assert row.ran
        assert row.number("gpu_mem_gb") == 24
        assert row.number("micro_batch") == outcome.chosen.recipe.micro_batch_size
        assert float(row.note(r"peak_reserved=([\d.]+) GiB") or 0) == 11
        assert float(row.note(r"nvidia_smi=([\d.]+) GiB") or 0) == 12
        layers = row.note(r"layers:(\d+) of")
        assert int(layers or outcome.chosen.layers_of) == outcome.chosen.model.num_hidden_layers
        assert row.number("tokens_per_s_per_gpu") == 2 * outcome.chosen.recipe.tokens_per_micro_batch
    says = {row.id.removeprefix("cuda-").removesuffix("-a-card-24gb"): row for row in again}
    assert says["chunked-loss"].fused_ce == "chunked"
    assert says["liger"].fused_ce == "liger"
    assert says["no-checkpointing"].act_checkpointing == "no"
    assert says["fsdp2-one-rank"].strategy == "fsdp2"
    assert says["lora"].lora_targets == "q,k,v,o,gate,up,down"


@pytest.mark.usefixtures("installed")
def test_the_accuracy_benchmark_understands_the_rows() -> None:
    """What the card ran and what benchmarks.accuracy makes of its row are the same recipe: within 2% in bytes."""
    outcomes, _ = run(POINTS)
    for outcome in outcomes:
        row = row_of(outcome, CARD)
        assert row is not None
        assert outcome.chosen is not None
        setup = understand(row)
        assert setup.assumed == ()
        if outcome.chosen.recipe.parallelism.strategy is Strategy.SINGLE:  # the row cannot say FSDP2 on one rank
            moments = training_memory(setup).phases
            predicted = max(phase.bytes for phase in moments if phase.name not in NOT_STEPS)
            assert predicted == pytest.approx(outcome.chosen.estimated_bytes, rel=0.02), row.id


def test_out_of_memory_is_a_row_and_another_failure_is_none() -> None:
    chosen = tiny_point("lora")
    versions = {"versions": {"torch": "2.13.0"}}
    out = Outcome("lora", chosen=chosen, result={"error": "OutOfMemoryError: tried", "oom": True, **versions})
    row = row_of(out, CARD)
    assert row is not None
    assert row.outcome == "oom"
    assert row.measured_bytes is None
    assert row_of(Outcome("lora", chosen=chosen, result={"error": "ValueError: x", "oom": False}), CARD) is None
    assert row_of(Outcome("lora", skipped="the time is up"), CARD) is None


def test_a_folder_that_is_not_there_is_said_before_anything_runs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(cuda_points, "probe", lambda: CARD)
    assert cuda_points.main(["--out", str(tmp_path / "no/points.csv")]) == 2
    assert "no such folder" in capsys.readouterr().err


def test_without_a_card_it_says_so_in_one_line_and_exits_2() -> None:
    hidden = os.environ | {"CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, "-m", "benchmarks.cuda_points"]
    root = Path(__file__).parents[2]
    done = subprocess.run(command, env=hidden, cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("no CUDA card, so nothing is measured: ")
    assert done.stderr.count("\n") == 1
    assert not done.stdout


# --- the worker, on the CPU


@pytest.mark.stack
@pytest.mark.parametrize("name", ["full", "qlora", "no-checkpointing", "fsdp2-one-rank"])
def test_the_worker_takes_two_steps_on_a_cpu_and_says_that_memory_was_not_counted(name: str) -> None:
    chosen = tiny_point(name)
    result = run_step(chosen, 120, device="cpu", steps=2)
    assert "error" not in result, result
    assert result["allocated_bytes"] is None
    assert result["reserved_bytes"] is None
    assert result["finite"]
    assert result["losses"][1] < result["losses"][0] or name == "fsdp2-one-rank"  # bf16 rounds a small step away
    assert result["trainable_parameters"] == symbols(chosen.model, chosen.recipe, load_stack()).n_t
    assert set(result["versions"]) >= {"torch", "transformers"}
    row = row_of(Outcome(name, chosen=chosen, result=result), CARD)
    assert row is not None
    assert row.measured_bytes is None


@pytest.mark.stack
def test_a_worker_that_fails_or_is_late_is_a_result() -> None:
    chosen = tiny_point("full")
    broken = replace(chosen, model=replace(chosen.model, model_type="no_such_type"))
    assert "KeyError" in run_step(broken, 120, device="cpu", steps=1)["error"]
    assert run_step(chosen, 0.01, device="cpu", steps=1)["error"].startswith("not done within")


@pytest.mark.stack
@pytest.mark.parametrize("name", ["full", "lora", "qlora"])
def test_the_model_has_the_dtypes_that_the_recipe_says(name: str) -> None:
    import torch

    from benchmarks.cuda_build import DTYPES, build

    chosen = tiny_point(name)
    recipe = chosen.recipe
    outer, base = build(chosen.model, recipe, torch.device("cpu"))
    trainable = {p.dtype for p in outer.parameters() if p.requires_grad}
    if recipe.method.is_adapter:
        assert trainable == {DTYPES[recipe.precision.trainable]} == {torch.float32}
    else:
        assert recipe.precision.fp32_modules
        assert base.get_input_embeddings().weight.dtype is torch.float32
        assert base.model.norm.weight.dtype is torch.float32
        assert base.model.layers[0].mlp.up_proj.weight.dtype is torch.bfloat16
    if recipe.method is Method.QLORA:
        assert recipe.precision.parameters is Dtype.NF4
        packed = [p for p in base.parameters() if p.dtype is torch.uint8]
        assert sum(p.numel() for p in packed) == symbols(chosen.model, recipe, load_stack()).shape.Q // 2
    assert all(torch.isfinite(p).all() for p in outer.parameters() if p.dtype is not torch.uint8)
