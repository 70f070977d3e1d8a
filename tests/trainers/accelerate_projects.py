"""Projects of `recipegen new --trainer accelerate`, launched unchanged on CPU, and the events that train.py printed."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.trainers import harness

STEPS, CHECKPOINT, RATE, GLOBAL_BATCH = 12, 6, 1e-3, 8


@dataclass(frozen=True)
class Run:
    """A project and the events that rank 0 printed."""

    project: harness.Project
    events: list[dict[str, Any]]

    def one(self, event: str) -> dict[str, Any]:
        """The only event of this kind."""
        (found,) = [e for e in self.events if e["event"] == event]
        return found

    def steps(self) -> dict[int, tuple[float, float]]:
        """Step -> (loss, gradient norm)."""
        return {e["step"]: (e["loss"], e["grad_norm"]) for e in self.events if e["event"] == "step"}

    def losses(self) -> list[float]:
        return [loss for loss, _ in self.steps().values()]


def launch(project: harness.Project, *arguments: str) -> Run:
    """Run launch.sh as it is, with the shim in the environment."""
    environment = harness.clean_environment() | {
        "PYTHONPATH": str(harness.SHIM),
        "RECIPEGEN_TEST_CPU": harness.mode(project.recipe),
        "HF_HUB_OFFLINE": "1",
        "HF_HOME": str(project.folder.with_name("hf-home")),
    }
    ran = subprocess.run(
        ["bash", str(project.folder / "launch.sh"), *arguments],
        capture_output=True, text=True, errors="replace", env=environment, cwd=project.folder.parent,
        timeout=harness.LAUNCH_SECONDS, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, (
        f"{project.folder.name}: exit {ran.returncode}\n{ran.stdout[-2000:]}\n{ran.stderr[-4000:]}"
    )
    lines = [line for line in ran.stdout.splitlines() if line.startswith('{"event"')]
    return Run(project, [json.loads(line) for line in lines])


def resumed(run: Run, name: str, *, under: harness.Project | None = None) -> Run:
    """Go on from the middle checkpoint of `run` in a copy of a project without other checkpoints."""
    project = under or run.project
    copy = project.folder.with_name(name)
    shutil.copytree(project.folder, copy, ignore=shutil.ignore_patterns("outputs"))
    wanted = f"checkpoint-{CHECKPOINT}"
    shutil.copytree(run.project.output_dir / wanted, copy / "outputs" / wanted)
    return launch(harness.Project(copy), "--resume")


def new_project(folder: Path, tiny_world: Any, case: Mapping[str, Any]) -> harness.Project:
    """`recipegen new` for a case: method (full), hardware, strategy and further settings.

    Two micro-batches a step everywhere: the loss must be weighed by tokens over both, and over all ranks.
    """
    settings = {
        "strategy": case["strategy"],
        "learning_rate": RATE,
        "max_steps": STEPS,
        "save_steps": CHECKPOINT,
        "warmup_steps": 2,
        "logging_steps": 1,
        "sequence_len": 256,
        "packing": False,
        "gradient_accumulation": 2,
        **case.get("settings", {}),
    }
    return harness.make_project(
        folder,
        model=tiny_world.models["llama"],
        dataset=tiny_world.data["chat"],
        hardware=case["hardware"],
        method=case.get("method", "full"),
        settings=settings,
        options=("--trainer", "accelerate", "--global-batch-size", str(GLOBAL_BATCH)),
    )
