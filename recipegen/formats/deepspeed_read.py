"""deepspeed.json as it is found: ours, or one written by hand (DeepSpeed 0.18).

"auto" is not a value: Transformers fills it in from the trainer's file, which states it. Such keys are listed in the
fact `auto`, and a fact of their own keeps the word.

| fact | type | meaning |
|---|---|---|
| zero_stage | int | 0 to 3; also where Recipe has no strategy for it (0, 1, and 3 without offload) |
| train_batch_size | int or "auto" | sequences per optimizer step over all ranks |
| train_micro_batch_size_per_gpu, gradient_accumulation_steps | int or "auto" | as the names say |
| gradient_clipping | float or "auto" | largest gradient norm; 0 is off |
| bf16_enabled, fp16_enabled | bool or "auto" | the `enabled` of the sections |
| optimizer_type | str | the `optimizer` section's type; DeepSpeed builds this optimizer |
| optimizer_torch_adam | bool | PyTorch's AdamW instead of DeepSpeed's own |
| optimizer_lr | float or "auto" | the section's learning rate |
| scheduler_type | str | the `scheduler` section's type |
| offload_optimizer_pin_memory, offload_param_pin_memory | bool | pages of each offload; Recipe has one for both |
| offload_optimizer_nvme_path, offload_param_nvme_path | str | folder of each offload; Recipe has one for both |
| offload_optimizer_buffer_count | int | tensors swapped together |
| offload_optimizer_ratio | float | share of the optimizer states that is offloaded |
| overlap_comm, contiguous_gradients, reduce_scatter | bool | of `zero_optimization` |
| allgather_bucket_size | int or "auto" | elements |
| max_live_parameters, max_reuse_distance | int or "auto" | elements (`stage3_...`) |
| zero_hpz_partition_size | int | ranks of a secondary partition (ZeRO++) |
| zero_quantized_weights, zero_quantized_gradients | bool | ZeRO++ |
| aio | mapping | the `aio` section, raw |
| auto | tuple of str | dotted keys that say "auto" |
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from recipegen.catalog.bounded_yaml import shown
from recipegen.formats.collector import Collector, Key, Refused, number, one_of, text, truth, whole
from recipegen.formats.documents import Document, read_json
from recipegen.formats.reading import Reading
from recipegen.spec import Dtype, Recipe, Strategy

FORMAT = "deepspeed"
_ZERO = "zero_optimization"
_DEVICES = ("none", "cpu", "nvme")
_HIGHEST_STAGE = 3


def _offloads(recipe: Recipe, *devices: str) -> bool:
    zero = recipe.deepspeed
    return zero is not None and bool({zero.offload_optimizer, zero.offload_param} & set(devices))


def _stage3(recipe: Recipe) -> bool:
    return recipe.deepspeed is not None and recipe.deepspeed.stage == _HIGHEST_STAGE


def _param_nvme(recipe: Recipe) -> bool:
    return recipe.deepspeed is not None and recipe.deepspeed.offload_param == "nvme"


def _numbers(recipe: Recipe) -> bool:
    """Beside axolotl.yaml these are "auto" (formats/deepspeed.py)."""
    return recipe.deepspeed is not None and recipe.trainer != "axolotl"


def _engine(recipe: Recipe) -> bool:
    return recipe.deepspeed is not None


def _strategy(recipe: Recipe) -> Strategy | None:
    zero = recipe.deepspeed
    return strategy_of(zero.stage, zero.offload_optimizer, zero.offload_param) if zero is not None else None


# Recipe field -> whether the deepspeed.json of a recipe states it.
CARRIES: Mapping[str, Callable[[Recipe], bool]] = {
    "parallelism.strategy": lambda r: _strategy(r) is not None,
    "precision.compute": _engine,
    "deepspeed.stage": _engine,
    "deepspeed.offload_optimizer": lambda r: r.deepspeed is not None and r.deepspeed.offload_optimizer != "none",
    "deepspeed.offload_param": lambda r: r.deepspeed is not None and r.deepspeed.offload_param != "none",
    "deepspeed.nvme_path": lambda r: _offloads(r, "nvme"),
    "deepspeed.pin_memory": lambda r: _offloads(r, "cpu", "nvme"),
    "deepspeed.reduce_bucket_size": _engine,
    "deepspeed.prefetch_bucket_size": _stage3,
    "deepspeed.param_persistence_threshold": _stage3,
    "deepspeed.sub_group_size": _stage3,
    "deepspeed.save_16bit_model": _stage3,
    "deepspeed.buffer_count": _param_nvme,
    "deepspeed.buffer_size": _param_nvme,
    "micro_batch_size": _numbers,
    "gradient_accumulation": _numbers,
    "optimizer.max_grad_norm": _numbers,
    "optimizer.beta1": _numbers,
    "optimizer.beta2": _numbers,
    "optimizer.epsilon": _numbers,
    "optimizer.weight_decay": _numbers,
    "schedule.learning_rate": _numbers,
}


def _pair(raw: Any) -> tuple[float, float]:
    if not isinstance(raw, list) or len(raw) != 2:
        raise Refused(f"{shown(raw)} is not two numbers")
    return number(0)(raw[0]), number(0)(raw[1])


def stage(raw: Any) -> int:
    """A ZeRO stage, 0 to 3."""
    value: int = whole(0)(raw)
    if value > _HIGHEST_STAGE:
        raise Refused(f"{shown(raw)} is not a ZeRO stage (0 to {_HIGHEST_STAGE})")
    return value


device = one_of(*_DEVICES)

_TOP = (
    Key("train_batch_size", whole(1), fact="train_batch_size", auto=True),
    Key("train_micro_batch_size_per_gpu", whole(1), "micro_batch_size", "train_micro_batch_size_per_gpu", auto=True),
    Key("gradient_accumulation_steps", whole(1), "gradient_accumulation", "gradient_accumulation_steps", auto=True),
    Key("gradient_clipping", number(0), "optimizer.max_grad_norm", "gradient_clipping", auto=True),
    Key("bf16.enabled", truth, fact="bf16_enabled", auto=True),
    Key("fp16.enabled", truth, fact="fp16_enabled", auto=True),
    Key("optimizer.type", text, fact="optimizer_type"),
    Key("optimizer.params.lr", number(0), "schedule.learning_rate", "optimizer_lr", auto=True),
    Key("optimizer.params.eps", number(0), "optimizer.epsilon", auto=True),
    Key("optimizer.params.weight_decay", number(0), "optimizer.weight_decay", auto=True),
    Key("optimizer.params.torch_adam", truth, fact="optimizer_torch_adam"),
    Key("scheduler.type", text, fact="scheduler_type"),
)
_ZERO_KEYS = (
    Key("reduce_bucket_size", whole(1), "deepspeed.reduce_bucket_size", auto=True),
    Key("stage3_prefetch_bucket_size", whole(0), "deepspeed.prefetch_bucket_size", auto=True),
    Key("stage3_param_persistence_threshold", whole(0), "deepspeed.param_persistence_threshold", auto=True),
    Key("sub_group_size", whole(0), "deepspeed.sub_group_size", auto=True),
    Key("stage3_gather_16bit_weights_on_model_save", truth, "deepspeed.save_16bit_model", auto=True),
    Key("overlap_comm", truth, fact="overlap_comm", auto=True),
    Key("contiguous_gradients", truth, fact="contiguous_gradients", auto=True),
    Key("reduce_scatter", truth, fact="reduce_scatter", auto=True),
    Key("allgather_bucket_size", whole(1), fact="allgather_bucket_size", auto=True),
    Key("stage3_max_live_parameters", whole(0), fact="max_live_parameters", auto=True),
    Key("stage3_max_reuse_distance", whole(0), fact="max_reuse_distance", auto=True),
    Key("zero_hpz_partition_size", whole(1), fact="zero_hpz_partition_size"),
    Key("zero_quantized_weights", truth, fact="zero_quantized_weights"),
    Key("zero_quantized_gradients", truth, fact="zero_quantized_gradients"),
    Key("offload_optimizer.device", device, "deepspeed.offload_optimizer", auto=True),
    Key("offload_optimizer.buffer_count", whole(1), fact="offload_optimizer_buffer_count"),
    Key("offload_optimizer.ratio", number(0), fact="offload_optimizer_ratio"),
    Key("offload_param.device", device, "deepspeed.offload_param", auto=True),
    Key("offload_param.buffer_count", whole(1), "deepspeed.buffer_count"),
    Key("offload_param.buffer_size", whole(1), "deepspeed.buffer_size"),
)
# Of both offloads, but one field: that of the parameters wins, then it is reported when the two differ.
_SHARED = (("pin_memory", truth, "deepspeed.pin_memory"), ("nvme_path", text, "deepspeed.nvme_path"))
# Spelt so before DeepSpeed 0.4 and still read (runtime/zero/config.py: cpu_offload, cpu_offload_params).
_OLD_OFFLOADS = (("cpu_offload", "offload_optimizer"), ("cpu_offload_params", "offload_param"))


def read(content: bytes, name: str) -> Reading:
    """What a DeepSpeed JSON states."""
    return interpret(read_json(content, name))


def interpret(document: Document) -> Reading:
    """The same of a configuration that has been read: a file, or a mapping inside another file."""
    found = Collector(FORMAT, document)
    for section in ("bf16", "fp16", "optimizer", "scheduler", _ZERO, "aio"):
        found.section(section)
    found.section("optimizer", "params")
    found.keys(_TOP)
    betas = found.key(Key("betas", _pair, auto=True), ("optimizer", "params", "betas"))
    if betas is not None:
        for field, value in zip(("optimizer.beta1", "optimizer.beta2"), betas, strict=True):
            found.value(field, value, ("optimizer", "params", "betas"))
    if isinstance(found.raw("aio"), Mapping):
        found.take("aio")
        found.facts["aio"] = found.raw("aio")
    _compute(found)
    _zero(found)
    return found.reading()


def strategy_of(stage: int, offload_optimizer: str, offload_param: str) -> Strategy | None:
    """The strategy of a ZeRO configuration; None for one that Recipe has no word for."""
    if stage == _HIGHEST_STAGE:
        devices = {offload_optimizer, offload_param}
        return Strategy.ZERO3_NVME if "nvme" in devices else Strategy.ZERO3_CPU if "cpu" in devices else None
    return Strategy.ZERO2 if stage == 2 else None


def _compute(found: Collector) -> None:
    """bf16, or fp32 when both are off in so many words. fp16 has no place in Recipe and stays a fact."""
    bf16, fp16 = found.facts.get("bf16_enabled"), found.facts.get("fp16_enabled", False)
    if bf16 is True:
        found.value("precision.compute", Dtype.BF16, ("bf16", "enabled"))
    elif bf16 is False and fp16 is False:
        found.value("precision.compute", Dtype.FP32, ("bf16", "enabled"))


def _zero(found: Collector) -> None:
    zero_stage = found.key(Key("stage", stage, "deepspeed.stage", "zero_stage"), (_ZERO, "stage"))
    for section in ("offload_optimizer", "offload_param"):
        found.section(_ZERO, section)
    found.keys(_ZERO_KEYS, _ZERO)
    for old, today in _OLD_OFFLOADS:
        if found.key(Key(old, truth), (_ZERO, old)) is not None:
            found.legacy((_ZERO, old), f"{_ZERO}.{today}.device")
            if found.raw(_ZERO, old) is True and f"deepspeed.{today}" not in found.values:
                found.value(f"deepspeed.{today}", "cpu", (_ZERO, old))
    for name, convert, field in _SHARED:
        for section in ("offload_optimizer", "offload_param"):
            path = (_ZERO, section, name)
            value = found.key(Key(name, convert, fact=f"{section}_{name}"), path)
            unused = found.values.get(f"deepspeed.{section}", "none") == "none" or (
                name == "nvme_path" and found.values[f"deepspeed.{section}"] != "nvme"
            )
            if value is None or unused:
                continue
            if field in found.values and found.values[field] != value:
                found.problem(path, f"offload_optimizer says {shown(found.values[field])}; a recipe has one for both")
                continue
            found.value(field, value, path)
    if zero_stage is not None:
        devices = (found.values.get(f"deepspeed.{part}", "none") for part in ("offload_optimizer", "offload_param"))
        strategy = strategy_of(zero_stage, *devices)
        if strategy is not None:
            found.value("parallelism.strategy", strategy, (_ZERO, "stage"))
