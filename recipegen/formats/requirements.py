"""requirements.txt: the exact versions of the tested stack, and only the packages that this recipe uses."""

from __future__ import annotations

from collections.abc import Mapping

from recipegen.formats.rendering import render
from recipegen.spec import LossKernel, Method, Recipe, RecipegenError

_TRAINER = {
    "axolotl": ("torch", "axolotl", "transformers", "accelerate", "peft"),
    "accelerate": ("torch", "transformers", "accelerate", "peft"),
}
_OPTIMIZERS = {"optimi_adamw": "torch-optimi", "flash_adamw": "flashoptim"}
_LOGGERS = ("tensorboard", "wandb", "trackio", "mlflow")
_WITH_AXOLOTL = ("tensorboard", "wandb", "trackio")  # Axolotl brings these along, in versions of its own


def write(recipe: Recipe, pins: Mapping[str, str]) -> str:
    """The text of requirements.txt. `pins` maps package names to the versions of the stack."""
    exact, loose = [], []
    for name in packages(recipe):
        version = _version(name, pins)
        if version is None:
            loose.append(name)
        else:
            exact.append(f"{name}=={version}")
    return render("requirements.txt.j2", recipe=recipe, exact=exact, loose=loose)


def _version(name: str, pins: Mapping[str, str]) -> str | None:
    """The pinned version of a package, spelt with dashes, underscores or capitals; None when the stack has none."""
    wanted = name.lower().replace("_", "-")
    return next((version for pin, version in pins.items() if pin.lower().replace("_", "-") == wanted), None)


def packages(recipe: Recipe) -> list[str]:
    """Names of the packages that the recipe needs, the trainer's first."""
    if recipe.trainer not in _TRAINER:
        raise RecipegenError(f"unknown trainer {recipe.trainer!r}", fix="Use axolotl or accelerate.")
    names = list(_TRAINER[recipe.trainer])
    if recipe.method is Method.QLORA or "8bit" in recipe.optimizer.name or recipe.trainer == "axolotl":
        names.append("bitsandbytes")
    if recipe.optimizer.name in _OPTIMIZERS:
        names.append(_OPTIMIZERS[recipe.optimizer.name])
    if recipe.loss_kernel is LossKernel.FUSED_LINEAR:
        names.append("liger-kernel")
    if recipe.attention == "flash_attention_2":
        names.append("flash-attn")
    if recipe.deepspeed is not None:
        names.append("deepspeed")
    if recipe.trainer == "accelerate":
        names += _data_readers(recipe)
    if recipe.saving.logger in _LOGGERS and not (recipe.trainer == "axolotl" and recipe.saving.logger in _WITH_AXOLOTL):
        names.append(recipe.saving.logger)
    return names


def _data_readers(recipe: Recipe) -> list[str]:
    """What train.py reads data with, beside the standard library."""
    names = []
    if any(not spec.local for spec in recipe.datasets):
        names.append("datasets")
    if any(spec.path.endswith(".parquet") for spec in recipe.datasets):
        names.append("pyarrow")
    return names
