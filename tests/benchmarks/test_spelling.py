"""Files and rows as people write them: byte order marks, junk numbers, and one reading for every spelling."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from benchmarks import accuracy, cuda_points, simulated, spelling, throughput
from benchmarks.cards import card_of
from benchmarks.rows import COLUMNS, Row, read_rows
from benchmarks.setup import NotExpressible, understand
from recipegen.spec import AttentionMemory, Dtype, LossKernel, Method, Strategy
from recipegen.spec.units import GB, GIB
from tests.benchmarks.test_setup import a_row

JUNK = ["-3", "0", "1e400", "1e308", "nan", "inf", "9" * 400, "12,5 GB", "é", "(", "1e-320", "max 20000", "24-26"]


def written(path: Path, rows: list[Row], columns: tuple[str, ...] = COLUMNS, encoding: str = "utf-8") -> Path:
    with path.open("w", newline="", encoding=encoding) as file:
        writer = csv.DictWriter(file, columns)
        writer.writeheader()
        writer.writerows(asdict(row) for row in rows)
    return path


def strict(text: str) -> dict[str, Any]:
    """JSON without NaN and Infinity."""

    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is not JSON")

    document: dict[str, Any] = json.loads(text, parse_constant=refuse)
    return document


# --- files


def test_a_byte_order_mark_and_blanks_in_the_header_do_not_count(tmp_path: Path) -> None:
    rows = [a_row(notes='unit:GiB\nsecond "line", more')]
    assert read_rows(written(tmp_path / "bom.csv", rows, COLUMNS[::-1], "utf-8-sig")) == rows
    plain = written(tmp_path / "plain.csv", rows).read_text(encoding="utf-8")
    header, _, rest = plain.partition("\n")
    (tmp_path / "blanks.csv").write_text(header.replace(",", ", ") + "\n" + rest, encoding="utf-8")
    assert read_rows(tmp_path / "blanks.csv") == rows


@pytest.mark.parametrize("main", [accuracy.main, throughput.main])
def test_junk_in_any_column_is_a_row_with_an_answer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], main: Callable[[list[str]], int]
) -> None:
    junk = [a_row(tokens_per_s_per_gpu="100", **{c: text}) for c in COLUMNS if c not in ("id", "notes") for text in JUNK
            if c != "tokens_per_s_per_gpu"]  # fmt: skip
    rates = [a_row(tokens_per_s_per_gpu=text) for text in JUNK]
    assert main([str(written(tmp_path / "junk.csv", junk + rates)), "--format", "json"]) == 0
    document = strict(capsys.readouterr().out)
    assert all(row["expressible"] or row["why_not"] for row in document["rows"])
    assert len(document["rows"]) == len(junk) + (
        len(rates) if main is accuracy.main else len(document["rows"]) - len(junk)
    )


@pytest.mark.parametrize("text", ["-3", "0", "1e400", "nan", "1e308"])
def test_what_no_gpu_can_hold_is_not_measured(text: str) -> None:
    row = a_row(peak_mem_gb=text)
    assert (row.measured_bytes, row.metric) == (None, None)
    assert accuracy.result(row).error is None


def test_pairs_are_ordered_as_the_rows_are() -> None:
    rows = [a_row(id=f"{n}-{model}", model=model, method=method, tokens_per_s_per_gpu=str(1000 - n), params_b="unknown")
            for n, (model, method) in enumerate([("Llama-3.1-8B", "qlora"), ("Qwen3-8B", "qlora"), ("Qwen3-8B", "lora"),
                                                 ("Llama-3.1-8B", "lora")])]  # fmt: skip
    found = throughput.order("methods", throughput.speeds(rows), throughput.methods)
    assert found.pairs + found.ties == 2
    assert list(found.wrong) == sorted(found.wrong)


# --- numbers and units


@pytest.mark.parametrize(
    ("peak", "notes", "size"),
    [
        ("24.5 GB", "unit:GiB", 24.5 * GB),
        ("~24.5", "unit:GiB", 24.5 * GIB),
        ("24576", "unit:MiB", 24 * GIB),
        ("24", "Unit: gb", 24 * GB),
        ("24", "units=GiB", 24 * GIB),
        ("24", "nothing said", 24 * GIB),
        ("24,5", "unit:GiB", None),
        ("24-26", "unit:GiB", None),
    ],
)
def test_memory_with_its_unit(peak: str, notes: str, size: float | None) -> None:
    row = a_row(peak_mem_gb=peak, notes=notes)
    assert row.measured_bytes == (None if size is None else round(size))
    assert row.unit_is_assumed == (notes == "nothing said")


@pytest.mark.parametrize(
    ("text", "value"),
    [("4096", 4096), ("4096.0", 4096), ("4,096", 4096), ("4k", 4096), ("2 per device", 2), ("2048 tokens", 2048),
     ("max 4096", None), ("16 (global)", None), ("auto", None), ("1.5", None), ("9" * 30, None), ("", None)],
)  # fmt: skip
def test_whole_numbers(text: str, value: int | None) -> None:
    assert spelling.whole(text) == value


@pytest.mark.parametrize(
    ("text", "metric"),
    [("allocated", "allocated"), ("torch.cuda.max_memory_allocated", "allocated"), ("Reserved", "reserved"),
     ("nvidia-smi", "unknown"), ("allocated or reserved", "unknown"), ("", "unknown")],
)  # fmt: skip
def test_metrics(text: str, metric: str) -> None:
    assert a_row(mem_metric=text).metric == metric


@pytest.mark.parametrize(("text", "outcome"), [("OOM", "oom"), ("out of memory", "oom"), ("Ran", "ran"), ("?", "?")])
def test_outcomes(tmp_path: Path, text: str, outcome: str) -> None:
    assert read_rows(written(tmp_path / "rows.csv", [a_row(outcome=text)]))[0].outcome == outcome


# --- what was done


@pytest.mark.parametrize(
    ("text", "strategy", "offloads"),
    [
        ("ZeRO-3", Strategy.ZERO3_CPU, False),
        ("DeepSpeed ZeRO stage 3 + CPU offload", Strategy.ZERO3_CPU, True),
        ("zero2+offload", Strategy.ZERO2, True),
        ("FSDP (full shard)", Strategy.FSDP2_FULL, False),
        ("fsdp_full_shard", Strategy.FSDP2_FULL, False),
        ("FSDP1 with CPU offload", Strategy.FSDP2_FULL, True),
        ("data parallel", Strategy.DDP, False),
    ],
)
def test_strategies(text: str, strategy: Strategy, offloads: bool) -> None:
    setup = understand(a_row(strategy=text, n_gpus="8"))
    assert setup.recipe.parallelism.strategy is strategy
    assert setup.offloads is offloads
    assert understand(a_row(strategy="Single GPU")).recipe.parallelism.strategy is Strategy.SINGLE


@pytest.mark.parametrize("text", ["no", "none", "False", "off", "disabled", "no (baseline)"])
def test_what_means_no_checkpointing(text: str) -> None:
    assert not understand(a_row(act_checkpointing=text)).recipe.activation_checkpointing


def test_selective_checkpointing_in_other_words() -> None:
    assert understand(a_row(act_checkpointing="selective (op)")).symbols.selective_checkpointing
    with pytest.raises(NotExpressible, match="every 2 layers"):
        understand(a_row(act_checkpointing="every 2 layers"))


@pytest.mark.parametrize("text", ["sdpa", "PyTorch SDPA", "FA2", "xformers", "memory-efficient", "cuDNN", "ring_flash"])
def test_kernels_that_keep_no_scores(text: str) -> None:
    assert understand(a_row(attention=text)).recipe.attention_memory is AttentionMemory.FLASH


@pytest.mark.parametrize("text", ["eager", "math", "no flash-attn (model native)", "none"])
def test_attention_that_keeps_its_scores(text: str) -> None:
    assert understand(a_row(attention=text)).recipe.attention_memory is AttentionMemory.EAGER


@pytest.mark.parametrize("text", ["sgd", "Adafactor", "lion_8bit", "galore_adamw", "muon", "adam-mini"])
def test_an_optimizer_with_other_states_is_no_adam(text: str) -> None:
    with pytest.raises(NotExpressible, match="moments"):
        understand(a_row(optimizer=text))


@pytest.mark.parametrize(
    ("text", "method", "dora"),
    [("LoRA", Method.LORA, False), ("QLoRA", Method.QLORA, False), ("dora", Method.LORA, True),
     ("Full fine-tuning", Method.FULL, False), ("rsLoRA", Method.LORA, False)],
)  # fmt: skip
def test_methods(text: str, method: Method, dora: bool) -> None:
    recipe = understand(a_row(method=text)).recipe
    assert recipe.method is method
    assert bool(recipe.adapter and recipe.adapter.use_dora) is dora


@pytest.mark.parametrize(
    ("text", "method", "base"),
    [("8-bit base", "lora", Dtype.INT8), ("LLM.int8", "lora", Dtype.INT8), ("GPTQ-Int8 base", "qlora", Dtype.INT8),
     ("int4", "qlora", Dtype.NF4), ("fp32", "full", Dtype.FP32), ("bf16 mixed", "full", Dtype.BF16)],
)  # fmt: skip
def test_what_the_weights_are_kept_in(text: str, method: str, base: Dtype) -> None:
    assert understand(a_row(precision=text, method=method)).recipe.precision.parameters is base


def test_constants_of_a_base_quantised_once_and_bases_of_odd_bits() -> None:
    assert understand(a_row(method="qlora", precision="nf4, no double quant")).symbols.packed_constants == 1 / 16
    with pytest.raises(NotExpressible, match="bits"):
        understand(a_row(method="qlora", precision="2-bit base"))


@pytest.mark.parametrize("text", ["no", "stock", "default", "false"])
def test_no_fused_loss(text: str) -> None:
    setup = understand(a_row(fused_ce=text))
    assert setup.recipe.loss_kernel is LossKernel.STOCK
    assert accuracy.kind(setup) == accuracy.SINGLE_STOCK


@pytest.mark.parametrize(
    ("text", "modules"),
    [("attention only", 4), ("attn+mlp", 7), ("ALL", 7), ("all_linear", 7), ("wq,wk,wv,wo,w1,w2,w3", 7),
     ("target_modules=['q_proj', 'v_proj']", 2), ("q_proj/v_proj", 2), ("Wqkv", 3), ("qkvo", 4)],
)  # fmt: skip
def test_targets(text: str, modules: int) -> None:
    adapter = understand(a_row(lora_targets=text)).recipe.adapter
    assert adapter is not None
    assert len(adapter.target_modules) == modules


@pytest.mark.parametrize(
    "name", ["LLaMA Factory", "LlamaFactory", "NeMo-Automodel", "HF Trainer (bf16)", "SFTTrainer", "Unsloth 2024.10"]
)
def test_frameworks_in_other_spellings(name: str) -> None:
    assumed = understand(a_row(framework=name)).assumed
    generic = name.startswith(("HF", "SFT", "Uns"))
    assert any("framework" in text for text in assumed) is generic


def test_a_size_in_the_name_of_a_card() -> None:
    assert card_of("24GB GPU", None).name == "a 24 GB card"
    assert card_of("RTX 4090 48GB", None).name == "RTX 4090, 48 GB"
    assert card_of("A100", 1e308) == card_of("A100", None)
    assert understand(a_row(gpu="A100", gpu_mem_gb="40 GB")).card.memory_bytes != card_of("A100", None).memory_bytes


# --- simulated peaks


@pytest.mark.parametrize("column", ["world", "seq", "mbs", "ga", "lora_r", "peak_bytes", "n_params"])
@pytest.mark.parametrize("text", ["-3", "0", "9" * 400, "1e400", "nan", "12,5"])
def test_junk_in_a_simulated_row_has_a_reason(column: str, text: str) -> None:
    row = {"model": "Llama-3.2-1B", "method": "lora", "world": "2", "seq": "1024", "peak_bytes": "1"}
    assert column in (simulated.result(row | {column: text}, 0).why_not or "")


@pytest.mark.parametrize("text", ["nan", "-5", "0", "1e9", "inf"])
def test_a_card_that_cannot_be_is_refused(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        cuda_points.main([f"--dry-run={text}"])
    assert end.value.code == 2
    assert "GiB" in capsys.readouterr().err
