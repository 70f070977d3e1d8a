"""Files drawn by a seed (trainer_cases.py): TrainingArguments and TRL's, DeepSpeed's JSON, `accelerate launch`'s."""

from __future__ import annotations

from typing import Any

from tests.formats.trainer_cases import ADAM8, LAYER, Topics, drawn

ARGUMENTS: Topics = (
    (1.2, ({"bf16": True}, {"bf16": False}, {"fp16": True}, {"bf16": True, "tf32": True}, {"tf32": False})),
    (
        0.8,
        (
            {"max_length": 4096},
            {"max_length": 512, "packing": True},
            {"use_peft": True},
            {"use_peft": True, "lora_r": 4, "lora_alpha": 8, "lora_dropout": 0.0},
            {"use_peft": True, "lora_target_modules": ["q_proj", "o_proj"], "use_rslora": True},
            {"use_peft": True, "lora_target_modules": "all-linear", "use_dora": True},
            {"use_peft": True, "load_in_4bit": True},
            {"completion_only_loss": True},
            {"dtype": "bfloat16", "max_length": 1024},
            {"dtype": "float32", "max_length": 1024},
            {"attn_implementation": "flash_attention_2", "max_length": 1024},
        ),
    ),
    (0.6, tuple({"optim": name} for name in ADAM8)),
    (
        0.4,
        (
            {"adam_beta2": 0.95},
            {"adam_beta1": 0.8, "adam_epsilon": 1e-6},
            {"weight_decay": 0.1},
            {"max_grad_norm": 0.0},
        ),
    ),
    (0.4, tuple({"lr_scheduler_type": name} for name in ("linear", "cosine", "constant", "constant_with_warmup"))),
    (
        0.6,
        (
            {"warmup_steps": 0},
            {"warmup_steps": 1},
            {"warmup_steps": 30},
            {"warmup_steps": 0.1},
        ),
    ),
    (0.5, ({"max_steps": 300}, {"max_steps": -1}, {"num_train_epochs": 2}, {"num_train_epochs": 0.5})),
    (
        0.6,
        (
            {"gradient_checkpointing": True},
            {"gradient_checkpointing": False},
            {"gradient_checkpointing": True, "gradient_checkpointing_kwargs": {"use_reentrant": True}},
            {"gradient_checkpointing": True, "gradient_checkpointing_kwargs": {"use_reentrant": False}},
            {"gradient_checkpointing": True, "gradient_checkpointing_kwargs": {}},
            {"gradient_checkpointing": True, "gradient_checkpointing_kwargs": {"preserve_rng_state": True}},
        ),
    ),
    (
        0.5,
        (
            {"per_device_train_batch_size": 2},
            {"per_device_train_batch_size": 1, "gradient_accumulation_steps": 16},
            {"learning_rate": 1e-4},
            {"learning_rate": "2e-4"},
            {"auto_find_batch_size": True},
        ),
    ),
    (
        0.6,
        (
            {"save_steps": 100},
            {"save_steps": 0.2},
            {"save_strategy": "epoch"},
            {"save_strategy": "no"},
            {"save_strategy": "steps", "save_steps": 40, "save_total_limit": 3},
            {"save_only_model": True},
        ),
    ),
    (
        0.5,
        (
            {"eval_strategy": "steps"},
            {"eval_strategy": "steps", "eval_steps": 50},
            {"eval_strategy": "steps", "eval_steps": 0.2},
            {"eval_strategy": "epoch"},
            {"eval_strategy": "no"},
            {"eval_steps": 50},
        ),
    ),
    (
        0.5,
        (
            {"logging_steps": 5},
            {"logging_steps": 1},
            {"logging_strategy": "epoch"},
            {"report_to": "wandb"},
            {"report_to": "none"},
        ),
    ),
    (
        0.4,
        (
            {"dataloader_num_workers": 4},
            {"dataloader_num_workers": 4, "dataloader_prefetch_factor": 4},
            {"dataloader_pin_memory": False},
            {"seed": 7},
            {"torch_compile": True},
            {"torch_compile_backend": "inductor"},
            {"torch_compile_mode": "max-autotune"},
            {"use_liger_kernel": True},
            {"use_liger_kernel": True, "liger_kernel_config": {"fused_linear_cross_entropy": False}},
            {"accelerator_config": {"gradient_accumulation_kwargs": {"sync_each_batch": True}}},
        ),
    ),
    (
        0.7,
        (
            {"fsdp": True},
            {"fsdp": "full_shard auto_wrap"},
            {"fsdp": "shard_grad_op auto_wrap offload"},
            {"fsdp": ["full_shard", "offload"], "fsdp_config": {"cpu_ram_efficient_loading": True}},
            {"fsdp": True, "fsdp_config": {"reshard_after_forward": False, "activation_checkpointing": True}},
            {"fsdp": True, "fsdp_config": {"fsdp_state_dict_type": "SHARDED_STATE_DICT", "cpu_offload": True}},
            {"fsdp": True, "fsdp_config": {"offload_params": True, "transformer_layer_cls_to_wrap": [LAYER]}},
            {"fsdp": "full_shard", "fsdp_config": {"version": 1}},
            {"fsdp": "hybrid_shard", "fsdp_config": {"version": 1, "use_orig_params": True}},
            {"fsdp": "no_shard", "fsdp_config": {"version": 1, "sync_module_states": True}},
            {"fsdp": True, "fsdp_config": {"fsdp_version": 1, "reshard_after_forward": "shard_grad_op"}},
            {"fsdp_config": {"cpu_offload": True}},
        ),
    ),
)

