"""A Decision as the files of a project folder: names and bytes, nothing touched."""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping

from recipegen.catalog.resources import data_folder
from recipegen.formats import (
    accelerate,
    axolotl,
    decision_md,
    deepspeed,
    launcher,
    lock,
    readme_md,
    recipe_yaml,
    requirements,
)
from recipegen.spec import Decision, RecipegenError

EXECUTABLE = frozenset({"launch.sh", "launch.slurm"})
# Every name that recipegen writes, beside the scripts of templates/train*.py.
GENERATED = frozenset(
    {
        recipe_yaml.NAME,
        "axolotl.yaml",
        "train.json",
        "accelerate.yaml",
        "deepspeed.json",
        "launch.sh",
        "launch.slurm",
        "requirements.txt",
        "DECISION.md",
        "README.md",
        lock.NAME,
    }
)


def is_generated(name: str) -> bool:
    """Whether recipegen writes a file of this name. A lock may be somebody else's work: only such a file of it is ours
    to replace or remove."""
    script = name.startswith("train") and name.endswith(".py") and os.path.basename(name) == name
    return name in GENERATED or (script and (data_folder("templates") / name).is_file())


def render(decision: Decision, *, pins: Mapping[str, str] | None = None) -> dict[str, bytes]:
    """File names and contents of the project, recipe.lock last. Nothing is decided and nothing is written here.

    `pins` are the stack's package versions; None takes them from the catalogue. Raises RecipegenError for a recipe
    that a format cannot carry.
    """
    recipe = decision.recipe
    if pins is None:
        from recipegen.catalog import load_stack

        pins = load_stack(recipe.stack).pins
    texts = {recipe_yaml.NAME: recipe_yaml.write(decision.request)}
    texts |= configs(decision)
    texts["launch.sh"] = launcher.write(recipe)
    texts["launch.slurm"] = launcher.write_slurm(recipe)
    texts["requirements.txt"] = requirements.write(recipe, pins)
    texts["DECISION.md"] = decision_md.write(decision)
    texts["README.md"] = readme_md.write(decision, (*texts, "README.md", lock.NAME))
    files = {name: text.encode("utf-8") for name, text in texts.items()}
    files[lock.NAME] = lock.write(recipe, files).encode("utf-8")
    return files


def configs(decision: Decision) -> dict[str, str]:
    """The trainer's own files, and the script where there is one."""
    texts = _axolotl(decision) if decision.recipe.trainer == "axolotl" else _accelerate(decision)
    if decision.recipe.deepspeed is not None:
        texts["deepspeed.json"] = deepspeed.write(decision.recipe)
    return texts


def _axolotl(decision: Decision) -> dict[str, str]:
    return {
        "axolotl.yaml": axolotl.write(decision.recipe, decision.model, decision.reasons),
        "accelerate.yaml": accelerate.write(decision.recipe),
    }


def _accelerate(decision: Decision) -> dict[str, str]:
    """train.json, the complete accelerate configuration, and the training script as it lies in templates/."""
    if decision.recipe.trainer != "accelerate":
        raise RecipegenError(f"unknown trainer {decision.recipe.trainer!r}", fix="Use axolotl or accelerate.")
    train_json = importlib.import_module("recipegen.formats.train_json")
    accelerate_full = importlib.import_module("recipegen.formats.accelerate_full")
    texts = {path.name: path.read_text(encoding="utf-8") for path in sorted(data_folder("templates").glob("train*.py"))}
    texts["train.json"] = train_json.write(decision.recipe, decision.model, decision.reasons)
    texts["accelerate.yaml"] = accelerate_full.write(decision.recipe, decision.model, decision.reasons)
    return texts
