"""launch.sh and launch.slurm: how the processes of a recipe start on one machine, on several, and under Slurm.

The scripts are the same for every model and path: what a user chose reaches them as one quoted word, and the trainer's
own numbers stay in the trainer's files.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from recipegen.formats.axolotl import OUTPUT_DIR, PREPARED_PATH, slug
from recipegen.formats.rendering import render
from recipegen.spec import EnvVar, Recipe, RecipegenError

JOURNAL = ".recipegen-commit"  # left by an interrupted `recipegen new --force` (recipegen/project/atomic.py)

# Exported when the profile does not say otherwise; the caller's environment wins over both.
_DEFAULTS = (
    EnvVar("HF_HUB_DISABLE_TELEMETRY", "1", "no telemetry"),
    EnvVar("DO_NOT_TRACK", "1", "no telemetry"),
    EnvVar("AXOLOTL_DO_NOT_TRACK", "1", "Axolotl sends the configuration out otherwise, and hangs at exit offline"),
    EnvVar("TOKENIZERS_PARALLELISM", "false", "tokenizer threads and forked data loaders deadlock"),
    EnvVar("PYTORCH_ALLOC_CONF", "expandable_segments:True", "less fragmentation of GPU memory"),
    EnvVar("NCCL_DEBUG", "WARN", "a failing link says so"),
)
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
# A name of the Hugging Face Hub: owner/name or name. Anything else is a path, and nothing is downloaded for it.
_HUB_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9][A-Za-z0-9._-]*)?\Z")


@dataclass(frozen=True)
class Commands:
    """What a trainer needs on its command line. `resume` and `resume_from` are printed into the script as they are."""

    module: tuple[str, ...]  # arguments of `accelerate launch` after its own options
    prepare: tuple[str, ...]  # arguments of `python`: tokenize once, without GPUs
    prepared_from: tuple[str, ...]  # files whose change means: tokenize again
    resume_latest: str
    resume_from: str  # prefix of a checkpoint's path


_COMMANDS = {
    "axolotl": Commands(
        module=("-m", "axolotl.cli.train", "axolotl.yaml"),
        prepare=("-m", "axolotl.cli.preprocess", "axolotl.yaml", "--download=False"),
        prepared_from=("axolotl.yaml",),
        resume_latest="--auto_resume_from_checkpoints=True",
        resume_from="--resume_from_checkpoint=",
    ),
    "accelerate": Commands(
        module=("train.py",),
        prepare=("train.py", "--prepare"),
        prepared_from=("train.json",),
        resume_latest="--resume=latest",
        resume_from="--resume=",
    ),
}


def write(recipe: Recipe) -> str:
    """The text of launch.sh."""
    return render(
        "launch.sh.j2",
        recipe=recipe,
        commands=_commands(recipe),
        environment=environment(recipe),
        local_data=[spec.path for spec in recipe.datasets if spec.local],
        hub_model=hub_model(recipe),
        swap=recipe.deepspeed.nvme_path if recipe.deepspeed else None,
        output_dir=OUTPUT_DIR,
        prepared=PREPARED_PATH,
        journal=JOURNAL,
    )


def write_slurm(recipe: Recipe) -> str:
    """The text of launch.slurm: the same launch.sh, one task a node."""
    return render("launch.slurm.j2", recipe=recipe, job_name=slug(recipe.model), output_dir=OUTPUT_DIR)


def hub_model(recipe: Recipe) -> str | None:
    """The name under which the model is downloaded from the Hub; None for a folder, which is read in place."""
    return recipe.model if _HUB_ID.match(recipe.model) else None


def _commands(recipe: Recipe) -> Commands:
    try:
        return _COMMANDS[recipe.trainer]
    except KeyError:
        raise RecipegenError(f"unknown trainer {recipe.trainer!r}", fix="Use axolotl or accelerate.") from None


def environment(recipe: Recipe) -> list[EnvVar]:
    """Variables of launch.sh in order. A later one of the same name (the profile's) replaces an earlier one."""
    chosen = {variable.name: variable for variable in _DEFAULTS}
    threads = EnvVar("OMP_NUM_THREADS", str(recipe.launch.omp_num_threads), "CPU threads per process; unset means 1")
    chosen[threads.name] = threads
    if recipe.parallelism.world_size == 1:
        chosen["CUDA_VISIBLE_DEVICES"] = EnvVar("CUDA_VISIBLE_DEVICES", "0", "the recipe is for one GPU")
    for variable in recipe.launch.environment:
        if not _NAME.match(variable.name):
            raise RecipegenError(f"{variable.name!r} is not the name of an environment variable", where="environment")
        chosen[variable.name] = variable
    return list(chosen.values())
