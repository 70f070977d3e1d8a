"""The formulas against the simulated peaks (tests/corpus/simulated-peaks.md says how those were made).

Measured with this test:
- as trained, 29 rows: mean 0.03%, largest 0.14%
- fp32 reduction, 43 rows: mean 0.09%, largest 0.60%
- rows that were looked at while the formulas were written, 15: mean 0.13%, largest 0.84%
- held-out, 14 rows: mean 0.13%, largest 1.08% (mean 0.21% at the moment they were first scored)
The row with `wrap=split` has a wrapping that no recipe here writes.
"""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import pytest
import samples
from samples import ALL_LINEAR, ATTENTION, MIXED, MODELS, STACK

from recipegen.estimate.memory import gpu_memory
from recipegen.estimate.symbols import symbols
from recipegen.spec import AttentionMemory, Dtype, LossKernel, Method, Phase, Precision, Recipe, Strategy

CORPUS = Path(__file__).parent.parent / "corpus"
KERNELS = {"hf": LossKernel.STOCK, "liger": LossKernel.FUSED_LINEAR, "cce": LossKernel.CUT}
ATTENTIONS = {"flash": AttentionMemory.FLASH, "sdpa": AttentionMemory.MASKED, "eager": AttentionMemory.EAGER}
OPTIMIZERS = {"adamw": "adamw_torch_fused", "adamw_8bit": "adamw_torch_8bit"}
#: file -> (rows, largest error in %, mean error in %)
BOUNDS = {
    "simulated-peaks-as-trained.csv": (29, 0.15, 0.05),
    "simulated-peaks.csv": (43, 0.65, 0.10),
    "simulated-peaks-fitted.csv": (15, 0.90, 0.20),
    "simulated-peaks-held-out.csv": (14, 1.10, 0.15),
}


def rows(name: str) -> list[dict[str, str]]:
    with (CORPUS / name).open(newline="", encoding="utf-8") as file:
        return [row for row in csv.DictReader(file) if row.get("wrap") != "split"]


def precision(row: dict[str, str]) -> Precision:
    sharded = row["strategy"] in ("fsdp2", "hsdp")
    reduction = Dtype.BF16 if row.get("reduce") == "bf16" else Dtype.FP32
    if row.get("mixed") == "1":
        return MIXED
    if row["method"] != "full":
        base = Dtype.NF4 if row["method"] == "qlora" else Dtype.BF16
        reduction = reduction if sharded else Dtype.FP32
        return Precision(base, Dtype.FP32, Dtype.FP32, reduction, Dtype.FP32, Dtype.BF16)
    kept = Dtype.FP32 if row["dtype"] == "fp32" else Dtype.BF16
    states = Dtype.INT8 if row["optim"] == "adamw_8bit" else kept
    return Precision(kept, kept, kept, reduction if sharded else kept, states, Dtype.BF16)


def recipe_of(row: dict[str, str]) -> Recipe:
    world = int(row["world"])
    nodes = int(row.get("replicate") or 2) if row["strategy"] == "hsdp" else 1
    strategy = {
        "fsdp2": Strategy.FSDP2_FULL,
        "hsdp": Strategy.FSDP2_HYBRID,
        "ddp": Strategy.DDP if world > 1 else Strategy.SINGLE,
    }[row["strategy"]]
    recipe = samples.recipe(
        row["model"],
        Method(row["method"]),
        strategy,
        world // nodes,
        nodes,
        precision=precision(row),
        optimizer=OPTIMIZERS[row["optim"]],
        r=int(row.get("lora_r") or 16),
        targets=ATTENTION if samples.model(row["model"]).is_moe else ALL_LINEAR,
        sequence_len=int(row["seq"]),
        micro_batch_size=int(row["mbs"]),
        activation_checkpointing=row["ckpt"] == "1",
        gradient_accumulation=int(row["ga"]),
        sync_each_batch=row.get("sync_each_batch") == "yes",
        loss_kernel=KERNELS[row["loss"]],
        attention_memory=ATTENTIONS[row.get("attn") or "flash"],
    )
    if recipe.fsdp and row.get("reshard") == "false":
        recipe = replace(recipe, fsdp=replace(recipe.fsdp, reshard_after_forward=False))
    return recipe


def step_peak(row: dict[str, str]) -> Phase:
    """The largest phase of the step; the simulation does not load."""
    x = symbols(samples.model(row["model"]), recipe_of(row), STACK)
    memory = gpu_memory(x, capacity_bytes=1)
    return max((phase for phase in memory.phases if phase.name != "load"), key=lambda phase: phase.bytes)


def error_percent(row: dict[str, str]) -> float:
    return 100.0 * (step_peak(row).bytes / int(row["peak_bytes"]) - 1.0)


@pytest.mark.parametrize("name", BOUNDS)
def test_every_simulated_peak_is_met(name: str) -> None:
    count, largest, mean = BOUNDS[name]
    errors = [(error_percent(row), row) for row in rows(name)]
    table = "\n".join(f"{e:+.2f}% {list(row.values())[:16]}" for e, row in sorted(errors, key=lambda p: -abs(p[0])))
    assert len(errors) == count
    assert max(abs(e) for e, _ in errors) <= largest, table
    assert sum(abs(e) for e, _ in errors) / count <= mean, table


def test_parameter_counts_are_the_published_ones() -> None:
    for spec, published in MODELS.values():
        x = symbols(spec, samples.recipe(spec.id), STACK)
        assert published == x.shape.N, spec.id


def test_trainable_counts_are_those_of_the_simulated_models() -> None:
    for name in BOUNDS:
        for row in rows(name):
            x = symbols(samples.model(row["model"]), recipe_of(row), STACK)
            assert x.n_t == int(row["n_trainable"]), row
