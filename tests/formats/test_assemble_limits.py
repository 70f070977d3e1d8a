"""What cannot be known is a reason, whatever a file holds; what is trained beside the usual."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recipegen.catalog import load_cluster, load_model
from recipegen.estimate import estimate
from recipegen.formats import (
    accelerate_read,
    axolotl_read,
)
from recipegen.formats.assemble import assemble
from recipegen.spec import (
    ModelSpec,
    RecipegenError,
)
from tests.formats.assembling import STACK, axolotl, made, zero
from tests.recipes_for_tests import cluster, model


@pytest.mark.parametrize(
    ("text", "path", "word"),
    [
        ("rl: dpo\n", "method", "rl"),
        ("adapter: llama-adapter\n", "adapter", "llama-adapter"),
        ("adapter: lora\nlora_target_linear: true\n", "adapter.r", "lora_r"),
        ("adapter: lora\nlora_r: 8\nlora_alpha: 8\n", "adapter.target_modules", "lora_target_modules"),
        ("deepspeed: elsewhere.json\n", "deepspeed.stage", "elsewhere.json"),
        ("optimizer: nonsense\n", "optimizer.name", "nonsense"),
        ("attn_implementation: sage\n", "attention", "sage"),
        ("qat: {activation_dtype: nvfp4}\n", "precision", "qat"),
        ("unfrozen_parameters: [lm_head]\n", "method", "unfrozen_parameters"),
        ("attn_implementation: flash_attention_4\n", "precision", "was not run"),
        ("deepspeed: {zero_optimization: {stage: 1}}\n", "deepspeed.stage", "ZeRO-1"),
    ],
)
def test_a_reason_stands_in_place_of_a_recipe(text: str, path: str, word: str) -> None:
    answer = axolotl(text)
    assert answer.recipe is None
    assert any(item.path == path and word in item.reason and "\n" not in item.reason for item in answer.unknown)


def test_a_stream_has_a_recipe_and_no_epoch() -> None:
    answer = axolotl("streaming: true\nmax_steps: 100\n")
    assert made(answer).max_steps == 100
    assert any(item.path == "datasets" for item in answer.unknown)


@pytest.mark.parametrize("error", [None, RecipegenError("no such model")])
def test_an_unknown_model_says_its_name(error: RecipegenError | None) -> None:
    def find(name: str) -> ModelSpec | None:
        if error:
            raise error
        return None

    answer = assemble([axolotl_read.read(b"base_model: who/knows\n", "a.yaml")], STACK, cluster=cluster(), model=find)
    assert answer.recipe is None
    assert answer.model is None
    assert any("who/knows" in item.reason and item.where == "a.yaml:1" for item in answer.unknown)


def test_without_hardware_the_processes_must_be_stated() -> None:
    assert axolotl("", world=None).recipe is None
    file = accelerate_read.read(b"distributed_type: MULTI_GPU\nnum_machines: 1\nnum_processes: 2\n", "accelerate.yaml")
    answer = axolotl("", file, world=None)
    assert made(answer).parallelism.world_size == 2
    assert any(item.path == "hardware" for item in answer.unknown)


def test_no_trainers_file_is_a_reason() -> None:
    answer = assemble([zero({})], STACK, cluster=cluster(), model=lambda _: model())
    assert answer.recipe is None
    assert "ds.json" in answer.unknown[0].reason


ODD = st.none() | st.booleans() | st.integers(-2, 2**70) | st.floats(allow_nan=False) | st.text(max_size=5)
KEYS = (
    "adapter", "lora_r", "lora_alpha", "lora_target_modules", "lora_target_linear", "load_in_4bit", "load_in_8bit",
    "bf16", "fp16", "tf32", "fsdp", "fsdp_version", "fsdp_config", "deepspeed", "dp_shard_size", "dp_replicate_size",
    "tensor_parallel_size", "context_parallel_size", "micro_batch_size", "gradient_accumulation_steps", "max_steps",
    "sequence_len", "sample_packing", "attn_implementation", "optimizer", "datasets", "plugins", "save_steps",
    "val_set_size", "warmup_ratio", "rl", "streaming", "processor_type", "gradient_checkpointing", "num_epochs",
)  # fmt: skip
LIKELY = st.sampled_from([
    "lora", "qlora", True, 2, 8, ["full_shard"], ["hybrid_shard"], {"offload_params": True}, "sdpa", "eager",
    {"zero_optimization": {"stage": 3}}, [{"path": 1}], "all-linear",
])  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(st.dictionaries(st.sampled_from(KEYS), LIKELY | ODD, max_size=8), st.booleans())
def test_nothing_in_a_file_raises(keys: dict[str, Any], hardware: bool) -> None:
    values = {"base_model": "m", "learning_rate": 1e-5, **keys}
    reading = axolotl_read.read(json.dumps(values).encode(), "axolotl.yaml")
    answer = assemble([reading], STACK, cluster=cluster() if hardware else None, model=lambda _: model())
    assert answer.recipe is not None or answer.unknown
    assert all(item.reason and "\n" not in item.reason for item in answer.unknown)


LORA_KEYS = "adapter: qlora\nload_in_4bit: true\nlora_r: 8\nlora_alpha: 16\nlora_target_modules: [q_proj, v_proj]\n"


def test_modules_that_train_whole_are_counted() -> None:
    plain = axolotl(LORA_KEYS)
    saved = axolotl(LORA_KEYS + "lora_modules_to_save: [embed_tokens, lm_head]\n")
    assert made(saved).adapter is not None
    assert made(saved).adapter.modules_to_save == ("embed_tokens", "lm_head")  # type: ignore[union-attr]
    assert saved.provenance["adapter.modules_to_save"] == "axolotl.yaml:9"
    shape = model()
    box = load_cluster("kentino-8x-rtx-pro-6000")
    before, after = (estimate(shape, box, made(answer), STACK) for answer in (plain, saved))
    copies = 2 * shape.vocab_size * shape.hidden_size
    assert after.trainable_parameters - before.trainable_parameters == copies
    assert after.gpu.peak_allocated_bytes - before.gpu.peak_allocated_bytes > 2 * copies
    other = axolotl(LORA_KEYS + "lora_modules_to_save: [score]\n")
    assert other.recipe is None
    assert "score" in other.unknown[0].reason


def test_quantised_experts_are_packed() -> None:
    shape = load_model("Qwen/Qwen3-30B-A3B")
    box = load_cluster("kentino-8x-rtx-pro-6000")
    wide = axolotl(LORA_KEYS, shape=shape)
    packed = axolotl(LORA_KEYS + "quantize_moe_experts: true\n", shape=shape)
    assert made(packed).quantised_experts
    assert not made(wide).quantised_experts
    before, after = (estimate(shape, box, made(answer), STACK).gpu.peak_allocated_bytes for answer in (wide, packed))
    experts = 48 * 128 * 3 * 2048 * 768  # layers, experts, matrices, hidden size, width
    assert before - after > 1.4 * experts  # 2 bytes a weight become about half a byte


@pytest.mark.parametrize(
    ("patterns", "frozen"),
    [
        ("[model.language_model.*, lm_head.*]", True),
        ("[model.language_model.+]", True),
        ("[model.*]", None),  # the tower too
        ("[model.language_model.layers.0.*]", None),
        ("['^model.language_model.embed_tokens.weight$[:32000]', model.language_model.*]", True),
        ("['(a+)+$', '((']", None),
    ],
)
def test_patterns_of_a_whole_text_decoder_freeze_the_tower(patterns: str, frozen: bool | None) -> None:
    shape = load_model("google/gemma-3-4b-it")
    found = axolotl(f"unfrozen_parameters: {patterns}\n", shape=shape)
    assert (None if found.recipe is None else found.recipe.freeze_vision) is frozen
    if frozen is None:
        assert any("unfrozen_parameters" in item.reason and item.where for item in found.unknown)
