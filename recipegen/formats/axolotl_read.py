"""Read an axolotl.yaml, generated or by hand, as Axolotl 0.19 reads it.

- `values`: every Recipe field the file states, deprecated spellings included (axolotl_legacy.py).
- `facts`: what else matters to an estimate or a rule; names, types and meanings are in axolotl_facts.py. Data sets are
  among them (`dataset_entries`): a file names them, only their rows say what they are.
- `passthrough`: the rest, with the raw values. What is unknown, or dropped because its plugin is not listed, is found
  by check/keys.py.

Not stated here: how many ranks there are. So a file without FSDP and DeepSpeed says no strategy (one GPU or DDP), one
with DeepSpeed leaves it to the DeepSpeed JSON, and one with `dp_shard_size` alone to the world size.
"""

from __future__ import annotations

from recipegen.catalog.bounded_yaml import shown
from recipegen.formats import axolotl_keys as to
from recipegen.formats import documents
from recipegen.formats.axolotl_facts import FACTS
from recipegen.formats.axolotl_fields import CARRIES, PLAIN, PLAIN_FSDP
from recipegen.formats.axolotl_keys import Keys
from recipegen.formats.axolotl_legacy import modernise, uses_fsdp
from recipegen.formats.reading import Reading
from recipegen.spec import Dtype, LossKernel, Method, Strategy

__all__ = ["CARRIES", "read"]

_LOGGERS = ("wandb", "mlflow", "tensorboard", "comet", "trackio")  # in the order of Axolotl's report_to
_NAMED = {"wandb": "wandb_project", "mlflow": "mlflow_experiment_name"}  # naming one switches it on
_RECIPE_LOGGERS = ("wandb", "mlflow", "tensorboard", "trackio")
_LORA_KERNELS = ("mlp", "qkv", "o", "embedding")
_ATTENTION = (
    "eager",
    "sdpa",
    "flash_attention_2",
    "flash_attention_3",
    "flash_attention_4",
    "flash_attention_torch",
    "flex_attention",
    "xformers",
    "sage",
    "fp8",
)
_DTYPES = {"bf16": Dtype.BF16, "fp32": Dtype.FP32}  # Recipe has no fp16
_WITHOUT_ADAPTER = ("lora_r", "lora_alpha", "lora_dropout", "lora_target_modules", "peft_use_rslora", "peft_use_dora")
_FSDP_VERSIONS = (1, 2)
_NEEDS_NODES = ("NO_SHARD", "HYBRID_SHARD", "HYBRID_SHARD_ZERO2")
_INTEGRATIONS = "axolotl.integrations."
_LIGER = "liger.LigerPlugin"
_EXPERT_PARALLEL = "expert_parallel.ExpertParallelPlugin"
_CUT = "cut_cross_entropy.CutCrossEntropyPlugin"


def read(content: bytes, name: str) -> Reading:
    """What the file says. Nothing in it raises: what cannot be taken is a problem with its line."""
    document = documents.read_yaml(content, name)
    if document.values is None:
        return Reading("axolotl", name, problems=(document.problem,) if document.problem else ())
    keys = Keys(document.name, document.values, document.where)
    modernise(keys)
    for field, key, convert in PLAIN:
        keys.value(field, key, convert)
    if not keys.has("base_model"):
        keys.problem("base_model", "base_model is missing")
    _model(keys)
    _adapters(keys)
    _precision(keys)
    _batch(keys)
    _working_set(keys)
    plugins = _plugins(keys)
    _loss(keys, plugins)
    _engine(keys)
    _logger(keys)
    _every(keys, "save", "saves_per_epoch")
    _every(keys, "eval", "evals_per_epoch")
    for fact in FACTS:
        if not fact.plugin or fact.plugin in plugins:
            keys.fact(fact.name, fact.key, fact.kind)
    if _EXPERT_PARALLEL in plugins:
        keys.value("parallelism.ep", "expert_parallel_size", to.at_least(1))
    return keys.reading()


def _model(keys: Keys) -> None:
    dequantize = "model_quantization_config_kwargs.dequantize"
    if keys.raw("model_quantization_config") == "Mxfp4Config" and keys.raw(dequantize) is True:
        keys.state("dequantize", "mxfp4", "model_quantization_config")
        keys.take(dequantize)
    tokens = keys.read("eot_tokens", to.texts)
    if tokens:
        keys.state("eot_tokens", tokens, "eot_tokens")


