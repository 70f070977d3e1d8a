"""Axolotl files drawn by a seed, over the keys whose defaults and side effects decide a recipe.

Each topic is one decision; most files leave most topics out, because what is left out is what assemble fills in.
Axolotl refuses some of the combinations; what it refuses has no recipe to compare.
"""

from __future__ import annotations

import random
from typing import Any

LAYER = "LlamaDecoderLayer"
LORA = {"adapter": "lora", "lora_r": 8, "lora_alpha": 16, "lora_target_linear": True}
QLORA = {**LORA, "adapter": "qlora", "load_in_4bit": True}
WRAP = {"transformer_layer_cls_to_wrap": LAYER, "auto_wrap_policy": "TRANSFORMER_BASED_WRAP"}
CUT = "axolotl.integrations.cut_cross_entropy.CutCrossEntropyPlugin"
LIGER = "axolotl.integrations.liger.LigerPlugin"
FUSED = {"plugins": [LIGER], "liger_fused_linear_cross_entropy": True}
ADAM8 = ("adamw_torch", "adamw_torch_fused", "adamw_bnb_8bit", "adamw_torch_8bit", "paged_adamw_8bit", "lion_8bit")
OWN = ("optimi_adamw", "muon", "adopt_adamw", "ao_adamw_fp8")

