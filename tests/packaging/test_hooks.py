"""What other repositories take from this one: the hooks before a commit, and the action."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

from recipegen.cli.main import run

ROOT = Path(__file__).parents[2]
HOOKS: dict[str, dict[str, Any]] = {
    hook["id"]: hook for hook in yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text(encoding="utf-8"))
}
PROJECT = ROOT / "recipes/8x-rtx-5090/llama-3.1-8b-instruct-lora-4k"


def entry(hook: str, *files: str) -> int:
    program, *words = shlex.split(HOOKS[hook]["entry"])
    assert program == "recipegen"
    return run([*words, *files])


def test_files_of_a_recipe_pass_and_mistakes_do_not(tmp_path: Path) -> None:
    assert entry("recipegen-check", str(PROJECT / "axolotl.yaml"), str(PROJECT / "launch.sh")) == 0
    broken = tmp_path / "axolotl.yaml"
    broken.write_text((PROJECT / "axolotl.yaml").read_text().replace("\nlearning_rate:", "\nlearning_rte:"))
    assert entry("recipegen-check", str(broken)) == 1


@pytest.mark.parametrize("name", ["ci.yml", "package.json", "build.sh"])
def test_a_commit_without_a_recipe_passes(name: str, tmp_path: Path) -> None:
    file = tmp_path / name
    file.write_text("{}" if name.endswith("json") else "name: ci\n")
    assert entry("recipegen-check", str(file)) == 0
    assert run(["check", str(file)]) == 2


@pytest.mark.parametrize("file", ["action.yml", ".github/workflows/recipes.yml", ".github/workflows/ci.yml"])
def test_workflows_are_yaml_and_give_no_more_rights_than_they_need(file: str) -> None:
    document = yaml.safe_load((ROOT / file).read_text(encoding="utf-8"))
    assert "pull_request_target" not in (ROOT / file).read_text(encoding="utf-8")
    rights = document.get("permissions", {})
    assert set(rights.items()) <= {("contents", "read"), ("pull-requests", "write")}


def test_the_action_has_what_it_runs() -> None:
    action = yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))
    assert (ROOT / "scripts/action_review.sh").is_file()
    used = (ROOT / "action.yml").read_text(encoding="utf-8")
    assert all(f"inputs.{name}" in used for name in action["inputs"])
