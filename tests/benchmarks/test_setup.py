"""How a row of a measurements file is understood: what its columns say, what the table of frameworks fills in, and that
neither a measured value nor a row's name has any part in it."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks import frameworks
from benchmarks.accuracy import groups, result
from benchmarks.rows import COLUMNS, Row, read_rows
from benchmarks.setup import NotExpressible, Setup, understand
from recipegen.estimate.activations import saved_per_token
from recipegen.estimate.phases import phases
from recipegen.spec import AttentionMemory, Dtype, LossKernel, Method, Strategy

FILE = Path(__file__).parents[1] / "corpus" / "published" / "measurements.csv"

PLAIN = {
    "id": "made-up",
    "source": "made up",
    "url": "n/a",
    "model": "Llama-3.1-8B",
    "params_b": "8.03",
    "method": "lora",
    "lora_r": "16",
    "lora_targets": "q,k,v,o",
    "framework": "fms-hf-tuning",
    "strategy": "single",
    "gpu": "A100-80GB",
    "gpu_mem_gb": "80",
    "n_gpus": "1",
    "n_nodes": "1",
    "interconnect": "n/a",
    "seq_len": "2048",
    "micro_batch": "2",
    "grad_accum": "1",
    "packing": "no",
    "act_checkpointing": "yes",
    "precision": "pure bf16",
    "optimizer": "adamw_torch_fused",
    "fused_ce": "none",
    "attention": "flash",
    "peak_mem_gb": "20",
    "mem_metric": "allocated",
    "tokens_per_s_per_gpu": "unknown",
    "step_time_s": "unknown",
    "outcome": "ran",
    "notes": "unit:GiB",
}


def a_row(**columns: str) -> Row:
    return Row(**(PLAIN | columns))


@cache
def published() -> tuple[Row, ...]:
    return tuple(read_rows(FILE))


def peak(setup: Setup) -> int:
    return max(phase.bytes for phase in phases(setup.symbols) if phase.name != "load")


def why_not(row: Row) -> str:
    with pytest.raises(NotExpressible) as reason:
        understand(row)
    return str(reason.value)


# --- what columns say


def test_a_row_that_says_everything_assumes_nothing() -> None:
    setup = understand(a_row())
    recipe, x = setup.recipe, setup.symbols
    assert setup.assumed == ()
    assert (recipe.method, recipe.micro_batch_size, recipe.sequence_len) == (Method.LORA, 2, 2048)
    assert recipe.adapter is not None
    assert recipe.adapter.r == 16
    assert recipe.adapter.target_modules == ("q_proj", "k_proj", "v_proj", "o_proj")
    assert (x.T, x.W, x.checkpointing) == (4096, 1, True)
    assert recipe.loss_kernel is LossKernel.STOCK
    assert recipe.attention_memory is AttentionMemory.FLASH


@pytest.mark.parametrize(
    ("strategy", "gpus", "expected", "offloads"),
    [
        ("single", "1", Strategy.SINGLE, False),
        ("ddp", "4", Strategy.DDP, False),
        ("fsdp", "4", Strategy.FSDP2_FULL, False),
        ("fsdp_cpu_offload", "2", Strategy.FSDP2_FULL, True),
        ("zero2", "4", Strategy.ZERO2, False),
        ("zero3", "4", Strategy.ZERO3_CPU, False),
        ("zero3_cpu_offload", "4", Strategy.ZERO3_CPU, True),
    ],
)
def test_strategies(strategy: str, gpus: str, expected: Strategy, offloads: bool) -> None:
    setup = understand(a_row(strategy=strategy, n_gpus=gpus))
    assert setup.recipe.parallelism.strategy is expected
    assert setup.offloads is offloads


def test_a_tensor_parallel_row_keeps_its_axes() -> None:
    par = understand(a_row(strategy="fsdp2+tp2", n_gpus="8")).recipe.parallelism
    assert (par.tp, par.dp_shard) == (2, 4)


@pytest.mark.parametrize(
    ("columns", "reason"),
    [
        ({"strategy": "fsdp2+pp4", "n_gpus": "8"}, "pipeline"),
        ({"strategy": "fsdp2+cp", "n_gpus": "8"}, "how many ranks"),
        ({"strategy": "megatron", "n_gpus": "8"}, "megatron"),
        ({"strategy": "fsdp2+tp3", "n_gpus": "8"}, "divide"),
        ({"seq_len": "max 20000"}, "seq_len"),
        ({"micro_batch": "0"}, "micro_batch"),
        ({"method": "dpo"}, "dpo"),
        ({"lora_targets": "wings"}, "wings"),
        ({"model": "Nobody-9000B", "params_b": "9000"}, "Nobody"),
        ({"optimizer": "unknown"}, "optimizer"),
    ],
)
def test_what_no_recipe_says_has_a_reason(columns: dict[str, str], reason: str) -> None:
    assert reason in why_not(a_row(**columns))


def test_a_framework_that_nobody_wrote_down_has_a_reason() -> None:
    assert "Wonder" in why_not(a_row(framework="Wonder trainer"))


def test_precisions() -> None:
    pure = understand(a_row(method="full")).recipe.precision
    master = understand(a_row(method="full", precision="bf16 mixed, fp32 master")).recipe.precision
    engine = understand(a_row(method="full", precision="bf16", strategy="zero2", n_gpus="4")).recipe.precision
    assert (pure.parameters, pure.states, pure.master) == (Dtype.BF16, Dtype.BF16, None)
    assert (master.parameters, master.states) == (Dtype.FP32, Dtype.FP32)
    assert (engine.parameters, engine.master, engine.states) == (Dtype.BF16, Dtype.FP32, Dtype.FP32)


def test_an_eight_bit_optimizer_has_eight_bit_states_and_a_paged_one_none_of_pytorchs() -> None:
    plain, eight, paged = (
        understand(a_row(method="full", optimizer=name)).symbols for name in ("adamw", "adamw_8bit", "paged_adamw_8bit")
    )
    assert plain.o == 4.0
    assert 2.0 < eight.o < 2.2
    assert (paged.paged_states, eight.paged_states) == (True, False)


def test_experts_by_name_add_one_adapter_an_expert() -> None:
    columns = {"model": "Qwen/Qwen3-30B-A3B", "params_b": "30.5", "method": "qlora", "framework": "axolotl"}
    without = understand(a_row(**columns, lora_targets="q_proj,v_proj")).symbols
    whole = understand(a_row(**columns, lora_targets="q_proj,v_proj + experts")).symbols
    down = understand(a_row(**columns, lora_targets="q_proj,v_proj + experts.down_proj")).symbols
    experts = 48 * 128 * 16
    assert whole.n - without.n == experts * ((2048 + 2 * 768) + (768 + 2048))
    assert down.n - without.n == experts * (768 + 2048)


def test_embeddings_trained_beside_the_adapter_count_in_the_models_dtype() -> None:
    columns = {"method": "qlora", "framework": "TRL + PEFT", "precision": "nf4 base, bf16"}
    alone = understand(a_row(**columns, lora_targets="all-linear")).symbols
    beside = understand(a_row(**columns, lora_targets="all-linear (+ lm_head, embed_tokens fully trained)")).symbols
    copies = 2 * 128256 * 4096 * 2  # bytes of embeddings and head in bf16
    assert beside.t * (beside.n - alone.n) == pytest.approx(copies)


# --- what the table of frameworks says


def test_unknown_fields_are_filled_from_the_table_and_marked() -> None:
    setup = understand(a_row(framework="torchtune", fused_ce="unknown", attention="unknown"))
    assert set(setup.assumed) == {"fused_ce", "attention"}


def test_every_fill_and_every_kernel_of_the_table_is_known() -> None:
    table = yaml.safe_load(Path(frameworks.__file__).with_name("frameworks.yaml").read_text(encoding="utf-8"))
    fields = set(frameworks.Framework.__dataclass_fields__) | {"variants", "methods"}
    for entry in table["frameworks"]:
        assert entry["source"].startswith("https://"), entry["name"]
        assert set(entry) <= fields, entry["name"]
        assert set(entry.get("unknown", {})) <= set(COLUMNS), entry["name"]
        for variant in (*entry.get("variants", {}).values(), *entry.get("methods", {}).values()):
            assert set(variant) <= fields, entry["name"]
        for method in ("", "full", "lora", "qlora"):
            found = frameworks.framework(entry["name"], None, method)
            assert found is not None
            assert found.loss
    assert all(kernel["source"] for kernel in table["kernels"].values())


def test_the_longest_name_wins() -> None:
    single = frameworks.framework("Qwen finetune.py (HF Trainer)")
    engine = frameworks.framework("Qwen finetune.py (HF Trainer+DeepSpeed)")
    assert single is not None
    assert engine is not None
    assert (single.single_engine, engine.single_engine) == ("", "zero2")


def test_an_upcast_base_without_autocast_has_fp32_activations() -> None:
    columns = {"framework": "HF transformers+PEFT (custom loop)", "method": "qlora", "attention": "sdpa"}
    loop = understand(a_row(**columns, precision="nf4")).symbols
    autocast = understand(a_row(**columns, precision="nf4 under autocast")).symbols
    assert (loop.h, autocast.h) == (4.0, 2.0)
    assert loop.head_fp32
    assert (loop.stock_forward, loop.stock_backward) == (8.0, 16.0)


def test_a_loop_that_holds_its_loss_keeps_the_inputs_of_two_graphs() -> None:
    columns = {"method": "qlora", "framework": "litgpt", "precision": "bf16-true + bnb.nf4"}
    kept = understand(a_row(**columns, act_checkpointing="no")).symbols
    recomputed = understand(a_row(**columns, act_checkpointing="yes")).symbols
    assert (kept.kept_graphs, recomputed.kept_graphs) == (2, 1)
    assert kept.packed_constants == 4 / 64
    assert kept.quantised_head


@pytest.mark.parametrize(
    ("model", "H", "F", "kv", "attention"),
    # rotated q and k, the output; then repeated v with grouped queries, or all of q, k, v behind a view of v without
    [("Mistral-7B-v0.1", 4096, 14336, 1024, 8 * 4096), ("Llama-2-7B", 4096, 11008, 4096, 6 * 4096 + 6 * 4096)],
)
def test_a_litgpt_layer_keeps_what_its_modules_keep(model: str, H: int, F: int, kv: int, attention: int) -> None:
    """Counted with saved_tensors_hooks over litgpt 0.4.13's own modules, LoRA on q and v: two fp32 norm inputs, one
    dropped input with its mask, the products of q and v before they are scattered, attention, and three of the MLP."""
    columns = {"framework": "litgpt", "precision": "bf16-true", "act_checkpointing": "no", "lora_targets": "q,v"}
    x = understand(a_row(**columns, model=model, params_b="7")).symbols
    counted = 8 * H + 3 * H + 2 * (H + kv) + attention + 4 * 32 + 6 * F
    assert saved_per_token(x) == counted


def test_fp32_activations_with_grouped_queries_keep_all_probabilities() -> None:
    """No fused kernel of torch's sdpa takes fp32 with grouped queries: k and v repeated, s x s per head in fp32."""
    columns = {"framework": "HF transformers+PEFT (custom loop)", "method": "qlora", "precision": "nf4"}
    H, F, q, A, s = 1536, 8960, 1536, 12, 2048
    rest = 8 * H + 4 * H + 12 * F  # norms, the input that q, k and v's adapters share, the MLP
    for attention, kept in (("sdpa", 16 * q + 4 * A * s), ("flash", 4 * q + 4 * 256 + 4 * A)):
        row = a_row(**columns, model="Qwen2.5-1.5B-Instruct", params_b="1.54", attention=attention)
        assert saved_per_token(understand(row).symbols) == rest + kept


