"""What is trained, in which dtype, and the smaller parts of a recipe, each with the trainer's own defaults.

Defaults that depend on other fields (axolotl 0.19.0 unless named; numbers in the stack's trainer_defaults.yaml):

- packing turns on pad_to_sequence_len (hint_sample_packing_padding);
- with none of the three loader keys: a worker per GPU, 256 batches ahead each, pinned (default_dataloader_opts);
- an adapter without any lora_*_kernel key gets all four (check_auto_enable_lora_kernels) but for int8 bases, remote
  code, FSDP1 on several GPUs, nvfp4_merge_aware, and architectures whose model_support says so; the estimate counts them where the stack knows the architecture;
- gradient_checkpointing without kwargs is reentrant, but with unfrozen_parameters, and never for Gemma 4
  (normalize_config); in Transformers 5.16 it is not;
- warm-up and logging follow from all steps (_configure_warmup_and_logging); without them, the share is kept; one step
  of warm-up becomes two;
- `save_strategy: steps` alone saves every 500 steps, `eval_strategy: steps` alone evaluates when it logs (Transformers);
- a class that takes its numbers from `adam_kwargs` gets both betas or none.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from recipegen.estimate.parameters import (
    default_targets,
    dense_layers,
    is_pattern,
    linear_modules,
    unknown_targets,
    unsaved_modules,
)
from recipegen.formats.assemble_draft import Blocked, Draft
from recipegen.spec import (
    Adapter,
    AttentionMemory,
    DataFormat,
    DatasetSpec,
    Dtype,
    Launch,
    Loading,
    Method,
    Optimizer,
    Parallelism,
    Precision,
    RecipegenError,
    Saving,
    Schedule,
)

_FLASH = "flash_attention_2"
_MLP = ("gate_proj", "up_proj", "down_proj")
_FILES = (".json", ".jsonl", ".parquet", ".csv", ".arrow", ".txt")
_FORMATS = {
    "alpaca": DataFormat.ALPACA,
    "sharegpt": DataFormat.SHAREGPT,
    "completion": DataFormat.COMPLETION,
    "pretrain": DataFormat.COMPLETION,
    "text": DataFormat.COMPLETION,
    "input_output": DataFormat.INPUT_OUTPUT,
    "preference": DataFormat.PREFERENCE,
}


# --- what is trained


def adapter(draft: Draft, method: Method, mesh: Parallelism, fsdp_version: int | None) -> Adapter | None:
    """The adapter; None for a full fine-tune."""
    if not method.is_adapter:
        return None
    rank = draft.need("adapter.r", "lora_r")
    alpha = draft.take("adapter.alpha")
    if alpha is None and draft.format == "llamafactory":
        alpha = 2 * rank  # hparams/finetuning_args.py: lora_alpha or lora_rank * 2
    elif alpha is None:
        alpha = draft.need("adapter.alpha", "lora_alpha")
    targets = _targets(draft)
    dropout = draft.take("adapter.dropout")
    automatic = (
        draft.axolotl
        and draft.values.get("precision.parameters") is not Dtype.INT8
        and not draft.values.get("trust_remote_code")
        and not (fsdp_version == 1 and mesh.world_size > 1)
        and not draft.passthrough.get("axolotl", {}).get("nvfp4_merge_aware")
        and draft.model.model_type not in draft.rules["no_fused_kernels"]
    )
    return Adapter(
        r=rank,
        alpha=alpha,
        dropout=float(dropout),
        target_modules=targets,
        use_rslora=draft.take("adapter.use_rslora"),
        use_dora=draft.take("adapter.use_dora"),
        fused_kernels=draft.take("adapter.fused_kernels", automatic),
        modules_to_save=_saved(draft),
    )


def _saved(draft: Draft) -> tuple[str, ...]:
    """Modules that are trained whole in copies; only those of embeddings and head are counted."""
    path = "adapter.modules_to_save"
    saved: tuple[str, ...] = tuple(draft.take(path, ()))
    unknown = unsaved_modules(saved)
    if unknown:
        draft.block(path, f"{', '.join(unknown)} trained whole beside the adapter: only embed_tokens and lm_head are")
    return saved


def _targets(draft: Draft) -> tuple[str, ...]:
    path, model = "adapter.target_modules", draft.model
    stated: tuple[str, ...] = tuple(draft.values.get(path, ()))
    every = draft.fact("lora_target_linear") or draft.fact("lora_all_linear") or draft.fact("lora_target")
    if not stated and not every and draft.format == "llamafactory":
        every = True  # lora_target is "all"
    if every:
        found = (*stated, *(name for name in _linear(draft) if name not in stated))
        if found != stated:
            draft.defaults.add(path)
    elif stated:
        found = stated
    elif draft.axolotl and draft.fact("lora_target_parameters"):
        found = ()
    elif model.model_type in draft.rules.get("target_model_types", ()):
        found = draft.take(path, tuple(draft.rules["target_modules"]))
    else:
        draft.block(path, "no lora_target_modules, and the trainer has no default for them")
        raise Blocked
    extra = tuple(name for name in draft.fact("lora_target_parameters") or () if name not in found)
    found = (*found, *extra)
    unknown = unknown_targets(model, found)
    if unknown and not (is_pattern(found) or set(unknown) < set(found)):
        draft.block(path, f"{', '.join(unknown)}: no module of {model.model_type} has such a name")
    elif unknown and is_pattern(found):
        draft.block(path, f"the pattern matches no module of {model.layers_path}.N of {model.model_type}")
    elif unknown:
        draft.note(path, f"{', '.join(unknown)}: no module of {model.model_type} that is counted has such a name")
    return found


def _linear(draft: Draft) -> tuple[str, ...]:
    """find_all_linear_names, peft's all-linear: the last parts of every linear module's name but the head's.

    Fused experts and routers are bare parameters; a vision tower's modules count, unlike in `default_targets`.
    """
    model = draft.model
    if not model.is_multimodal and not model.is_moe:
        return default_targets(model)
    names = list(linear_modules(model))
    if model.is_moe and (dense_layers(model) or (model.moe and model.moe.shared_intermediate_size)):
        names += _MLP
    names += [group.name.rpartition(".")[2] for group in model.extra_linear]
    return tuple(dict.fromkeys(names))


# --- dtypes


def precision(draft: Draft, method: Method, mesh: Parallelism, optimizer: str, attention: str) -> Precision:
    """What is kept in which dtype: the stack's table, and what follows from it without a run.

    Derived: in fp32 without mixed precision nothing is cast, so everything is fp32; LLM.int8 replaces the base of a
    QLoRA row, because its adapters are made in fp32 all the same (peft 0.20.0, autocast_adapter_dtype).
    fp16 has no word in Dtype: it is counted, and shown, as bf16, which takes as many bytes, and that is said.
    Raises Blocked for what nobody ran.
    """
    mixed, load = _arithmetic(draft)
    if "fp16" in (mixed, load):
        reason = "fp16 is counted and shown as bf16, which takes as many bytes: a recipe has no word for fp16"
        draft.note("precision.compute", reason, "mixed_precision", "load_dtype", "fp16", "fp16_enabled")
        mixed, load = (("bf16" if word == "fp16" else word) for word in (mixed, load))
    facts = draft.stack.optimizer(optimizer)
    base = _base(draft)
    trainer = "axolotl" if draft.axolotl else "accelerate"
    if mixed == "no" and load == "fp32" and not mesh.strategy.is_deepspeed:
        fp32 = Dtype.FP32
        quantised = base in (Dtype.NF4, Dtype.INT8)
        return Precision(base if quantised and base else fp32, fp32, fp32, fp32, facts.state_dtype(fp32), fp32)
    if draft.axolotl and load == "fp32" and method is Method.FULL:
        draft.block("precision.parameters", "weights in fp32 with bf16 arithmetic: Axolotl was not run like that")
        raise Blocked
    int8 = base is Dtype.INT8 or bool(draft.fact("load_in_8bit"))
    if method is Method.FULL and base in (Dtype.NF4, Dtype.INT8):
        draft.block("precision.parameters", "quantised weights without an adapter: nothing could be trained")
        raise Blocked
    as_method = Method.QLORA if int8 or base is Dtype.NF4 else method
    loaded = Dtype.NF4 if as_method is Method.QLORA else base
    if loaded is None:
        loaded = draft.stack.load_dtype(trainer, mesh.strategy, method)
        draft.defaults.add("precision.parameters")
    kernel = _FLASH if "/" in attention else attention
    try:
        row = draft.stack.precision(trainer, mesh.strategy, as_method, optimizer, loaded, kernel)
    except RecipegenError as error:
        if not (mesh.strategy.is_deepspeed and method.is_adapter):
            draft.block("precision", str(error))
            raise Blocked from None
        row = _adapters_under_zero(draft, trainer, mesh, optimizer, loaded)
    return replace(row, parameters=Dtype.INT8) if int8 else row


def _adapters_under_zero(draft: Draft, trainer: str, mesh: Parallelism, optimizer: str, loaded: Dtype) -> Precision:
    """DeepSpeed casts the whole module to bf16 and keeps an fp32 master of what is trained (runtime/engine.py
    _configure_distributed_model; bf16_optimizer.py), so adapters are kept as the weights of a full fine-tune are."""
    row = draft.stack.precision(trainer, mesh.strategy, Method.FULL, optimizer, Dtype.BF16)
    reason = "adapters under ZeRO were not run on this stack: their dtypes are those of a full fine-tune"
    draft.note("precision", reason, "deepspeed.stage")
    return replace(row, parameters=loaded)


def _arithmetic(draft: Draft) -> tuple[str, str]:
    """Accelerate's mixed precision, and the dtype of weights that are not quantised: bf16, fp16, fp32 (and fp8)."""
    bf16_host = draft.cluster is None or draft.cluster.gpu.bf16
    if draft.axolotl:
        automatic = draft.fact("mixed_precision") is None or draft.fact("bf16_auto")
        if automatic and not bf16_host and draft.fact("mixed_precision") != "fp16":
            return "fp16", "fp16"
        return str(draft.fact("mixed_precision") or "bf16"), str(draft.fact("load_dtype") or "bf16")
    if draft.fact("fp16") or draft.fact("fp16_enabled") is True or draft.fact("mixed_precision") == "fp16":
        return "fp16", "bf16" if _base(draft) is Dtype.BF16 else "fp32"
    mixed = str(draft.fact("mixed_precision") or ("bf16" if draft.format == "train_json" else "no"))
    if draft.fact("bf16") or draft.fact("bf16_enabled") is True or draft.fact("pure_bf16"):
        mixed = "bf16"
    return mixed, "bf16" if _base(draft) is Dtype.BF16 else "fp32"


