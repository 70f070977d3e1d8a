"""An assembled Recipe against what the trainers made of the same settings (trainer_truth.py), field by field."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from recipegen.spec import Dtype, Optimizer, Recipe
from tests.formats.trainer_truth import STEPS

Answer = Mapping[str, Any]
KERNELS = ("lora_mlp_kernel", "lora_qkv_kernel", "lora_o_kernel", "lora_embedding_kernel")
RESHARDS = ("FULL_SHARD", "HYBRID_SHARD")


def differences(recipe: Recipe, truth: Answer) -> dict[str, tuple[Any, Any]]:
    """Recipe field path -> (what assemble says, what Axolotl does)."""
    rows = [
        *_axolotl(recipe, truth["cfg"]),
        *common(recipe, truth["arguments"], truth["cfg"].get("max_steps")),
        *_numbers(recipe.optimizer, truth),
        *_engine(recipe, truth),
    ]
    return {path: (ours, theirs) for path, ours, theirs in rows if ours != theirs}


def _axolotl(recipe: Recipe, cfg: Answer) -> Iterator[tuple[str, Any, Any]]:
    for path, key, otherwise in (
        ("sequence_len", "sequence_len", None),
        ("excess_length_strategy", "excess_length_strategy", "drop"),
        ("val_set_size", "val_set_size", 0.0),
        ("trust_remote_code", "trust_remote_code", False),
        ("pad_to_sequence_len", "pad_to_sequence_len", False),
        ("packing", "sample_packing", False),
    ):
        yield path, getattr(recipe, path), cfg.get(key, otherwise)
    yield "optimizer.name", recipe.optimizer.name, cfg["optimizer"]
    yield "loading.dataset_num_proc", bool(recipe.loading.dataset_num_proc), bool(cfg.get("dataset_num_proc"))
    offloads = bool(cfg.get("activation_offloading"))
    yield "activation_offloading", recipe.activation_offloading, offloads
    yield "tf32", recipe.tf32, cfg.get("tf32") is True
    if cfg.get("attn_implementation"):
        yield "attention", recipe.attention, cfg["attn_implementation"]
    adapter = recipe.adapter
    if adapter is not None:
        for path, ours, key in (
            ("r", adapter.r, "lora_r"),
            ("alpha", adapter.alpha, "lora_alpha"),
            ("dropout", adapter.dropout, "lora_dropout"),
            ("use_dora", adapter.use_dora, "peft_use_dora"),
            ("use_rslora", adapter.use_rslora, "peft_use_rslora"),
        ):
            yield f"adapter.{path}", ours, cfg.get(key, False)
        yield "adapter.fused_kernels", adapter.fused_kernels, any(cfg.get(key) for key in KERNELS)
    mixed, base = ("bf16" if cfg.get("bf16") else "fp16" if cfg.get("fp16") else "no"), str(cfg["torch_dtype"])
    if "float16" != base.removeprefix("torch.") and mixed != "fp16":
        dtype = {"torch.bfloat16": Dtype.BF16, "torch.float32": Dtype.FP32}[base]
        compute = Dtype.BF16 if mixed == "bf16" else dtype
        yield "precision.compute", recipe.precision.compute, compute
        quantised = {"load_in_4bit": Dtype.NF4, "load_in_8bit": Dtype.INT8}
        loaded = next((kind for key, kind in quantised.items() if cfg.get(key)), dtype)
        yield "precision.parameters", recipe.precision.parameters, loaded


def common(recipe: Recipe, made: Answer, max_steps: int | None) -> Iterator[tuple[str, Any, Any]]:
    """What Transformers' arguments say of any trainer."""
    for path, ours, key in (
        ("micro_batch_size", recipe.micro_batch_size, "per_device_train_batch_size"),
        ("gradient_accumulation", recipe.gradient_accumulation, "gradient_accumulation_steps"),
        ("epochs", recipe.epochs, "num_train_epochs"),
        ("seed", recipe.seed, "seed"),
        ("schedule.learning_rate", recipe.schedule.learning_rate, "learning_rate"),
        ("loading.dataloader_workers", recipe.loading.dataloader_workers, "dataloader_num_workers"),
        ("loading.prefetch_factor", recipe.loading.prefetch_factor, "dataloader_prefetch_factor"),
        ("loading.pin_memory", recipe.loading.pin_memory, "dataloader_pin_memory"),
        ("saving.save_only_model", recipe.saving.save_only_model, "save_only_model"),
        ("torch_compile", recipe.torch_compile, "torch_compile"),
    ):
        yield path, ours, made[key]
    scheduler = made.get("alternate_lr_scheduler_type") or made["lr_scheduler_type"]
    yield "schedule.scheduler", recipe.schedule.scheduler, _word(scheduler)
    yield "max_steps", recipe.max_steps, max_steps
    steps = min(max_steps or STEPS, STEPS)
    warmup, ratio = recipe.schedule.warmup_steps, recipe.schedule.warmup_ratio
    counted = warmup if warmup is not None else int((ratio or 0) * steps)
    theirs = made["warmup_steps"]
    yield "schedule.warmup", counted, theirs if theirs >= 1 or not theirs else int(theirs * steps)
    yield "saving.logging_steps", recipe.saving.logging_steps, made["logging_steps"]
    if made["save_total_limit"] is not None:
        yield "saving.save_total_limit", recipe.saving.save_total_limit, made["save_total_limit"]
    saves = made["save_steps"] if _word(made["save_strategy"]) == "steps" and made["save_steps"] >= 1 else None
    yield "saving.save_steps", recipe.saving.save_steps, None if saves is None else int(saves)
    if recipe.val_set_size:
        evals = made["eval_steps"] if _word(made["eval_strategy"]) == "steps" and made["eval_steps"] >= 1 else None
        yield "saving.eval_steps", recipe.saving.eval_steps, None if evals is None else int(evals)
    # Axolotl's offloading replaces Transformers' recomputation, with the same boundaries (core/builders/base.py).
    recomputes = made["gradient_checkpointing"] or bool(made.get("activation_offloading")) and "sample_packing" in made
    wrapped = bool((made.get("fsdp_config") or {}).get("activation_checkpointing")) and bool(made.get("fsdp"))
    yield "activation_checkpointing", recipe.activation_checkpointing, recomputes or wrapped
    if made["gradient_checkpointing"] and not wrapped:
        words = made["gradient_checkpointing_kwargs"]
        # None: Transformers says false (modeling_utils.py); without the word torch 2.13 warns and takes true.
        reentrant = False if words is None else words.get("use_reentrant", True)
        yield "activation_checkpointing_reentrant", recipe.activation_checkpointing_reentrant, reentrant


