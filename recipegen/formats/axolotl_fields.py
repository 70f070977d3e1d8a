"""Which Recipe fields an axolotl.yaml carries, and the keys that carry one field as it is."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from recipegen.formats import axolotl_keys as to
from recipegen.spec import Recipe


def _always(_: Recipe) -> bool:
    return True


def _adapter(recipe: Recipe) -> bool:
    return recipe.adapter is not None


def _fsdp(recipe: Recipe) -> bool:
    return recipe.parallelism.strategy.is_fsdp


def _hybrid(recipe: Recipe) -> bool:
    return recipe.parallelism.dp_replicate > 1 and recipe.parallelism.dp_shard > 1


# Recipe fields that axolotl.yaml carries, and for which recipes.
CARRIES: Mapping[str, Callable[[Recipe], bool]] = {
    "model": _always,
    "model_revision": lambda r: bool(r.model_revision),
    "trust_remote_code": lambda r: r.trust_remote_code,
    "dequantize": lambda r: r.dequantize == "mxfp4",
    "freeze_vision": lambda r: r.freeze_vision,
    "quantised_experts": lambda r: r.quantised_experts,
    "method": _adapter,
    "adapter.r": _adapter,
    "adapter.alpha": _adapter,
    "adapter.dropout": _adapter,
    "adapter.target_modules": _adapter,
    "adapter.use_rslora": _adapter,
    "adapter.use_dora": _adapter,
    "adapter.fused_kernels": _adapter,
    "adapter.modules_to_save": lambda r: r.adapter is not None and bool(r.adapter.modules_to_save),
    "val_set_size": _always,
    "chat_template": lambda r: bool(r.chat_template),
    "eot_tokens": lambda r: bool(r.eot_tokens),
    "sequence_len": _always,
    "packing": _always,
    "pad_to_sequence_len": _always,
    "excess_length_strategy": _always,
    "micro_batch_size": _always,
    "gradient_accumulation": _always,
    "sync_each_batch": lambda r: r.gradient_accumulation > 1,
    "epochs": _always,
    "max_steps": lambda r: r.max_steps is not None,
    "optimizer.name": _always,
    "optimizer.beta1": _always,
    "optimizer.beta2": _always,
    "optimizer.epsilon": _always,
    "optimizer.weight_decay": _always,
    "optimizer.max_grad_norm": _always,
    "schedule.learning_rate": _always,
    "schedule.scheduler": _always,
    "schedule.warmup_steps": lambda r: r.schedule.warmup_steps is not None,
    "schedule.warmup_ratio": lambda r: r.schedule.warmup_steps is None and r.schedule.warmup_ratio is not None,
    "precision.compute": _always,
    "precision.parameters": _always,
    "tf32": _always,
    "activation_checkpointing": _always,
    "activation_checkpointing_reentrant": lambda r: r.activation_checkpointing,
    "activation_offloading": _always,
    "attention": _always,
    "loss_kernel": _always,
    "torch_compile": _always,
    "parallelism.strategy": _fsdp,
    "parallelism.dp_shard": _hybrid,
    "parallelism.dp_replicate": _hybrid,
    "parallelism.tp": lambda r: r.parallelism.tp > 1 and not r.parallelism.strategy.is_deepspeed,
    "parallelism.cp": lambda r: r.parallelism.cp > 1 and not r.parallelism.strategy.is_deepspeed,
    "parallelism.ep": lambda r: r.parallelism.ep > 1,
    "fsdp.version": _fsdp,
    "fsdp.layer_class": _fsdp,
    "fsdp.reshard_after_forward": _fsdp,
    "fsdp.state_dict_type": _fsdp,
    "fsdp.cpu_ram_efficient_loading": _fsdp,
    "fsdp.offload_params": _fsdp,
    "loading.dataset_num_proc": _always,
    "loading.dataloader_workers": _always,
    "loading.prefetch_factor": lambda r: r.loading.prefetch_factor is not None and r.loading.dataloader_workers > 0,
    "loading.pin_memory": _always,
    "saving.logging_steps": _always,
    "saving.save_steps": _always,
    "saving.save_total_limit": _always,
    "saving.save_only_model": _always,
    "saving.eval_steps": lambda r: bool(r.val_set_size),
    "saving.logger": _always,
    "seed": _always,
}

# Keys that carry one field as it is: (field, key, type).
PLAIN: tuple[tuple[str, str, to.Convert], ...] = (
    ("model", "base_model", to.text),
    ("model_revision", "revision_of_model", to.text),
    ("trust_remote_code", "trust_remote_code", to.boolean),
    ("freeze_vision", "freeze_mm_modules", to.boolean),
    ("quantised_experts", "quantize_moe_experts", to.boolean),
    ("val_set_size", "val_set_size", to.number),
    ("chat_template", "chat_template", to.text),
    ("sequence_len", "sequence_len", to.at_least(1)),
    ("packing", "sample_packing", to.boolean),
    ("pad_to_sequence_len", "pad_to_sequence_len", to.boolean),
    ("excess_length_strategy", "excess_length_strategy", to.text),
    ("micro_batch_size", "micro_batch_size", to.at_least(1)),
    ("sync_each_batch", "accelerator_config.gradient_accumulation_kwargs.sync_each_batch", to.boolean),
    ("epochs", "num_epochs", to.number),
    ("optimizer.name", "optimizer", to.text),
    ("optimizer.beta1", "adam_beta1", to.number),
    ("optimizer.beta2", "adam_beta2", to.number),
    ("optimizer.epsilon", "adam_epsilon", to.number),
    ("optimizer.weight_decay", "weight_decay", to.number),
    ("optimizer.max_grad_norm", "max_grad_norm", to.number),
    ("schedule.learning_rate", "learning_rate", to.number),
    ("schedule.scheduler", "lr_scheduler", to.text),
    ("loading.dataset_num_proc", "dataset_num_proc", to.at_least(1)),
    ("loading.dataloader_workers", "dataloader_num_workers", to.at_least(0)),
    ("loading.prefetch_factor", "dataloader_prefetch_factor", to.at_least(1)),
    ("loading.pin_memory", "dataloader_pin_memory", to.boolean),
    ("saving.logging_steps", "logging_steps", to.at_least(1)),
    ("saving.save_only_model", "save_only_model", to.boolean),
    ("seed", "seed", to.whole),
    ("parallelism.dp_shard", "dp_shard_size", to.at_least(1)),
    ("parallelism.dp_replicate", "dp_replicate_size", to.at_least(1)),
    ("parallelism.tp", "tensor_parallel_size", to.at_least(1)),
    ("parallelism.cp", "context_parallel_size", to.at_least(1)),
)
# The same, where FSDP is on.
PLAIN_FSDP: tuple[tuple[str, str, to.Convert], ...] = (
    ("fsdp.layer_class", "fsdp_config.transformer_layer_cls_to_wrap", to.text),
    ("fsdp.reshard_after_forward", "fsdp_config.reshard_after_forward", to.boolean),
    ("fsdp.state_dict_type", "fsdp_config.state_dict_type", to.text),
    ("fsdp.cpu_ram_efficient_loading", "fsdp_config.cpu_ram_efficient_loading", to.boolean),
    ("fsdp.offload_params", "fsdp_config.offload_params", to.boolean),
)