def _adapters(keys: Keys) -> None:
    adapter = keys.read("adapter", to.text)
    four, eight = keys.read("load_in_4bit", to.boolean), keys.read("load_in_8bit", to.boolean)
    kernels = {name: keys.read(f"lora_{name}_kernel", to.boolean) for name in _LORA_KERNELS}
    if adapter not in ("lora", "qlora"):
        if adapter is not None:
            keys.note("foreign_adapter", adapter, "adapter")
            keys.problem("adapter", f"adapter: {shown(adapter)} is neither lora nor qlora")
        elif four or eight:
            key = "load_in_4bit" if four else "load_in_8bit"
            keys.problem(key, f"{key} without an adapter, which Axolotl refuses")
        keys.take(*(key for key in _WITHOUT_ADAPTER if keys.raw(key) is None))
        return
    keys.state("method", Method.QLORA if adapter == "qlora" or four else Method.LORA, "adapter")
    keys.value("adapter.r", "lora_r", to.at_least(1))
    keys.value("adapter.alpha", "lora_alpha", to.whole)
    keys.value("adapter.dropout", "lora_dropout", to.number)
    keys.value("adapter.use_rslora", "peft_use_rslora", to.boolean)
    keys.value("adapter.use_dora", "peft_use_dora", to.boolean)
    if keys.raw("lora_target_modules") == "all-linear":
        keys.take("lora_target_modules")
        keys.note("lora_all_linear", True, "lora_target_modules")
    else:
        targets = keys.read("lora_target_modules", to.text_or_texts)
        if targets:
            keys.state("adapter.target_modules", targets, "lora_target_modules")
    saved = keys.read("lora_modules_to_save", to.texts)
    if saved:
        keys.state("adapter.modules_to_save", saved, "lora_modules_to_save")
    stated = [name for name, on in kernels.items() if on is not None]
    if stated:  # one of them, be it false, keeps Axolotl from switching all four on
        on = tuple(name for name in stated if kernels[name])
        keys.note("lora_kernels", on, f"lora_{(on or stated)[0]}_kernel")
        keys.state("adapter.fused_kernels", bool(on), f"lora_{(on or stated)[0]}_kernel")


def _precision(keys: Keys) -> None:
    """resolve_dtype and prepare_optim_env of Axolotl, on a machine with bf16."""
    names = ("bf16", "fp16", "bfloat16", "float16", "fp8")
    stated = [name for name in names if keys.has(name)]
    auto = keys.raw("bf16") == "auto" or not keys.has("bf16")
    on = {name: bool(keys.read(name, to.boolean)) for name in names if name != "fp8" and not (name == "bf16" and auto)}
    on["fp8"] = keys.raw("fp8") is True
    keys.take("bf16", "float32")
    eight = keys.raw("load_in_8bit") is True
    if keys.raw("bf16") == "auto":
        keys.note("bf16_auto", True, "bf16")
    if auto and keys.raw("fp16") is not None and not (on["fp16"] or on["float16"] or on["bfloat16"] or eight):
        keys.note("fp32_without_bf16", True, "fp16")
    bf16 = not on["fp16"] if auto else on["bf16"]
    mixed = "fp8" if on["fp8"] else "bf16" if bf16 or on["bfloat16"] else "fp16" if on["fp16"] else "no"
    load = "bf16" if bf16 or on["bfloat16"] else "fp16" if eight or on["fp16"] or on["float16"] else "fp32"
    if stated:
        decides = [name for name in stated if keys.raw(name)] + stated
        keys.note("mixed_precision", mixed, *decides)
        keys.note("load_dtype", load, *decides)
        compute = {"bf16": "bf16", "fp8": "bf16", "no": load}.get(mixed, mixed)
        if compute in _DTYPES:
            keys.state("precision.compute", _DTYPES[compute], stated[0])
    adapter = keys.raw("adapter")
    if adapter == "qlora" or (adapter == "lora" and keys.raw("load_in_4bit") is True):
        keys.state("precision.parameters", Dtype.NF4, "load_in_4bit" if keys.has("load_in_4bit") else "adapter")
    elif adapter == "lora" and eight:
        keys.state("precision.parameters", Dtype.INT8, "load_in_8bit")
    elif stated and load in _DTYPES:
        keys.state("precision.parameters", _DTYPES[load], stated[0])
    if keys.raw("tf32") == "auto":
        keys.take("tf32")
        keys.note("tf32_auto", True, "tf32")
    elif keys.has("tf32") and keys.raw("tf32") is None:  # empty is not "auto"
        keys.take("tf32")
        keys.state("tf32", False, "tf32")
    else:
        keys.value("tf32", "tf32", to.boolean)