CPU, PINNED = {"device": "cpu"}, {"device": "cpu", "pin_memory": True}
NVME = {"device": "nvme", "nvme_path": "/nvme", "pin_memory": True, "buffer_count": 6, "buffer_size": 200_000_000}
ZERO: Topics = (
    (
        1.6,
        (
            {"stage": 3, "offload_param": CPU},
            {"stage": 3, "offload_param": PINNED, "offload_optimizer": PINNED},
            {"stage": 3, "offload_optimizer": {"device": "cpu", "pin_memory": False}},
            {"stage": 3, "offload_optimizer": {"device": "nvme", "nvme_path": "/nvme"}},
            {
                "stage": 3,
                "offload_param": NVME,
                "offload_optimizer": {"device": "nvme", "nvme_path": "/nvme", "pin_memory": True},
            },
            {"stage": 3, "offload_param": NVME},
            {"stage": 3, "cpu_offload": True},
            {"stage": 3, "offload_param": {"device": "none"}},
            {"stage": 2, "offload_optimizer": CPU},
            {"stage": 2, "cpu_offload": True},
            {"stage": 3},
        ),
    ),
    (0.8, tuple({"reduce_bucket_size": size} for size in ("auto", 5e8, 1e6, "auto"))),
    (0.8, tuple({"stage3_prefetch_bucket_size": size} for size in ("auto", 5e7, 1_000_000, 0))),
    (0.8, tuple({"stage3_param_persistence_threshold": size} for size in ("auto", 1e5, 0))),
    (0.5, tuple({"sub_group_size": size} for size in (1e9, 100_000_000))),
    (0.5, ({"stage3_gather_16bit_weights_on_model_save": True}, {"stage3_gather_16bit_weights_on_model_save": False})),
    (0.5, ({"overlap_comm": True}, {"contiguous_gradients": True, "allgather_bucket_size": 5e8})),
)
# Of the whole JSON, and the arguments beside it. What neither says is "auto" or DeepSpeed's own.
BESIDE_ZERO: Topics = (
    (
        1.5,
        (
            {"bf16": {"enabled": "auto"}},
            {"bf16": {"enabled": True}},
            {"bf16": {"enabled": "auto"}, "fp16": {"enabled": "auto"}},
        ),
    ),
    (1.0, ({"gradient_clipping": "auto"}, {"gradient_clipping": 1.0}, {"gradient_clipping": 0.5})),
    (
        1.0,
        (
            {"gradient_accumulation_steps": "auto"},
            {"gradient_accumulation_steps": 1},
            {"gradient_accumulation_steps": 4},
        ),
    ),
    (
        1.0,
        (
            {
                "optimizer": {
                    "type": "AdamW",
                    "params": {"lr": "auto", "betas": "auto", "eps": "auto", "weight_decay": "auto"},
                }
            },
            {
                "scheduler": {
                    "type": "WarmupLR",
                    "params": {"warmup_min_lr": "auto", "warmup_max_lr": "auto", "warmup_num_steps": "auto"},
                }
            },
        ),
    ),
)
WITH_ZERO: Topics = ((0.5, ({"per_device_train_batch_size": 2},)), (0.5, ({"weight_decay": 0.1},)))


