"""`recipegen update`: from a changed recipe.yaml to merged files, with one clear line for everything that stops it."""

from __future__ import annotations

import json
import os
import pty
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from recipegen.cli.main import run
from recipegen.formats import recipe_yaml
from recipegen.project import atomic
from recipegen.spec import RecipegenError

Make = Callable[..., Path]
Output = pytest.CaptureFixture[str]
SCHEMA = json.loads((Path(__file__).parents[2] / "docs/schemas/update.schema.json").read_text())


@pytest.fixture(autouse=True)
def _validation(monkeypatch: pytest.MonkeyPatch) -> None:
    """The trainers' own validators take seconds to load, and are tested with `new`."""
    monkeypatch.setattr("recipegen.cli.new.validate", lambda files, decision: ([], []))


@pytest.fixture
def tune(tmp_path: Path, data_file: Make, model_folder: Make, monkeypatch: pytest.MonkeyPatch, capsys: Output) -> Path:
    """A project `tune` in the current folder."""
    monkeypatch.chdir(tmp_path)
    model_folder()
    data_file("tune.jsonl")
    args = ["--model", "./model", "--dataset", "tune.jsonl", "--hardware", "kentino-8x-rtx-5090", "--method", "lora"]
    assert run(["new", "tune", *args]) == 0
    capsys.readouterr()
    return tmp_path / "tune"


