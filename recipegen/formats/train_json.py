"""train.json: a Recipe for templates/train.py, which reads it and decides nothing.

The keys are the dataclasses of templates/train_recipe.py; that module refuses a missing, unknown or mistyped key, and
tests/formats/test_train_json.py puts every written file through it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import yaml

from recipegen.catalog.resources import data_folder
from recipegen.dataset.facts import facts
from recipegen.estimate.parameters import target_modules_value
from recipegen.formats.axolotl import OUTPUT_DIR, PREPARED_PATH
from recipegen.formats.scalars import to_json
from recipegen.spec import (
    Adapter,
    DataFormat,
    DatasetSpec,
    Dtype,
    LossKernel,
    Method,
    ModelSpec,
    Recipe,
    RecipegenError,
)

FORMAT_VERSION = 1
OPTIMIZERS = ("adamw_torch_fused", "adamw_torch", "adamw_bnb_8bit", "optimi_adamw")
SCHEDULERS = ("cosine", "linear", "constant", "constant_with_warmup")

_TORCH = {Dtype.FP32: "float32", Dtype.BF16: "bfloat16", Dtype.NF4: "bfloat16"}


def write(recipe: Recipe, model: ModelSpec, reasons: Mapping[str, str]) -> str:  # noqa: ARG001
    """The text of train.json. Raises RecipegenError for a recipe that train.py cannot run.

    Called like every format; JSON has no comments, so `reasons` are in DECISION.md alone.
    """
    return to_json(values(recipe)) + "\n"


def unsupported(recipe: Recipe) -> list[tuple[str, str]]:
    """(Recipe field, why) for everything that train.py does not do. Empty: it can run the recipe."""
    mesh, adapter = recipe.parallelism, recipe.adapter
    checks = [
        (
            max(mesh.tp, mesh.cp, mesh.ep) > 1,
            "parallelism",
            "train.py shards and replicates only; it has no tp, cp or ep",
        ),
        (recipe.activation_offloading, "activation_offloading", "train.py does not offload activations"),
        (recipe.loss_kernel is LossKernel.CUT, "loss_kernel", "train.py has no cut cross entropy"),
        (recipe.saving.save_only_model, "saving.save_only_model", "train.py saves what a resume needs"),
        (adapter is not None and adapter.fused_kernels, "adapter.fused_kernels", "train.py has no fused LoRA kernels"),
        (
            recipe.optimizer.name not in OPTIMIZERS,
            "optimizer.name",
            f"train.py does not know {recipe.optimizer.name!r}; it knows {', '.join(OPTIMIZERS)}",
        ),
        (
            recipe.schedule.scheduler not in SCHEDULERS,
            "schedule.scheduler",
            f"train.py does not know {recipe.schedule.scheduler!r}; it knows {', '.join(SCHEDULERS)}",
        ),
        (recipe.quantised_experts, "quantised_experts", "train.py does not quantise experts"),
        (
            adapter is not None and bool(adapter.modules_to_save),
            "adapter.modules_to_save",
            "train.py trains adapters only",
        ),
        (recipe.dequantize not in (None, "mxfp4"), "dequantize", f"train.py cannot load {recipe.dequantize} weights"),
        (
            recipe.fsdp is not None and recipe.fsdp.state_dict_type != "SHARDED_STATE_DICT",
            "fsdp.state_dict_type",
            "train.py writes sharded checkpoints only",
        ),
        (
            any(spec.format is DataFormat.PREFERENCE for spec in recipe.datasets),
            "datasets",
            "train.py does not train on preference pairs",
        ),
    ]
    return [(field, why) for failed, field, why in checks if failed]


def values(recipe: Recipe) -> dict[str, Any]:
    """train.json as a mapping."""
    problems = unsupported(recipe)
    if problems:
        field, why = problems[0]
        raise RecipegenError(why, where=field, fix="Use --trainer axolotl, or change that.")
    mesh = recipe.parallelism
    return {
        "format_version": FORMAT_VERSION,
        "strategy": mesh.strategy.value,
        "model": _model(recipe),
        "adapter": None if recipe.adapter is None else _adapter(recipe.adapter),
        "data": _data(recipe),
        "batch": {
            "micro_batch_size": recipe.micro_batch_size,
            "gradient_accumulation": recipe.gradient_accumulation,
            "dp_replicate": mesh.dp_replicate,
            "dp_shard": mesh.dp_shard,
            "global_batch_size": recipe.global_batch_size,
            "sync_each_batch": recipe.sync_each_batch,
        },
        "optimizer": {
            "name": recipe.optimizer.name,
            "beta1": recipe.optimizer.beta1,
            "beta2": recipe.optimizer.beta2,
            "epsilon": recipe.optimizer.epsilon,
            "weight_decay": recipe.optimizer.weight_decay,
            "max_grad_norm": recipe.optimizer.max_grad_norm,
        },
        "schedule": {
            "learning_rate": recipe.schedule.learning_rate,
            "scheduler": recipe.schedule.scheduler,
            "warmup_steps": recipe.schedule.warmup_steps,
            "warmup_ratio": recipe.schedule.warmup_ratio,
            "epochs": recipe.epochs,
            "max_steps": recipe.max_steps,
        },
        "saving": {
            "output": OUTPUT_DIR,
            "save_steps": recipe.saving.save_steps,
            "save_total_limit": recipe.saving.save_total_limit,
            "eval_steps": recipe.saving.eval_steps,
            "logging_steps": recipe.saving.logging_steps,
            "logger": recipe.saving.logger,
        },
        "seed": recipe.seed,
    }


def _model(recipe: Recipe) -> dict[str, Any]:
    return {
        "name": recipe.model,
        "revision": recipe.model_revision,
        "trust_remote_code": recipe.trust_remote_code,
        "attention": recipe.attention,
        "load_dtype": _TORCH[recipe.precision.parameters],
        "quantization": "nf4" if recipe.method is Method.QLORA else None,
        "dequantize": recipe.dequantize,
        "freeze_vision": recipe.freeze_vision,
        "gradient_checkpointing": recipe.activation_checkpointing,
        "gradient_checkpointing_reentrant": recipe.activation_checkpointing_reentrant,
        "loss_kernel": recipe.loss_kernel.value,
        # fp32 master weights are for training; what serves the model reads bf16. An adapter is small: as trained.
        "export_dtype": "bfloat16" if recipe.adapter is None and recipe.precision.compute is Dtype.BF16 else "float32",
        "tf32": recipe.tf32,
    }


def _adapter(adapter: Adapter) -> dict[str, Any]:
    return {
        "r": adapter.r,
        "alpha": adapter.alpha,
        "dropout": adapter.dropout,
        "target_modules": target_modules_value(adapter.target_modules),
        "use_rslora": adapter.use_rslora,
        "use_dora": adapter.use_dora,
    }


def _data(recipe: Recipe) -> dict[str, Any]:
    return {
        "datasets": [dataset(spec) for spec in recipe.datasets],
        "sequence_len": recipe.sequence_len,
        "packing": recipe.packing,
        # Transformers' flash attention tells packed documents apart in a batch of one row only.
        "flatten": recipe.packing and recipe.attention.startswith("flash"),
        "pad_to_sequence_len": recipe.pad_to_sequence_len,
        "excess_length_strategy": recipe.excess_length_strategy,
        "val_set_size": recipe.val_set_size,
        "chat_template": chat_template(recipe.chat_template),
        "eot_tokens": list(recipe.eot_tokens),
        "prepared": PREPARED_PATH,
        "processes": recipe.loading.dataset_num_proc,
        "workers": recipe.loading.dataloader_workers,
        "prefetch_factor": recipe.loading.prefetch_factor,
        "pin_memory": recipe.loading.pin_memory,
    }


def chat_template(name: str | None) -> str | None:
    """The Jinja text of a family's template, for models without their own; None when train.py needs none."""
    if name is None:
        return None
    texts = yaml.safe_load((data_folder("templates") / "chat_templates.yaml").read_text(encoding="utf-8"))
    return str(texts[name]) if name in texts else None


