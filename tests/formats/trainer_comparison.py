"""An assembled Recipe against what the trainers made of the same settings (trainer_truth.py), field by field."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from recipegen.spec import Dtype, LossKernel, Optimizer, Recipe
from tests.formats.trainer_truth import STEPS

Answer = Mapping[str, Any]
KERNELS = ("lora_mlp_kernel", "lora_qkv_kernel", "lora_o_kernel", "lora_embedding_kernel")
LOGGERS = ("tensorboard", "wandb", "trackio", "mlflow")
ZERO_3 = 3
RESHARDS = ("FULL_SHARD", "HYBRID_SHARD")


def differences(recipe: Recipe, truth: Answer) -> dict[str, tuple[Any, Any]]:
    """Recipe field path -> (what assemble says, what Axolotl does)."""
    rows = [
        *_axolotl(recipe, truth["cfg"]),
        *_dtypes(recipe, truth),
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
    yield "loss_kernel", recipe.loss_kernel, _loss(cfg)


def _loss(cfg: Answer) -> LossKernel:
    """validate_config drops the keys of plugins that are not listed."""
    if cfg.get("cut_cross_entropy"):
        return LossKernel.CUT
    if cfg.get("liger_fused_linear_cross_entropy"):
        return LossKernel.FUSED_LINEAR
    return LossKernel.CHUNKED_UPCAST if cfg.get("chunked_cross_entropy") else LossKernel.STOCK


def _dtypes(recipe: Recipe, truth: Answer) -> Iterator[tuple[str, Any, Any]]:
    """Accelerate's autocast, and the dtype of from_pretrained. fp16 is shown as bf16: no Recipe has a word for it."""
    cfg, mixed = truth["cfg"], truth["arguments"]["mixed_precision"]
    words = {"torch.bfloat16": Dtype.BF16, "torch.float16": Dtype.BF16, "torch.float32": Dtype.FP32}
    dtype = words[str(cfg["torch_dtype"])]
    yield "precision.compute", recipe.precision.compute, dtype if mixed == "no" else Dtype.BF16
    quantised = {"load_in_4bit": Dtype.NF4, "load_in_8bit": Dtype.INT8}
    loaded = next((kind for key, kind in quantised.items() if cfg.get(key)), dtype)
    yield "precision.parameters", recipe.precision.parameters, loaded


def arguments_differences(recipe: Recipe, truth: Answer) -> dict[str, tuple[Any, Any]]:
    """The same for a file of TrainingArguments, or of TRL's SFTConfig and ModelConfig."""
    made, model = truth["arguments"], truth.get("model")
    rows = [*common(recipe, made, made["max_steps"]), *_of_arguments(recipe, made)]
    for part in ("beta1", "beta2", "epsilon"):
        rows.append((f"optimizer.{part}", getattr(recipe.optimizer, part), made[f"adam_{part}"]))
    for part in ("weight_decay", "max_grad_norm"):
        rows.append((f"optimizer.{part}", getattr(recipe.optimizer, part), made[part]))
    if model is not None:
        rows += [
            ("sequence_len", recipe.sequence_len, made["max_length"]),
            ("packing", recipe.packing, made["packing"]),
        ]
        rows += [("method", recipe.method.is_adapter, model["use_peft"])]
    if recipe.adapter is not None and model is not None:
        names = {"r": "lora_r", "alpha": "lora_alpha", "dropout": "lora_dropout"}
        for part in ("r", "alpha", "dropout", "use_rslora", "use_dora"):
            rows.append((f"adapter.{part}", getattr(recipe.adapter, part), model[names.get(part, part)]))
    plugin = truth.get("fsdp")
    rows.append(("fsdp", recipe.fsdp is not None, plugin is not None))
    if recipe.fsdp is not None and plugin is not None:
        rows += fsdp(recipe, plugin)
    return {path: (ours, theirs) for path, ours, theirs in rows if ours != theirs}


def _of_arguments(recipe: Recipe, made: Answer) -> Iterator[tuple[str, Any, Any]]:
    yield "optimizer.name", recipe.optimizer.name, _word(made["optim"])
    yield "tf32", recipe.tf32, made["tf32"] is True
    mixed = made["mixed_precision"]
    if mixed != "no":  # fp16 is shown as bf16
        yield "precision.compute", recipe.precision.compute, Dtype.BF16
    elif recipe.precision.parameters is Dtype.FP32:
        yield "precision.compute", recipe.precision.compute, Dtype.FP32
    config = made["accelerator_config"]
    words = config.get("gradient_accumulation_kwargs") or {} if isinstance(config, Mapping) else {}
    yield "sync_each_batch", recipe.sync_each_batch, bool(words.get("sync_each_batch"))
    fused = made["use_liger_kernel"] and (made["liger_kernel_config"] or {}).get("fused_linear_cross_entropy", True)
    yield "loss_kernel", recipe.loss_kernel is LossKernel.FUSED_LINEAR, fused


