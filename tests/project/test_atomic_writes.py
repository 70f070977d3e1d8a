"""Whatever interrupts a write, the folder holds the old state or the new one."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from recipegen.formats import lock
from recipegen.formats.launcher import JOURNAL
from recipegen.project import atomic, create, render
from recipegen.spec import Decision, RecipegenError, Strategy
from tests.recipes_for_tests import PINS, dataset, decision, recipe

DATA = (dataset("/data/chat.jsonl"),)  # absolute: the same from every folder
OLD = decision(recipe(Strategy.ZERO3_CPU, datasets=DATA))
NEW = decision(recipe(Strategy.DDP, datasets=DATA))
STEPS = ("fsync", "rename", "replace", "open", "mkdir", "unlink")


def state(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


class Interrupt:
    """Replaces functions of `os`; the `n`-th call of any of them raises `error` (or does what `act` does)."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, n: int, error: BaseException) -> None:
        self.calls = 0
        monkeypatch.setattr(os, "fsync", lambda _: None)  # the disk's time is not what is tested
        for name in STEPS:
            monkeypatch.setattr(os, name, self.wrap(getattr(os, name), n, error))

    def wrap(self, real: Callable[..., Any], n: int, error: BaseException) -> Callable[..., Any]:
        def step(*arguments: Any, **named: Any) -> Any:
            self.calls += 1
            if self.calls == n:
                raise error
            return real(*arguments, **named)

        return step


def steps_of(action: Callable[[], object], monkeypatch: pytest.MonkeyPatch) -> int:
    """How many system calls of STEPS `action` makes."""
    with monkeypatch.context() as patch:
        counter = Interrupt(patch, -1, OSError())
        action()
    return counter.calls


def interrupted(action: Callable[[], object], n: int, error: BaseException, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Run `action` with its `n`-th system call failing; True when that ended it (not when it could do without)."""
    with monkeypatch.context() as patch:
        Interrupt(patch, n, error)
        try:
            action()
        except (RecipegenError, KeyboardInterrupt):
            return True
    return False


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt()])
def test_a_new_project_is_whole_or_absent(
    error: BaseException, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    total = steps_of(lambda: create(NEW, tmp_path / "count", pins=PINS), monkeypatch)
    assert total > 20
    whole = render(NEW, pins=PINS)
    absent = 0
    for n in range(1, total + 1):
        place = tmp_path / str(n)
        place.mkdir()
        stopped = interrupted(lambda place=place: create(NEW, place / "demo", pins=PINS), n, error, monkeypatch)
        left = [path.name for path in place.iterdir()]
        # Whole without an error, or when the last step failed: the fsync after the rename.
        assert (stopped and left == []) or (left == ["demo"] and state(place / "demo") == whole), n
        absent += left == []
    assert absent > total - 5


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt()])
def test_a_replaced_project_is_old_or_new_after_recovery(
    error: BaseException, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = render(OLD, pins=PINS), render(NEW, pins=PINS)
    edited = old["axolotl.yaml"] + b"seed: 7\n"
    backup = f"axolotl.yaml.bak-{lock.digest(edited)[:12]}"

    def prepared(name: str) -> Path:
        create(OLD, tmp_path / name, pins=PINS)
        (tmp_path / name / "axolotl.yaml").write_bytes(edited)
        (tmp_path / name / "notes.txt").write_bytes(b"mine")
        return tmp_path / name

    before = {**old, "axolotl.yaml": edited, "notes.txt": b"mine"}
    after = {**new, backup: edited, "notes.txt": b"mine"}
    counted = prepared("count")
    total = steps_of(lambda: create(NEW, counted, force=True, pins=PINS), monkeypatch)
    assert state(counted) == after
    seen = set()
    for n in range(1, total + 1):
        folder = prepared(str(n))
        assert interrupted(lambda folder=folder: create(NEW, folder, force=True, pins=PINS), n, error, monkeypatch)
        committed = (folder / JOURNAL).exists()
        found = state(folder)
        if not committed:
            assert found in (before, after), n
        atomic.recover(folder)
        assert state(folder) == (after if committed or found == after else before), n
        assert not [path for path in folder.iterdir() if path.name.startswith(".recipegen")], n
        seen.add(committed)
    assert seen == {True, False}  # both sides of the commit were interrupted


def test_disk_full_is_one_clear_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        Interrupt(patch, 5, OSError(errno.ENOSPC, "No space left on device"))
        with pytest.raises(RecipegenError, match="No space left on device"):
            create(NEW, tmp_path / "demo", pins=PINS)
    assert list(tmp_path.iterdir()) == []


KILLER = """
    import os, signal, sys
    from recipegen.project import create
    from tests.recipes_for_tests import PINS, dataset, decision, recipe
    from recipegen.spec import Strategy
    folder, n, force = sys.argv[1], int(sys.argv[2]), sys.argv[3] == "force"
    calls = 0
    def wrap(real):
        def step(*arguments, **named):
            global calls
            calls += 1
            if calls == n:
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*arguments, **named)
        return step
    for name in ("fsync", "rename", "replace"):
        setattr(os, name, wrap(getattr(os, name)))
    answer = decision(recipe(Strategy.DDP, datasets=(dataset("/data/chat.jsonl"),)))
    create(answer, folder, force, pins=PINS)