def dataset(spec: DatasetSpec) -> dict[str, Any]:
    """One item of `data.datasets`: where the rows are and which column means what.

    Read from the same `datasets:` item that Axolotl gets, so that both trainers see the same text. Raises
    RecipegenError for a type that train.py cannot read.
    """
    entry = dict(spec.entry)
    kind = entry.get("type")
    common = {"path": spec.path, "split": str(entry.get("split", spec.split))}
    if kind == "chat_template":
        return {**common, "kind": "chat", "fields": _chat_fields(entry), "prompts": {}}
    if kind == "completion":
        return {**common, "kind": "completion", "fields": {"text": entry.get("field", "text")}, "prompts": {}}
    if kind == "input_output":
        return {**common, "kind": "segments", "fields": {"segments": "segments"}, "prompts": {}}
    if kind in ("alpaca", "alpaca_w_system.load_instruct"):
        fields = {"instruction": "instruction", "input": "input", "output": "output"}
        if kind != "alpaca":
            fields["system"] = "system"
        return {**common, "kind": "instruction", "fields": fields, "prompts": _alpaca_prompts()}
    if isinstance(kind, Mapping):
        return {**common, "kind": "instruction", "fields": _custom_fields(kind), "prompts": _custom_prompts(kind)}
    raise RecipegenError(f"train.py cannot read data of type {kind!r}", where=spec.path, fix="Use --trainer axolotl.")


def _chat_fields(entry: Mapping[str, Any]) -> dict[str, Any]:
    names = entry.get("message_property_mappings") or {}
    fields: dict[str, Any] = {
        "messages": entry.get("field_messages", "messages"),
        "role": names.get("role", "role"),
        "content": names.get("content", "content"),
        "roles": {str(a): str(role) for role, aliases in (entry.get("roles") or {}).items() for a in aliases},
    }
    if entry.get("message_field_training"):
        fields["training"] = entry["message_field_training"]
    return fields


def _alpaca_prompts() -> dict[str, str]:
    texts = facts()["alpaca"]
    return {
        "with_input": texts["with_input"],
        "without_input": texts["without_input"],
        "system_with_input": texts["system"] + texts["system_with_input"],
        "system_without_input": texts["system"] + texts["system_without_input"],
    }


def _custom_fields(kind: Mapping[str, Any]) -> dict[str, str]:
    """Columns of Axolotl's user-defined prompt (axolotl/prompt_strategies/user_defined.py)."""
    named = {name: kind.get(f"field_{name}") for name in ("instruction", "input", "output", "system")}
    return {name: str(column) for name, column in named.items() if column}


def _custom_prompts(kind: Mapping[str, Any]) -> dict[str, str]:
    prompts = {
        "with_input": str(kind.get("format", "{instruction} {input} ")),
        "without_input": str(kind.get("no_input_format", "{instruction} ")),
    }
    system = str(kind.get("system_format", "{system}"))
    return prompts | {f"system_{name}": system + text for name, text in prompts.items()}
