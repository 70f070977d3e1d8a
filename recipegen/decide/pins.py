"""Pins: Recipe fields that a person holds fixed, by path, with the value's type taken from the dataclasses.

A path is the dotted way into `Recipe` (`schedule.learning_rate`); where the last name is unique it is enough
(`learning_rate`), and a group with a field `name` or `strategy` may be named alone (`optimizer`).
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import types
import typing
from collections.abc import Mapping
from enum import Enum
from functools import lru_cache
from typing import Any

from recipegen.estimate.parameters import unsaved_modules
from recipegen.spec import Adapter, DeepSpeed, Fsdp, Launch, Method, Recipe, RecipegenError
from recipegen.spec import cluster as _cluster
from recipegen.spec import data as _data
from recipegen.spec import parallelism as _parallelism
from recipegen.spec import precision as _precision
from recipegen.spec import recipe as _recipe

# Decided by the request itself or read from files: pinning them would let the recipe contradict its own data.
_NOT_PINNABLE = {"model", "hardware", "network", "trainer", "stack", "datasets", "passthrough", "model_revision"}
# Derived from other fields (of the precision only what is loaded is a choice), or lists that a profile owns.
_DERIVED = (
    "launch.environment",
    "launch.bf16_capable",
    "parallelism.nodes",
    "parallelism.gpus_per_node",
    "parallelism.ep",
    "attention_memory",
    "fsdp.layer_class",
    "dequantize",
    "freeze_vision",
    *(f"precision.{f.name}" for f in dataclasses.fields(_precision.Precision) if f.name != "parameters"),
)
# Smallest and largest value of a field; a field that is not here takes any value of its type.
_AT_LEAST_ONE = (
    "sequence_len",
    "micro_batch_size",
    "gradient_accumulation",
    "parallelism.dp_replicate",
    "parallelism.dp_shard",
    "parallelism.tp",
    "parallelism.cp",
    "adapter.r",
    "adapter.alpha",
    "max_steps",
    "saving.save_steps",
    "saving.eval_steps",
    "saving.logging_steps",
    "saving.save_total_limit",
    "loading.dataset_num_proc",
    "launch.omp_num_threads",
    "loading.prefetch_factor",
    "deepspeed.reduce_bucket_size",
    "deepspeed.prefetch_bucket_size",
    "deepspeed.sub_group_size",
    "deepspeed.buffer_count",
    "deepspeed.buffer_size",
)
_LIMITS: dict[str, tuple[float, float]] = {
    **dict.fromkeys(_AT_LEAST_ONE, (1, 10**9)),
    "schedule.learning_rate": (1e-12, 10.0),
    "schedule.warmup_steps": (0, 10**9),
    "schedule.warmup_ratio": (0, 1),
    "epochs": (1e-6, 10**4),
    "adapter.dropout": (0, 0.99),
    "optimizer.beta1": (0, 0.999999),
    "optimizer.beta2": (0, 0.9999999),
    "optimizer.epsilon": (1e-30, 1.0),
    "optimizer.weight_decay": (0, 100),
    "optimizer.max_grad_norm": (0, 10**6),
    "val_set_size": (0, 10**9),
    "loading.dataloader_workers": (0, 1024),
    "launch.main_process_port": (1024, 65535),
    "deepspeed.stage": (0, 3),
    "deepspeed.param_persistence_threshold": (0, 10**12),
    "seed": (0, 2**32 - 1),
}
_CHOICES: dict[str, tuple[str, ...]] = {
    "excess_length_strategy": ("drop", "truncate"),
    "fsdp.state_dict_type": ("SHARDED_STATE_DICT", "FULL_STATE_DICT"),
    "deepspeed.offload_optimizer": ("none", "cpu", "nvme"),
    "deepspeed.offload_param": ("none", "cpu", "nvme"),
    "saving.logger": ("tensorboard", "wandb", "trackio", "mlflow", "none"),
    "schedule.scheduler": ("cosine", "linear", "constant", "constant_with_warmup"),
}
_BY_OPTION = {
    "model": "--model",
    "hardware": "--hardware",
    "network": "--network",
    "trainer": "--trainer",
    "datasets": "--dataset",
    "dataset": "--dataset",
}

# A trainer's own spelling, for the suggestion (Axolotl, transformers, Accelerate, DeepSpeed).
_TRAINER_SPELLINGS = {
    "gradient_accumulation_steps": "gradient_accumulation",
    "per_device_train_batch_size": "micro_batch_size",
    "train_micro_batch_size_per_gpu": "micro_batch_size",
    "num_epochs": "epochs",
    "num_train_epochs": "epochs",
    "lora_r": "adapter.r",
    "lora_rank": "adapter.r",
    "lora_alpha": "adapter.alpha",
    "lora_dropout": "adapter.dropout",
    "lora_target_modules": "adapter.target_modules",
    "lora_modules_to_save": "adapter.modules_to_save",
    "modules_to_save": "adapter.modules_to_save",
    "quantize_moe_experts": "quantised_experts",
    "peft_use_dora": "adapter.use_dora",
    "peft_use_rslora": "adapter.use_rslora",
    "lr_scheduler": "schedule.scheduler",
    "lr_scheduler_type": "schedule.scheduler",
    "optim": "optimizer.name",
    "adam_beta1": "optimizer.beta1",
    "adam_beta2": "optimizer.beta2",
    "adam_epsilon": "optimizer.epsilon",
    "gradient_checkpointing": "activation_checkpointing",
    "sample_packing": "packing",
    "attn_implementation": "attention",
    "flash_attention": "attention",
    "dp_shard_size": "parallelism.dp_shard",
    "dp_replicate_size": "parallelism.dp_replicate",
    "tensor_parallel_size": "parallelism.tp",
    "context_parallel_size": "parallelism.cp",
    "max_seq_length": "sequence_len",
    "max_length": "sequence_len",
    "dataloader_num_workers": "loading.dataloader_workers",
    "dataloader_prefetch_factor": "loading.prefetch_factor",
    "zero_stage": "parallelism.strategy",
    "precision": "precision.parameters",
    "dtype": "precision.parameters",
    "torch_dtype": "precision.parameters",
    "bf16": "precision.parameters",
    "fsdp_reshard_after_forward": "fsdp.reshard_after_forward",
    "fsdp_state_dict_type": "fsdp.state_dict_type",
    "chunked_cross_entropy": "loss_kernel",
    "liger_fused_linear_cross_entropy": "loss_kernel",
}


@lru_cache(maxsize=1)
def field_types() -> dict[str, Any]:
    """Every pinnable path with its type, in the order of the dataclasses."""
    out: dict[str, Any] = {}

    def walk(cls: Any, prefix: str) -> None:
        hints = typing.get_type_hints(cls, localns=_names())
        for f in dataclasses.fields(cls):
            path = f"{prefix}{f.name}"
            if (not prefix and f.name in _NOT_PINNABLE) or path in _DERIVED:
                continue
            inner = _dataclass_of(hints[f.name])
            if inner is not None:
                walk(inner, path + ".")
            else:
                out[path] = hints[f.name]

    walk(Recipe, "")
    return out


def _names() -> dict[str, Any]:
    names: dict[str, Any] = {}
    for module in (_cluster, _data, _parallelism, _precision, _recipe):
        names.update(vars(module))
    return names


def _dataclass_of(hint: Any) -> Any:
    for candidate in (hint, *typing.get_args(hint)):
        if dataclasses.is_dataclass(candidate) and candidate in (
            Adapter,
            Fsdp,
            DeepSpeed,
            Launch,
            _recipe.Optimizer,
            _recipe.Schedule,
            _recipe.Saving,
            _recipe.Loading,
            _parallelism.Parallelism,
            _precision.Precision,
        ):
            return candidate
    return None


def resolve_path(name: str) -> str:
    """The full path of a field; raises with the nearest names when there is none or more than one."""
    paths = field_types()
    if name in paths:
        return name
    for suffix in ("name", "strategy", "label"):
        if f"{name}.{suffix}" in paths:
            return f"{name}.{suffix}"
    matches = [p for p in paths if p.rsplit(".", 1)[-1] == name]
    if len(matches) == 1:
        return matches[0]
    if matches:
        raise RecipegenError(f"`{name}` could be {' or '.join(matches)}", fix="Write the whole path")
    if name in _BY_OPTION:
        raise RecipegenError(f"`{name}` is not set this way", fix=f"Use {_BY_OPTION[name]}")
    known = _TRAINER_SPELLINGS.get(name)
    if known:
        raise RecipegenError(
            f"`{name}` is a trainer's spelling", fix=f"Use `{known}`, or `axolotl.{name}` to pass it on"
        )
    leaves = {p.rsplit(".", 1)[-1]: p for p in paths}
    if name in _DERIVED:
        raise RecipegenError(f"`{name}` follows from other fields and cannot be set")
    near = difflib.get_close_matches(name, [*paths, *leaves], n=3, cutoff=0.6)
    hint = (
        f"Did you mean {', '.join(dict.fromkeys(leaves.get(n, n) for n in near))}?"
        if near
        else ("`recipegen explain fields` lists them; a trainer's own key is set as axolotl.KEY=VALUE")
    )
    raise RecipegenError(f"there is no field `{name}`", fix=hint)


def parse(path: str, value: Any) -> Any:
    """The value of a field from text (command line) or from YAML; raises when it does not have the field's type."""
    parsed = _convert(path, field_types()[path], value)
    if path in _LIMITS and parsed is not None:
        low, high = _LIMITS[path]
        if not low <= parsed <= high:
            raise _bad(path, value, f"between {low:g} and {high:g}")
    if path == "val_set_size" and parsed == 1:
        raise _bad(path, value, "a share below 1, or rows above 1 (Axolotl reads 1 as all of the data)")
    if path in _CHOICES and parsed not in _CHOICES[path]:
        raise _bad(path, value, "one of " + ", ".join(_CHOICES[path]))
    if path == "adapter.modules_to_save" and unsaved_modules(parsed):
        raise _bad(path, value, "of embed_tokens and lm_head")
    if isinstance(parsed, str) and any(ord(c) < 32 for c in parsed):
        raise _bad(path, value, "text on one line")
    return parsed


