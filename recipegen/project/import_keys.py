"""Keys of an existing setup that recipegen does not model: which are passed through, and why the others are not."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from recipegen.check.keys import accelerate_keys, axolotl_keys, deepspeed_keys
from recipegen.check.subject import Subject
from recipegen.formats import accelerate, accelerate_full, axolotl, axolotl_read, deepspeed
from recipegen.formats.modelled import refuse_modelled_keys
from recipegen.formats.passthrough import merge
from recipegen.formats.plain import to_plain
from recipegen.project.imported import Changed, is_secret, shown
from recipegen.spec import Decision, RecipegenError

# Facts that are a field in other words: no loss where the field is the same.
IN_OTHER_WORDS: Mapping[str, tuple[str, ...]] = {
    "lora_target_linear": ("adapter.target_modules",),
    "lora_all_linear": ("adapter.target_modules",),
    "lora_target": ("adapter.target_modules",),
    "lora_kernels": ("adapter.fused_kernels",),
    "bf16_auto": ("precision.compute", "precision.parameters"),
    "bf16": ("precision.compute", "precision.parameters"),
    "bf16_enabled": ("precision.compute", "precision.parameters"),
    "dtype": ("precision.parameters",),
    "load_dtype": ("precision.parameters",),
    "mixed_precision": ("precision.compute",),
    "load_in_8bit": ("precision.parameters",),
    "tf32_auto": ("tf32",),
    "engine": ("parallelism.strategy",),
    "distributed_type": ("parallelism.strategy",),
    "fsdp_version": ("fsdp.version",),
    "fsdp_sharding_strategy": ("parallelism.strategy", "fsdp.reshard_after_forward"),
    "fsdp_activation_checkpointing": ("activation_checkpointing",),
    "deepspeed_config": ("deepspeed.stage", "deepspeed.offload_optimizer", "deepspeed.offload_param"),
    "num_processes": ("parallelism.gpus_per_node", "parallelism.nodes"),
    "global_batch_size": ("micro_batch_size", "gradient_accumulation"),
    "dataset_entries": ("datasets",),
    "deepspeed_read": (),
    "finetuning_type": ("method",),
    "stage": ("method",),
    "auto": (),
}
# Keys whose meaning a field has; passed on as well they would outlive a change of that field.
_SAID_BY_A_FIELD = frozenset(
    {"lora_target_linear", "gradient_checkpointing_kwargs", "lora_qkv_kernel", "lora_o_kernel", "lora_embedding_kernel"}
)
_FILE_OF = {"axolotl": "axolotl.yaml", "accelerate": "accelerate.yaml", "deepspeed": "deepspeed.json"}


def passthrough(subject: Subject, decision: Decision) -> tuple[dict[str, dict[str, Any]], list[Changed]]:
    """Valid keys by file, to be written as they stand, and those that are not, each with its reason."""
    found: dict[str, dict[str, Any]] = {}
    left: list[Changed] = []
    for name, reading in subject.readings.items():
        values = dict(_candidates(subject, name))
        if not values:
            continue
        kind = reading.format if reading.format in _FILE_OF else ""
        written = _written(decision, kind)
        why = _findings(subject, name, kind)
        document = subject.documents.get(name)
        for key, value in values.items():
            reason = _reason(key, value, kind, written, why, decision)
            if reason is None:
                found.setdefault(kind, {})[key] = value
            elif reason:
                where = document.where(tuple(key.split("."))) if document else name
                left.append(Changed(f"{name}: {key}", shown(key, value), None, reason, where))
    return found, left


def _candidates(subject: Subject, name: str) -> Iterator[tuple[str, Any]]:
    """Keys of a file that no field of a recipe holds: of Axolotl's file also those that are understood all the same."""
    reading, document = subject.readings[name], subject.documents.get(name)
    yield from reading.passthrough.items()
    if reading.format != "axolotl" or document is None or document.values is None:
        return
    facts, fields = _stating(document.values)
    for top, value in document.values.items():
        if value is None or str(top) in reading.legacy or top in fields or top not in facts:
            continue
        for key, item in _leaves(value, str(top)):
            if key not in reading.passthrough:
                yield key, item


def _stating(values: Mapping[str, Any]) -> tuple[set[str], set[str]]:
    """The top-level keys that state facts, and those that state fields. A reading knows lines, and several keys may
    share one, so the same values are read again with a line for each."""
    keys = list(values)
    text = "".join(f"{json.dumps(str(key))}: {json.dumps(to_plain(values[key], for_print=True))}\n" for key in keys)
    reading = axolotl_read.read(text.encode(), "again")
    lines = {f"again:{number}": key for number, key in enumerate(keys, 1)}
    facts, fields = reading.fact_provenance.values(), reading.provenance.values()
    return {lines[place] for place in facts if place in lines}, {lines[place] for place in fields if place in lines}


def _leaves(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping) and value and not any("." in str(key) for key in value):
        for key, item in value.items():
            yield from _leaves(item, f"{path}.{key}")
    else:
        yield path, value


def _written(decision: Decision, kind: str) -> Mapping[str, Any] | None:
    """What recipegen writes into the file of that kind by itself; None when there is no such file."""
    recipe = decision.recipe
    if kind == "axolotl" and recipe.trainer == "axolotl":
        return axolotl.values(recipe)
    if kind == "accelerate" and recipe.trainer == "axolotl":
        return accelerate.values(recipe)
    if kind == "accelerate":
        return accelerate_full.values(recipe, decision.model)
    return deepspeed.values(recipe) if kind == "deepspeed" and recipe.deepspeed is not None else None


def _findings(subject: Subject, name: str, kind: str) -> dict[str, str]:
    """Keys that the trainer rejects or drops, with what is wrong."""
    document = subject.documents.get(name)
    checks = {"axolotl": axolotl_keys, "accelerate": accelerate_keys, "deepspeed": deepspeed_keys}
    if document is None or kind not in checks:
        return {}
    return {one.field: one.reason for one in checks[kind](document, subject.stack) if one.field}


def _reason(
    key: str,
    value: Any,
    kind: str,
    written: Mapping[str, Any] | None,
    why: Mapping[str, str],
    decision: Decision,
) -> str | None:
    """Why a key is not passed through: None when it is, empty when the comparison of both projects speaks of it."""
    top = key.partition(".")[0]
    if written is None:
        return f"{_FILE_OF[kind]} is not part of the new project" if kind else "no file of the new project has this key"
    if is_secret(key, value):
        return "a secret is never written into a project"
    said = next((why[path] for path in why if key == path or key.startswith(f"{path}.")), "")
    if said:
        return said
    if _holds(written, key) or top in _SAID_BY_A_FIELD:
        return ""
    if kind == "axolotl":
        try:
            refuse_modelled_keys(replace(decision.recipe, passthrough={kind: {key: value}}))
        except RecipegenError:
            return ""
    try:
        merge(written, {key: value})
    except RecipegenError as error:
        return f"it cannot be written: {error}"
    return None


def _holds(written: Mapping[str, Any], key: str) -> bool:
    here: Any = written
    for part in key.split("."):
        if not isinstance(here, Mapping) or part not in here:
            return False
        here = here[part]
    return True