def _base(draft: Draft) -> Dtype | None:
    """The dtype that is loaded, where a file says so. The checkpoints that are trained are bf16 ("auto")."""
    stated: Dtype | None = draft.values.get("precision.parameters")
    if stated is None and not draft.axolotl and (draft.fact("dtype") == "auto" or draft.fact("pure_bf16")):
        return Dtype.BF16
    return stated


def attention(draft: Draft, packing: bool) -> tuple[str, AttentionMemory]:
    """Implementation and what it keeps. Without a choice: sdpa, or eager where the class has nothing else."""
    model, cluster = draft.model, draft.cluster
    default = "eager" if model.attention_sinks else draft.take("attention")
    chosen: str = draft.take("attention", default)
    # Axolotl takes its varlen kernel for a stated sdpa only (_apply_sdpa_varlen_patch); Transformers alone has none.
    masked = not draft.states("attention") or draft.fact("sdpa_varlen") is False
    masked = masked or draft.format in ("arguments", "llamafactory")
    if cluster is not None:
        try:
            memory = draft.stack.attention_memory(chosen, cluster.gpu, model, packing)
            return chosen, AttentionMemory.MASKED if masked and memory is AttentionMemory.VARLEN else memory
        except RecipegenError as error:
            draft.block("attention", str(error))
            raise Blocked from None
    if chosen == "sdpa":  # the row of every GPU from sm_90 on
        reason = "no hardware was named: attention, tf32 and host are those of an unnamed recent GPU (--hardware)"
        draft.note("hardware", reason)
        plain = packing and model.sliding_window is None and not masked
        return chosen, AttentionMemory.VARLEN if plain else AttentionMemory.MASKED
    return chosen, AttentionMemory.EAGER if chosen == "eager" else AttentionMemory.FLASH