def _convert(path: str, hint: Any, value: Any) -> Any:
    origin = typing.get_origin(hint)
    if origin in (typing.Union, types.UnionType):
        if value is None or (isinstance(value, str) and value.lower() in ("none", "null")):
            return None
        inner = [a for a in typing.get_args(hint) if a is not type(None)]
        return _convert(path, inner[0], value)
    if origin is tuple:
        items = value.split(",") if isinstance(value, str) else value
        if not isinstance(items, (list, tuple)):
            raise _bad(path, value, "a list, written a,b,c")
        return tuple(
            _convert(path, typing.get_args(hint)[0], item.strip() if isinstance(item, str) else item) for item in items
        )
    if isinstance(hint, type) and issubclass(hint, Enum):
        try:
            return hint(value.lower() if isinstance(value, str) else value)
        except ValueError:
            raise _bad(path, value, "one of " + ", ".join(str(m.value) for m in hint)) from None
    if hint is bool:
        if isinstance(value, bool):
            return value
        if isinstance(value, str) and value.lower() in ("true", "yes", "on", "false", "no", "off"):
            return value.lower() in ("true", "yes", "on")
        raise _bad(path, value, "true or false")
    if hint is int:
        return _whole(path, value)
    if hint is float:
        return _number(path, value)
    if hint is str:
        if not isinstance(value, str):
            raise _bad(path, value, "text")
        return value
    raise RecipegenError(f"{path} cannot be set")


