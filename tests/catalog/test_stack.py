"""The stack's tables say one thing each, completely, and answer with an error where nobody looked."""

from __future__ import annotations

import ast
import itertools
import time
from pathlib import Path

import pytest
import yaml

from recipegen.catalog.stack import Stack, load_stack, stack_names
from recipegen.spec import AttentionMemory, Dtype, Gpu, Method, ModelSpec, PrecisionLabel, RecipegenError, Strategy

ROOT = Path(__file__).resolve().parents[2]
STACK = load_stack("axolotl-0.19.0")
MARKS = {"measured", "spec", "derived", "claimed", "code", "doc"}


def gpu(capability: str, **flags: bool) -> Gpu:
    return Gpu("test card", 24 * 2**30, capability, 100.0, 50.0, 900.0, 300, **flags)


def model(model_type: str = "llama", head_dim: int = 128, sliding_window: int | None = None) -> ModelSpec:
    return ModelSpec(
        id="test/model",
        model_type=model_type,
        layer_class="LlamaDecoderLayer",
        hidden_size=4096,
        intermediate_size=14336,
        num_hidden_layers=32,
        num_attention_heads=32,
        num_key_value_heads=8,
        head_dim=head_dim,
        vocab_size=128256,
        max_position_embeddings=131072,
        sliding_window=sliding_window,
    )


# --- the folder


def test_an_unknown_stack_is_one_clear_line() -> None:
    for name in ("axolotl-9.9", "../stacks/axolotl-0.19.0", ""):
        with pytest.raises(RecipegenError, match=r"axolotl-0\.19\.0"):
            load_stack(name)


def test_pins_are_exact_versions_and_match_the_train_extra() -> None:
    pins = STACK.pins
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    for package in ("axolotl", "torch", "transformers", "accelerate", "peft", "bitsandbytes", "torch-optimi"):
        assert f'"{package}=={pins[package]}"' in project
    assert all(version[0].isdigit() and "," not in version and "*" not in version for version in pins.values())
    assert STACK.python[0] == "3.10"
    assert stack_names() == ("axolotl-0.19.0",)


def test_the_key_schemas_are_small_and_load_in_milliseconds() -> None:
    for name in ("axolotl_keys.json", "deepspeed_keys.json"):
        assert (STACK.folder / name).stat().st_size < 200_000
    start = time.process_time()
    Stack(STACK.name, STACK.folder).axolotl_keys()
    assert time.process_time() - start < 0.05


def test_every_fact_has_a_source_and_a_mark() -> None:
    rows = [
        *yaml.safe_load((STACK.folder / "optimizers.yaml").read_text(encoding="utf-8"))["optimizers"].values(),
        *yaml.safe_load((STACK.folder / "attention.yaml").read_text(encoding="utf-8"))["rules"],
        *yaml.safe_load((STACK.folder / "kernels.yaml").read_text(encoding="utf-8")).values(),
    ]
    for row in rows:
        assert row["source"], row
        assert row["mark"] in MARKS, row


# --- precision


def test_every_precision_row_names_a_test_that_exists() -> None:
    rows = yaml.safe_load((STACK.folder / "precision.yaml").read_text(encoding="utf-8"))["rows"]
    for row in rows:
        path, _, name = row["test"].partition("::")
        tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
        assert name in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}, row["test"]


def test_no_two_precision_rows_answer_the_same_question() -> None:
    rows = yaml.safe_load((STACK.folder / "precision.yaml").read_text(encoding="utf-8"))["rows"]
    seen = set()
    for row in rows:
        for strategy, attention in itertools.product(row["strategies"], row.get("attention", ["any"])):
            key = (row["trainer"], strategy, row["method"], row["load"], attention)
            assert key not in seen
            seen.add(key)


