"""Files of simulated peaks as recipes: every column means something, nothing is dropped."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import simulate_points, simulated
from benchmarks.setup import NotExpressible
from benchmarks.simulated_rows import DEFAULTS, read_points, understand_point
from recipegen.spec import Dtype, LossKernel, RecipegenError, Strategy

CORPUS = Path(__file__).parents[1] / "corpus"
ROW = {"model": "llama-3.1-8b", "method": "full", "strategy": "fsdp2", "world": "8", "seq": "2048", "peak_bytes": "1"}


def test_columns_reach_the_recipe() -> None:
    row = ROW | {"ga": "4", "sync_each_batch": "yes", "reshard": "false", "loss": "liger", "reduce": "bf16", "mbs": "3"}
    recipe = understand_point(row).recipe
    assert recipe.parallelism.strategy is Strategy.FSDP2_FULL
    assert (recipe.gradient_accumulation, recipe.sync_each_batch, recipe.micro_batch_size) == (4, True, 3)
    assert recipe.fsdp is not None
    assert not recipe.fsdp.reshard_after_forward
    assert recipe.loss_kernel is LossKernel.FUSED_LINEAR
    assert recipe.precision.reduction is Dtype.BF16


def test_a_trainers_row_and_a_plain_one_differ_in_their_groups() -> None:
    lora = ROW | {"method": "lora"}
    assert understand_point(lora | {"trainer": "axolotl"}).symbols.adapter_groups
    assert not understand_point(lora).symbols.adapter_groups
    assert not understand_point(lora | {"trainer": "accelerate"}).symbols.adapter_groups


def test_a_split_root_can_be_said() -> None:
    point = understand_point(ROW | {"wrap": "split"})
    assert point.options.split_root
    assert point.symbols.split_root


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"model": "llama-9-8b"}, "llama-9-8b"),
        ({"n_params": "12345"}, "8030261248"),
        ({"strategy": "zero3"}, "zero3"),
        ({"world": "eight"}, "eight"),
        ({"optim": "magic"}, "magic"),
        ({"attn": "ring"}, "ring"),
        ({"wrap": "half"}, "half"),
        ({"tensor_parallel": "2"}, "tensor_parallel"),
    ],
)
def test_what_cannot_be_said_has_a_reason(change: dict[str, str], why: str) -> None:
    with pytest.raises(NotExpressible, match=why):
        understand_point(ROW | change)


def test_rows_that_cannot_be_said_are_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "peaks.csv"
    columns = list(ROW)
    unknown = ROW | {"model": "nobody-7b"}
    lines = [columns, ROW.values(), unknown.values()]
    path.write_text("\n".join(",".join(map(str, line)) for line in lines) + "\n")
    assert simulated.main([str(path), "--format", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [row["expressible"] for row in document["rows"]] == [True, False]
    assert "nobody-7b" in document["rows"][1]["why_not"]
    assert document["expressible_share"] == 0.5
    assert document["groups"][0]["n"] == 1
    assert document["mean_abs_error"] == document["groups"][0]["mean_abs_error"]


@pytest.mark.parametrize("content", ["", "a,b\n1,2\n", "\x00"])
def test_a_file_that_is_none(tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str) -> None:
    path = tmp_path / "x.csv"
    path.write_text(content)
    assert simulated.main([str(path)]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    with pytest.raises(RecipegenError):
        read_points(path)


def test_groups_do_not_look_at_the_peak() -> None:
    rows = read_points(CORPUS / "simulated-peaks-as-trained.csv")
    turned = [row | {"peak_bytes": other["peak_bytes"]} for row, other in zip(rows, reversed(rows), strict=True)]
    before, after = simulated.simulated(rows), simulated.simulated(turned)
    assert [r.groups for r in before.results] == [r.groups for r in after.results]
    assert [(g.name, g.n) for g in before.groups] == [(g.name, g.n) for g in after.groups]


def test_the_points_of_the_file_are_those_of_the_list() -> None:
    """Nobody wrote a row by hand, and none was left out."""
    listed = {simulate_points.key(row) for row in simulate_points.points()}
    assert {simulate_points.key(row) for row in read_points(simulate_points.FILE)} == listed


def test_every_column_of_the_list_is_known() -> None:
    for row in simulate_points.points():
        assert set(row) - {"mechanism"} <= set(DEFAULTS)


HARD = {
    f"{row['mechanism']}, {row['model']}, {number}": row for number, row in enumerate(read_points(simulate_points.FILE))
}
SMALL = {name: row for name, row in HARD.items() if int(row["n_params"]) < 2e9}
#: the first small point of every mechanism
QUICK = dict({row["mechanism"]: (name, row) for name, row in reversed(SMALL.items())}.values())
EVERY = 5  # of the large points one in so many: all take a quarter of an hour


@pytest.mark.stack
@pytest.mark.parametrize("name", QUICK)
def test_a_small_point_is_simulated_again(name: str) -> None:
    again, _ = simulate_points.simulated({k: v for k, v in QUICK[name].items() if v and k in (*DEFAULTS, "mechanism")})
    assert again["peak_bytes"] == QUICK[name]["peak_bytes"]


@pytest.mark.stack
@pytest.mark.long
@pytest.mark.parametrize("name", [name for name in HARD if name not in QUICK][::EVERY])
def test_a_large_point_is_simulated_again(name: str) -> None:
    again, _ = simulate_points.simulated({k: v for k, v in HARD[name].items() if v and k in (*DEFAULTS, "mechanism")})
    assert again["peak_bytes"] == HARD[name]["peak_bytes"]
