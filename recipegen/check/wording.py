"""Fixes in the words of the file: a rule on a Recipe says `--set attention=sdpa`, as `recipegen new` takes it; whoever
checks a file of their own wants its key, `attn_implementation: sdpa`.

A project with recipe.yaml or recipe.lock was made by recipegen and keeps the options.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from recipegen.check.subject import Subject
from recipegen.formats import lock, recipe_yaml
from recipegen.formats.axolotl import FIELDS
from recipegen.spec import Finding, LossKernel

# Option of the command line -> Recipe field path.
_OPTIONS: Mapping[str, str] = {
    "sequence-len": "sequence_len",
    "method": "method",
    "learning-rate": "schedule.learning_rate",
    "global-batch-size": "gradient_accumulation",
    "trainer": "trainer",
}
# A short name of `--set` -> Recipe field path, where it is not the path itself.
_SHORT: Mapping[str, str] = {
    "dp_shard": "parallelism.dp_shard",
    "dp_replicate": "parallelism.dp_replicate",
    "tp": "parallelism.tp",
    "cp": "parallelism.cp",
    "optimizer": "optimizer.name",
    "save_total_limit": "saving.save_total_limit",
    "strategy": "parallelism.strategy",
    "warmup_steps": "schedule.warmup_steps",
    "weight_decay": "optimizer.weight_decay",
}
_AXOLOTL: Mapping[str, str] = {path: key for key, paths in reversed(FIELDS.items()) for path in paths}
# Recipe field path -> the key of each format. Of Axolotl's file it is the table that writes it.
KEYS: Mapping[str, Mapping[str, str]] = {
    "axolotl": {**_AXOLOTL, "schedule.warmup_steps": "warmup_steps"},
    "arguments": {
        "activation_checkpointing": "gradient_checkpointing",
        "activation_offloading": "activation_offloading",
        "attention": "attn_implementation",
        "fsdp.cpu_ram_efficient_loading": "fsdp_config.cpu_ram_efficient_loading",
        "fsdp.state_dict_type": "fsdp_config.state_dict_type",
        "gradient_accumulation": "gradient_accumulation_steps",
        "loading.dataloader_workers": "dataloader_num_workers",
        "loading.pin_memory": "dataloader_pin_memory",
        "optimizer.beta2": "adam_beta2",
        "optimizer.name": "optim",
        "optimizer.weight_decay": "weight_decay",
        "saving.save_total_limit": "save_total_limit",
        "schedule.learning_rate": "learning_rate",
        "schedule.warmup_steps": "warmup_steps",
        "sequence_len": "max_length",
        "torch_compile": "torch_compile",
    },
    "train_json": {
        "activation_checkpointing": "model.gradient_checkpointing",
        "attention": "model.attention",
        "gradient_accumulation": "batch.gradient_accumulation",
        "loading.dataloader_workers": "data.workers",
        "loading.pin_memory": "data.pin_memory",
        "loss_kernel": "model.loss_kernel",
        "sequence_len": "data.sequence_len",
    },
    "accelerate": {
        "fsdp.cpu_ram_efficient_loading": "fsdp_config.fsdp_cpu_ram_efficient_loading",
        "fsdp.state_dict_type": "fsdp_config.fsdp_state_dict_type",
        "parallelism.dp_shard": "parallelism_config.parallelism_config_dp_shard_size",
    },
}
_LISTS = ("adapter.target_modules", "eot_tokens")
_WORD = r"(?:[^\s,;()]|,(?!\s|$))+"
_SET = re.compile(rf"--set ([\w.]+)=({_WORD})|--({'|'.join(_OPTIONS)}) ({_WORD})")
_OF_KERNEL: Mapping[LossKernel, str] = {
    LossKernel.FUSED_LINEAR: "liger_fused_linear_cross_entropy",
    LossKernel.CHUNKED_UPCAST: "chunked_cross_entropy",
    LossKernel.CUT: "cut_cross_entropy",
}


def in_file_words(found: Finding, subject: Subject) -> Finding:
    """The finding with its fix in the keys of the file that it is about."""
    if "--" not in found.fix or recipe_yaml.NAME in subject.files or lock.NAME in subject.files:
        return found
    return replace(found, fix=_SET.sub(lambda match: _said(match, subject), found.fix))


def _said(match: re.Match[str], subject: Subject) -> str:
    name, value = (match[1], match[2]) if match[1] else (match[3], match[4])
    if name == "global-batch-size":
        return f"a global batch of {value} sequences (more {_key('gradient_accumulation', subject) or 'accumulation'})"
    path = _OPTIONS.get(name) or _SHORT.get(name, name)
    return _special(path, value, subject) or _plain(path, value, subject)


def _special(path: str, value: str, subject: Subject) -> str:
    """What takes more than one key, or another word."""
    if path == "method":
        return f"{value} on a base that is not quantised to 4 bits"
    if _format(path, subject) != "axolotl":
        return ""
    if path == "adapter.fused_kernels":
        return ", ".join(f"lora_{kernel}_kernel: {value}" for kernel in ("mlp", "qkv", "o"))
    if path == "loss_kernel":
        recipe = subject.assembled.recipe
        key = _OF_KERNEL.get(recipe.loss_kernel) if recipe else None
        return f"{key}: false" if key and value == LossKernel.STOCK.value else ""
    return ""


def _plain(path: str, value: str, subject: Subject) -> str:
    key = _key(path, subject)
    if not key:
        return f"set {path.rpartition('.')[2].replace('_', ' ')} to {value}"
    return f"{key}: [{', '.join(value.split(','))}]" if path in _LISTS else f"{key}: {value}"


def _key(path: str, subject: Subject) -> str:
    return KEYS.get(_format(path, subject), {}).get(path, "")


def _format(path: str, subject: Subject) -> str:
    """The format that states the field; else the trainer's own file; else the first file that could."""
    place = subject.assembled.provenance.get(path, "")
    name, _, line = place.rpartition(":")
    stated = subject.readings.get(name if line.isdigit() else place)
    main = subject.readings.get(subject.main)
    for reading in (stated, main, *subject.readings.values()):
        if reading is not None and path in KEYS.get(reading.format, {}):
            return reading.format
    return main.format if main else ""
