"""axolotl.yaml: a Recipe in the keys of Axolotl 0.19 (its pydantic models in axolotl/utils/schemas are the reference).

Every key is written out, also where the value is the trainer's default: a default belongs to a version, a recipe does
not. What is constant for every recipe says why here; what was decided is a field of Recipe.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from recipegen.estimate.parameters import target_modules_value
from recipegen.formats.passthrough import merge
from recipegen.formats.rendering import Document, render
from recipegen.spec import Dtype, LossKernel, Method, ModelSpec, Recipe, RecipegenError

OUTPUT_DIR = "./outputs"
PREPARED_PATH = "./prepared"
EXPERT_PARALLEL_PLUGIN = "axolotl.integrations.expert_parallel.ExpertParallelPlugin"
LIGER_PLUGIN = "axolotl.integrations.liger.LigerPlugin"
DEEPSPEED_FILE = "deepspeed.json"

# Key of axolotl.yaml (dotted) -> the Recipe field that it carries; the first one with a reason lends it.
FIELDS: dict[str, tuple[str, ...]] = {
    "base_model": ("model",),
    "revision_of_model": ("model_revision",),
    "trust_remote_code": ("trust_remote_code",),
    "adapter": ("method",),
    "load_in_4bit": ("precision.parameters",),
    "lora_r": ("adapter.r", "adapter"),
    "lora_alpha": ("adapter.alpha",),
    "lora_dropout": ("adapter.dropout",),
    "lora_target_modules": ("adapter.target_modules",),
    "peft_use_rslora": ("adapter.use_rslora",),
    "peft_use_dora": ("adapter.use_dora",),
    "lora_mlp_kernel": ("adapter.fused_kernels",),
    "lora_modules_to_save": ("adapter.modules_to_save",),
    "quantize_moe_experts": ("quantised_experts",),
    "datasets": ("datasets",),
    "val_set_size": ("val_set_size",),
    "chat_template": ("chat_template",),
    "eot_tokens": ("eot_tokens",),
    "sequence_len": ("sequence_len",),
    "sample_packing": ("packing",),
    "pad_to_sequence_len": ("pad_to_sequence_len",),
    "excess_length_strategy": ("excess_length_strategy",),
    "dataset_num_proc": ("loading.dataset_num_proc",),
    "micro_batch_size": ("micro_batch_size",),
    "gradient_accumulation_steps": ("gradient_accumulation",),
    "accelerator_config.gradient_accumulation_kwargs.sync_each_batch": ("sync_each_batch",),
    "num_epochs": ("epochs",),
    "max_steps": ("max_steps",),
    "optimizer": ("optimizer.name", "optimizer"),
    "adam_beta1": ("optimizer.beta1",),
    "adam_beta2": ("optimizer.beta2",),
    "adam_epsilon": ("optimizer.epsilon",),
    "weight_decay": ("optimizer.weight_decay",),
    "max_grad_norm": ("optimizer.max_grad_norm",),
    "learning_rate": ("schedule.learning_rate",),
    "lr_scheduler": ("schedule.scheduler",),
    "warmup_steps": ("schedule.warmup_steps",),
    "warmup_ratio": ("schedule.warmup_ratio",),
    "bf16": ("precision.compute", "precision"),
    "tf32": ("tf32",),
    "gradient_checkpointing": ("activation_checkpointing",),
    "gradient_checkpointing_kwargs.use_reentrant": ("activation_checkpointing_reentrant",),
    "activation_offloading": ("activation_offloading",),
    "attn_implementation": ("attention",),
    "chunked_cross_entropy": ("loss_kernel",),
    "plugins": ("loss_kernel",),
    "torch_compile": ("torch_compile",),
    "fsdp_version": ("parallelism.strategy", "parallelism"),
    "fsdp_config.reshard_after_forward": ("fsdp.reshard_after_forward",),
    "fsdp_config.cpu_ram_efficient_loading": ("fsdp.cpu_ram_efficient_loading",),
    "fsdp_config.offload_params": ("fsdp.offload_params",),
    "fsdp_config.state_dict_type": ("fsdp.state_dict_type",),
    "fsdp_config.transformer_layer_cls_to_wrap": ("fsdp.layer_class",),
    "dp_shard_size": ("parallelism.dp_shard",),
    "dp_replicate_size": ("parallelism.dp_replicate",),
    "tensor_parallel_size": ("parallelism.tp",),
    "context_parallel_size": ("parallelism.cp",),
    "deepspeed": ("parallelism.strategy", "parallelism"),
    "dataloader_num_workers": ("loading.dataloader_workers", "loading"),
    "dataloader_prefetch_factor": ("loading.prefetch_factor",),
    "dataloader_pin_memory": ("loading.pin_memory",),
    "logging_steps": ("saving.logging_steps",),
    "save_steps": ("saving.save_steps",),
    "save_strategy": ("saving.save_steps",),
    "save_total_limit": ("saving.save_total_limit",),
    "save_only_model": ("saving.save_only_model",),
    "eval_steps": ("saving.eval_steps",),
    "eval_strategy": ("saving.eval_steps",),
    "use_tensorboard": ("saving.logger",),
    "use_wandb": ("saving.logger",),
    "use_trackio": ("saving.logger",),
    "use_mlflow": ("saving.logger",),
    "seed": ("seed",),
}
# Reasons of keys that are the same in every recipe.
_CONSTANT = {
    "eval_sample_packing": "a small validation set packs into fewer rows than there are ranks, which Axolotl refuses",
    "train_on_inputs": "the prompt is context, not a target",
    "fsdp_config.final_state_dict_type": "the final model is one set of safetensors, ready to load",
    "dataset_prepared_path": "tokenized once by launch.sh, before the GPUs start",
    "lora_embedding_kernel": "only for adapters on the embeddings",
    "dp_shard_size": "shard inside a node",
    "dp_replicate_size": "replicate across nodes: only gradients cross the network",
}
_LOGGERS = ("tensorboard", "wandb", "trackio", "mlflow")


def write(recipe: Recipe, model: ModelSpec, reasons: Mapping[str, str]) -> str:
    """The text of axolotl.yaml. `reasons` maps Recipe field paths to one line each.

    Raises RecipegenError when a passthrough key cannot be written.
    """
    written = values(recipe)
    notes = _reasons(written, reasons)
    merged, seen = merge(written, recipe.passthrough.get("axolotl", {}))
    document = Document(merged, {**notes, **seen})
    return render("axolotl.yaml.j2", doc=document, recipe=recipe, model=model, passed=sorted(seen))


def _reasons(written: Mapping[str, Any], reasons: Mapping[str, str]) -> dict[str, str]:
    """Reasons by dotted key of axolotl.yaml."""
    notes = {key: reason for key, reason in _CONSTANT.items() if key.split(".")[0] in written}
    if not written["sample_packing"]:
        del notes["eval_sample_packing"]
    for key, paths in FIELDS.items():
        reason = next((reasons[path] for path in paths if reasons.get(path)), None)
        if reason and not (key.startswith("use_") and written.get(key) is False):  # one logger, one reason
            notes[key] = reason
    return notes


def values(recipe: Recipe) -> dict[str, Any]:
    """The keys of axolotl.yaml in order, without passthrough."""
    written = {
        **_model(recipe),
        **_adapter(recipe),
        **_data(recipe),
        **_batch(recipe),
        **_optimizer(recipe),
        **_working_set(recipe),
        **_engine(recipe),
        **_host(recipe),
    }
    if recipe.parallelism.ep > 1:
        written["plugins"] = [*written.get("plugins", ()), EXPERT_PARALLEL_PLUGIN]
        written["expert_parallel_size"] = recipe.parallelism.ep
    return written


def _model(recipe: Recipe) -> dict[str, Any]:
    result: dict[str, Any] = {"base_model": recipe.model}
    if recipe.model_revision:
        result["revision_of_model"] = recipe.model_revision
    if recipe.trust_remote_code:
        result["trust_remote_code"] = True
    if recipe.dequantize == "mxfp4":
        result["model_quantization_config"] = "Mxfp4Config"
        result["model_quantization_config_kwargs"] = {"dequantize": True}
    if recipe.freeze_vision:
        result["freeze_mm_modules"] = True
    if recipe.quantised_experts:
        result["quantize_moe_experts"] = True
    return result


def _adapter(recipe: Recipe) -> dict[str, Any]:
    adapter = recipe.adapter
    if recipe.method.is_adapter != (adapter is not None):
        raise RecipegenError(f"the method is {recipe.method.value}, but adapter is {adapter!r}")
    if adapter is None:
        return {}
    fused = adapter.fused_kernels
    saved = {"lora_modules_to_save": list(adapter.modules_to_save)} if adapter.modules_to_save else {}
    return {
        "adapter": recipe.method.value,
        # Both are written: Axolotl accepts `adapter: lora` with a 4-bit base, and a reader should not have to know.
        "load_in_4bit": recipe.method is Method.QLORA,
        "load_in_8bit": False,
        "lora_r": adapter.r,
        "lora_alpha": adapter.alpha,
        "lora_dropout": adapter.dropout,
        "lora_target_modules": target_modules_value(adapter.target_modules),
        "peft_use_rslora": adapter.use_rslora,
        "peft_use_dora": adapter.use_dora,
        # Left out, all four would be switched on (check_auto_enable_lora_kernels), also where Triton does not run.
        "lora_mlp_kernel": fused,
        "lora_qkv_kernel": fused,
        "lora_o_kernel": fused,
        "lora_embedding_kernel": fused and "embed_tokens" in adapter.target_modules,
        **saved,
    }


def _data(recipe: Recipe) -> dict[str, Any]:
    result: dict[str, Any] = {
        "datasets": [dict(spec.entry) for spec in recipe.datasets],
        "dataset_prepared_path": PREPARED_PATH,
        "val_set_size": _rows_or_share(recipe.val_set_size),
        "train_on_inputs": False,
        "sequence_len": recipe.sequence_len,
        "sample_packing": recipe.packing,
        "eval_sample_packing": False,
        "pad_to_sequence_len": recipe.pad_to_sequence_len,
        "excess_length_strategy": recipe.excess_length_strategy,
        "dataset_num_proc": recipe.loading.dataset_num_proc,
    }
    if recipe.chat_template:
        result["chat_template"] = recipe.chat_template
    if recipe.eot_tokens:
        result["eot_tokens"] = list(recipe.eot_tokens)
    return result


def _rows_or_share(size: float) -> int | float:
    """Axolotl takes a share below 1, or a number of rows."""
    return int(size) if size == 0 or size >= 1 else size


def _batch(recipe: Recipe) -> dict[str, Any]:
    result: dict[str, Any] = {
        "micro_batch_size": recipe.micro_batch_size,
        "gradient_accumulation_steps": recipe.gradient_accumulation,
    }
    if recipe.gradient_accumulation > 1:
        result["accelerator_config"] = {"gradient_accumulation_kwargs": {"sync_each_batch": recipe.sync_each_batch}}
    result["num_epochs"] = recipe.epochs
    if recipe.max_steps is not None:
        result["max_steps"] = recipe.max_steps
    return result


def _optimizer(recipe: Recipe) -> dict[str, Any]:
    optimizer, schedule = recipe.optimizer, recipe.schedule
    result: dict[str, Any] = {
        "optimizer": optimizer.name,
        # Betas and epsilon in full: another optimizer class has other defaults (optimi: 0.9, 0.99, 1e-6).
        "adam_beta1": optimizer.beta1,
        "adam_beta2": optimizer.beta2,
        "adam_epsilon": optimizer.epsilon,
        "weight_decay": optimizer.weight_decay,
        "max_grad_norm": optimizer.max_grad_norm,
        "learning_rate": schedule.learning_rate,
        "lr_scheduler": schedule.scheduler,
    }
    if schedule.warmup_steps is not None:
        result["warmup_steps"] = schedule.warmup_steps
    elif schedule.warmup_ratio is not None:
        result["warmup_ratio"] = schedule.warmup_ratio
    return result


def _working_set(recipe: Recipe) -> dict[str, Any]:
    result: dict[str, Any] = {
        # true, never auto: on a machine that does not report bf16, auto silently trains in fp16.
        "bf16": recipe.precision.compute is Dtype.BF16,
        "fp16": False,
        "tf32": recipe.tf32,
        "gradient_checkpointing": recipe.activation_checkpointing,
    }
    if recipe.activation_checkpointing:
        result["gradient_checkpointing_kwargs"] = {"use_reentrant": recipe.activation_checkpointing_reentrant}
    result |= {
        "activation_offloading": recipe.activation_offloading,
        "attn_implementation": recipe.attention,
        "chunked_cross_entropy": recipe.loss_kernel is LossKernel.CHUNKED_UPCAST,
    }
    if recipe.loss_kernel is LossKernel.FUSED_LINEAR:
        result |= {"plugins": [LIGER_PLUGIN], "liger_fused_linear_cross_entropy": True}
    elif recipe.loss_kernel is LossKernel.CUT:
        raise RecipegenError(
            "cut cross entropy needs a package that is not on the index, so it is not generated",
            where="loss_kernel",
            fix="Use chunked_upcast or fused_linear.",
        )
    result["torch_compile"] = recipe.torch_compile
    return result


def _engine(recipe: Recipe) -> dict[str, Any]:
    mesh = recipe.parallelism
    result: dict[str, Any] = {}
    if mesh.strategy.is_deepspeed:
        return {"deepspeed": DEEPSPEED_FILE}
    if mesh.strategy.is_fsdp:
        fsdp = recipe.fsdp
        if fsdp is None:
            raise RecipegenError(f"the strategy is {mesh.strategy.label}, but fsdp is not filled in")
        result["fsdp_version"] = 2
        result["fsdp_config"] = {
            "auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
            "transformer_layer_cls_to_wrap": fsdp.layer_class,
            "reshard_after_forward": fsdp.reshard_after_forward,
            "state_dict_type": fsdp.state_dict_type,
            "final_state_dict_type": "FULL_STATE_DICT",
            "cpu_ram_efficient_loading": fsdp.cpu_ram_efficient_loading,
            "offload_params": fsdp.offload_params,
        }
        if fsdp.offload_params:
            # Refused without offload (check_fsdp2_cpu_offload_pin_memory).
            result["fsdp_config"]["cpu_offload_pin_memory"] = recipe.loading.pin_memory
    if mesh.dp_replicate > 1 and mesh.dp_shard > 1:
        result["dp_shard_size"] = mesh.dp_shard
        result["dp_replicate_size"] = mesh.dp_replicate
    if mesh.tp > 1:
        result["tensor_parallel_size"] = mesh.tp
    if mesh.cp > 1:
        result["context_parallel_size"] = mesh.cp
    return result


def _host(recipe: Recipe) -> dict[str, Any]:
    loading, saving = recipe.loading, recipe.saving
    # All three: with none of them set Axolotl takes one worker per GPU and 256 batches ahead (default_dataloader_opts).
    result: dict[str, Any] = {"dataloader_num_workers": loading.dataloader_workers}
    if loading.prefetch_factor is not None and loading.dataloader_workers > 0:
        result["dataloader_prefetch_factor"] = loading.prefetch_factor
    result["dataloader_pin_memory"] = loading.pin_memory
    result["output_dir"] = OUTPUT_DIR
    result["logging_steps"] = saving.logging_steps
    result |= _every("save", saving.save_steps)
    result["save_total_limit"] = saving.save_total_limit
    result["save_only_model"] = saving.save_only_model
    if recipe.val_set_size:
        result |= _every("eval", saving.eval_steps)
    if saving.logger != "none" and saving.logger not in _LOGGERS:
        raise RecipegenError(f"unknown logger {saving.logger!r}", fix=f"Use one of {', '.join(_LOGGERS)}, none.")
    result |= {f"use_{name}": saving.logger == name for name in _LOGGERS}
    if saving.logger == "wandb":
        result["wandb_project"] = slug(recipe.model)
    result["seed"] = recipe.seed
    return result


def _every(what: str, steps: int | None) -> dict[str, Any]:
    return {f"{what}_strategy": "epoch"} if steps is None else {f"{what}_steps": steps}


def slug(name: str) -> str:
    """A model's name as a word of letters, digits, dots and dashes: `meta-llama/Llama-3.1-8B` -> `Llama-3.1-8B`."""
    last = re.split(r"[/\\]", name.rstrip("/\\"))[-1]
    return re.sub(r"[^A-Za-z0-9.]+", "-", last).strip("-.")[:40] or "model"