def test_a_cumulative_table_switches_on_what_came_before() -> None:
    columns = {"framework": "torchtune", "method": "full", "fused_ce": "chunked"}
    notes = "unit:GiB; optimization table, {}; metric: peak memory active"
    steps = ("cumulative: + packing", "cumulative: + compile", "cumulative: + activation offloading")
    rows = [understand(a_row(**columns, notes=notes.format(step))) for step in steps]
    assert [r.recipe.torch_compile for r in rows] == [False, True, True]
    assert [r.recipe.activation_offloading for r in rows] == [False, False, True]


def test_compilation_keeps_less() -> None:
    columns = {"framework": "torchtune", "method": "full", "act_checkpointing": "no"}
    eager = understand(a_row(**columns, notes="unit:GiB; no compile"))
    compiled = understand(a_row(**columns, notes="unit:GiB; compile"))
    assert peak(compiled) < peak(eager)


def test_selective_checkpointing_is_between_all_and_nothing() -> None:
    columns = {"framework": "torchtitan", "method": "full", "strategy": "fsdp2", "n_gpus": "8"}
    peaks = [peak(understand(a_row(**columns, act_checkpointing=how))) for how in ("yes", "selective", "no")]
    assert peaks[0] < peaks[1] < peaks[2]


@pytest.mark.parametrize("column", COLUMNS)
@pytest.mark.parametrize("text", ["0", "-1", "inf", "nan", "1e400", "99999999999999999999", "", "x y"])
def test_no_column_makes_a_row_raise(column: str, text: str) -> None:
    scored = result(a_row(**{column: text}))
    assert scored.why_not or scored.predicted_allocated_bytes