def deepspeed_differences(recipe: Recipe, truth: Answer) -> dict[str, tuple[Any, Any]]:
    """The settings that DeepSpeed's own classes end up with."""
    ours, zero = recipe.deepspeed, truth["zero"]
    assert ours is not None
    optimizer, param = zero["offload_optimizer"] or {}, zero["offload_param"] or {}
    devices = {"optimizer": optimizer.get("device", "none"), "param": param.get("device", "none")}
    rows = [(f"deepspeed.offload_{part}", getattr(ours, f"offload_{part}"), theirs) for part, theirs in devices.items()]
    rows += [("deepspeed.stage", ours.stage, zero["stage"])]
    rows += [("deepspeed.reduce_bucket_size", ours.reduce_bucket_size, zero["reduce_bucket_size"])]
    on = [part for part, device in ((optimizer, devices["optimizer"]), (param, devices["param"])) if device != "none"]
    pinned = {part["pin_memory"] for part in on} or {False}
    rows += [("deepspeed.pin_memory", True, ours.pin_memory in pinned)]
    paths = {part["nvme_path"] for part in on if part["device"] == "nvme"} or {None}
    rows += [("deepspeed.nvme_path", True, ours.nvme_path in paths)]
    if zero["stage"] == ZERO_3:
        for name, key in (
            ("prefetch_bucket_size", "prefetch_bucket_size"),
            ("param_persistence_threshold", "param_persistence_threshold"),
            ("sub_group_size", "sub_group_size"),
            ("save_16bit_model", "gather_16bit_weights_on_model_save"),
        ):
            rows.append((f"deepspeed.{name}", getattr(ours, name), zero[key]))
    if devices["param"] == "nvme":
        rows += [(f"deepspeed.{name}", getattr(ours, name), param[name]) for name in ("buffer_count", "buffer_size")]
    rows += [
        ("micro_batch_size", recipe.micro_batch_size, truth["micro_batch_size"]),
        ("gradient_accumulation", recipe.gradient_accumulation, truth["gradient_accumulation"]),
        ("optimizer.max_grad_norm", recipe.optimizer.max_grad_norm, truth["max_grad_norm"]),
        ("precision.compute", recipe.precision.compute is Dtype.BF16, truth["bf16"] or truth["fp16"]),
    ]
    return {path: (ours_, theirs) for path, ours_, theirs in rows if ours_ != theirs}


