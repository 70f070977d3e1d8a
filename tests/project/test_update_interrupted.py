"""Whatever interrupts an update, the folder holds the old files or the new ones."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from recipegen.formats.launcher import JOURNAL
from recipegen.project import atomic, create
from recipegen.project import update as room
from recipegen.project.update import Update
from recipegen.spec import Method, RecipegenError, Schedule, Strategy
from tests.recipes_for_tests import PINS, dataset, decision, recipe

DATA = (dataset("/data/chat.jsonl"),)  # absolute: the same from every folder
OLD = decision(recipe(Strategy.DDP, Method.LORA, datasets=DATA))
NEW = decision(recipe(Strategy.DDP, Method.LORA, datasets=DATA, schedule=Schedule(3e-4, "cosine", 10, None)))
ZERO = decision(recipe(Strategy.ZERO3_CPU, Method.FULL, datasets=DATA))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    create(OLD, tmp_path / "demo", pins=PINS)
    return tmp_path / "demo"


def plan(folder: Path) -> Update:
    return room.plan(folder, room.read_lock(folder), NEW, pins=PINS)


def state(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


def test_a_file_that_changed_meanwhile_stops_it(folder: Path) -> None:
    found = plan(folder)
    edit(folder / "axolotl.yaml", "seed: 42", "seed: 7")
    before = state(folder)
    with pytest.raises(RecipegenError, match="changed meanwhile"):
        room.write(found)
    assert state(folder) == before


STEPS = ("open", "fsync", "fchmod", "mkdir", "rename", "replace", "unlink", "rmdir")


def _dies(action: Callable[[], Any], n: int) -> bool:
    """Run `action` in a process that is gone before its n-th call of any of STEPS; False when it ended before."""
    child = os.fork()
    if child == 0:
        calls = 0

        def counted(real: Callable[..., Any]) -> Callable[..., Any]:
            def step(*arguments: Any, **named: Any) -> Any:
                nonlocal calls
                calls += 1
                if calls == n:
                    os._exit(9)  # no cleaning up of any kind
                return real(*arguments, **named)

            return step

        try:
            for name in STEPS:
                real = (lambda _: None) if name == "fsync" else getattr(os, name)  # the disk's time is not tested
                setattr(os, name, counted(real))
            action()
        finally:
            os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9


def test_killed_at_any_step_it_is_old_or_new(tmp_path: Path) -> None:
    """Replaced, merged, written, set aside and kept files at once."""
    folder = tmp_path / "demo"
    create(ZERO, folder, pins=PINS)
    edit(folder / "axolotl.yaml", "seed: 42", "seed: 7")
    edit(folder / "deepspeed.json", '"stage": 3', '"stage": 2')
    edit(folder / "README.md", "# ", "# Our ")
    (folder / "README.md.new").write_text("mine")
    before = state(folder)

    def restore() -> None:
        shutil.rmtree(folder)
        folder.mkdir()
        for name, content in before.items():
            (folder / name).write_bytes(content)

    found = plan(folder)
    room.write(found)
    after = state(folder)
    assert {"axolotl.yaml", "README.md.new"} <= set(after)
    assert "deepspeed.json" not in after
    seen = []
    for n in range(1, 500):
        restore()
        if not _dies(lambda: room.write(found), n):
            break
        committed = room.interrupted(folder) or state(folder) == after
        if not committed:
            assert state(folder) == before, n
        room.recover(folder)
        assert state(folder) == (after if committed else before), n
        assert not [path for path in folder.iterdir() if path.name.startswith(".recipegen")], n
        seen.append(committed)
    assert state(folder) == after
    assert len(seen) > 30, seen
    assert seen == sorted(seen)  # the commit is one point
    assert set(seen) == {True, False}


def test_what_interrupts_the_recovery_is_recovered_too(tmp_path: Path) -> None:
    folder = tmp_path / "demo"
    create(OLD, folder, pins=PINS)
    edit(folder / "axolotl.yaml", "seed: 42", "seed: 7")
    found = plan(folder)
    at = next(n for n in range(1, 500) if _dies(lambda: room.write(found), n) and room.interrupted(folder))
    assert at > 5
    for n in range(1, 100):
        if not _dies(lambda: room.recover(folder), n):
            break
    assert n > 5
    room.recover(folder)
    assert plan(folder).up_to_date
    assert b"seed: 7" in (folder / "axolotl.yaml").read_bytes()
    assert not (folder / JOURNAL).exists()


def test_a_full_disk_is_one_clear_line(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = state(folder)

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    found = plan(folder)
    monkeypatch.setattr(atomic, "write_file", full)
    with pytest.raises(RecipegenError, match="cannot write the project: No space left"):
        room.write(found)
    assert state(folder) == before