# --- the smaller parts


def optimizer(draft: Draft) -> Optimizer:
    """Name and numbers; the class's own where it does not take the trainer's."""
    name = draft.take("optimizer.name")
    own = draft.stack.trainer_defaults("optimizers").get(name, {}) if draft.axolotl else {}
    betas = ("optimizer.beta1", "optimizer.beta2")
    unused = betas if own and not all(draft.values.get(path) for path in betas) else ()
    if draft.axolotl and draft.passthrough.get("axolotl", {}).get("optim_args"):
        draft.note("optimizer", "optim_args: what the optimizer takes from there is not among its numbers here")

    def take(part: str) -> float:
        path = f"optimizer.{part}"
        if path in unused:  # adam_kwargs of core/builders/base.py: both betas, or the class's own
            draft.trainers(path)
            return float(own.get(path, draft.table[path]))
        return float(draft.take(path, own[path]) if path in own else draft.take(path))

    return Optimizer(name, take("beta1"), take("beta2"), take("epsilon"), take("weight_decay"), take("max_grad_norm"))


def reentrant(draft: Draft, wrapped: bool) -> bool:
    """Whether recomputation is reentrant; `wrapped` is FSDP's own, which never is."""
    path = "activation_checkpointing_reentrant"
    if not draft.axolotl:
        return bool(draft.take(path, False))
    if draft.model.model_type in draft.rules["never_reentrant"]:
        draft.trainers(path)
        return False
    part = draft.fact("unfrozen_parameters") is not None
    kept: bool = draft.take(path, draft.values.get("activation_checkpointing", False) and not (wrapped or part))
    return kept