def _whole(path: str, value: Any) -> int:
    number = _number(path, value)
    if number != int(number) or abs(number) > 2**53:
        raise _bad(path, value, "a whole number")
    return int(number)


def _number(path: str, value: Any) -> float:
    if isinstance(value, bool):
        raise _bad(path, value, "a number")
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise _bad(path, value, "a number") from None
    if not math.isfinite(number):
        raise _bad(path, value, "a finite number")
    return number


def _bad(path: str, value: Any, wanted: str) -> RecipegenError:
    shown = repr(value)
    return RecipegenError(f"{path} is {shown[:80]}; it must be {wanted}")


def read_pins(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Pins with whole paths and typed values."""
    out: dict[str, Any] = {}
    for name, value in raw.items():
        path = resolve_path(name)
        if path in out:
            raise RecipegenError(f"{path} is set twice", fix="Leave one of them out")
        out[path] = parse(path, value)
    return out


def apply(recipe: Recipe, pins: Mapping[str, Any]) -> Recipe:
    """The recipe with every pin in force; a pin into a group that the recipe lacks is left out, and so are quantised
    experts without a quantised base, which Axolotl refuses (check_quantize_moe_experts)."""
    if recipe.method is not Method.QLORA and "quantised_experts" in pins:
        pins = {path: value for path, value in pins.items() if path != "quantised_experts"}
    if not pins:
        return recipe
    by_group: dict[str, dict[str, Any]] = {}
    top: dict[str, Any] = {}
    for path, value in pins.items():
        group, _, leaf = path.rpartition(".")
        if group:
            by_group.setdefault(group, {})[leaf] = value
        else:
            top[path] = value
    for group, values in by_group.items():
        current = getattr(recipe, group)
        if current is not None:
            top[group] = dataclasses.replace(current, **values)
    return dataclasses.replace(recipe, **top)
