"""train.json of `--trainer accelerate`, as templates/train_recipe.py takes it: these keys, of exactly these types.

The data sets cannot be put back together (their `datasets:` items are Axolotl's; train.json holds what was made of
them), and a chat template is here as text, so both are facts.

| fact | type | meaning |
|---|---|---|
| format_version | int | of the file |
| datasets | tuple of mappings | `data.datasets`, raw: path, kind, split, fields, prompts |
| chat_template_text | str or None | Jinja; used when the tokenizer has none |
| flatten | bool | packed documents in one row, for flash attention |
| prepared | str | folder of the tokenised data |
| output | str | folder of the checkpoints |
| export_dtype | str | float32 or bfloat16, of the final model |
| global_batch_size | int | sequences per optimizer step, as stated |
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from recipegen.catalog.bounded_yaml import shown
from recipegen.formats.collector import Collector, Key, Refused, number, one_of
from recipegen.formats.documents import read_json
from recipegen.formats.reading import Reading
from recipegen.formats.train_json import FORMAT_VERSION
from recipegen.spec import Dtype, LossKernel, Method, Recipe, Strategy

FORMAT = "train_json"
_LOADED = {"float32": Dtype.FP32, "bfloat16": Dtype.BF16}


def _exactly(kind: Any, least: float | None = None) -> Callable[[Any], Any]:
    """A value of that JSON type; train.py converts nothing but a whole number to a float."""

    def convert(raw: Any) -> Any:
        value: Any = raw
        if kind is float and type(raw) is int:
            value = number()(raw)
        if type(value) is not kind:
            raise Refused(f"{shown(raw)} is not of type {kind.__name__}, and train.py converts nothing")
        if least is not None and value < least:
            raise Refused(f"{shown(raw)} is below {least:g}")
        return value

    return convert


def _member(kind: type[Strategy] | type[LossKernel]) -> Callable[[Any], Any]:
    return lambda raw: kind(one_of(*(member.value for member in kind))(raw))


def _targets(raw: Any) -> tuple[str, ...]:
    """Module names, or a pattern as one text (estimate/parameters.py: target_modules_value)."""
    items = [raw] if isinstance(raw, str) else raw
    if not isinstance(items, list) or not all(isinstance(item, str) for item in items):
        raise Refused(f"{shown(raw)} is neither a pattern nor a list of module names")
    return tuple(items)


def _texts(raw: Any) -> tuple[str, ...]:
    if not isinstance(raw, list):
        raise Refused(f"{shown(raw)} is not a list of texts")
    return _targets(raw)


def _mappings(raw: Any) -> tuple[Mapping[str, Any], ...]:
    if not isinstance(raw, list) or not all(isinstance(item, dict) for item in raw):
        raise Refused(f"{shown(raw)} is not a list of mappings")
    return tuple(raw)


_INT, _FLOAT, _BOOL, _STR = _exactly(int), _exactly(float), _exactly(bool), _exactly(str)
_COUNT, _SIZE = _exactly(int, 1), _exactly(int, 0)

# Every key of train.json but the two sections that may be null.
_KEYS = (
    Key("format_version", _INT, fact="format_version"),
    Key("strategy", _member(Strategy), "parallelism.strategy"),
    Key("model.name", _STR, "model"),
    Key("model.revision", _STR, "model_revision", null=True),
    Key("model.trust_remote_code", _BOOL, "trust_remote_code"),
    Key("model.attention", _STR, "attention"),
    Key("model.dequantize", _STR, "dequantize", null=True),
    Key("model.freeze_vision", _BOOL, "freeze_vision"),
    Key("model.gradient_checkpointing", _BOOL, "activation_checkpointing"),
    Key("model.gradient_checkpointing_reentrant", _BOOL, "activation_checkpointing_reentrant"),
    Key("model.loss_kernel", _member(LossKernel), "loss_kernel"),
    Key("model.export_dtype", _STR, fact="export_dtype"),
    Key("model.tf32", _BOOL, "tf32"),
    Key("data.datasets", _mappings, fact="datasets"),
    Key("data.sequence_len", _COUNT, "sequence_len"),
    Key("data.packing", _BOOL, "packing"),
    Key("data.flatten", _BOOL, fact="flatten"),
    Key("data.pad_to_sequence_len", _BOOL, "pad_to_sequence_len"),
    Key("data.excess_length_strategy", _STR, "excess_length_strategy"),
    Key("data.val_set_size", _exactly(float, 0), "val_set_size"),
    Key("data.chat_template", _STR, fact="chat_template_text", null=True),
    Key("data.eot_tokens", _texts, "eot_tokens"),
    Key("data.prepared", _STR, fact="prepared"),
    Key("data.processes", _COUNT, "loading.dataset_num_proc"),
    Key("data.workers", _SIZE, "loading.dataloader_workers"),
    Key("data.prefetch_factor", _COUNT, "loading.prefetch_factor", null=True),
    Key("data.pin_memory", _BOOL, "loading.pin_memory"),
    Key("batch.micro_batch_size", _COUNT, "micro_batch_size"),
    Key("batch.gradient_accumulation", _COUNT, "gradient_accumulation"),
    Key("batch.dp_replicate", _COUNT, "parallelism.dp_replicate"),
    Key("batch.dp_shard", _COUNT, "parallelism.dp_shard"),
    Key("batch.global_batch_size", _COUNT, fact="global_batch_size"),
    Key("batch.sync_each_batch", _BOOL, "sync_each_batch"),
    Key("optimizer.name", _STR, "optimizer.name"),
    Key("optimizer.beta1", _FLOAT, "optimizer.beta1"),
    Key("optimizer.beta2", _FLOAT, "optimizer.beta2"),
    Key("optimizer.epsilon", _FLOAT, "optimizer.epsilon"),
    Key("optimizer.weight_decay", _FLOAT, "optimizer.weight_decay"),
    Key("optimizer.max_grad_norm", _FLOAT, "optimizer.max_grad_norm"),
    Key("schedule.learning_rate", _FLOAT, "schedule.learning_rate"),
    Key("schedule.scheduler", _STR, "schedule.scheduler"),
    Key("schedule.warmup_steps", _INT, "schedule.warmup_steps", null=True),
    Key("schedule.warmup_ratio", _FLOAT, "schedule.warmup_ratio", null=True),
    Key("schedule.epochs", _FLOAT, "epochs"),
    Key("schedule.max_steps", _INT, "max_steps", null=True),
    Key("saving.output", _STR, fact="output"),
    Key("saving.save_steps", _INT, "saving.save_steps", null=True),
    Key("saving.save_total_limit", _INT, "saving.save_total_limit"),
    Key("saving.eval_steps", _INT, "saving.eval_steps", null=True),
    Key("saving.logging_steps", _INT, "saving.logging_steps"),
    Key("saving.logger", _STR, "saving.logger"),
    Key("seed", _INT, "seed"),
)
_ADAPTER = (
    Key("r", _COUNT, "adapter.r"),
    Key("alpha", _INT, "adapter.alpha"),
    Key("dropout", _FLOAT, "adapter.dropout"),
    Key("target_modules", _targets, "adapter.target_modules"),
    Key("use_rslora", _BOOL, "adapter.use_rslora"),
    Key("use_dora", _BOOL, "adapter.use_dora"),
)
_SECTIONS = ("model", "data", "batch", "optimizer", "schedule", "saving")
_BATCH = ("micro_batch_size", "gradient_accumulation", "parallelism.dp_replicate", "parallelism.dp_shard")


def _always(_: Recipe) -> bool:
    return True


def _adapted(recipe: Recipe) -> bool:
    return recipe.adapter is not None


# Recipe field -> whether the train.json of a recipe states it.
CARRIES: Mapping[str, Callable[[Recipe], bool]] = {
    **{row.path: _always for row in _KEYS if row.path},
    "method": _always,
    "precision.parameters": _always,
    **{row.path: _adapted for row in _ADAPTER},
}


def read(content: bytes, name: str) -> Reading:
    """What a train.json states."""
    found = Collector(FORMAT, read_json(content, name))
    if found.document.values is None:
        return found.reading()
    for section in _SECTIONS:
        if not found.section(section):
            _missing(found, (section,))
    found.keys(_KEYS)
    for row in _KEYS:
        path = tuple(row.key.split("."))
        # A key that must not be null is missing to train.py either way.
        if (path[0] not in _SECTIONS or found.raw(path[0])) and not _stands(found, row, path):
            _missing(found, path)
    if found.facts.get("format_version", FORMAT_VERSION) != FORMAT_VERSION:
        found.problem(("format_version",), f"this train.py reads {FORMAT_VERSION}")
    _weights(found)
    _global_batch(found)
    return found.reading()


def _stands(found: Collector, row: Key, path: tuple[str, ...]) -> bool:
    return found.has(*path) if row.null else found.raw(*path) is not None


def _missing(found: Collector, path: tuple[str, ...]) -> None:
    if ".".join(path) not in (problem.key for problem in found.problems):
        found.problem(path, "missing; train.py stops at it")


def _weights(found: Collector) -> None:
    """How the weights are loaded, and what is trained of them."""
    loaded = found.key(Key("load_dtype", one_of(*_LOADED)), ("model", "load_dtype"))
    quantised = found.key(Key("quantization", one_of("nf4")), ("model", "quantization"))
    refused = {problem.key for problem in found.problems} & {"model.quantization", "adapter"}
    if found.has("adapter") and found.raw("adapter") is None:
        found.take("adapter")
        found.value("method", Method.FULL, ("adapter",))
    elif found.section("adapter"):
        found.keys(_ADAPTER, "adapter")
        for row in _ADAPTER:
            if found.raw("adapter", row.key) is None:
                _missing(found, ("adapter", row.key))
        if not refused:
            found.value("method", Method.QLORA if quantised else Method.LORA, ("adapter",))
    elif not found.has("adapter"):
        _missing(found, ("adapter",))
    for name in ("load_dtype", "quantization"):
        if found.raw("model") and not found.has("model", name):
            _missing(found, ("model", name))
    if quantised:
        found.value("precision.parameters", Dtype.NF4, ("model", "quantization"))
    elif loaded is not None and not refused:
        found.value("precision.parameters", _LOADED[loaded], ("model", "load_dtype"))


def _global_batch(found: Collector) -> None:
    """train.py stops when the four numbers do not multiply to the fifth."""
    stated = found.facts.get("global_batch_size")
    if stated is None or not all(field in found.values for field in _BATCH):
        return
    factors = [found.values[field] for field in _BATCH]
    product = factors[0] * factors[1] * factors[2] * factors[3]
    if product != stated:
        sum_up = " * ".join(
            f"{field.rpartition('.')[2]}({shown(value)})" for field, value in zip(_BATCH, factors, strict=True)
        )
        found.problem(("batch", "global_batch_size"), f"{sum_up} is not global_batch_size({shown(stated)})")
