"""What an update does to the training run, with the edits of people in it; nothing is written for it."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from recipegen.catalog import load_cluster, load_model, load_stack
from recipegen.decide import decide
from recipegen.project import create
from recipegen.project import update as room
from recipegen.project.update_review import review
from recipegen.spec import Decision, Request
from tests.recipes_for_tests import dataset

REQUEST = Request("Llama-3.1-8B-Instruct", "kentino-8x-rtx-5090", ("/data/chat.jsonl",), method="lora")


def decided(request: Request = REQUEST) -> Decision:
    model, cluster = load_model(request.model), load_cluster(request.hardware)
    return decide(request, model, cluster, load_stack(request.stack), (dataset("/data/chat.jsonl"),))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    create(decided(), tmp_path / "demo")
    return tmp_path / "demo"


def test_it_compares_the_files_as_they_are_with_what_they_would_be(folder: Path) -> None:
    path = folder / "axolotl.yaml"
    path.write_text(path.read_text().replace("seed: 42", "seed: 7"))
    answer = decided(dataclasses.replace(REQUEST, learning_rate=5e-5, epochs=7.0))
    before = {file.name: file.read_bytes() for file in folder.iterdir()}
    found = review(room.plan(folder, room.read_lock(folder), answer), Path("demo"))
    assert found is not None
    (one,) = found.recipes
    assert one.name == "demo"
    assert {change.path: change.after for change in one.changes} == {"schedule.learning_rate": 5e-5, "epochs": 7.0}
    assert all(change.where_after.startswith("demo/axolotl.yaml:") for change in one.changes)
    assert one.problems == ()
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == before


def test_another_trainer_is_compared_too(folder: Path) -> None:
    answer = decided(dataclasses.replace(REQUEST, trainer="accelerate"))
    found = review(room.plan(folder, room.read_lock(folder), answer), Path("demo"))
    assert found is not None
    changes = {change.path: (change.before, change.after) for change in found.recipes[0].changes}
    assert changes["trainer"] == ("axolotl", "accelerate")


def test_without_a_file_of_a_trainer_there_is_nothing_to_compare(folder: Path) -> None:
    (folder / "axolotl.yaml").unlink()
    assert review(room.plan(folder, room.read_lock(folder), decided()), Path("demo")) is None
