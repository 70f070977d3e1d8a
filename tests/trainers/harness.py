"""Write a project with the real command line, launch it unchanged, and read back what ran.

The project is made by `recipegen new` in a process of its own; `launch.sh` is the generated one. What differs from a
real box is the environment only: PYTHONPATH has the CPU shim, and the reports' folder is named.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from recipegen.formats import lock
from recipegen.spec import Recipe, Strategy

HERE = Path(__file__).parent
SHIM = HERE / "cpu_shim"
HARDWARE = HERE.parent / "corpus" / "hardware"
LAUNCH_SECONDS = 900  # a launch takes 40 to 70 s on two quiet cores
_OURS = ("RECIPEGEN_", "ACCELERATE_", "FSDP_", "PARALLELISM_CONFIG_", "AXOLOTL_", "DS_")


class LaunchFailed(AssertionError):
    """launch.sh ended with an error; the text has the end of its output."""


@dataclass(frozen=True)
class Project:
    """A folder that `recipegen new` wrote."""

    folder: Path

    @property
    def recipe(self) -> Recipe:
        """The resolved recipe of recipe.lock."""
        return lock.read((self.folder / lock.NAME).read_bytes()).recipe

    @property
    def output_dir(self) -> Path:
        return self.folder / "outputs"


@dataclass(frozen=True)
class Run:
    """A finished launch: what each rank reported, in order of rank."""

    project: Project
    reports: tuple[Mapping[str, Any], ...]
    output: str
    seconds: float
    phases: Mapping[str, float] = field(default_factory=dict)

    @property
    def report(self) -> Mapping[str, Any]:
        """Rank 0's."""
        return self.reports[0]

    def losses(self) -> list[float]:
        return [step["loss"] for step in self.report["steps"]]

    def steps(self) -> dict[int, tuple[float, float]]:
        """Step -> (loss, gradient norm)."""
        return {step["step"]: (step["loss"], step["grad_norm"]) for step in self.report["steps"]}


def clean_environment() -> dict[str, str]:
    """This process's environment without anything that would steer a trainer, with the interpreter's tools first."""
    found = {name: value for name, value in os.environ.items() if not name.startswith(_OURS)}
    found["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), found.get("PATH", "")])
    return found


def make_project(
    folder: Path,
    *,
    model: Path,
    dataset: Path,
    hardware: str,
    method: str,
    settings: Mapping[str, object] | None = None,
    options: Sequence[str] = (),
) -> Project:
    """Run `recipegen new` with these options; the folder must not exist yet."""
    command = [
        sys.executable, "-m", "recipegen.cli.main", "new", folder.name, "--output", str(folder.parent),
        "--model", str(model), "--dataset", str(dataset),
        "--hardware", str(HARDWARE / f"{hardware}.yaml"), "--method", method, *options,
    ]  # fmt: skip
    for name, value in (settings or {}).items():
        command += ["--set", f"{name}={value}"]
    environment = clean_environment()
    environment["PYTHONPATH"] = str(HERE.parents[1])
    environment["HF_HUB_OFFLINE"] = "1"
    made = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300, check=False)
    assert made.returncode == 0, f"{' '.join(command)}\nexit {made.returncode}\n{made.stdout}\n{made.stderr}"
    return Project(folder)


def mode(recipe: Recipe) -> str:
    """What the shim has to stand in for."""
    strategy = recipe.parallelism.strategy
    if strategy.is_deepspeed:
        return "deepspeed"
    return {Strategy.SINGLE: "single", Strategy.DDP: "ddp"}.get(strategy, "sharded")


def launch(project: Project, *arguments: str, environment: Mapping[str, str] | None = None) -> Run:
    """Run launch.sh as it is. Raises LaunchFailed when it fails or a rank did not report."""
    recipe = project.recipe
    reports = project.folder.with_name(f"{project.folder.name}.report")
    shutil.rmtree(reports, ignore_errors=True)
    env = clean_environment() | {
        "PYTHONPATH": str(SHIM),
        "RECIPEGEN_TEST_CPU": mode(recipe),
        "RECIPEGEN_TEST_REPORT": str(reports),
        "RECIPEGEN_TEST_ADAPTER_SEED": str(recipe.seed),
        "HF_HUB_OFFLINE": "1",
        "HF_DATASETS_OFFLINE": "1",
        "HF_HOME": str(project.folder.with_name("hf-home")),
        **(environment or {}),
    }
    started = time.monotonic()
    ran = subprocess.run(
        ["bash", str(project.folder / "launch.sh"), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env=env,
        cwd=project.folder.parent,  # not the project's own: launch.sh finds its folder itself
        timeout=LAUNCH_SECONDS,
        check=False,
    )
    seconds = time.monotonic() - started
    tail = "\n".join(ran.stdout.splitlines()[-60:])
    if ran.returncode != 0:
        raise LaunchFailed(f"launch.sh of {project.folder.name}: exit {ran.returncode}\n{tail}")
    found = sorted(reports.glob("rank-*.json"), key=lambda path: int(path.stem.split("-")[1]))
    world = recipe.parallelism.world_size
    if len(found) != world:
        raise LaunchFailed(f"{len(found)} of {world} ranks reported from {project.folder.name}\n{tail}")
    return Run(project, tuple(json.loads(path.read_text()) for path in found), ran.stdout, seconds)


def resume(run: Run, step: int) -> Run:
    """Go on from the checkpoint of `step` in a copy of the folder that has no later one."""
    copy = run.project.folder.with_name(f"{run.project.folder.name}-resumed")
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(run.project.folder, copy)
    project = Project(copy)
    for entry in project.output_dir.iterdir():
        if entry.name == f"checkpoint-{step}":
            continue
        if entry.is_dir():
            shutil.rmtree(entry)
        else:
            entry.unlink()
    return launch(project, f"--resume=outputs/checkpoint-{step}")