"""


def killed(folder: Path, n: int, force: str) -> int:
    root = Path(__file__).resolve().parents[2]
    command = [sys.executable, "-c", textwrap.dedent(KILLER), str(folder), str(n), force]
    return subprocess.run(command, env={**os.environ, "PYTHONPATH": str(root)}, timeout=60).returncode


@pytest.mark.parametrize("n", [1, 6, 11])
def test_kill_9_leaves_no_half_project(n: int, tmp_path: Path) -> None:
    assert killed(tmp_path / "demo", n, "new") == -signal.SIGKILL
    assert not (tmp_path / "demo").exists()
    create(NEW, tmp_path / "demo", pins=PINS)
    assert state(tmp_path / "demo") == render(NEW, pins=PINS)


@pytest.mark.parametrize("n", [3, 12, 14, 18])
def test_kill_9_while_replacing_is_recovered(n: int, tmp_path: Path) -> None:
    folder = tmp_path / "demo"
    create(OLD, folder, pins=PINS)
    assert killed(folder, n, "force") == -signal.SIGKILL
    committed = (folder / JOURNAL).exists()
    atomic.recover(folder)
    assert state(folder) == render(NEW if committed else OLD, pins=PINS)
    create(NEW, folder, force=True, pins=PINS)
    assert state(folder) == render(NEW, pins=PINS)


def test_recovering_twice_changes_nothing(tmp_path: Path) -> None:
    create(NEW, tmp_path / "demo", pins=PINS)
    before = state(tmp_path / "demo")
    assert atomic.recover(tmp_path / "demo") is False
    assert state(tmp_path / "demo") == before


@pytest.mark.parametrize(
    "plan",
    [
        {"moves": {"../victim": "x"}, "removals": [], "files": []},
        {"moves": {"a": "../victim"}, "removals": [], "files": []},
        {"moves": {}, "removals": ["../victim"], "files": []},
        {"moves": {}, "removals": [], "files": ["../victim"]},
        {"moves": {}, "removals": [".."], "files": []},
        {"moves": {}, "removals": [1], "files": []},
        {"moves": []},
        [],
    ],
)
def test_a_forged_journal_cannot_reach_outside(plan: object, tmp_path: Path) -> None:
    folder = tmp_path / "demo"
    create(NEW, folder, pins=PINS)
    (tmp_path / "victim").write_text("precious")
    (folder / JOURNAL).mkdir()
    (folder / JOURNAL / "plan.json").write_text(json.dumps(plan))
    with pytest.raises(RecipegenError, match="journal"):
        atomic.recover(folder)
    assert (tmp_path / "victim").read_text() == "precious"


def test_a_linked_journal_is_left_alone(tmp_path: Path) -> None:
    folder = tmp_path / "demo"
    create(NEW, folder, pins=PINS)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "plan.json").write_text('{"moves": {}, "removals": ["README.md"], "files": []}')
    (folder / JOURNAL).symlink_to(tmp_path / "elsewhere")
    assert atomic.recover(folder) is False
    assert (folder / "README.md").exists()
    assert isinstance(NEW, Decision)
