"""Arguments of the Transformers trainer, in the spellings of TRL, LLaMA-Factory and run_clm."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from recipegen.estimate.parameters import target_modules_value
from recipegen.formats import arguments_read
from recipegen.formats.reading import Reading, at, restrict
from recipegen.spec import Dtype, LossKernel, Method, Recipe, Strategy
from tests.recipes_for_tests import recipes

RECIPES = list(recipes())
# An example of LLaMA-Factory's, shortened: qlora of a 7B model.
LLAMA_FACTORY = """
### model
model_name_or_path: Qwen/Qwen2.5-7B-Instruct
quantization_bit: 4
trust_remote_code: true
### method
stage: sft
do_train: true
finetuning_type: lora
lora_rank: 8
lora_target: all
deepspeed: examples/deepspeed/ds_z3_config.json
### dataset
dataset: identity,alpaca_en_demo
template: qwen
cutoff_len: 2048
preprocessing_num_workers: 16
dataloader_num_workers: 4
### output
output_dir: saves/qwen
logging_steps: 10
save_steps: 500
report_to: none
### train
per_device_train_batch_size: 1
gradient_accumulation_steps: 8
learning_rate: 1.0e-4
num_train_epochs: 3.0
lr_scheduler_type: cosine
warmup_ratio: 0.1
bf16: true
flash_attn: fa2
val_size: 0.1
eval_strategy: steps
eval_steps: 500
"""


def read(values: dict[str, Any]) -> Reading:
    return arguments_read.read(yaml.safe_dump(values).encode(), "sft.yaml")


def arguments_of(r: Recipe) -> dict[str, Any]:
    """A recipe as a user of TRL would write it out. Nothing in the package writes such files."""
    values: dict[str, Any] = {
        "model_name_or_path": r.model,
        "per_device_train_batch_size": r.micro_batch_size,
        "max_length": r.sequence_len,
        "dataset_num_proc": r.loading.dataset_num_proc,
        "val_size": r.val_set_size,
        "accelerator_config": {"gradient_accumulation_kwargs": {"sync_each_batch": r.sync_each_batch}},
        "gradient_checkpointing_kwargs": {"use_reentrant": r.activation_checkpointing_reentrant},
        "bf16": r.precision.compute is Dtype.BF16,
        "fp16": False,
        "max_steps": -1 if r.max_steps is None else r.max_steps,
        "report_to": r.saving.logger,
        "logging_steps": r.saving.logging_steps,
        "use_peft": r.adapter is not None,
        "load_in_4bit": r.method is Method.QLORA,
        "dtype": "float32" if r.precision.parameters is Dtype.FP32 else "bfloat16",
    }
    plain = {row.key: row.path for row in arguments_read._KEYS if row.path and "." not in row.key}
    values |= {key: at(r, path) for key, path in plain.items() if at(r, path) is not None}
    if r.adapter is not None:
        values |= {"lora_r": r.adapter.r, "lora_target_modules": target_modules_value(r.adapter.target_modules)}
    if r.loss_kernel in (LossKernel.STOCK, LossKernel.FUSED_LINEAR):
        values["use_liger_kernel"] = r.loss_kernel is LossKernel.FUSED_LINEAR
    if r.schedule.warmup_steps is not None:
        values["warmup_steps"] = r.schedule.warmup_steps
    for what in ("save", "eval") if r.val_set_size else ("save",):
        steps = at(r, f"saving.{what}_steps")
        values[f"{what}_strategy"] = "epoch" if steps is None else "steps"
        values |= {} if steps is None else {f"{what}_steps": steps}
    if r.fsdp is not None:
        values["fsdp"] = True
        values["fsdp_config"] = {
            "version": r.fsdp.version,
            "reshard_after_forward": r.fsdp.reshard_after_forward,
            "cpu_offload": r.fsdp.offload_params,
            "cpu_ram_efficient_loading": r.fsdp.cpu_ram_efficient_loading,
            "state_dict_type": r.fsdp.state_dict_type,
            "transformer_layer_cls_to_wrap": [r.fsdp.layer_class],
        }
    return values


def stated(r: Recipe) -> dict[str, Any]:
    """Arguments hold no null for a prefetch factor, and a hybrid mesh is not among them."""
    found = restrict(r, arguments_read.CARRIES)
    for path in ("model_revision", "loading.prefetch_factor"):
        if found[path] is None:
            del found[path]
    if r.parallelism.strategy is Strategy.FSDP2_HYBRID:
        found["parallelism.strategy"] = Strategy.FSDP2_FULL
    return found


@pytest.mark.parametrize(("name", "r"), RECIPES, ids=[name for name, _ in RECIPES])
def test_what_a_user_wrote_out_is_read(name: str, r: Recipe) -> None:
    for text, file in ((yaml.safe_dump(arguments_of(r)), "a.yaml"), (json.dumps(arguments_of(r)), "a.json")):
        reading = arguments_read.read(text.encode(), file)
        assert reading.values == stated(r)
        assert reading.problems == ()
        assert reading.passthrough == {}
        assert set(reading.provenance) == set(reading.values)


@given(
    st.sampled_from(RECIPES),
    st.integers(1, 10**6),
    st.floats(1e-9, 1),
    st.integers(1, 10**5),
    st.floats(0, 1),
    st.integers(0, 10**9),
    st.booleans(),
)
def test_any_numbers_come_back(
    named: tuple[str, Recipe], length: int, rate: float, steps: int, share: float, seed: int, flag: bool
) -> None:
    r = dataclasses.replace(
        named[1], sequence_len=length, schedule=dataclasses.replace(named[1].schedule, learning_rate=rate),
        max_steps=steps, val_set_size=share, seed=seed, packing=flag,
    )  # fmt: skip
    assert read(arguments_of(r)).values == stated(r)


def test_llama_factory() -> None:
    reading = arguments_read.read(LLAMA_FACTORY.encode(), "qwen.yaml")
    assert reading.problems == ()
    assert reading.values == {
        "model": "Qwen/Qwen2.5-7B-Instruct", "trust_remote_code": True, "method": Method.QLORA,
        "precision.parameters": Dtype.NF4, "precision.compute": Dtype.BF16, "adapter.r": 8, "sequence_len": 2048,
        "loading.dataset_num_proc": 16, "loading.dataloader_workers": 4, "saving.logging_steps": 10,
        "saving.save_steps": 500, "saving.eval_steps": 500, "saving.logger": "none", "micro_batch_size": 1,
        "gradient_accumulation": 8, "schedule.learning_rate": 1e-4, "epochs": 3.0, "schedule.scheduler": "cosine",
        "schedule.warmup_ratio": 0.1, "attention": "flash_attention_2", "val_set_size": 0.1,
    }  # fmt: skip
    assert reading.facts["lora_target"] == "all-linear"
    assert reading.facts["deepspeed_config_file"] == "examples/deepspeed/ds_z3_config.json"
    assert reading.passthrough == {"do_train": True, "output_dir": "saves/qwen"}
    assert reading.provenance["sequence_len"] == "qwen.yaml:16"


@pytest.mark.parametrize(
    ("values", "path", "value"),
    [
        ({"learning_rate": "2e-4"}, "schedule.learning_rate", 2e-4),  # text in YAML 1.1
        ({"max_seq_length": 1024}, "sequence_len", 1024),
        ({"block_size": 512}, "sequence_len", 512),
        ({"per_gpu_train_batch_size": 2}, "micro_batch_size", 2),
        ({"max_steps": -1}, "max_steps", None),
        ({"save_strategy": "epoch"}, "saving.save_steps", None),
        ({"evaluation_strategy": "steps", "eval_steps": 20}, "saving.eval_steps", 20),
        ({"warmup_steps": 0.03}, "schedule.warmup_ratio", 0.03),
        ({"report_to": []}, "saving.logger", "none"),
        ({"report_to": ["swanlab", "wandb"]}, "saving.logger", "wandb"),
        ({"finetuning_type": "full"}, "method", Method.FULL),
        ({"finetuning_type": "lora"}, "method", Method.LORA),
        ({"lora_target": "q_proj, v_proj"}, "adapter.target_modules", ("q_proj", "v_proj")),
        ({"torch_dtype": "bfloat16"}, "precision.parameters", Dtype.BF16),
        ({"bf16": False, "fp16": False}, "precision.compute", Dtype.FP32),
        ({"use_liger_kernel": True}, "loss_kernel", LossKernel.FUSED_LINEAR),
        (
            {"use_liger_kernel": True, "liger_kernel_config": {"fused_linear_cross_entropy": False}},
            "loss_kernel",
            LossKernel.STOCK,
        ),
        ({"flash_attn": "disabled"}, "attention", "eager"),
        ({"neat_packing": True}, "packing", True),
        ({"disable_gradient_checkpointing": True}, "activation_checkpointing", False),
        ({"validation_split_percentage": 5}, "val_set_size", 0.05),
        ({"fsdp": "full_shard auto_wrap"}, "parallelism.strategy", Strategy.FSDP2_FULL),
        ({"fsdp": "shard_grad_op auto_wrap"}, "fsdp.reshard_after_forward", False),
        ({"fsdp": ["full_shard", "offload"]}, "fsdp.offload_params", True),
        (
            {"fsdp": "full_shard", "fsdp_config": {"reshard_after_forward": False}},
            "fsdp.reshard_after_forward",
            False,
        ),
        ({"fsdp": "no_shard", "fsdp_config": {"version": 1}}, "parallelism.strategy", Strategy.DDP),
        ({"fsdp": True, "fsdp_config": {"fsdp_transformer_layer_cls_to_wrap": "A"}}, "fsdp.layer_class", "A"),
        ({"deepspeed": {"zero_optimization": {"stage": 2}}}, "parallelism.strategy", Strategy.ZERO2),
        (
            {"gradient_accumulation_steps": 4, "deepspeed": {"gradient_accumulation_steps": 2}},
            "gradient_accumulation",
            4,
        ),
    ],
)
def test_spellings(values: dict[str, Any], path: str, value: Any) -> None:
    reading = read(values)
    assert reading.problems == ()
    assert reading.values[path] == value
    assert reading.passthrough == {}


@pytest.mark.parametrize(
    ("values", "path"),
    [
        ({"fsdp": "", "fsdp_config": {"version": 1}}, "parallelism.strategy"),  # off
        ({"save_steps": 0.1}, "saving.save_steps"),  # a share of the run
        ({"eval_steps": 100}, "saving.eval_steps"),  # nothing is evaluated without a strategy
        ({"save_strategy": False}, "saving.save_steps"),
        ({"fp16": True, "bf16": False}, "precision.compute"),
        ({"lora_r": 16}, "method"),  # TRL trains everything without use_peft
        ({"finetuning_type": "freeze"}, "method"),
        ({"load_in_8bit": True, "torch_dtype": "bfloat16"}, "precision.parameters"),
        ({"load_in_4bit": True, "bnb_4bit_quant_type": "fp4"}, "precision.parameters"),
        ({"gradient_accumulation_steps": "auto"}, "gradient_accumulation"),
        ({"flash_attn": "auto"}, "attention"),
        ({"report_to": "all"}, "saving.logger"),
    ],
)
def test_what_is_not_stated(values: dict[str, Any], path: str) -> None:
    reading = read(values)
    assert path not in reading.values
    assert reading.problems == ()


def test_quantisation_in_eight_bits_is_a_fact() -> None:
    assert read({"quantization_bit": 8}).facts["load_in_8bit"] is True


def test_old_spellings_are_named() -> None:
    assert read({"max_seq_length": 1, "evaluation_strategy": "no"}).legacy == {
        "max_seq_length": "max_length",
        "evaluation_strategy": "eval_strategy",
    }


def test_of_two_spellings_the_second_is_passed_through() -> None:
    reading = read({"max_length": 10, "cutoff_len": 20})
    assert reading.values["sequence_len"] == 10
    assert reading.passthrough == {"cutoff_len": 20}


def test_an_inline_engine_keeps_its_own_keys() -> None:
    reading = read({"deepspeed": {"train_batch_size": "auto", "wall_clock_breakdown": False}})
    assert reading.facts["auto"] == ("deepspeed.train_batch_size",)
    assert reading.passthrough == {"deepspeed.wall_clock_breakdown": False}


@pytest.mark.parametrize(
    ("values", "key"),
    [
        ({"per_device_train_batch_size": 0}, "per_device_train_batch_size"),
        ({"learning_rate": "fast"}, "learning_rate"),
        ({"bf16": "maybe"}, "bf16"),
        ({"save_strategy": "sometimes"}, "save_strategy"),
        ({"warmup_ratio": 2}, "warmup_ratio"),
        ({"fsdp": 3}, "fsdp"),
        ({"fsdp": "full_shard autowrap"}, "fsdp"),
        ({"fsdp": "hybrid_shard"}, "fsdp"),
        ({"fsdp": True, "fsdp_config": {"version": 3}}, "fsdp_config.version"),
        ({"deepspeed": 3}, "deepspeed"),
        ({"deepspeed": {"zero_optimization": {"stage": 9}}}, "deepspeed.zero_optimization.stage"),
        ({"flash_attn": "fa9"}, "flash_attn"),
        ({"lora_target_modules": 3}, "lora_target_modules"),
        ({"quantization_bit": "four"}, "quantization_bit"),
    ],
)
def test_what_cannot_be_taken_is_one_problem(values: dict[str, Any], key: str) -> None:
    reading = read(values)
    assert [problem.key for problem in reading.problems] == [key]


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.sampled_from(["auto", "steps"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@given(st.dictionaries(st.sampled_from(sorted(arguments_read._UNDERSTOOD)), VALUES, max_size=10))
def test_any_values_are_read(values: dict[str, Any]) -> None:
    reading = read(values)
    assert set(reading.provenance) == set(reading.values)


@given(st.binary(max_size=200))
def test_any_bytes_are_read(content: bytes) -> None:
    assert arguments_read.read(content, "a.json").format == "arguments"