# --- what has no part in it


def test_a_bare_g_is_read_as_gib_and_flagged() -> None:
    bare, said = a_row(notes='unit:"G" as printed'), a_row()
    assert (bare.unit_is_assumed, said.unit_is_assumed) == (True, False)
    assert bare.measured_bytes == said.measured_bytes
    assert (len(result(bare).flags), len(result(said).flags)) == (1, 0)
    assert all("assumed" in name for name in groups(understand(bare)))


def test_measured_values_have_no_part_in_the_setup() -> None:
    """Permuting what was measured among rows that print a value changes neither groups nor what can be expressed."""
    rows = published()
    measured = [row for row in rows if row.measured_bytes is not None]
    values = [row.peak_mem_gb for row in measured]
    random.Random(0).shuffle(values)
    for row, value in zip(measured, values, strict=True):
        before, after = result(row), result(replace(row, peak_mem_gb=value))
        assert (before.groups, before.why_not, before.assumed) == (after.groups, after.why_not, after.assumed)
        assert before.predicted_allocated_bytes == after.predicted_allocated_bytes


def test_a_rows_name_and_source_have_no_part_in_the_setup() -> None:
    for row in published():
        other = replace(row, id="x", source="x", url="x")
        before, after = result(row), replace(result(other), id=row.id)
        assert before == after


def test_most_published_rows_can_be_expressed() -> None:
    rows = published()
    assert sum(result(row).why_not is None for row in rows) >= 0.85 * len(rows)


_TEXT = st.one_of(
    st.text(max_size=20),
    st.sampled_from(["unknown", "n/a", "", "-1", "0", "1e9", "nan", "inf", "1.5", "99999999999999999999", "DEFAULT"]),
)


@settings(max_examples=400, deadline=None)
@given(st.data())
def test_mangled_rows_are_understood_or_refused(data: st.DataObject) -> None:
    row = data.draw(st.sampled_from(published()))
    columns = data.draw(st.lists(st.sampled_from(COLUMNS), min_size=1, max_size=4, unique=True))
    others = data.draw(st.sampled_from(published()))
    mangled = {name: data.draw(st.one_of(_TEXT, st.just(getattr(others, name)))) for name in columns}
    scored = result(replace(row, **mangled))  # NotExpressible becomes a reason; nothing else may be raised
    assert scored.why_not or (scored.predicted_allocated_bytes or 0) > 0