def _word(value: Any) -> str:
    return str(value).rpartition(".")[2].lower()


def _numbers(ours: Optimizer, truth: Answer) -> Iterator[tuple[str, Any, Any]]:
    made, own = truth["arguments"], truth["optimizer"]
    beta1, beta2, epsilon = made["adam_beta1"], made["adam_beta2"], made["adam_epsilon"]
    decay = made["weight_decay"]
    if own is not None:
        handed = {**own["own"], **own["handed"]}
        (beta1, beta2), epsilon = handed.get("betas", (None, None))[:2], handed.get("eps")
        decay = handed.get("weight_decay", 0.0)
    yield "optimizer.weight_decay", ours.weight_decay, decay
    yield "optimizer.max_grad_norm", ours.max_grad_norm, made["max_grad_norm"]
    for path, ours_, theirs in (
        ("beta1", ours.beta1, beta1),
        ("beta2", ours.beta2, beta2),
        ("epsilon", ours.epsilon, epsilon),
    ):
        if theirs is not None:
            yield f"optimizer.{path}", ours_, theirs


def _engine(recipe: Recipe, truth: Answer) -> Iterator[tuple[str, Any, Any]]:
    plugin, mesh = truth["fsdp"], truth["mesh"]
    parallelism = recipe.parallelism
    yield "deepspeed", recipe.deepspeed is not None, truth["deepspeed"] and plugin is None
    if plugin is None:
        return
    yield "parallelism.dp_shard", parallelism.dp_shard, mesh.get("dp_shard_size", 1)
    yield "parallelism.dp_replicate", parallelism.dp_replicate, mesh.get("dp_replicate_size", 1)
    if recipe.fsdp is not None:
        yield from fsdp(recipe, plugin)


def fsdp(recipe: Recipe, plugin: Answer) -> Iterator[tuple[str, Any, Any]]:
    """The settings that Accelerate's plugin ends up with."""
    ours = recipe.fsdp
    assert ours is not None
    yield "fsdp.version", ours.version, plugin["version"]
    word = plugin["reshard_after_forward"]
    again = word == "True" if plugin["version"] == 2 else word.rpartition(".")[2] in RESHARDS
    yield "fsdp.reshard_after_forward", ours.reshard_after_forward, again
    offload = plugin["offload_params"]
    theirs = "CPUOffloadPolicy" in offload or "offload_params=True" in offload
    yield "fsdp.offload_params", ours.offload_params, theirs
    for name in ("state_dict_type", "cpu_ram_efficient_loading"):
        yield f"fsdp.{name}", getattr(ours, name), plugin[name]
