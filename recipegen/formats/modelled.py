"""Keys that a recipe already decides: passing them on beside it would void the plan without a word."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from recipegen.formats import axolotl
from recipegen.spec import Recipe, RecipegenError

# Not written, but each changes what the plan is about: the mesh, the engine, the precision, the kind of training.
_DECIDE = {
    "fsdp": "--set strategy=...",
    "fsdp_final_state_dict_type": "--set fsdp.state_dict_type=...",
    "load_in_8bit": "--method qlora",
    "load_in_4bit": "--method qlora",
    "adapter": "--method",
    "bfloat16": "",
    "float16": "",
    "fp8": "",
    "rl": "",
    "batch_size": "--global-batch-size",
    "unfrozen_parameters": "",
    "pretraining_dataset": "--dataset",
    "test_datasets": "--set val_set_size=...",
    "save_strategy": "--set save_steps=...",
    "saves_per_epoch": "--set save_steps=...",
    "evals_per_epoch": "--set eval_steps=...",
    "expert_parallel_size": "",
    # needs memory that the estimate would not see
    "eval_batch_size": "",
}
# Places that launch.sh knows by name.
_OURS = ("output_dir", "dataset_prepared_path", "plugins")


def refuse_modelled_keys(recipe: Recipe) -> None:
    """Raise RecipegenError for the first passed-on axolotl key that the recipe decides, with the way to set it."""
    if recipe.trainer != "axolotl":
        return
    written = set(_paths(axolotl.values(recipe)))
    for key in _paths(recipe.passthrough.get("axolotl", {})):
        top = key.partition(".")[0]
        fields = axolotl.FIELDS.get(key) or axolotl.FIELDS.get(top, ())
        if key in written or top in axolotl.FIELDS or top in _DECIDE or top in _OURS:
            fix = f"Use --set {fields[0]}=..." if fields else f"Use {_DECIDE[top]}" if _DECIDE.get(top) else None
            raise RecipegenError(f"axolotl.{key} is decided by the recipe and cannot be passed on beside it", fix=fix)


def _paths(values: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from _paths(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}"
