"""The small commands: what is known, and why."""

import json

import pytest

from recipegen.cli.main import run
from recipegen.rules import all_rules


def test_models_are_listed_and_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["models", "list"]) == 0
    assert "meta-llama/Llama-3.1-8B" in capsys.readouterr().out
    assert run(["models", "list", "--format", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert len(document["models"]) >= 40
    assert run(["models", "show", "Llama-3.1-8B", "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["model"]["num_parameters"] == 8_030_261_248


def test_hardware_is_listed_and_shown_with_sources(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["hardware", "list", "--format", "json"]) == 0
    names = json.loads(capsys.readouterr().out)["profiles"]
    assert sum(n.startswith("kentino-") for n in names) == 20
    assert run(["hardware", "show", "kentino-4x-rtx-4090"]) == 0
    out = capsys.readouterr().out
    assert "https://" in out
    assert "mark" in out


@pytest.mark.parametrize("rule", [r.id for r in all_rules()] + ["RG701", "rg101"])
def test_every_rule_is_explained(capsys: pytest.CaptureFixture[str], rule: str) -> None:
    assert run(["explain", rule]) == 0
    assert rule.upper() in capsys.readouterr().out


def test_fields_are_listed_with_their_values(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["explain", "fields"]) == 0
    out = capsys.readouterr().out
    assert "parallelism.strategy" in out
    assert "fsdp2_hybrid" in out


def test_an_unknown_rule_gets_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["explain", "RG1O1"]) == 2
    assert "Did you mean RG" in capsys.readouterr().err


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts_are_printed(capsys: pytest.CaptureFixture[str], shell: str) -> None:
    assert run(["completion", shell]) == 0
    assert "_RECIPEGEN_COMPLETE" in capsys.readouterr().out


@pytest.mark.parametrize("command", ["plan", "new", "models", "hardware", "explain", "completion"])
def test_help_has_examples_or_commands(capsys: pytest.CaptureFixture[str], command: str) -> None:
    assert run([command, "--help"]) == 0
    out = capsys.readouterr().out
    assert "Examples:" in out or "Commands:" in out