@pytest.mark.parametrize(
    ("trainer", "strategy", "method", "optimizer", "load", "label", "bytes_per_parameter"),
    [
        ("axolotl", Strategy.FSDP2_FULL, Method.FULL, "adamw_torch_fused", Dtype.BF16, PrecisionLabel.PURE_BF16, 8),
        ("axolotl", Strategy.FSDP2_FULL, Method.FULL, "optimi_adamw", Dtype.BF16, PrecisionLabel.COMPENSATED_BF16, 10),
        ("axolotl", Strategy.SINGLE, Method.FULL, "adamw_torch_fused", Dtype.BF16, PrecisionLabel.MIXED, 8),
        ("axolotl", Strategy.ZERO3_CPU, Method.FULL, "adamw_torch_fused", Dtype.BF16, PrecisionLabel.FP32_MASTER, 16),
        (
            "accelerate",
            Strategy.FSDP2_FULL,
            Method.FULL,
            "adamw_torch_fused",
            Dtype.FP32,
            PrecisionLabel.FP32_MASTER,
            16,
        ),
        ("accelerate", Strategy.FSDP2_FULL, Method.FULL, "adamw_torch_fused", Dtype.BF16, PrecisionLabel.PURE_BF16, 8),
        ("axolotl", Strategy.DDP, Method.LORA, "adamw_torch_fused", Dtype.BF16, PrecisionLabel.FP32_MASTER, 16),
        ("axolotl", Strategy.DDP, Method.QLORA, "adamw_torch_fused", Dtype.NF4, PrecisionLabel.FP32_MASTER, 16),
    ],
)
def test_bytes_per_trainable_parameter(
    trainer: str,
    strategy: Strategy,
    method: Method,
    optimizer: str,
    load: Dtype,
    label: PrecisionLabel,
    bytes_per_parameter: float,
) -> None:
    p = STACK.precision(trainer, strategy, method, optimizer, load)
    assert p.label is label
    own = p.trainable.bytes + p.gradients.bytes
    assert own + p.state_bytes_per_parameter(STACK.optimizer(optimizer).moments) == bytes_per_parameter


def test_a_combination_nobody_ran_is_an_error_not_a_guess() -> None:
    with pytest.raises(RecipegenError, match="was not run"):
        STACK.precision("axolotl", Strategy.DDP, Method.FULL, "adamw_torch_fused", Dtype.FP32)
    with pytest.raises(RecipegenError, match="was not run"):
        STACK.precision("axolotl", Strategy.ZERO2, Method.LORA, "adamw_torch_fused", Dtype.BF16)
    with pytest.raises(RecipegenError, match="nothing is known"):
        STACK.optimizer("nonsense_opt")
    with pytest.raises(RecipegenError, match="unknown trainer"):
        STACK.load_dtype("torchtune", Strategy.DDP, Method.FULL)


def test_flash_attention_leaves_nothing_in_fp32_on_one_gpu() -> None:
    args = ("axolotl", Strategy.SINGLE, Method.FULL, "adamw_torch_fused", Dtype.BF16)
    assert STACK.precision(*args).fp32_modules == ("embed_tokens", "lm_head", "norm")
    assert STACK.precision(*args, attention="flash_attention_2").fp32_modules == ()


# --- optimizers


def test_every_recommended_optimizer_runs_where_it_is_recommended_and_has_a_precision() -> None:
    for trainer, strategy, method in itertools.product(("axolotl", "accelerate"), Strategy, Method):
        load = STACK.load_dtype(trainer, strategy, method)
        names = STACK.optimizers_for(trainer, strategy, method, load)
        assert names
        for name in names:
            assert STACK.optimizer(name).problem_with(strategy) == ""
            if not (strategy.is_deepspeed and method.is_adapter):  # never run: the rules reject it
                STACK.precision(trainer, strategy, method, name, load)


def test_known_conflicts_name_their_reason() -> None:
    assert "check_fsdp2_w_8bit_optimizer" in STACK.optimizer("adamw_bnb_8bit").problem_with(Strategy.FSDP2_FULL)
    assert STACK.optimizer("adamw_bnb_8bit").problem_with(Strategy.DDP) == ""
    assert all("Unhandled" in STACK.optimizer("ao_adamw_8bit").problem_with(s) for s in Strategy)