def state(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


@pytest.fixture
def asked(tune: Path) -> Path:
    """Another rate is asked for."""
    edit(tune / "recipe.yaml", "learning_rate: auto", "learning_rate: 3.0e-4")
    return tune


def test_a_new_project_is_up_to_date(tune: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch) -> None:
    before = state(tune)
    for args in (["tune"], ["tune", "--check"], ["tune", "--dry-run"], ["tune", "--yes"]):
        assert run(["update", *args]) == 0
        out, err = capsys.readouterr()
        assert (out, err) == ("tune: up to date\n", "")
    monkeypatch.chdir(tune)
    assert run(["update"]) == 0
    assert capsys.readouterr().out == ".: up to date\n"
    assert state(tune) == before


def test_what_was_asked_for_is_written_beside_what_was_edited(asked: Path, capsys: Output) -> None:
    edit(asked / "axolotl.yaml", "seed: 42", "seed: 7  # ours")
    assert run(["update", "tune"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert "learning rate 2e-4 -> 3e-4" in out  # what it does comes first
    assert out.index("learning rate 2e-4") < out.index("files:\n")
    assert "  merged     axolotl.yaml\n" in out
    assert "  axolotl.yaml:" in out
    assert "  seed: 7\n" in out
    assert out.endswith("Next: recipegen check tune\n")
    text = (asked / "axolotl.yaml").read_text()
    assert "learning_rate: 0.0003\n" in text
    assert "seed: 7  # ours\n" in text
    assert run(["update", "tune", "--check"]) == 0
    assert capsys.readouterr().out == "tune: up to date\n"


def test_a_conflict_is_listed_and_exits_1(asked: Path, capsys: Output) -> None:
    edit(asked / "axolotl.yaml", "learning_rate: 0.0002", "learning_rate: 5.0e-4")
    line = (asked / "axolotl.yaml").read_text().split("learning_rate")[0].count("\n") + 1
    assert run(["update", "tune"]) == 1
    out, err = capsys.readouterr()
    assert f"  axolotl.yaml:{line}  learning_rate: yours 0.0005, new 0.0003, was 0.0002\n" in out
    assert err == "update: tune: you and the new version both changed axolotl.yaml; yours is kept\n"
    text = (asked / "axolotl.yaml").read_text()
    assert "learning_rate: 0.0005\n" in text
    assert "<<<" not in text
    assert run(["update", "tune"]) == 0


@pytest.mark.parametrize(("flag", "code"), [("--check", 1), ("--dry-run", 0)])
def test_nothing_is_written_when_it_is_only_asked(flag: str, code: int, asked: Path, capsys: Output) -> None:
    before = state(asked)
    assert run(["update", "tune", flag]) == code
    out, err = capsys.readouterr()
    assert "  replaced   axolotl.yaml\n" in out
    assert err == (
        "" if code == 0 else "update: tune is not what would be written today; run `recipegen update tune`\n"
    )
    assert state(asked) == before


def test_json(asked: Path, capsys: Output) -> None:
    edit(asked / "axolotl.yaml", "learning_rate: 0.0002", "learning_rate: 5.0e-4")
    edit(asked / "axolotl.yaml", "tf32: true\n", "")
    edit(asked / "axolotl.yaml", "seed: 42", "seed: 7")
    for flags, written in ((["--check"], False), ([], True)):
        assert run(["update", "tune", "--format", "json", *flags]) == 1
        document = json.loads(capsys.readouterr().out)
        jsonschema.validate(document, SCHEMA)
        assert document["written"] is written
        assert {"path": "schedule.learning_rate", "before": 0.0002, "after": 0.0003} in document["changes"]
        assert [(c["key"], c["base"], c["yours"], c["new"]) for c in document["conflicts"]] == [
            ("learning_rate", 0.0002, 0.0005, 0.0003)
        ]
        assert {k["key"]: k.get("value") for k in document["kept"]} == {"tf32": None, "seed": 7}
        assert {f["name"]: f["action"] for f in document["files"]}["axolotl.yaml"] == "merged"
    assert run(["update", "tune", "--format", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    jsonschema.validate(document, SCHEMA)
    assert document["up_to_date"] is True


def test_another_version_of_recipegen_is_said(tune: Path, capsys: Output) -> None:
    edit(tune / "recipe.lock", '"tool_version": "', '"tool_version": "0.0.')
    assert run(["update", "tune"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("recipegen: 0.0.")
    assert "  replaced   recipe.lock\n" in out


# --- what stops it


def complaint(capsys: Output, code: int, *flags: str) -> str:
    assert run(["update", "tune", *flags]) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    return err


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda f: (f / "recipe.lock").unlink(), "tune: has no recipe.lock"),
        (lambda f: (f / "recipe.lock").write_text("{"), "recipe.lock: not a recipe.lock"),
        (lambda f: edit(f / "recipe.lock", '"format_version": 1', '"format_version": 9'), "Upgrade recipegen"),
        (lambda f: edit(f / "recipe.lock", '"method": "lora"', '"method": "lorra"'), "none of full, lora, qlora"),
        (lambda f: (f / "recipe.yaml").unlink(), "no recipe.yaml to plan from"),
        (lambda f: edit(f / "recipe.yaml", "nodes: 1", "nodes: [1"), "recipe.yaml:"),
        (lambda f: edit(f / "recipe.yaml", "nodes: 1", "nodse: 1"), "Did you mean nodes?"),
        (lambda f: edit(f / "recipe.yaml", "kentino-8x-rtx-5090", "kentino-8x-rtx-9999"), "kentino-8x-rtx-9999"),
        (lambda f: edit(f / "recipe.yaml", "stack: axolotl-0.19.0", "stack: axolotl-9"), "axolotl-9"),
        (lambda f: shutil.rmtree(f), "no such folder"),
        (lambda f: model(f, "nobody/none-7B"), "is not in the catalogue, and update downloads nothing"),
        (lambda f: model(f, "none-7B"), "no model 'none-7B'"),
        (lambda f: model(f, "/gone"), "/gone: the model folder does not exist"),
    ],
)
def test_one_clear_line_and_nothing_written(
    spoil: Callable[[Path], Any], message: str, tune: Path, capsys: Output
) -> None:
    spoil(tune)
    before = state(tune) if tune.exists() else {}
    for flags in ([], ["--check"]):
        assert message in complaint(capsys, 2, *flags)
    assert (state(tune) if tune.exists() else {}) == before


def model(folder: Path, name: str) -> None:
    request = recipe_yaml.read((folder / "recipe.yaml").read_bytes())
    edit(folder / "recipe.yaml", f"model: {request.model}", f"model: {name}")


def test_what_does_not_fit_any_more_writes_nothing(tune: Path, capsys: Output) -> None:
    model(tune, "Llama-3.1-405B")
    edit(tune / "recipe.yaml", "method: lora", "method: full")
    before = state(tune)
    for flags in ([], ["--yes"], ["--check"]):
        assert "tune: it does not fit any more: " in complaint(capsys, 1, *flags)
    assert state(tune) == before


def test_what_the_trainers_refuse_is_not_written(asked: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise RecipegenError("no such key", where="axolotl.yaml")

    monkeypatch.setattr("recipegen.cli.new.validate", refuse)
    before = state(asked)
    assert complaint(capsys, 2) == "error: axolotl.yaml: no such key\n"
    assert state(asked) == before


def test_data_that_are_not_here_are_those_of_the_lock(asked: Path, capsys: Output) -> None:
    """In CI there is the repository, and not the data."""
    os.remove("tune.jsonl")
    assert run(["update", "tune", "--check"]) == 1
    out, err = capsys.readouterr()
    assert "tune.jsonl is not here; its rows and lengths are those of recipe.lock" in err
    assert "sequence" not in out
    edit(asked / "recipe.yaml", "learning_rate: 3.0e-4", "learning_rate: auto")
    assert run(["update", "tune", "--check"]) == 0
    assert capsys.readouterr().out == "tune: up to date\n"
    edit(asked / "recipe.yaml", "tune.jsonl", "other.jsonl")
    assert run(["update", "tune", "--check"]) == 2


def test_an_interrupted_update_is_finished_first(asked: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(atomic, "recover", lambda _: False)
        assert run(["update", "tune"]) == 0
    assert "learning_rate: 0.0002" in (asked / "axolotl.yaml").read_text()
    capsys.readouterr()
    assert "an interrupted recipegen left it half written" in complaint(capsys, 1, "--check")
    assert run(["update", "tune"]) == 0
    assert capsys.readouterr().out == "tune: up to date\n"
    assert "learning_rate: 0.0003" in (asked / "axolotl.yaml").read_text()


# --- on a terminal


@pytest.mark.parametrize(
    ("answer", "flags", "written"), [("y\n", [], True), ("n\n", [], False), ("\n", [], True), ("", ["--yes"], True)]
)
def test_it_asks_on_a_terminal(
    answer: str, flags: list[str], written: bool, asked: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    leader, follower = pty.openpty()
    with os.fdopen(follower, "r+b", buffering=0) as terminal:
        os.write(leader, answer.encode())
        with open(terminal.fileno(), closefd=False) as stdin, open(terminal.fileno(), "w", closefd=False) as stderr:
            monkeypatch.setattr(sys, "stdin", stdin)
            monkeypatch.setattr(sys, "stderr", stderr)
            assert run(["update", "tune", *flags]) == 0
            monkeypatch.undo()
    os.close(leader)
    assert ("learning_rate: 0.0003" in (asked / "axolotl.yaml").read_text()) is written