def _batch(keys: Keys) -> None:
    accumulation = "gradient_accumulation_steps"
    steps = keys.value("gradient_accumulation", accumulation, to.at_least(1))
    if steps is None and keys.has(accumulation) and keys.raw(accumulation) is None:
        # Empty, not missing: only then does Axolotl divide (normalize_config); missing is 1 (HyperparametersConfig).
        total, micro = keys.read("batch_size", to.at_least(1)), keys.read("micro_batch_size", to.at_least(1)) or 1
        if total is not None and total >= micro:
            keys.state("gradient_accumulation", total // micro, "batch_size")
    limit = keys.read("max_steps", to.whole)
    if limit is not None and limit > 0:
        keys.state("max_steps", limit, "max_steps")
    elif limit:
        keys.note("no_step_limit", True, "max_steps")
    warmup = keys.value("schedule.warmup_steps", "warmup_steps", to.at_least(0))
    ratio = keys.read("warmup_ratio", to.number)
    if warmup is None and ratio is not None:
        keys.state("schedule.warmup_ratio", ratio, "warmup_ratio")
    kept = keys.read("save_total_limit", to.whole)
    if kept:  # 0 is Axolotl's default
        keys.state("saving.save_total_limit", kept, "save_total_limit")


def _working_set(keys: Keys) -> None:
    keys.value("activation_checkpointing", "gradient_checkpointing", to.boolean)
    keys.value("activation_checkpointing_reentrant", "gradient_checkpointing_kwargs.use_reentrant", to.boolean)
    kind = keys.raw("activation_offloading")
    if kind in ("legacy", "disk", "hidden_states"):
        keys.take("activation_offloading")
        keys.state("activation_offloading", True, "activation_offloading")
        keys.note("activation_offloading_kind", kind, "activation_offloading")
        if kind == "hidden_states":  # check_hidden_states_offloading
            keys.state("activation_checkpointing_reentrant", False, "activation_offloading")
    else:
        keys.value("activation_offloading", "activation_offloading", to.boolean)
    attention = keys.read("attn_implementation", to.text)
    if attention in _ATTENTION or (attention is not None and "/" in attention):
        keys.state("attention", attention, "attn_implementation")
    elif attention is not None:
        known = ", ".join(_ATTENTION)
        keys.problem("attn_implementation", f"{shown(attention)} is not an attention of Axolotl: {known}")
    elif keys.raw("gemma4_hybrid_attn_impl") is True:
        keys.state("attention", "flash_attention_2", "gemma4_hybrid_attn_impl")
    if keys.raw("torch_compile") == "auto":  # true from torch 2.5.1 on
        keys.take("torch_compile")
        keys.state("torch_compile", True, "torch_compile")
    else:
        keys.value("torch_compile", "torch_compile", to.boolean)


def _plugins(keys: Keys) -> frozenset[str]:
    """Axolotl's own plugins that are listed, `package.Class`, however the entry spells the module between."""
    entries = keys.fact("plugins", "plugins", to.texts) or ()
    parts = (entry.removeprefix(_INTEGRATIONS).split(".") for entry in entries)
    return frozenset(f"{part[0]}.{part[-1]}" for part in parts)


def _loss(keys: Keys, plugins: frozenset[str]) -> None:
    """The keys of a plugin that is not listed are dropped by Axolotl: they stay in passthrough."""
    chunked = keys.read("chunked_cross_entropy", to.boolean)
    if chunked is not None:
        kernel = LossKernel.CHUNKED_UPCAST if chunked else LossKernel.STOCK
        keys.state("loss_kernel", kernel, "chunked_cross_entropy")
    if _LIGER in plugins:
        fused = keys.read("liger_fused_linear_cross_entropy", to.boolean)
        if fused:
            keys.state("loss_kernel", LossKernel.FUSED_LINEAR, "liger_fused_linear_cross_entropy")
        keys.rename("liger_swiglu", "liger_glu_activation")
        names = ("rope", "rms_norm", "rms_norm_gated", "layer_norm", "glu_activation", "cross_entropy")
        kernels = tuple(name for name in names if keys.read(f"liger_{name}", to.boolean))
        if kernels:
            keys.note("liger_kernels", kernels, f"liger_{kernels[0]}")
    if _CUT in plugins:
        cut = keys.read("cut_cross_entropy", to.boolean)
        if cut or not keys.has("cut_cross_entropy"):  # listing the plugin switches it on
            keys.state("loss_kernel", LossKernel.CUT, "cut_cross_entropy" if cut else "plugins")


def _engine(keys: Keys) -> None:
    if not keys.raw("fsdp_config"):
        keys.take("fsdp_config")
    deepspeed = keys.raw("deepspeed")
    if isinstance(deepspeed, dict):
        keys.take("deepspeed")
        if deepspeed:
            keys.note("deepspeed_config", deepspeed, "deepspeed")
    else:
        keys.fact("deepspeed_config_file", "deepspeed", to.text)
    if not uses_fsdp(keys):
        keys.note("engine", "deepspeed" if deepspeed else "none", "deepspeed")
        return
    keys.note("engine", "fsdp", "fsdp_config", "fsdp")
    if not isinstance(keys.raw("fsdp_config"), (dict, type(None))):
        keys.read("fsdp_config", to.mapping)
    version = keys.read("fsdp_version", to.whole)
    if version in _FSDP_VERSIONS:
        keys.state("fsdp.version", version, "fsdp_version")
    elif version is not None:
        keys.problem("fsdp_version", f"fsdp_version is {shown(version)}; there are 1 and 2")
    for field, key, convert in PLAIN_FSDP:
        keys.value(field, key, convert)
    wrapper = "fsdp_config.activation_checkpointing"
    checkpointing = keys.fact("fsdp_activation_checkpointing", wrapper, to.boolean)
    if checkpointing and not keys.raw("gradient_checkpointing"):
        keys.state("activation_checkpointing", True, wrapper)
    _strategy(keys)


def _strategy(keys: Keys) -> None:
    """FSDP1's words for hybrid and for no shards are left to `assemble`: they mean something else on one node."""
    sharding, source = keys.stated_fact("fsdp_sharding_strategy"), "fsdp_config" if keys.has("fsdp_config") else "fsdp"
    shard, replicate = (keys.stated(f"parallelism.dp_{name}") for name in ("shard", "replicate"))
    if sharding in _NEEDS_NODES or shard == 1:
        return
    if replicate is not None and replicate > 1:
        keys.state("parallelism.strategy", Strategy.FSDP2_HYBRID, "dp_replicate_size")
    elif shard is None:
        keys.state("parallelism.strategy", Strategy.FSDP2_FULL, source)


def _logger(keys: Keys) -> None:
    stated = {name: keys.read(f"use_{name}", to.boolean) for name in (*_LOGGERS, "swanlab")}
    places = {name: f"use_{name}" for name in stated}
    for name, key in _NAMED.items():
        if isinstance(keys.raw(key), str):
            stated[name], places[name] = True, key
    on = tuple(name for name, value in stated.items() if value)
    first = next((name for name in on if name in _RECIPE_LOGGERS), None)
    if len(on) > 1 or (on and first is None):
        keys.note("loggers", on, places[on[0]])
    if first:
        keys.state("saving.logger", first, places[first])
    elif any(value is not None for value in stated.values()):
        place = next(places[name] for name, value in stated.items() if value is not None)
        keys.state("saving.logger", "none", place)


def _every(keys: Keys, what: str, per_epoch: str) -> None:
    """`saves_per_epoch`, then `save_steps`, then `save_strategy`: normalize_config, then the trainer builder."""
    field, steps_key, strategy_key = f"saving.{what}_steps", f"{what}_steps", f"{what}_strategy"
    steps, often = keys.read(steps_key, to.number), keys.read(per_epoch, to.at_least(0))
    strategy = keys.read(strategy_key, to.text)
    if often is not None:
        keys.note(per_epoch, often, per_epoch)
    if often == 1:
        keys.state(field, None, per_epoch)
    elif often:
        return
    elif steps and steps > 0:
        if steps < 1:
            keys.note(f"{what}_steps_share", steps, steps_key)
        elif steps == int(steps):
            keys.state(field, int(steps), steps_key)
        else:
            keys.problem(steps_key, f"{steps_key} is {steps}: a whole number of steps, or a share below 1")
    elif strategy == "epoch":
        keys.state(field, None, strategy_key)
    elif strategy is not None:
        keys.note(strategy_key, strategy, strategy_key)
