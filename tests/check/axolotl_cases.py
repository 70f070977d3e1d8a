"""Configurations that hold or break one rule of Axolotl 0.19.0 each: (what is changed, capability overrides, verdict).

A verdict is a piece of the error's text, or None when Axolotl accepts. Found by running `validate_config`.
"""

from __future__ import annotations

from typing import Any

BASE: dict[str, Any] = {
    "base_model": "org/m",
    "datasets": [{"path": "p", "type": "alpaca"}],
    "learning_rate": 1e-4,
    "micro_batch_size": 1,
    "bf16": True,
}
FSDP2: dict[str, Any] = {
    "fsdp_version": 2,
    "fsdp_config": {
        "auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
        "reshard_after_forward": True,
        "offload_params": False,
        "cpu_ram_efficient_loading": False,
    },
}
FSDP1: dict[str, Any] = {"fsdp_config": {"auto_wrap_policy": "TRANSFORMER_BASED_WRAP", "offload_params": False}}
LORA: dict[str, Any] = {"adapter": "lora", "lora_r": 8, "lora_alpha": 16, "lora_target_linear": True}
QLORA: dict[str, Any] = {**LORA, "adapter": "qlora", "load_in_4bit": True}
KERNELS: dict[str, Any] = {"lora_mlp_kernel": True, "lora_qkv_kernel": True, "lora_o_kernel": True}
LIGER = ["axolotl.integrations.liger.LigerPlugin"]
CUT = ["axolotl.integrations.cut_cross_entropy.CutCrossEntropyPlugin"]
FLASH = {"attn_implementation": "flash_attention_2"}
Case = tuple[dict[str, Any], dict[str, Any], str | None]