def accelerate_differences(recipe: Recipe, truth: Answer) -> dict[str, tuple[Any, Any]]:
    """What `accelerate launch` decides beside arguments that name no engine and no precision."""
    environment, mesh = truth["environment"], recipe.parallelism
    plugin, zero = truth["fsdp"], truth.get("deepspeed")
    replicated = plugin is not None and plugin["version"] == 1 and plugin["sharding_strategy"].endswith("NO_SHARD")
    rows: list[tuple[str, Any, Any]] = [
        ("parallelism.nodes", mesh.nodes, truth["num_machines"]),
        ("parallelism.gpus_per_node", mesh.nodes * mesh.gpus_per_node, truth["num_processes"]),
        ("fsdp", recipe.fsdp is not None, plugin is not None and not replicated),
        ("deepspeed", recipe.deepspeed is not None, zero is not None),
        ("torch_compile", recipe.torch_compile, environment.get("ACCELERATE_DYNAMO_BACKEND", "NO") != "NO"),
    ]
    mixed = environment["ACCELERATE_MIXED_PRECISION"] == "bf16"
    rows += [("precision.compute", recipe.precision.compute is Dtype.BF16, mixed)]
    if recipe.fsdp is not None and plugin is not None:
        rows += fsdp(recipe, plugin)
        if plugin["sharding_strategy"].endswith("HYBRID_SHARD") and plugin["version"] == 1:
            rows += [("parallelism.dp_replicate", mesh.dp_replicate, mesh.nodes)]
        rows += [("activation_checkpointing", recipe.activation_checkpointing, plugin["activation_checkpointing"])]
    if recipe.deepspeed is not None and zero is not None:
        ours, theirs = recipe.deepspeed, zero["zero_optimization"]
        rows += [("deepspeed.stage", ours.stage, theirs["stage"])]
        for part in ("offload_optimizer", "offload_param"):
            rows += [(f"deepspeed.{part}", getattr(ours, part), theirs[part]["device"])]
        saves = theirs["stage3_gather_16bit_weights_on_model_save"]
        rows += [("deepspeed.save_16bit_model", ours.save_16bit_model, saves)]
        if zero["gradient_accumulation_steps"] != "auto":
            steps = zero["gradient_accumulation_steps"]
            rows += [("gradient_accumulation", recipe.gradient_accumulation, steps)]
        if zero["gradient_clipping"] != "auto":
            rows += [("optimizer.max_grad_norm", recipe.optimizer.max_grad_norm, zero["gradient_clipping"])]
    return {path: (ours_, theirs_) for path, ours_, theirs_ in rows if ours_ != theirs_}


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
        yield path, ours, float(made[key]) if key == "learning_rate" else made[key]
    scheduler = made.get("alternate_lr_scheduler_type") or made["lr_scheduler_type"]
    yield "schedule.scheduler", recipe.schedule.scheduler, _word(scheduler)
    yield "max_steps", recipe.max_steps or 0, max(max_steps or 0, 0)
    steps = min(max_steps or STEPS, STEPS)
    warmup, ratio = recipe.schedule.warmup_steps, recipe.schedule.warmup_ratio
    counted = warmup if warmup is not None else int((ratio or 0) * steps)
    if counted == 1 and warmup is None and not max_steps and "sample_packing" in made:
        counted = 2  # Axolotl's, once it has counted the steps that a share is of
    theirs = made["warmup_steps"]
    yield "schedule.warmup", counted, theirs if theirs >= 1 or not theirs else int(theirs * steps)
    loggers = [name for name in made["report_to"] if name in LOGGERS] or ["none"]
    yield "saving.logger", recipe.saving.logger if recipe.saving.logger not in loggers else "one", "one"
    yield "saving.logging_steps", recipe.saving.logging_steps, made["logging_steps"]
    if made["save_total_limit"] is not None:
        yield "saving.save_total_limit", recipe.saving.save_total_limit, made["save_total_limit"]
    saves = made["save_steps"] if _word(made["save_strategy"]) == "steps" and made["save_steps"] >= 1 else None
    yield "saving.save_steps", recipe.saving.save_steps, None if saves is None else int(saves)
    if recipe.val_set_size or _word(made["eval_strategy"]) != "no":
        evals = made["eval_steps"] if _word(made["eval_strategy"]) == "steps" and made["eval_steps"] >= 1 else None
        yield "saving.eval_steps", recipe.saving.eval_steps, None if evals is None else int(evals)
    # Axolotl's offloading replaces Transformers' recomputation, with the same boundaries (core/builders/base.py).
    offloads = bool(made.get("activation_offloading")) and "sample_packing" in made
    recomputes = made["gradient_checkpointing"] or offloads
    wrapped = bool((made.get("fsdp_config") or {}).get("activation_checkpointing")) and bool(made.get("fsdp"))
    yield "activation_checkpointing", recipe.activation_checkpointing, recomputes or wrapped
    if made["gradient_checkpointing"] and not wrapped:
        # Transformers says false where it has no words for torch (trainer.py, modeling_utils.py: `gc_kwargs or None`);
        # with others, torch 2.13 warns and takes true.
        words = made["gradient_checkpointing_kwargs"] or {"use_reentrant": False}
        reentrant = words.get("use_reentrant", True)
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
    if not truth["deepspeed"] or truth["fsdp"] is not None:  # DeepSpeed clips, as its JSON says
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
    for name in ("tp", "cp"):
        yield f"parallelism.{name}", getattr(parallelism, name), mesh.get(f"{name}_size", 1)
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
    # Accelerator.prepare_model hands FSDP1 `sharding_strategy or reshard_after_forward`; the first is never empty.
    word = plugin["reshard_after_forward" if plugin["version"] == 2 else "sharding_strategy"]
    again = word == "True" if plugin["version"] == 2 else word.rpartition(".")[2] in RESHARDS
    yield "fsdp.reshard_after_forward", ours.reshard_after_forward, again
    offload = plugin["offload_params"]
    theirs = "CPUOffloadPolicy" in offload or "offload_params=True" in offload
    yield "fsdp.offload_params", ours.offload_params, theirs
    for name in ("state_dict_type", "cpu_ram_efficient_loading"):
        yield f"fsdp.{name}", getattr(ours, name), plugin[name]
