"""What files leave out is the trainer's default."""

from __future__ import annotations

import pytest

from recipegen.spec import (
    AttentionMemory,
    Dtype,
    LossKernel,
    Method,
    Precision,
    Strategy,
)
from tests.formats.assembling import LORA, arguments, axolotl, made
from tests.recipes_for_tests import cluster, model


def test_an_axolotl_file_gets_axolotls_defaults() -> None:
    answer = axolotl("")
    got = made(answer)
    assert (got.sequence_len, got.micro_batch_size, got.epochs, got.optimizer.name) == (
        512,
        1,
        1.0,
        "adamw_torch_fused",
    )
    assert (got.schedule.scheduler, got.schedule.warmup_ratio, got.saving.save_total_limit) == ("cosine", 0.03, 4)
    assert got.method is Method.FULL
    assert got.parallelism.strategy is Strategy.DDP
    assert got.precision.parameters is Dtype.BF16
    assert got.tf32
    assert got.seed == 42
    assert {"sequence_len", "optimizer.name", "parallelism.gpus_per_node"} <= answer.defaults
    assert answer.provenance["model"] == "axolotl.yaml:1"
    assert "model" not in answer.defaults


def test_axolotl_changes_silently_what_depends_on_other_keys() -> None:
    text = "sample_packing: true\ngradient_checkpointing: true\n"
    packed = made(axolotl(text + "attn_implementation: sdpa\n"))
    assert made(axolotl(text)).attention_memory is AttentionMemory.MASKED  # the varlen kernel is for a stated sdpa
    assert packed.pad_to_sequence_len
    assert packed.activation_checkpointing_reentrant
    assert packed.attention_memory is AttentionMemory.VARLEN
    loading = packed.loading
    assert (loading.dataloader_workers, loading.prefetch_factor, loading.pin_memory) == (8, 256, True)
    stated = made(axolotl("dataloader_pin_memory: false\n")).loading
    assert (stated.dataloader_workers, stated.prefetch_factor, stated.pin_memory) == (0, None, False)


@pytest.mark.parametrize(
    ("text", "on"),
    [
        ("", True),
        ("lora_mlp_kernel: false\n", False),
        ("load_in_8bit: true\n", False),
        ("trust_remote_code: true\n", False),
        ("fsdp_version: 2\nfsdp_config: {offload_params: false}\n", True),
        ("fsdp_config: {offload_params: false}\n", False),  # FSDP1
    ],
)
def test_fused_lora_kernels_switch_themselves_on(text: str, on: bool) -> None:
    adapter = made(axolotl(LORA + text)).adapter
    assert adapter is not None
    assert adapter.fused_kernels is on


def test_every_linear_layer_is_a_target() -> None:
    adapter = made(axolotl(LORA)).adapter
    assert adapter is not None
    assert set(adapter.target_modules) == {
        "q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj",
    }  # fmt: skip


def test_an_int8_base_has_fp32_adapters() -> None:
    got = made(axolotl(LORA + "load_in_8bit: true\n"))
    assert got.method is Method.LORA
    assert (got.precision.parameters, got.precision.trainable) == (Dtype.INT8, Dtype.FP32)


def test_without_mixed_precision_everything_is_fp32() -> None:
    fp32 = Dtype.FP32
    assert made(axolotl("bf16: false\nfp16: false\n")).precision == Precision(fp32, fp32, fp32, fp32, fp32, fp32)


def test_fp16_is_counted_as_bf16_and_said() -> None:
    answer = axolotl(LORA + "bf16: false\nfp16: true\n")
    assert made(answer).precision.parameters is Dtype.BF16
    assert any("fp16" in item.reason for item in answer.unknown)


def test_optimi_keeps_its_own_numbers() -> None:
    optimizer = made(axolotl("optimizer: optimi_adamw\n")).optimizer
    assert (optimizer.beta1, optimizer.beta2, optimizer.epsilon) == (0.9, 0.99, 1e-6)


def test_training_arguments_get_the_defaults_of_transformers() -> None:
    got = made(arguments("bf16: true\n"))
    assert (got.trainer, got.micro_batch_size, got.epochs, got.schedule.learning_rate) == ("accelerate", 8, 3.0, 5e-5)
    assert (got.schedule.warmup_steps, got.saving.save_steps, got.schedule.scheduler) == (0, 500, "linear")
    assert got.precision.trainable is Dtype.FP32
    assert not got.activation_checkpointing
    assert not got.tf32


def test_llama_factory_has_defaults_of_its_own() -> None:
    adapter = made(arguments("stage: sft\nfinetuning_type: lora\nbf16: true\n")).adapter
    assert adapter is not None
    assert (adapter.r, adapter.alpha, len(adapter.target_modules)) == (8, 16, 7)