def test_state_bytes_follow_the_dtype() -> None:
    assert STACK.optimizer("adamw_torch_fused").state_bytes_per_parameter(Dtype.FP32) == 8
    assert STACK.optimizer("adamw_torch_fused").state_bytes_per_parameter(Dtype.BF16) == 4
    assert STACK.optimizer("adamw_bnb_8bit").state_bytes_per_parameter(Dtype.INT8) == pytest.approx(2.03125)
    assert STACK.optimizer("adamw_torch").temporary_bytes_per_parameter(Dtype.BF16) == 2
    assert STACK.optimizer("adamw_torch_fused").temporary_bytes_per_parameter(Dtype.BF16) == 0


def test_fp32_weights_need_no_compensation() -> None:
    assert "optimi_adamw" not in STACK.optimizers_for("axolotl", Strategy.FSDP2_FULL, Method.FULL, Dtype.FP32)


# --- attention


@pytest.mark.parametrize(
    ("card", "shape", "packing", "expected"),
    [
        (gpu("sm_120"), model(), True, ("sdpa", AttentionMemory.VARLEN, True)),
        (gpu("sm_120"), model(), False, ("sdpa", AttentionMemory.MASKED, True)),
        (gpu("sm_120"), model(sliding_window=4096), True, ("sdpa", AttentionMemory.MASKED, True)),
        (gpu("sm_120"), model(head_dim=512), True, ("sdpa", AttentionMemory.MASKED, True)),
        (gpu("sm_89", flash_attention=True), model(), True, ("flash_attention_2", AttentionMemory.FLASH, True)),
        (gpu("sm_89"), model(), True, ("sdpa", AttentionMemory.MASKED, False)),
        (gpu("sm_89"), model(), False, ("sdpa", AttentionMemory.MASKED, True)),
        (gpu("cpu", triton=False), model(), True, ("sdpa", AttentionMemory.MASKED, True)),
        (gpu("sm_120"), model("gpt_oss"), True, ("eager", AttentionMemory.EAGER, True)),
        (gpu("sm_120"), model("gemma2", head_dim=256), True, ("eager", AttentionMemory.EAGER, True)),
        (gpu("sm_89", flash_attention=True), model("gemma2"), True, ("flash_attention_2", AttentionMemory.FLASH, True)),
    ],
)
def test_attention_follows_capabilities(
    card: Gpu, shape: ModelSpec, packing: bool, expected: tuple[str, AttentionMemory, bool]
) -> None:
    *found, reason = STACK.attention(card, shape, packing)
    assert tuple(found) == expected
    assert reason


def test_every_card_and_model_gets_an_answer() -> None:
    for capability in ("cpu", "sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120", "gfx942"):
        for flash, packing, window in itertools.product((True, False), (True, False), (None, 1024)):
            STACK.attention(gpu(capability, flash_attention=flash), model(sliding_window=window), packing)


def test_a_users_own_choice_of_attention() -> None:
    card = gpu("sm_120")
    assert STACK.attention_memory("flash_attention_2", card, model()) is AttentionMemory.FLASH
    assert STACK.attention_memory("kernels-community/flash-attn3", card, model()) is AttentionMemory.FLASH
    assert STACK.attention_memory("eager", card, model()) is AttentionMemory.EAGER
    assert STACK.attention_memory("sdpa", card, model(), packing=True) is AttentionMemory.VARLEN
    assert STACK.attention_memory("sdpa", card, model(), packing=False) is AttentionMemory.MASKED
    with pytest.raises(RecipegenError, match="nothing is known"):
        STACK.attention_memory("bogus", card, model())


def test_kernels_by_architecture() -> None:
    assert STACK.supports_fused_linear(model("llama"))
    assert not STACK.supports_fused_linear(model("qwen2_moe"))
    assert STACK.supports_lora_kernels(model("qwen3"))
    assert not STACK.supports_lora_kernels(model("phi3"))  # "Original QKV code not found"