def schedule(draft: Draft, max_steps: int | None) -> Schedule:
    """Learning rate, scheduler and warm-up."""
    rate = draft.need("schedule.learning_rate", "learning_rate")
    steps, ratio = draft.values.get("schedule.warmup_steps"), draft.values.get("schedule.warmup_ratio")
    if steps is None and ratio is None and not draft.states("schedule.warmup_steps"):
        share = draft.rules.get("warmup_ratio")
        draft.defaults.add("schedule.warmup_steps" if share is None or max_steps else "schedule.warmup_ratio")
        if share is None:
            steps = 0
        elif max_steps:
            steps = min(int(share * max_steps), int(draft.rules["warmup_steps_max"]))
        else:
            ratio = share
    if draft.axolotl and steps == 1:
        steps = 2
        draft.trainers("schedule.warmup_steps")
    return Schedule(float(rate), draft.take("schedule.scheduler"), steps, ratio)


def saving(draft: Draft, max_steps: int | None) -> Saving:
    """Checkpoints and logs. Several checkpoints per epoch, or none, are not a recipe's words: once per epoch."""
    share = draft.rules.get("logging_share")
    logging = None
    if share is not None:
        most = int(draft.rules["logging_steps_max"])
        logging = max(min(int(share * max_steps), most), 1) if max_steps else most
    if not draft.axolotl and not draft.states("saving.save_total_limit"):
        reason = "every checkpoint is kept (no save_total_limit): ten are counted"
        draft.note("saving.save_total_limit", reason)
    for name in ("saves_per_epoch", "save_steps_share", "save_strategy"):
        if not draft.states("saving.save_steps") and draft.fact(name) not in (None, "epoch", "steps"):
            draft.note("saving.save_steps", f"{name} is counted as one checkpoint per epoch", name)
    logs: int = draft.take("saving.logging_steps", logging) if logging else draft.take("saving.logging_steps")
    return Saving(
        save_steps=draft.take("saving.save_steps", _default_saves(draft)),
        save_total_limit=draft.take("saving.save_total_limit"),
        eval_steps=draft.take("saving.eval_steps", logs if draft.fact("eval_strategy") == "steps" else None),
        logging_steps=logs,
        logger=draft.take("saving.logger"),
        save_only_model=draft.take("saving.save_only_model"),
    )