def deepspeed_file(seed: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """A DeepSpeed JSON, and the arguments beside it."""
    zero = drawn(seed, ZERO, {"stage": 2})
    whole = drawn(seed, BESIDE_ZERO, {"zero_optimization": zero})
    sizes = {"train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto"}
    beside = drawn(seed, WITH_ZERO, {"bf16": True})
    for key, argument, otherwise in (
        ("gradient_clipping", "max_grad_norm", 0.7),
        (
            "gradient_accumulation_steps",
            "gradient_accumulation_steps",
            2 if "gradient_accumulation_steps" in whole else 1,
        ),
    ):  # a number in the JSON must be that of the arguments
        beside[argument] = otherwise if whole.get(key, "auto") == "auto" else whole[key]
    return {**whole, **sizes}, beside


ON_FSDP, ON_ZERO = {"distributed_type": "FSDP"}, {"distributed_type": "DEEPSPEED"}
ACCELERATE: Topics = (
    (
        1.4,
        (
            {**ON_FSDP, "fsdp_config": {"fsdp_version": 2}},
            {**ON_FSDP, "fsdp_config": {"fsdp_version": 2, "fsdp_reshard_after_forward": False}},
            {
                **ON_FSDP,
                "fsdp_config": {
                    "fsdp_version": 2,
                    "fsdp_offload_params": True,
                    "fsdp_state_dict_type": "SHARDED_STATE_DICT",
                },
            },
            {**ON_FSDP, "fsdp_config": {"fsdp_version": 2, "fsdp_cpu_ram_efficient_loading": False}},
            {**ON_FSDP, "fsdp_config": {"fsdp_version": 2, "fsdp_activation_checkpointing": True}},
            {**ON_FSDP, "fsdp_config": {"fsdp_transformer_layer_cls_to_wrap": LAYER}},
            {**ON_FSDP, "fsdp_config": {"fsdp_version": 1, "fsdp_sharding_strategy": "SHARD_GRAD_OP"}},
            {**ON_FSDP, "fsdp_config": {"fsdp_version": 1, "fsdp_sharding_strategy": 3}},
            {**ON_FSDP, "fsdp_config": {"fsdp_version": 1, "fsdp_reshard_after_forward": "SHARD_GRAD_OP"}},
            {
                **ON_FSDP,
                "fsdp_config": {
                    "fsdp_version": 1,
                    "fsdp_sharding_strategy": "HYBRID_SHARD",
                    "fsdp_offload_params": True,
                },
            },
            {**ON_FSDP, "fsdp_config": {}},
            ON_FSDP,
            {**ON_ZERO, "deepspeed_config": {"zero_stage": 2}},
            {
                **ON_ZERO,
                "deepspeed_config": {"zero_stage": 2, "gradient_clipping": 0.5, "gradient_accumulation_steps": 4},
            },
            {**ON_ZERO, "deepspeed_config": {"zero_stage": 3, "offload_param_device": "cpu", "zero3_init_flag": True}},
            {
                **ON_ZERO,
                "deepspeed_config": {
                    "zero_stage": 3,
                    "offload_optimizer_device": "cpu",
                    "zero3_save_16bit_model": True,
                },
            },
            {"distributed_type": "MULTI_GPU", "gpu_ids": "all"},
            {"distributed_type": "NO", "num_processes": 1},
        ),
    ),
    (1.0, ({"mixed_precision": "bf16"}, {"mixed_precision": "no"}, {"mixed_precision": "bf16", "downcast_bf16": "no"})),
    (
        0.8,
        (
            {"num_processes": 8, "num_machines": 1},
            {
                "num_processes": 4,
                "num_machines": 2,
                "machine_rank": 0,
                "main_process_ip": "10.0.0.1",
                "main_process_port": 29501,
            },
        ),
    ),
    (0.4, ({"dynamo_config": {"dynamo_backend": "INDUCTOR"}}, {"dynamo_config": {"dynamo_backend": "NO"}})),
)


def accelerate_file(seed: int) -> dict[str, Any]:
    """One file of `accelerate launch`."""
    base = {"compute_environment": "LOCAL_MACHINE", "distributed_type": "MULTI_GPU", "use_cpu": False}
    return drawn(seed, ACCELERATE, {**base, "num_processes": 2, "num_machines": 1})


def arguments_file(seed: int) -> dict[str, Any]:
    """One file of TrainingArguments' words, or of TRL's."""
    return drawn(seed, ARGUMENTS, {"model_name_or_path": "m"})
