"""The whole way: two branches of a real repository, the action's script, the comment on a pull request."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from github_server import GitHub
from sides import LORA, edited

ROOT = Path(__file__).parents[2]
GENERATED = ROOT / "recipes/8x-rtx-5090"
PROJECT = "llama-3.1-8b-instruct-lora-4k"
HOSTILE = "@everyone <img src=x onerror=alert(1)> ](https://evil.example) $(touch canary)"


@pytest.fixture
def github() -> Iterator[GitHub]:
    server = GitHub()
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


def git(folder: Path, *words: str) -> str:
    command = ["git", "-c", "user.name=a", "-c", "user.email=a@example.org", *words]
    return subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def repository(tmp_path: Path) -> tuple[Path, str, str]:
    """Generated and hand-written recipes on two branches; the folder, base and head."""
    folder = tmp_path / "repository"
    (folder / "mine").mkdir(parents=True)
    git(folder, "init", "-q", "-b", "main")
    shutil.copytree(GENERATED / PROJECT, folder / "recipes" / PROJECT)
    shutil.copytree(GENERATED / "qwen3-14b-lora-4k", folder / "recipes/qwen3-14b-lora-4k")
    (folder / "mine/axolotl.yaml").write_text(LORA)
    (folder / ".recipegen.yaml").write_text("review:\n  fail_on: [does_not_fit]\n")
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", "base")
    base = git(folder, "rev-parse", "HEAD")
    git(folder, "checkout", "-qb", "topic")
    config = folder / "recipes" / PROJECT / "axolotl.yaml"
    config.write_text(config.read_text().replace("\nmicro_batch_size: ", "\nmicro_batch_size: 6"))
    (folder / "mine/axolotl.yaml").write_text(edited(LORA, ("path: data.jsonl", f"path: '{HOSTILE}'")))
    (folder / ".recipegen.yaml").write_text("review:\n  fail_on: []\n")
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", "head")
    return folder, base, git(folder, "rev-parse", "HEAD")


def act(folder: Path, base: str, head: str, temporary: Path, **variables: str) -> tuple[str, dict[str, str]]:
    """The script of the action, as a runner starts it; its log and its outputs."""
    tool = temporary / "recipegen/bin/recipegen"
    tool.parent.mkdir(parents=True, exist_ok=True)
    if not tool.exists():
        tool.write_text(f'#!/bin/sh\nexec {sys.executable} -c "from recipegen.cli.main import main; main()" "$@"\n')
        tool.chmod(0o755)
    output, summary = temporary / "output", temporary / "summary"
    output.write_text("")
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "RUNNER_TEMP": str(temporary),
        "GITHUB_OUTPUT": str(output),
        "GITHUB_STEP_SUMMARY": str(summary),
        "BASE": base,
        "HEAD": head,
        "HARDWARE": "",
        "PATHS": "",
        **variables,
    }
    done = subprocess.run(
        ["bash", str(ROOT / "scripts/action_review.sh")],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout, dict(line.split("=", 1) for line in output.read_text().splitlines())


def comment(folder: Path, file: str, github: GitHub, *words: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "GITHUB_TOKEN": "a-token", "GITHUB_API_URL": github.api}
    command = [sys.executable, "-c", "from recipegen.cli.main import main; main()", "comment", file]
    command += ["--repository", "owner/name", "--pull-request", "7", *words]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=True).stdout


def test_from_two_branches_to_the_comment(repository: tuple[Path, str, str], tmp_path: Path, github: GitHub) -> None:
    folder, base, head = repository
    log, outputs = act(folder, base, head, tmp_path / "runner")
    assert outputs["code"] == "1"  # the base's policy, not the head's
    assert f"::error file=recipes/{PROJECT}/axolotl.yaml,line=" in log
    assert "created" in comment(folder, outputs["file"], github)
    assert "unchanged" in comment(folder, outputs["file"], github)
    (posted,) = github.comments
    body = posted["body"]
    assert body.startswith("<!-- recipegen-review -->\n")
    questions = ["Does it fit?", "a different experiment?", "still resume?", "What does it cost?"]
    places = [body.index(question) for question in questions]
    assert places == sorted(places)
    assert PROJECT in body
    assert "qwen3-14b" not in body
    outside = re.sub(r"(`+)[^`]+\1", "", body)  # in a code span it is text
    for text in ("<img", "](https://evil", "@everyone"):
        assert text not in outside
    assert not list(tmp_path.rglob("canary"))
    assert git(folder, "status", "--porcelain") == ""
    assert (tmp_path / "runner/summary").read_text() == body


def test_a_later_push_edits_the_comment(repository: tuple[Path, str, str], tmp_path: Path, github: GitHub) -> None:
    folder, base, head = repository
    comment(folder, act(folder, base, head, tmp_path / "runner")[1]["file"], github)
    git(folder, "revert", "--no-edit", head)
    _, outputs = act(folder, base, git(folder, "rev-parse", "HEAD"), tmp_path / "runner", SILENT="notice")
    assert outputs["code"] == "0"
    assert outputs["quiet"] == "true"
    assert "updated" in comment(folder, outputs["file"], github, "--only-update")
    (posted,) = github.comments
    assert PROJECT not in posted["body"]


def test_nothing_to_say_stays_silent(repository: tuple[Path, str, str], tmp_path: Path, github: GitHub) -> None:
    folder, base, _ = repository
    git(folder, "checkout", "-q", base)
    (folder / "README.md").write_text("words")
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", "words")
    _, outputs = act(folder, base, git(folder, "rev-parse", "HEAD"), tmp_path / "runner", SILENT="alarm")
    assert outputs["quiet"] == "true"
    comment(folder, outputs["file"], github, "--only-update")
    assert github.comments == []


def test_a_forks_token_may_not_comment(repository: tuple[Path, str, str], tmp_path: Path, github: GitHub) -> None:
    folder, base, head = repository
    github.status = 403
    _, outputs = act(folder, base, head, tmp_path / "runner")
    assert comment(folder, outputs["file"], github) == ""


def test_a_shallow_clone_fetches_the_base(repository: tuple[Path, str, str], tmp_path: Path) -> None:
    folder, base, head = repository
    git(folder, "config", "uploadpack.allowAnySHA1InWant", "true")
    clone = tmp_path / "clone"
    git(tmp_path, "clone", "-q", "--depth=1", "--branch=topic", f"file://{folder}", str(clone))
    _, outputs = act(clone, base, head, tmp_path / "runner")
    assert outputs["code"] == "1"


def test_the_action_hands_values_over_as_variables() -> None:
    """A value in the text of a script would be run: `${{ }}` stands in `env:` and `if:` alone."""
    import yaml

    action = yaml.safe_load((ROOT / "action.yml").read_text())
    for step in action["runs"]["steps"]:
        assert "${{" not in step["run"]
    assert "pull_request_target" not in (ROOT / "docs/review.md").read_text()