def _default_saves(draft: Draft) -> Any:
    """None, once per epoch, or every so many steps."""
    if draft.axolotl:
        return draft.rules["save_steps"] if draft.fact("save_strategy") == "steps" else None
    return None if draft.fact("save_strategy") in ("no", "best") else draft.table.get("saving.save_steps")


def loading(draft: Draft, mesh: Parallelism) -> Loading:
    """The host side; Axolotl fills in all three loader keys where none stands."""
    names = ("dataloader_workers", "prefetch_factor", "pin_memory")
    prefetch = draft.rules.get("prefetch_factor")
    if prefetch is not None and not any(draft.states(f"loading.{name}") for name in names):
        filled: tuple[Any, ...] = (mesh.world_size, prefetch, True)
    else:
        filled = (draft.table["loading.dataloader_workers"], None, draft.table["loading.pin_memory"])
    workers, ahead, pinned = (draft.take(f"loading.{name}", value) for name, value in zip(names, filled, strict=True))
    cores = draft.cluster.node.physical_cores if draft.cluster else 1
    processes = draft.table.get("loading.dataset_num_proc", cores)  # Axolotl: os.cpu_count()
    return Loading(workers, ahead, pinned, draft.take("loading.dataset_num_proc", processes))


def launch(draft: Draft) -> Launch:
    """How the processes start."""
    table = draft.stack.trainer_defaults("launch")
    return Launch(
        main_process_port=draft.take("launch.main_process_port", table["launch.main_process_port"]),
        omp_num_threads=draft.take("launch.omp_num_threads", table["launch.omp_num_threads"]),
        environment=tuple(draft.take("launch.environment", tuple(table["launch.environment"]))),
        bf16_capable=draft.cluster is None or draft.cluster.gpu.bf16,
    )


def datasets(draft: Draft) -> tuple[DatasetSpec, ...]:
    """The data sets by name. Rows and lengths are measured elsewhere: None here."""
    entries = draft.fact("dataset_entries") or draft.fact("pretraining_entries") or ()
    if not entries and isinstance(draft.fact("datasets"), tuple):  # train.json
        entries = tuple(tuple(item.items()) for item in draft.fact("datasets"))
    found = []
    for entry in entries:
        item = dict(entry)
        path, kind = str(item.get("path", "")), str(item.get("type", item.get("kind", "")))
        local = path.endswith(_FILES) or path.startswith((".", "/", "~")) or bool(item.get("data_files"))
        shape = next((value for word, value in _FORMATS.items() if kind.startswith(word)), DataFormat.MESSAGES)
        found.append(DatasetSpec(path, shape, None, None, tuple(entry), local, split=str(item.get("split", "train"))))
    for name in ("dataset", "dataset_name", "train_file"):
        value = draft.fact(name)
        if not found and isinstance(value, str):
            found.append(
                DatasetSpec(value, DataFormat.MESSAGES, None, None, (("path", value),), value.endswith(_FILES))
            )
    return tuple(found)


def known(draft: Draft, name: str) -> bool:
    """The stack knows the optimizer; otherwise the reason is noted."""
    try:
        draft.stack.optimizer(name)
    except RecipegenError as error:
        draft.block("optimizer.name", str(error))
        return False
    return True
