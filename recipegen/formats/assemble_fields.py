"""What is trained, and in which dtype, each with the trainer's own defaults.

Defaults that depend on other fields (axolotl 0.19.0 unless named; numbers in the stack's trainer_defaults.yaml):

- an adapter without any lora_*_kernel key gets all four (check_auto_enable_lora_kernels) but for int8 bases, remote
  code, nvfp4_merge_aware, and on several GPUs FSDP1 and a version of FSDP that stands in fsdp_config alone; none,
  whatever the file says, for architectures whose model_support says so; the estimate counts them where the stack knows
  the architecture;
- bf16: auto is fp16 on a GPU without bf16, and fp32 where fp16 is off in so many words (resolve_dtype);
- an adapter is LLaMA-Factory's default, and TRL trains in bf16 unless fp16 is on.
"""

from __future__ import annotations

from dataclasses import replace

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
    Dtype,
    Method,
    Parallelism,
    Precision,
    RecipegenError,
)

_FLASH = "flash_attention_2"
_MLP = ("gate_proj", "up_proj", "down_proj")


# --- what is trained


def method(draft: Draft) -> Method:
    """Full, or the adapter that the trainer takes by default."""
    if not draft.rules.get("adapter_by_default"):
        return draft.take("method", Method.FULL)  # type: ignore[no-any-return]
    quantised = draft.values.get("precision.parameters") is Dtype.NF4
    return draft.take("method", Method.QLORA if quantised else Method.LORA)  # type: ignore[no-any-return]


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
    broken = draft.axolotl and draft.model.model_type in draft.rules["no_fused_kernels"]  # off, whatever a file says
    automatic = (
        draft.axolotl
        and draft.values.get("precision.parameters") is not Dtype.INT8
        and not draft.values.get("trust_remote_code")
        and not ((fsdp_version == 1 or draft.fact("fsdp_version_within")) and mesh.world_size > 1)
        and not draft.passthrough.get("axolotl", {}).get("nvfp4_merge_aware")
    )
    if broken:
        draft.trainers("adapter.fused_kernels")
    return Adapter(
        r=rank,
        alpha=alpha,
        dropout=float(dropout),
        target_modules=targets,
        use_rslora=draft.take("adapter.use_rslora"),
        use_dora=draft.take("adapter.use_dora"),
        fused_kernels=not broken and draft.take("adapter.fused_kernels", automatic),
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
    if mixed == "no" and load == "fp32":
        draft.block(
            "precision", "ZeRO without mixed precision: weights in fp32 were not run on this stack (bf16: true)"
        )
        raise Blocked
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
        automatic = draft.fact("mixed_precision") is None or draft.fact("bf16_auto") or draft.fact("fp32_without_bf16")
        if automatic and not bf16_host and draft.fact("mixed_precision") != "fp16":
            return ("no", "fp32") if draft.fact("fp32_without_bf16") else ("fp16", "fp16")
        return str(draft.fact("mixed_precision") or "bf16"), str(draft.fact("load_dtype") or "bf16")
    half = draft.fact("fp16") or draft.fact("fp16_enabled") is True
    mixed = "fp16" if half else draft.rules.get("mixed_precision") if draft.fact("bf16") is None else None
    if draft.fact("bf16") or draft.fact("bf16_enabled") is True or draft.fact("pure_bf16"):
        mixed = "bf16"
    # Where the arguments name none, the word of `accelerate launch` counts (TrainingArguments.__post_init__).
    mixed = mixed or draft.fact("mixed_precision") or ("bf16" if draft.format == "train_json" else "no")
    return str(mixed), "bf16" if _base(draft) is Dtype.BF16 else "fp32"


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
    masked = masked or draft.format in ("arguments", "trl", "llamafactory")
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
