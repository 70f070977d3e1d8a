"""What a file is, by its content; its name counts only where the content cannot be read."""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import Enum
from functools import cache
from typing import Any

from recipegen.catalog.stack import load_stack
from recipegen.formats import arguments_read, lock, recipe_yaml
from recipegen.formats.documents import Document
from recipegen.spec import Request


class Kind(str, Enum):
    """A format. SCRIPT and SBATCH are shell; OTHER is none of them."""

    AXOLOTL = "axolotl"
    ACCELERATE = "accelerate"
    DEEPSPEED = "deepspeed"
    TRAIN_JSON = "train.json"
    ARGUMENTS = "arguments"
    RECIPE = "recipe.yaml"
    LOCK = "recipe.lock"
    SCRIPT = "script"
    SBATCH = "sbatch"
    REQUIREMENTS = "requirements.txt"
    OTHER = "other"

    @property
    def is_main(self) -> bool:
        """A trainer's own file: a project is built around it."""
        return self in (Kind.AXOLOTL, Kind.TRAIN_JSON, Kind.ARGUMENTS)

    @property
    def is_script(self) -> bool:
        return self in (Kind.SCRIPT, Kind.SBATCH)


_SCRIPT_ENDINGS = (".sh", ".bash", ".slurm", ".sbatch")
_SHEBANG = re.compile(rb"#![^\n]*\b(bash|sh|dash|zsh)\b")
_SBATCH = re.compile(rb"^#SBATCH\b", re.MULTILINE)
_LAUNCHES = re.compile(rb"\b(accelerate|torchrun|deepspeed|axolotl|llamafactory-cli|trl|srun)\s|torch\.distributed")
_TOP_KEY = re.compile(r"^[\"']?([A-Za-z_][A-Za-z0-9_]*)[\"']?\s*:", re.MULTILINE)
_JSON_KEY = re.compile(r"\"([A-Za-z_][A-Za-z0-9_]*)\"\s*:")
_ACCELERATE = {"compute_environment", "distributed_type", "num_machines", "num_processes", "mixed_precision"}
_DEEPSPEED = {
    "zero_optimization", "train_micro_batch_size_per_gpu", "zero_allow_untested_optimizer", "wall_clock_breakdown",
    "zero_force_ds_cpu_optimizer",
}  # fmt: skip
_TRAIN_SECTIONS = {"model", "data", "batch", "optimizer", "schedule", "saving"}
_RECIPE = {"format_version", "model", "hardware"}
_LOCK = {"format_version", "tool_version", "files", "recipe"}
# Keys that only one trainer's file has; one of them, with others, decides.
_AXOLOTL = {
    "base_model",
    "micro_batch_size",
    "sequence_len",
    "sample_packing",
    "datasets",
    "num_epochs",
    "val_set_size",
}
_ARGUMENTS = {
    "model_name_or_path", "per_device_train_batch_size", "num_train_epochs", "gradient_accumulation_steps",
    "learning_rate",
}  # fmt: skip
_MODEL_CONFIG = {"architectures", "model_type", "hidden_size"}  # a model's config.json, however it is called
_ENOUGH = 2  # keys of a trainer that make a file its own
_NAMES = (
    ("axolotl", Kind.AXOLOTL), ("accelerate", Kind.ACCELERATE), ("deepspeed", Kind.DEEPSPEED), ("zero", Kind.DEEPSPEED),
)  # fmt: skip


def classify(content: bytes, name: str, document: Document | None) -> Kind:
    """The format of a file. `document` is what could be read of a YAML or JSON file; None for any other."""
    base = name.rpartition("/")[2]
    if base == lock.NAME:
        return Kind.LOCK
    if base == "requirements.txt":
        return Kind.REQUIREMENTS
    if document is None:
        return _script(content, base)
    if document.values is None:
        return _unreadable(content, base)
    return _of_keys(document.values)


def is_document(content: bytes, name: str) -> bool:
    """YAML or JSON by its ending; without one, whatever does not look like a script."""
    base = name.rpartition("/")[2]
    if base.endswith((".yaml", ".yml", ".json")) or base == lock.NAME:
        return True
    return "." not in base.lstrip(".") and not _SHEBANG.match(content)


def _script(content: bytes, base: str) -> Kind:
    if _SBATCH.search(content):
        return Kind.SBATCH
    if base.endswith(_SCRIPT_ENDINGS) or _SHEBANG.match(content):
        return Kind.SCRIPT if _LAUNCHES.search(content) or b"python" in content else Kind.OTHER
    return Kind.OTHER


def _unreadable(content: bytes, base: str) -> Kind:
    """A broken file is still somebody's: by the keys that a line begins with, else by its name."""
    text = content.decode("utf-8", "replace")
    keys = (_JSON_KEY if base.endswith(".json") else _TOP_KEY).findall(text)
    found = _of_keys({key: {} for key in keys})
    if found is not Kind.OTHER:
        return found
    if base == recipe_yaml.NAME:
        return Kind.RECIPE
    if base == "train.json":
        return Kind.TRAIN_JSON
    return next((kind for word, kind in _NAMES if word in base.lower()), Kind.OTHER)


def _of_keys(values: Mapping[str, Any]) -> Kind:
    keys = set(values)
    if keys >= _LOCK:
        return Kind.LOCK
    if keys >= _RECIPE and keys & {field for field in Request.__dataclass_fields__ if field not in _RECIPE}:
        return Kind.RECIPE
    if len({key for key in keys & _TRAIN_SECTIONS if isinstance(values[key], Mapping)}) > len(_TRAIN_SECTIONS) // 2:
        return Kind.TRAIN_JSON
    if "base_model" in keys:
        return Kind.AXOLOTL
    if keys & {"compute_environment", "distributed_type"} or len(keys & _ACCELERATE) > _ENOUGH:
        return Kind.ACCELERATE
    if keys & _DEEPSPEED or any(_switch(values.get(key)) for key in ("bf16", "fp16")):
        return Kind.DEEPSPEED
    if keys >= _MODEL_CONFIG:
        return Kind.OTHER
    known = _axolotl_keys()
    axolotl = sum(key in known for key in keys if not arguments_read.understands(key))
    arguments = sum(arguments_read.understands(key) for key in keys if key not in known)
    if "model_name_or_path" in keys and "base_model" not in keys:
        axolotl = 0
    if keys & _AXOLOTL and axolotl >= _ENOUGH and axolotl >= arguments:
        return Kind.AXOLOTL
    if keys & _ARGUMENTS and sum(map(arguments_read.understands, keys)) >= _ENOUGH:
        return Kind.ARGUMENTS
    return Kind.OTHER


def _switch(value: Any) -> bool:
    return isinstance(value, Mapping) and "enabled" in value


@cache
def _axolotl_keys() -> frozenset[str]:
    schema = load_stack(Request.stack).axolotl_keys()
    return frozenset(schema["objects"][schema["root"]])
