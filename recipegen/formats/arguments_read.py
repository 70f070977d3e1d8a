"""Arguments of the Transformers trainer, in YAML or JSON, as users of TRL, LLaMA-Factory and run_clm.py keep them.

The words are those of transformers.TrainingArguments (5.16), trl's SFTConfig and ModelConfig, and LLaMA-Factory.
Nothing here writes such files; `CARRIES` says what one can state. Numbers in text count: the parsers of all three
convert them. `adapter.*` is taken wherever it stands; whether an adapter is trained is `method` (`use_peft`,
`finetuning_type`).

| fact | type | meaning |
|---|---|---|
| bf16, fp16, pure_bf16 | bool | as in the file |
| dtype | str | `torch_dtype`, also where Recipe has no such dtype (auto, float16) |
| finetuning_type | str | LLaMA-Factory's word, also freeze and oft |
| load_in_8bit | bool | an int8 base |
| bnb_4bit_quant_type | str | nf4 or fp4 |
| lora_target | str | `all-linear`: every linear module |
| stage | str | LLaMA-Factory's kind of training: sft, pt, dpo, ... |
| dataset, dataset_name, train_file, template | raw | data as the trainer names it |
| flash_attn | str | `auto`: LLaMA-Factory chooses |
| every_n_layers | int | only each so-manieth layer is recomputed |
| neat_packing, auto_find_batch_size, use_liger_kernel | bool | as in the file |
| fsdp_version | int | 2 when an FSDP file does not say (Transformers 5) |
| fsdp_sharding_strategy | str | word of FSDP1 |
| fsdp_auto_wrap_policy, fsdp_activation_checkpointing | str, bool | of `fsdp_config` |
| fsdp_config_file, deepspeed_config_file | str | a path in place of a mapping |
| report_to | tuple of str | all loggers |
| trl | tuple of str | words that only TRL's SFTConfig, its script and its ModelConfig have |
| save_strategy, eval_strategy, logging_strategy | str | steps, epoch, no, best |
| save_steps, eval_steps, logging_steps | float | below 1, a share of the run; eval_steps also without eval_strategy |
| auto | tuple of str | dotted keys that say "auto" |

Of an inline `deepspeed:` mapping, the facts of deepspeed_read.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from recipegen.catalog.bounded_yaml import shown
from recipegen.formats import deepspeed_read, documents, fsdp_read
from recipegen.formats.collector import Collector, Key, Refused, anything, names, number, one_of, text, truth, whole
from recipegen.formats.documents import Document
from recipegen.formats.reading import Reading
from recipegen.spec import Dtype, LossKernel, Method, Recipe, Strategy

FORMAT = "arguments"
_DTYPES = {"float32": Dtype.FP32, "fp32": Dtype.FP32, "bfloat16": Dtype.BF16, "bf16": Dtype.BF16}
_LOGGERS = ("tensorboard", "wandb", "trackio", "mlflow")
_ATTENTION = {"fa2": "flash_attention_2", "fa3": "flash_attention_3", "sdpa": "sdpa", "disabled": "eager"}
# trl 1.9.0: SFTConfig (without what LLaMA-Factory spells alike beside its own words), and ModelConfig's switch.
_TRL = ("max_length", "packing", "packing_strategy", "padding_free", "eval_packing", "dataset_text_field",
        "completion_only_loss", "assistant_only_loss", "loss_type", "chat_template_path", "truncation_mode",
        "use_peft", "use_bnb_nested_quant")  # fmt: skip
_ALL_LINEAR = ("all", "all-linear")
_UNLIMITED = -1  # max_steps of TrainingArguments
_FOUR, _EIGHT = 4, 8  # bits


def _ratio(raw: Any) -> float:
    value: float = number(0)(raw)
    if value > 1:
        raise Refused(f"{shown(raw)} is above 1")
    return value


_KEYS = (
    Key("model_revision", text, "model_revision"),
    Key("trust_remote_code", truth, "trust_remote_code"),
    Key("gradient_accumulation_steps", whole(1), "gradient_accumulation", auto=True),
    Key("accelerator_config.gradient_accumulation_kwargs.sync_each_batch", truth, "sync_each_batch"),
    Key("num_train_epochs", number(0), "epochs"),
    Key("bf16", truth, fact="bf16"),
    Key("fp16", truth, fact="fp16"),
    Key("pure_bf16", truth, fact="pure_bf16"),
    Key("tf32", truth, "tf32"),
    Key("optim", text, "optimizer.name"),
    Key("adam_beta1", number(0), "optimizer.beta1"),
    Key("adam_beta2", number(0), "optimizer.beta2"),
    Key("adam_epsilon", number(0), "optimizer.epsilon"),
    Key("weight_decay", number(0), "optimizer.weight_decay"),
    Key("max_grad_norm", number(0), "optimizer.max_grad_norm"),
    Key("learning_rate", number(0), "schedule.learning_rate"),
    Key("lr_scheduler_type", text, "schedule.scheduler"),
    Key("warmup_ratio", _ratio, "schedule.warmup_ratio"),
    Key("gradient_checkpointing", truth, "activation_checkpointing"),
    Key("gradient_checkpointing_kwargs.use_reentrant", truth, "activation_checkpointing_reentrant"),
    Key("gradient_checkpointing_kwargs.every_n_layers", whole(1), fact="every_n_layers"),
    Key("activation_offloading", truth, "activation_offloading"),
    Key("torch_compile", truth, "torch_compile"),
    Key("attn_implementation", text, "attention"),
    Key("packing", truth, "packing"),
    Key("neat_packing", truth, fact="neat_packing"),
    Key("auto_find_batch_size", truth, fact="auto_find_batch_size"),
    Key("lora_alpha", whole(1), "adapter.alpha"),
    Key("lora_dropout", _ratio, "adapter.dropout"),
    Key("use_rslora", truth, "adapter.use_rslora"),
    Key("use_dora", truth, "adapter.use_dora"),
    Key("bnb_4bit_quant_type", text, fact="bnb_4bit_quant_type"),
    Key("freeze_vision_tower", truth, "freeze_vision"),
    Key("save_total_limit", whole(1), "saving.save_total_limit"),
    Key("save_only_model", truth, "saving.save_only_model"),
    Key("dataloader_num_workers", whole(0), "loading.dataloader_workers"),
    Key("dataloader_prefetch_factor", whole(1), "loading.prefetch_factor"),
    Key("dataloader_pin_memory", truth, "loading.pin_memory"),
    Key("seed", whole(0), "seed"),
    Key("stage", text, fact="stage"),
    Key("dataset", anything, fact="dataset"),
    Key("dataset_name", anything, fact="dataset_name"),
    Key("train_file", anything, fact="train_file"),
    Key("template", text, fact="template"),
)
# Several spellings of one thing; the first that stands is taken, and the others are passed through.
# (spellings, today's word for those that are deprecated)
_SPELLINGS: tuple[tuple[tuple[str, ...], Callable[[Any], Any], str, Mapping[str, str]], ...] = (
    (("model_name_or_path", "model_name"), text, "model", {}),
    (
        ("per_device_train_batch_size", "per_gpu_train_batch_size"),
        whole(1),
        "micro_batch_size",
        {"per_gpu_train_batch_size": "per_device_train_batch_size"},
    ),
    (
        ("max_length", "max_seq_length", "max_seq_len", "cutoff_len", "block_size", "model_max_length"),
        whole(1),
        "sequence_len",
        {"max_seq_length": "max_length"},
    ),
    (("dataset_num_proc", "preprocessing_num_workers"), whole(1), "loading.dataset_num_proc", {}),
    (("lora_r", "lora_rank"), whole(1), "adapter.r", {}),
    (("val_size",), number(0), "val_set_size", {}),
)


def _always(_: Recipe) -> bool:
    return True


def _fsdp(recipe: Recipe) -> bool:
    return recipe.fsdp is not None


def _adapted(recipe: Recipe) -> bool:
    return recipe.adapter is not None


# Recipe field -> whether arguments that are written out in full state it.
CARRIES: Mapping[str, Callable[[Recipe], bool]] = {
    **{row.path: _always for row in _KEYS if row.path and not row.path.startswith(("adapter.", "schedule.warmup"))},
    **{path: _always for _, _, path, _ in _SPELLINGS if path != "adapter.r"},
    "method": _always,
    "adapter.r": _adapted,
    "adapter.alpha": _adapted,
    "adapter.dropout": _adapted,
    "adapter.use_rslora": _adapted,
    "adapter.use_dora": _adapted,
    "adapter.target_modules": _adapted,
    "precision.compute": _always,
    "precision.parameters": _always,
    "max_steps": _always,
    "schedule.warmup_steps": lambda r: r.schedule.warmup_steps is not None,
    "schedule.warmup_ratio": lambda r: r.schedule.warmup_ratio is not None,
    "loss_kernel": lambda r: r.loss_kernel in (LossKernel.STOCK, LossKernel.FUSED_LINEAR),
    "saving.save_steps": _always,
    "saving.eval_steps": lambda r: bool(r.val_set_size),
    "saving.logging_steps": _always,
    "saving.logger": _always,
    "parallelism.strategy": lambda r: r.parallelism.strategy is Strategy.FSDP2_FULL,
    "fsdp.version": _fsdp,
    "fsdp.reshard_after_forward": _fsdp,
    "fsdp.offload_params": _fsdp,
    "fsdp.cpu_ram_efficient_loading": _fsdp,
    "fsdp.state_dict_type": _fsdp,
    "fsdp.layer_class": _fsdp,
}


def read(content: bytes, name: str) -> Reading:
    """What a file of arguments states: JSON for a name that ends in `.json`, else YAML."""
    return interpret(documents.read(content, name))


def interpret(document: Document) -> Reading:
    """The same of arguments that have been read: a file, or the words of a command line."""
    found = Collector(FORMAT, document)
    found.keys(_KEYS)
    for spellings, convert, path, today in _SPELLINGS:
        _first(found, spellings, convert, path, today)
    _weights(found)
    _adapter(found)
    _steps(found)
    _kernels(found)
    for key in ("torch_compile_backend", "torch_compile_mode"):  # either turns it on
        if found.raw(key) is not None and not found.values.get("torch_compile"):
            found.value("torch_compile", True, (key,))
    _logger(found)
    fsdp_read.training_arguments(found)
    _deepspeed(found)
    words = tuple(name for name in _TRL if found.raw(name) is not None)
    if words:
        found.facts["trl"] = words
    return found.reading()


def understands(key: str) -> bool:
    """True for a word that this reader takes at the top level of a file."""
    return key in _UNDERSTOOD


def _first(
    found: Collector, spellings: tuple[str, ...], convert: Callable[[Any], Any], path: str, today: Mapping[str, str]
) -> None:
    spelling = next((name for name in spellings if found.raw(name) is not None), None)
    if spelling is None:
        return
    found.key(Key(spelling, convert, path), (spelling,))
    if spelling in today:
        found.legacy((spelling,), today[spelling])


def _weights(found: Collector) -> None:
    """The dtypes of the arithmetic and of the loaded weights."""
    bf16, fp16 = found.facts.get("bf16"), found.facts.get("fp16")
    if bf16:
        found.value("precision.compute", Dtype.BF16, ("bf16",))
    elif bf16 is False and fp16 is False:
        found.value("precision.compute", Dtype.FP32, ("bf16",))
    for spelling in ("dtype", "torch_dtype"):
        word = found.key(Key(spelling, text, fact="dtype"), (spelling,))
        if spelling == "torch_dtype" and word is not None:
            found.legacy(("torch_dtype",), "dtype")
        if word in _DTYPES:
            found.value("precision.parameters", _DTYPES[word], (spelling,))
    for bits, spelling in ((_FOUR, "load_in_4bit"), (_EIGHT, "load_in_8bit")):
        stated = found.key(Key(spelling, truth), (spelling,))
        path: tuple[str, ...] = (spelling,)
        if found.raw("quantization_bit") is not None and not stated:
            path = ("quantization_bit",)
            stated = found.converted(path, whole(1)) == bits
        if stated and bits == _EIGHT:
            found.facts["load_in_8bit"] = True
            found.values.pop("precision.parameters", None)
        elif stated and found.facts.get("bnb_4bit_quant_type", "nf4") == "nf4":
            found.value("precision.parameters", Dtype.NF4, path)


def _adapter(found: Collector) -> None:
    kind = found.key(Key("finetuning_type", text, fact="finetuning_type"), ("finetuning_type",))
    peft = found.key(Key("use_peft", truth), ("use_peft",))
    path = ("finetuning_type",) if kind is not None else ("use_peft",)
    if kind == "full" or peft is False:
        found.value("method", Method.FULL, path)
    elif kind == "lora" or (peft and kind is None):
        quantised = found.values.get("precision.parameters") is Dtype.NF4
        found.value("method", Method.QLORA if quantised else Method.LORA, path)
    for spelling in ("lora_target_modules", "lora_target"):
        raw = found.raw(spelling)
        if raw in _ALL_LINEAR or raw in ([word] for word in _ALL_LINEAR):
            found.take(spelling)
            found.facts["lora_target"] = "all-linear"
        elif raw is not None and "adapter.target_modules" not in found.values:
            found.key(Key(spelling, names, "adapter.target_modules"), (spelling,))


def _steps(found: Collector) -> None:
    """What happens when. Below 1 a number of steps is a share of the run, which no Recipe field holds."""
    most = found.key(Key("max_steps", whole(_UNLIMITED)), ("max_steps",))
    if most is not None:
        found.value("max_steps", most if most > 0 else None, ("max_steps",))
    old = "evaluation_strategy"
    if found.raw("eval_strategy") is None and found.raw(old) is not None:
        found.key(Key(old, _strategy, fact="eval_strategy"), (old,))
        found.legacy((old,), "eval_strategy")
    for what, default in (("save", "steps"), ("eval", "no"), ("logging", "steps")):
        when = f"{what}_strategy"
        # `no` without quotes is false in YAML 1.1, and means no.
        found.key(Key(when, _strategy, fact=when), (when,))
        chosen = found.facts.get(when, default)
        steps = found.key(Key(f"{what}_steps", number(0)), (f"{what}_steps",))
        field = f"saving.{what}_steps"
        if chosen == "epoch" and what != "logging":
            found.value(field, None, (when,))
        elif chosen == "steps" and steps is not None and steps >= 1:
            found.value(field, int(steps), (f"{what}_steps",))
        elif steps is not None:
            found.facts[f"{what}_steps"] = steps
    warmup = found.key(Key("warmup_steps", number(0)), ("warmup_steps",))
    if warmup is not None and (warmup >= 1 or warmup == 0):
        # TrainingArguments says so of warmup_ratio: steps of 1 or more win over it, 0 leaves it.
        if warmup >= 1 or "schedule.warmup_ratio" not in found.values:
            found.value("schedule.warmup_steps", int(warmup), ("warmup_steps",))
    elif warmup is not None:
        found.value("schedule.warmup_ratio", warmup, ("warmup_steps",))
    percent = found.key(Key("validation_split_percentage", number(0)), ("validation_split_percentage",))
    if percent is not None and "val_set_size" not in found.values:
        found.value("val_set_size", percent / 100, ("validation_split_percentage",))


def _strategy(raw: Any) -> str:
    if raw is False:
        return "no"
    word: str = one_of("no", "steps", "epoch", "best")(raw.lower() if isinstance(raw, str) else raw)
    return word


def _kernels(found: Collector) -> None:
    for spelling in ("use_liger_kernel", "use_liger", "enable_liger_kernel"):
        used = found.key(Key(spelling, truth, fact="use_liger_kernel"), (spelling,))
        if used is None or "loss_kernel" in found.values:
            continue
        path = ("liger_kernel_config", "fused_linear_cross_entropy")
        if used and found.key(Key("", truth), path) is False:
            used = False
        found.value("loss_kernel", LossKernel.FUSED_LINEAR if used else LossKernel.STOCK, (spelling,))
    raw = found.raw("flash_attn")
    if raw is not None:
        word = "fa2" if raw is True else "disabled" if raw is False else raw  # LLaMA-Factory's first spelling
        found.take("flash_attn")
        if isinstance(word, str) and word in _ATTENTION:
            if "attention" not in found.values:
                found.value("attention", _ATTENTION[word], ("flash_attn",))
        elif word == "auto":
            found.facts["flash_attn"] = word
        else:
            found.problem(("flash_attn",), f"{shown(raw)} is none of {', '.join(_ATTENTION)}, auto")
    if found.facts.get("neat_packing"):  # LLaMA-Factory turns packing on with it
        found.value("packing", True, ("neat_packing",))
    off = found.key(Key("disable_gradient_checkpointing", truth), ("disable_gradient_checkpointing",))
    if off is not None and "activation_checkpointing" not in found.values:
        found.value("activation_checkpointing", not off, ("disable_gradient_checkpointing",))


def _logger(found: Collector) -> None:
    found.take("report_to")
    if found.raw("report_to") is None:
        return
    listed = [] if found.raw("report_to") == [] else found.converted(("report_to",), names)
    if listed is None:
        return
    loggers = tuple(name for name in listed if name != "none")
    found.facts["report_to"] = loggers
    known = [name for name in loggers if name in _LOGGERS]
    if known or not loggers:
        found.value("saving.logger", known[0] if known else "none", ("report_to",))


def _deepspeed(found: Collector) -> None:
    """A path, or the configuration itself."""
    raw = found.raw("deepspeed")
    if isinstance(raw, Mapping):
        found.absorb(deepspeed_read.interpret(found.document.inner("deepspeed")), "deepspeed")
    elif raw:
        found.key(Key("deepspeed", text, fact="deepspeed_config_file"), ("deepspeed",))
    else:
        found.take("deepspeed")


_UNDERSTOOD = frozenset(
    {
        *(row.key.partition(".")[0] for row in _KEYS),
        *(spelling for spellings, _, _, _ in _SPELLINGS for spelling in spellings),
        *(f"{what}_{part}" for what in ("save", "eval", "logging") for part in ("steps", "strategy")),
        *("dtype", "torch_dtype", "load_in_4bit", "load_in_8bit", "quantization_bit", "finetuning_type", "use_peft"),
        *("lora_target_modules", "lora_target", "max_steps", "evaluation_strategy", "warmup_steps"),
        *("validation_split_percentage", "use_liger_kernel", "use_liger", "enable_liger_kernel", "liger_kernel_config"),
        *("flash_attn", "disable_gradient_checkpointing", "report_to", "fsdp", "fsdp_config", "deepspeed"),
    }
)
