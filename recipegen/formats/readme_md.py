"""README.md of a generated project: run, resume, watch, and what to do when it fails."""

from __future__ import annotations

from recipegen.formats.axolotl import OUTPUT_DIR
from recipegen.formats.decision_md import summary
from recipegen.formats.launcher import environment, hub_model
from recipegen.formats.rendering import render
from recipegen.spec import Decision, Method, Recipe
from recipegen.spec.units import gb, gib

_FILES = {
    "recipe.yaml": "what was asked for; the file to edit",
    "axolotl.yaml": "the whole recipe for Axolotl, with reasons",
    "train.py": "the training script; it decides nothing",
    "train.json": "the whole recipe for train.py",
    "accelerate.yaml": "which processes start where",
    "deepspeed.json": "ZeRO settings",
    "launch.sh": "starts it, on one node or several",
    "launch.slurm": "the same under Slurm",
    "requirements.txt": "the exact versions it was made for",
    "DECISION.md": "verdict, memory budget, alternatives",
    "recipe.lock": "what made these files, and their digests",
}


# What needs less memory per GPU, in recipe.yaml's words.
_CHEAPER = {Method.FULL: "lora", Method.LORA: "qlora"}
_SHORTEST = 512  # tokens


def write(decision: Decision, files: tuple[str, ...]) -> str:
    """The text of README.md. `files` are the names of the generated files."""
    recipe = decision.recipe
    return render(
        "README.md.j2",
        decision=decision,
        recipe=recipe,
        summary=summary(recipe),
        files=[(name, _FILES[name]) for name in _FILES if name in files],
        hub_model=hub_model(recipe),
        peer_to_peer_off=any(v.name == "NCCL_P2P_DISABLE" and v.value == "1" for v in environment(recipe)),
        cheaper_method=_CHEAPER.get(recipe.method),
        shorter=_shorter(recipe),
        config="axolotl.yaml" if recipe.trainer == "axolotl" else "train.json",
        output_dir=OUTPUT_DIR,
        reserved=gib(decision.estimate.gpu.needed_bytes),
        capacity=gib(decision.estimate.gpu.capacity_bytes),
        download=gb(decision.estimate.disk.download_bytes),
    )


def _shorter(recipe: Recipe) -> int | None:
    """Half the sequence length, in tokens; None when that is too short to be advice."""
    half = recipe.sequence_len // 2
    return half if half >= _SHORTEST else None
