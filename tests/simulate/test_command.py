"""`recipegen simulate`: what it refuses, in one line and without torch, and what it prints."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import jsonschema
import pytest

from recipegen.cli.main import run
from recipegen.simulate import support
from recipegen.spec import Method, RecipegenError, Strategy
from tests.recipes_for_tests import recipe

SCHEMA = json.loads((Path(__file__).parents[2] / "docs/schemas/simulate.schema.json").read_text())
CONFIG = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 377,
    "max_position_embeddings": 2048,
}
Captured = pytest.CaptureFixture[str]
Project = Callable[..., Path]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    """A project of a tiny model, written by `recipegen new`."""

    def make(*options: str) -> Path:
        (tmp_path / "model").mkdir(exist_ok=True)
        (tmp_path / "model/config.json").write_text(json.dumps(CONFIG))
        data = tmp_path / "data.jsonl"
        data.write_text(
            "".join('{"instruction": "Say something.", "input": "", "output": "Yes."}\n' for _ in range(40))
        )
        folder = tmp_path / "project"
        monkeypatch.chdir(tmp_path)
        code = run(["new", "project", "--model", str(tmp_path / "model"), "--dataset", str(data),
                    "--hardware", "kentino-8x-rtx-5090", *options])  # fmt: skip
        assert code == 0
        return folder

    return make


def complaint(capsys: Captured, *args: str) -> str:
    """The one line on stderr of a command that ends with 2."""
    capsys.readouterr()
    assert run(["simulate", *args]) == 2
    out = capsys.readouterr()
    assert out.out == ""
    assert out.err.startswith("error: ")
    assert out.err.count("\n") == 1
    assert "Traceback" not in out.err
    return out.err


# --- bad input


def test_a_folder_that_is_not_there(capsys: Captured, tmp_path: Path) -> None:
    assert "No such file" in complaint(capsys, str(tmp_path / "nowhere"))


def test_a_folder_without_a_lock(capsys: Captured, tmp_path: Path) -> None:
    assert "recipegen new" in complaint(capsys, str(tmp_path))


def test_a_file_instead_of_a_folder(capsys: Captured, tmp_path: Path) -> None:
    (tmp_path / "x").write_text("")
    assert "not a folder" in complaint(capsys, str(tmp_path / "x"))


@pytest.mark.parametrize(
    "content", ["", "{", "[]", '{"format_version": 99}', '{"format_version": 1, "recipe": {"model": 3}}', "\x00\xff"]
)
def test_a_lock_that_is_none(capsys: Captured, tmp_path: Path, content: str) -> None:
    (tmp_path / "recipe.lock").write_text(content)
    assert "recipe.lock" in complaint(capsys, str(tmp_path))


def test_a_lock_whose_recipe_was_damaged(capsys: Captured, project: Project) -> None:
    folder = project("--method", "full")
    lock = json.loads((folder / "recipe.lock").read_text())
    lock["recipe"]["parallelism"]["dp_shard"] = 7
    (folder / "recipe.lock").write_text(json.dumps(lock))
    assert "world_size" in complaint(capsys, str(folder))


@pytest.mark.parametrize(
    ("name", "value"),
    [("sequence_len", -1), ("sequence_len", 10**30), ("micro_batch_size", 0), ("gradient_accumulation", -3),
     ("micro_batch_size", 10**8), ("trainer", "x")],
)  # fmt: skip
def test_a_lock_with_numbers_that_no_step_can_have(
    capsys: Captured, project: Project, name: str, value: int | str
) -> None:
    folder = project("--method", "full")
    lock = json.loads((folder / "recipe.lock").read_text())
    lock["recipe"][name] = value
    (folder / "recipe.lock").write_text(json.dumps(lock))
    assert name.replace("micro_batch_size", "micro") in complaint(capsys, str(folder)).replace("_batch_size", "")


def test_a_folder_and_options_that_would_change_it(capsys: Captured, project: Project) -> None:
    assert "--method" in complaint(capsys, str(project()), "--method", "full")


def test_deepspeed_is_not_simulated(capsys: Captured, project: Project) -> None:
    folder = project("--method", "full", "--set", "strategy=zero2")
    said = complaint(capsys, str(folder))
    assert "not simulated" in said
    assert "ZeRO-2" in said


def test_without_torch_it_says_what_to_install(
    capsys: Captured, project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = project("--method", "full")
    monkeypatch.setattr(support, "find_spec", lambda name: None)
    said = complaint(capsys, str(folder))
    assert "torch" in said
    assert "recipegen[simulate]" in said


def test_the_command_and_its_room_import_no_torch() -> None:
    code = (
        "import sys, recipegen.cli.simulate, recipegen.simulate; "
        "sys.exit(any(name in sys.modules for name in ('torch', 'transformers', 'peft')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_neither_a_folder_nor_a_model(capsys: Captured) -> None:
    assert "--model" in complaint(capsys)


def test_help_has_examples(capsys: Captured) -> None:
    assert run(["simulate", "--help"]) == 0
    assert "recipegen simulate my-project" in capsys.readouterr().out


# --- answers


@pytest.mark.stack
def test_a_project_is_simulated_beside_its_estimate(capsys: Captured, project: Project) -> None:
    folder = project("--method", "lora")
    capsys.readouterr()
    assert run(["simulate", str(folder)]) == 0
    out = capsys.readouterr()
    assert out.out.startswith("estimate ")
    assert "simulated" in out.out.splitlines()[0]
    assert "loss backward" in out.out
    assert out.err == ""


@pytest.mark.stack
def test_json_holds_to_its_schema_and_its_sums(capsys: Captured, project: Project) -> None:
    folder = project("--method", "full", "--set", "strategy=fsdp2_full")
    capsys.readouterr()
    assert run(["simulate", str(folder), "--format", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    jsonschema.validate(document, SCHEMA)
    simulated = document["simulated"]
    for phase in simulated["phases"]:
        assert phase["bytes"] == sum(term["bytes"] for term in phase["terms"])
    assert simulated["peak_bytes"] == max(phase["bytes"] for phase in simulated["phases"])
    assert {"forward", "loss_backward", "optimizer_step"} <= {phase["name"] for phase in simulated["phases"]}


@pytest.mark.stack
def test_plans_options_are_decided_and_simulated(capsys: Captured, project: Project, tmp_path: Path) -> None:
    project()
    capsys.readouterr()
    options = ["--model", str(tmp_path / "model"), "--hardware", "kentino-8x-rtx-5090", "--method", "lora"]
    assert run(["simulate", *options, "--sequence-len", "512", "--format", "json", "--set", "micro_batch_size=1"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["recipe"]["sequence_len"] == 512
    assert document["simulated"]["trainable_parameters"] > 0


@pytest.mark.stack
def test_an_edited_file_is_said_to_be_ignored(capsys: Captured, project: Project) -> None:
    folder = project("--method", "lora")
    with (folder / "axolotl.yaml").open("a") as file:
        file.write("# mine\n")
    (folder / "launch.sh").unlink()
    capsys.readouterr()
    assert run(["simulate", str(folder)]) == 0
    notes = capsys.readouterr().err
    assert "axolotl.yaml was edited" in notes
    assert "launch.sh cannot be read" in notes


@pytest.mark.parametrize("name", ["quantised_experts", "modules_to_save", "ep"])
def test_what_no_simulation_has_is_refused(name: str) -> None:
    plain = recipe(Strategy.DDP, Method.QLORA)
    assert plain.adapter is not None
    chosen = {
        "quantised_experts": replace(plain, quantised_experts=True),
        "modules_to_save": replace(plain, adapter=replace(plain.adapter, modules_to_save=("lm_head",))),
        "ep": replace(plain, parallelism=replace(plain.parallelism, ep=plain.parallelism.world_size)),
    }[name]
    with pytest.raises(RecipegenError, match="not simulated"):
        support.refuse_unsupported(chosen)