def test_kernels_of_the_loss() -> None:
    liger = "plugins: [axolotl.integrations.liger.LigerPlugin]\nliger_fused_linear_cross_entropy: true\n"
    assert made(axolotl(liger)).loss_kernel is LossKernel.FUSED_LINEAR
    cut = "plugins: [axolotl.integrations.cut_cross_entropy.CutCrossEntropyPlugin]\n"
    assert made(axolotl(cut)).loss_kernel is LossKernel.CUT
    assert made(axolotl("chunked_cross_entropy: true\n")).loss_kernel is LossKernel.CHUNKED_UPCAST


# --- what the real trainers taught (test_assemble_defaults_stack.py)


def test_an_empty_tf32_is_off() -> None:
    assert not made(axolotl("tf32:\n")).tf32


def test_axolotl_counts_a_limit_below_zero_as_steps() -> None:
    got = made(axolotl("max_steps: -1\n"))
    assert (got.max_steps, got.schedule.warmup_steps, got.saving.logging_steps) == (None, 0, 1)


def test_a_share_of_few_steps_is_two_steps_of_warm_up() -> None:
    schedule = made(axolotl("warmup_ratio: 0.02\nmax_steps: 60\n")).schedule
    assert (schedule.warmup_steps, schedule.warmup_ratio) == (2, None)


@pytest.mark.parametrize(
    ("text", "dtype"),
    [("", Dtype.BF16), ("bf16: auto\n", Dtype.BF16), ("fp16: false\n", Dtype.FP32), ("fp16: true\n", Dtype.BF16)],
)
def test_bf16_that_is_not_there_is_fp16_unless_that_is_off(text: str, dtype: Dtype) -> None:
    answer = axolotl(text, world=cluster(bf16=False, tf32=False))
    assert made(answer).precision.compute is dtype
    assert any("fp16" in item.reason for item in answer.unknown) is (dtype is Dtype.BF16)


def test_broken_fused_kernels_stay_off_whatever_a_file_says() -> None:
    answer = axolotl(LORA + "lora_mlp_kernel: true\n", shape=model(model_type="muse_glimmer"))
    adapter = made(answer).adapter
    assert adapter is not None
    assert not adapter.fused_kernels
    assert "adapter.fused_kernels" in answer.defaults


@pytest.mark.parametrize(
    ("words", "axolotls", "transformers"),
    [("", True, False), ("{}", False, False), ("{preserve_rng_state: true}", True, True)],
)
def test_words_for_torch_decide_reentrance(words: str, axolotls: bool, transformers: bool) -> None:
    text = "gradient_checkpointing: true\n" + (f"gradient_checkpointing_kwargs: {words}\n" if words else "")
    assert made(axolotl(text)).activation_checkpointing_reentrant is axolotls
    assert made(arguments(f"bf16: true\n{text}")).activation_checkpointing_reentrant is transformers


def test_recomputing_only_some_layers_is_no_recipe() -> None:
    text = "gradient_checkpointing: true\ngradient_checkpointing_kwargs: {every_n_layers: 2}\n"
    for answer in (axolotl(text), arguments(text)):
        assert answer.recipe is None
        assert any("every_n_layers 2" in item.reason and item.where for item in answer.unknown)


def test_trl_has_defaults_of_its_own() -> None:
    got = made(arguments("max_length: 2048\n"))
    assert got.activation_checkpointing
    assert not got.activation_checkpointing_reentrant
    assert (got.precision.compute, got.schedule.learning_rate, got.saving.logging_steps) == (Dtype.BF16, 2e-5, 10)
    assert made(arguments("max_length: 2048\nbf16: false\n")).precision.compute is Dtype.FP32
    answer = arguments("max_length: 2048\nuse_peft: true\nload_in_4bit: true\nlora_target_modules: all-linear\n")
    assert {"trainer", "loss_kernel", "precision.trainable"} <= {item.path for item in answer.unknown}
    plain = made(arguments(""))
    assert (plain.activation_checkpointing, plain.precision.compute) == (False, Dtype.FP32)


def test_llama_factory_trains_an_adapter_by_default() -> None:
    got = made(arguments("stage: pt\nbf16: true\n"))
    assert (got.method, got.packing, got.activation_checkpointing_reentrant) == (Method.LORA, True, True)
    assert made(arguments("stage: sft\nbf16: true\nquantization_bit: 4\n")).method is Method.QLORA
    other = made(arguments("stage: sft\nfinetuning_type: full\nbf16: true\nuse_reentrant_gc: false\n"))
    assert (other.method, other.packing, other.activation_checkpointing_reentrant) == (Method.FULL, False, False)


def test_a_share_of_the_run_is_one_checkpoint_per_epoch() -> None:
    answer = arguments("bf16: true\nsave_steps: 0.2\neval_strategy: steps\neval_steps: 0.2\nval_size: 0.1\n")
    assert (made(answer).saving.save_steps, made(answer).saving.eval_steps) == (None, None)
    assert any(item.path == "saving.save_steps" for item in answer.unknown)


@pytest.mark.parametrize("line", ["torch_compile_backend: inductor\n", "torch_compile_mode: max-autotune\n"])
def test_a_word_for_the_compiler_turns_it_on(line: str) -> None:
    assert made(arguments(f"bf16: true\n{line}")).torch_compile