# Each topic: how often it is written, and what may stand there.
Topics = tuple[tuple[float, tuple[dict[str, Any], ...]], ...]
TOPICS: Topics = (
    (
        0.6,
        (
            LORA,
            QLORA,
            {**LORA, "load_in_8bit": True},
            {**LORA, "load_in_4bit": True},
            {**LORA, "lora_target_linear": None, "lora_target_modules": ["q_proj", "down_proj"]},
            {**LORA, "lora_target_linear": None, "lora_target_modules": "all-linear"},
            {**LORA, "lora_target_modules": ["q_proj"], "lora_dropout": 0.1},
            {**QLORA, "lora_dropout": 0.05, "peft_use_dora": True},
            {**LORA, "peft_use_rslora": True, "lora_modules_to_save": ["embed_tokens", "lm_head"]},
            {**LORA, "lora_mlp_kernel": True, "lora_qkv_kernel": False},
            {**LORA, "lora_mlp_kernel": False},
            {"adapter": None, "lora_r": 8},
        ),
    ),
    (
        0.6,
        (
            {"bf16": True},
            {"bf16": "auto"},
            {"bf16": False, "fp16": True},
            {"bf16": "auto", "fp16": False},
            {"bf16": True, "fp16": True},
            {"bf16": None},
            {"bf16": False},
            {"bf16": False, "bfloat16": True},
            {"bf16": True, "bfloat16": True},
            {"fp16": True},
            {"fp16": False},
            {"float16": True, "bf16": False},
            {"bf16": "true"},
        ),
    ),
    (0.4, ({"tf32": True}, {"tf32": "auto"}, {"tf32": False}, {"tf32": None})),
    (0.5, tuple({"optimizer": name} for name in (*ADAM8, *OWN))),
    (
        0.3,
        (
            {"adam_beta1": 0.8},
            {"adam_beta2": 0.95},
            {"adam_beta1": 0.8, "adam_beta2": 0.95},
            {"adam_epsilon": 1e-7},
            {"adam_beta1": 0.8, "adam_beta2": 0.95, "adam_epsilon": 1e-7},
            {"weight_decay": 0.1, "max_grad_norm": 0.3},
            {"weight_decay": None, "max_grad_norm": None},
            {"max_grad_norm": 0.0},
        ),
    ),
    (0.3, tuple({"lr_scheduler": n} for n in ("linear", "cosine", "constant", "rex", "one_cycle", "polynomial", None))),
    (
        0.4,
        (
            {"warmup_steps": 0},
            {"warmup_steps": 1},
            {"warmup_steps": 17},
            {"warmup_ratio": 0.07},
            {"warmup_ratio": 0.0},
            {"warmup_ratio": 0.0005},
            {"warmup_steps": None, "warmup_ratio": 0.1},
        ),
    ),
    (0.4, ({"max_steps": 40}, {"max_steps": 333}, {"max_steps": 1}, {"max_steps": -1}, {"max_steps": None})),
    (0.3, ({"num_epochs": 3}, {"num_epochs": 0.5})),
    (
        0.5,
        (
            {"gradient_checkpointing": True},
            {"gradient_checkpointing": False},
            {"gradient_checkpointing": None},
            {"gradient_checkpointing": "offload"},
            {"gradient_checkpointing": "offload_disk"},
            {"gradient_checkpointing": True, "gradient_checkpointing_kwargs": {"use_reentrant": False}},
            {"gradient_checkpointing": True, "gradient_checkpointing_kwargs": {"use_reentrant": True}},
            {"gradient_checkpointing": True, "gradient_checkpointing_kwargs": {}},
            {"gradient_checkpointing": True, "gradient_checkpointing_kwargs": {"preserve_rng_state": True}},
            {"gradient_checkpointing": True, "activation_offloading": True},
            {"gradient_checkpointing": True, "activation_offloading": "legacy"},
            {"gradient_checkpointing": True, "activation_offloading": "disk"},
            {"gradient_checkpointing": True, "activation_offloading": "hidden_states"},
        ),
    ),
    (
        0.5,
        (
            {"sample_packing": True},
            {"sample_packing": True, "pad_to_sequence_len": False},
            {"sample_packing": True, "pad_to_sequence_len": True},
            {"sample_packing": True, "eval_sample_packing": False},
            {"sample_packing": False, "pad_to_sequence_len": True},
            {"sample_packing": None},
            {"pad_to_sequence_len": True},
            {"batch_flattening": True, "attn_implementation": "flash_attention_2"},
        ),
    ),
    (0.4, ({"sequence_len": 4096}, {"excess_length_strategy": "truncate"})),
    (
        0.4,
        (
            {"micro_batch_size": 4},
            {"micro_batch_size": 2, "gradient_accumulation_steps": 4},
            {"micro_batch_size": 2, "gradient_accumulation_steps": None, "batch_size": 16},
            {"micro_batch_size": 2, "batch_size": 16},
        ),
    ),
    (
        0.5,
        (
            {"val_set_size": 0.1},
            {"val_set_size": 200},
            {"val_set_size": 0.1, "eval_steps": 20},
            {"val_set_size": 0.1, "eval_steps": 0.25},
            {"val_set_size": 0.1, "eval_strategy": "steps"},
            {"val_set_size": 0.1, "eval_strategy": "epoch"},
            {"val_set_size": 0.1, "eval_strategy": "no"},
            {"val_set_size": 0.1, "evals_per_epoch": 4},
            {"val_set_size": 0.1, "evals_per_epoch": 1, "num_epochs": 1},
            {"val_set_size": 0.1, "evals_per_epoch": 1, "num_epochs": 2},
            {"val_set_size": 0.1, "eval_strategy": "epoch", "eval_steps": None},
            {"val_set_size": None},
            {"test_datasets": [{"path": "e.jsonl", "type": "alpaca"}], "eval_steps": 20},
            {"eval_steps": 20},
        ),
    ),
    (
        0.5,
        (
            {"save_steps": 50},
            {"save_steps": 0.25},
            {"save_strategy": "steps"},
            {"save_strategy": "epoch"},
            {"save_strategy": "no"},
            {"save_strategy": "best", "metric_for_best_model": "loss"},
            {"saves_per_epoch": 2},
            {"saves_per_epoch": 1},
            {"saves_per_epoch": 1, "num_epochs": 3},
            {"saves_per_epoch": 0},
            {"save_steps": 0},
            {"save_steps": 50, "save_strategy": "steps"},
            {"save_only_model": True, "save_total_limit": 2},
            {"save_total_limit": None},
            {"save_total_limit": 0},
            {"logging_steps": 5},
        ),
    ),
    (
        0.3,
        (
            {"dataloader_num_workers": 4},
            {"dataloader_num_workers": 4, "dataloader_prefetch_factor": 2},
            {"dataloader_pin_memory": False},
            {"dataloader_num_workers": 0},
            {"dataloader_num_workers": None},
            {"dataset_num_proc": 3},
            {"dataset_processes": 3},
        ),
    ),
    (
        0.5,
        (
            {"fsdp_version": 2, "fsdp_config": WRAP},
            {"fsdp_version": 2, "fsdp_config": {**WRAP, "reshard_after_forward": False, "offload_params": True}},
            {"fsdp_version": 2, "fsdp_config": {**WRAP, "activation_checkpointing": True}},
            {"fsdp_version": 2, "fsdp_config": {**WRAP, "state_dict_type": "SHARDED_STATE_DICT"}},
            {"fsdp_version": 2, "fsdp_config": {**WRAP, "cpu_ram_efficient_loading": True}, "dp_replicate_size": 2},
            {"fsdp_version": 2, "fsdp_config": {**WRAP, "fsdp_reshard_after_forward": True}, "dp_shard_size": 4},
            {"fsdp_version": 2, "fsdp_config": WRAP, "tensor_parallel_size": 2},
            {"fsdp_config": {**WRAP, "fsdp_version": 2, "fsdp_cpu_ram_efficient_loading": True}},
            {"fsdp": ["full_shard", "auto_wrap"], "fsdp_config": WRAP},
            {"fsdp": ["full_shard", "offload"], "fsdp_config": {**WRAP, "state_dict_type": "SHARDED_STATE_DICT"}},
            {"fsdp": ["shard_grad_op"], "fsdp_config": {**WRAP, "sync_module_states": True}},
            {"fsdp": ["hybrid_shard"], "fsdp_config": {**WRAP, "use_orig_params": True}},
            {"fsdp": ["full_shard"], "fsdp_config": {f"fsdp_{key}": value for key, value in WRAP.items()}},
            {"fsdp_config": {**WRAP, "activation_checkpointing": True}},
            {"deepspeed": {"zero_optimization": {"stage": 2}}},
            {"deepspeed": {"zero_optimization": {"stage": 3, "offload_param": {"device": "cpu"}}}},
            {"dp_replicate_size": 8},
            {"ddp_find_unused_parameters": True},
        ),
    ),
    (
        0.2,
        (
            {"context_parallel_size": 2, "attn_implementation": "flash_attention_2"},
            {"context_parallel_size": 4, "heads_k_stride": 1, "attn_implementation": "flash_attention_2"},
            {"sequence_parallel_degree": 2, "flash_attention": True},
        ),
    ),
    (
        0.5,
        (
            {"attn_implementation": "sdpa"},
            {"attn_implementation": "eager"},
            {"attn_implementation": "flash_attention_2"},
            {"flash_attention": True},
            {"sdp_attention": True},
            {"flex_attention": True},
            {"eager_attention": True},
            {"flash_attention": False},
        ),
    ),
    (
        0.5,
        (
            {"plugins": [CUT]},
            {"plugins": [CUT], "cut_cross_entropy": False},
            {"cut_cross_entropy": True},
            FUSED,
            {**FUSED, "liger_rope": True, "liger_swiglu": True},
            {"plugins": [LIGER], "liger_rms_norm": True},
            {"liger_fused_linear_cross_entropy": True},
            {"chunked_cross_entropy": True},
            {"plugins": [CUT, LIGER], "liger_rms_norm": True},
        ),
    ),
    (0.2, ({"torch_compile": True}, {"torch_compile": "auto"}, {"torch_compile": False})),
    (
        0.3,
        (
            {"use_wandb": True},
            {"wandb_project": "p"},
            {"use_tensorboard": True},
            {"use_mlflow": True, "use_tensorboard": True},
            {"seed": 7},
            {"seed": None},
            {"trust_remote_code": True},
            {"unfrozen_parameters": ["model.*", "lm_head.*"]},
        ),
    ),
)


def axolotl_file(seed: int) -> dict[str, Any]:
    """One file, as the mapping that its YAML holds."""
    base = {"base_model": "m", "learning_rate": 1e-5, "output_dir": "out"}
    return drawn(seed, TOPICS, {**base, "datasets": [{"path": "d.jsonl", "type": "alpaca"}]})


def drawn(seed: int, topics: Topics, values: dict[str, Any]) -> dict[str, Any]:
    """`values` and, of some topics, one of the things that may stand there."""
    draw = random.Random(f"{seed} {len(topics)}")
    for often, options in topics:
        if draw.random() < often / 2:
            values |= draw.choice(options)
    return values