CASES: dict[str, Case] = {
    "plain": ({}, {}, None),
    "unknown key": ({"lora_rank": 8}, {}, None),
    "unknown key in fsdp_config": ({"fsdp_version": 2, "fsdp_config": {"reshard_after_forwrd": True}}, {}, None),
    "fsdp prefix": ({"fsdp_version": 2, "fsdp_config": {"fsdp_offload_params": True}}, {}, None),
    "fsdp2 reshard as a word": (
        {"fsdp_version": 2, "fsdp_config": {"reshard_after_forward": "FULL_SHARD"}},
        {},
        "boolean",
    ),
    "fsdp2 fused": ({**FSDP2, "optimizer": "adamw_torch_fused"}, {}, None),
    "fsdp2 kahan": ({**FSDP2, "optimizer": "optimi_adamw"}, {}, None),
    "fsdp2 bnb 8 bit": ({**FSDP2, "optimizer": "adamw_bnb_8bit"}, {}, "adamw_torch_8bit"),
    "fsdp2 8 bit": ({**FSDP2, "optimizer": "adamw_8bit"}, {}, "adamw_torch_8bit"),
    "fsdp2 torch 8 bit": ({**FSDP2, "optimizer": "adamw_torch_8bit"}, {}, None),
    "any optimizer": ({"optimizer": "nonsense_opt"}, {}, None),
    "muon deepspeed": ({"deepspeed": "x.json", "optimizer": "muon"}, {}, "uon"),
    "deepspeed and fsdp list": ({"deepspeed": "x.json", "fsdp": ["full_shard"]}, {}, "deepspeed"),
    "deepspeed and fsdp_config": ({"deepspeed": "x.json", **FSDP2}, {}, None),
    "lora": (LORA, {}, None),
    "lora fsdp2": ({**LORA, **FSDP2}, {}, None),
    "lora kernels fsdp1": ({**LORA, **KERNELS, **FSDP1}, {}, "kernel"),
    "lora kernels trust": ({**LORA, **KERNELS, "trust_remote_code": True}, {}, "kernel"),
    "lora kernels 8 bit": ({**LORA, **KERNELS, "load_in_8bit": True}, {}, "kernel"),
    "qlora without 4 bit": ({**LORA, "adapter": "qlora"}, {}, "4bit"),
    "4 bit without adapter": ({"load_in_4bit": True}, {}, "adapter"),
    "qlora fsdp2": ({**QLORA, **FSDP2}, {}, None),
    "qlora fsdp2 on one rank": (
        {**QLORA, "fsdp_version": 2, "fsdp_config": {"cpu_ram_efficient_loading": True}},
        {},
        "cpu_ram_efficient_loading",
    ),
    "unknown adapter": ({"adapter": "dora"}, {}, "dora"),
    "hybrid of the wrong size": ({**FSDP2, "dp_shard_size": 4, "dp_replicate_size": 4}, {}, None),
    "cp sdpa": ({"context_parallel_size": 2, "attn_implementation": "sdpa"}, {}, "flash"),
    "cp flash": ({"context_parallel_size": 2, **FLASH}, {}, None),
    "cp flash packed batch of 2": (
        {"context_parallel_size": 2, **FLASH, "sample_packing": True, "micro_batch_size": 2},
        {},
        "micro_batch_size",
    ),
    "short attention name": ({"attn_implementation": "flash"}, {}, "flash_attention_2"),
    "bogus attention": ({"attn_implementation": "bogus"}, {}, "bogus"),
    "legacy flag": ({"flash_attention": True}, {}, None),
    "both attention keys": ({"flash_attention": True, "attn_implementation": "sdpa"}, {}, "attn_implementation"),
    "packed sdpa on sm_89": (
        {"sample_packing": True, "attn_implementation": "sdpa"},
        {"compute_capability": "sm_89"},
        None,
    ),
    "packed flash": ({"sample_packing": True, **FLASH}, {}, None),
    "packed and rl": ({"sample_packing": True, "rl": "dpo", **FLASH}, {}, "packing"),
    "checkpointing": ({"gradient_checkpointing": True}, {}, None),
    "checkpointing twice": (
        {"gradient_checkpointing": True, "fsdp_version": 2, "fsdp_config": {"activation_checkpointing": True}},
        {},
        None,
    ),
    "unsloth checkpointing": ({"gradient_checkpointing": "unsloth"}, {}, "gradient_checkpointing"),
    "offloading alone": ({"activation_offloading": True}, {}, "gradient_checkpointing"),
    "liger keys alone": ({"liger_rope": True}, {}, None),
    "liger": ({"plugins": LIGER, "liger_rope": True, "liger_fused_linear_cross_entropy": True}, {}, None),
    "liger of the wrong type": ({"plugins": LIGER, "liger_rope": "maybe"}, {}, "boolean"),
    "liger twice": (
        {"plugins": LIGER, "liger_cross_entropy": True, "liger_fused_linear_cross_entropy": True},
        {},
        "cross entropy",
    ),
    "liger tp": ({"plugins": LIGER, "liger_rms_norm": True, "tensor_parallel_size": 2}, {}, "liger_rms_norm"),
    "cut": ({"plugins": CUT, "cut_cross_entropy": True}, {}, None),
    "cut and chunked": ({"plugins": CUT, "cut_cross_entropy": True, "chunked_cross_entropy": True}, {}, "cross"),
    "chunked": ({"chunked_cross_entropy": True}, {}, None),
    "fp8 where there is none": ({"fp8": True}, {"fp8": False}, "fp8"),
    "fp8_config alone": ({"fp8_config": {"recipe": "rowwise"}}, {}, "fp8"),
    "fp8_config unknown": ({"fp8": True, "fp8_config": {"x": 1}}, {}, "Extra inputs"),
    "fp32 norms without fsdp": ({"fp32_norms": True}, {}, "fsdp"),
    "size based wrap": (
        {"fsdp_version": 2, "fsdp_config": {"auto_wrap_policy": "SIZE_BASED_WRAP"}},
        {},
        "min_num_params",
    ),
    "two warm-ups": ({"warmup_steps": 5, "warmup_ratio": 0.1}, {}, "warmup"),
    "two save rhythms": ({"save_steps": 5, "saves_per_epoch": 1}, {}, "save"),
    "eval without data": ({"val_set_size": 0, "eval_steps": 5}, {}, "eval"),
    "no safetensors": ({"save_safetensors": False}, {}, "safetensors"),
    "no learning rate": ({"learning_rate": None}, {}, "learning_rate"),
    "no datasets": ({"datasets": None}, {}, "dataset"),
    "sharegpt": ({"datasets": [{"path": "p", "type": "sharegpt"}]}, {}, "sharegpt"),
    "rope_scaling": ({"rope_scaling": {"type": "linear"}}, {}, "rope_scaling"),
    "compile options alone": ({"torch_compile_options": {"shape_padding": True}}, {}, "torch_compile"),
    "preference pairs": ({"rl": "dpo", "datasets": [{"path": "p", "type": "chatml.intel"}]}, {}, None),
    "numbers as text": ({"learning_rate": "2e-4", "num_epochs": "3", "sequence_len": "4096"}, {}, None),
}
