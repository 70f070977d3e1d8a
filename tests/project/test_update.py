"""`recipegen update` on a folder: what is written, what stays, and that it is all or nothing."""

from __future__ import annotations

import dataclasses
import json
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from recipegen.formats import lock
from recipegen.project import create, render
from recipegen.project import update as room
from recipegen.project.merge import MISSING
from recipegen.project.update import Update
from recipegen.spec import Decision, EnvVar, Launch, Method, RecipegenError, Schedule, Strategy
from tests.recipes_for_tests import PINS, dataset, decision, recipe

DATA = (dataset("/data/chat.jsonl"),)  # absolute: the same from every folder
OLD = decision(recipe(Strategy.DDP, Method.LORA, datasets=DATA))
NEW = decision(
    recipe(Strategy.DDP, Method.LORA, datasets=DATA, epochs=4.0, schedule=Schedule(3e-4, "cosine", 10, None))
)
ZERO = decision(recipe(Strategy.ZERO3_CPU, Method.FULL, datasets=DATA))
SCRIPT = decision(recipe(Strategy.DDP, Method.LORA, datasets=DATA, trainer="accelerate", chat_template=None))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    create(OLD, tmp_path / "demo", pins=PINS)
    return tmp_path / "demo"


def plan(folder: Path, answer: Decision = NEW, pins: dict[str, str] = PINS) -> Update:
    return room.plan(folder, room.read_lock(folder), answer, pins=pins)


def state(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


def actions(found: Update) -> dict[str, str]:
    return {row.name: row.action.value for row in found.rows}


# --- files


def test_a_project_of_today_is_up_to_date(folder: Path) -> None:
    found = plan(folder, OLD)
    assert found.up_to_date
    assert found.rows == ()
    assert found.changes == ()


def test_without_edits_everything_is_as_if_it_were_new(folder: Path) -> None:
    found = plan(folder)
    assert {(c.path, c.before, c.after) for c in found.changes} == {
        ("epochs", 2.0, 4.0),
        ("schedule.learning_rate", 2e-4, 3e-4),
    }
    assert set(actions(found).values()) == {"replaced"}
    assert found.unresolved == ()
    room.write(found)
    assert state(folder) == render(NEW, pins=PINS)
    assert plan(folder).up_to_date


def test_edits_survive_and_twice_changes_nothing(folder: Path) -> None:
    edit(folder / "axolotl.yaml", "seed: 42", "seed: 7  # ours")
    edit(folder / "axolotl.yaml", "num_epochs: 2.0", "num_epochs: 9")
    edit(folder / "launch.sh", "default NCCL_DEBUG WARN", "default NCCL_DEBUG INFO")
    edit(folder / "launch.slurm", "--exclusive", "--partition=gpu")
    (folder / "notes.txt").write_text("mine")
    before = state(folder)
    found = plan(folder)
    assert actions(found) == {
        "axolotl.yaml": "merged", "DECISION.md": "replaced", "recipe.lock": "replaced",
    }  # fmt: skip
    assert [(c.key, c.base, c.yours, c.new) for c in found.conflicts] == [("num_epochs", 2.0, 9, 4.0)]
    assert [(k.key, k.value) for k in found.kept] == [("seed", 7)]
    room.write(found)
    new = render(NEW, pins=PINS)
    after = state(folder)
    merged = (
        new["axolotl.yaml"].decode().replace("seed: 42", "seed: 7  # ours").replace("num_epochs: 4.0", "num_epochs: 9")
    )
    assert after == {
        **before,
        "axolotl.yaml": merged.encode(),
        "DECISION.md": new["DECISION.md"],
        "recipe.lock": new["recipe.lock"],
    }
    again = plan(folder)
    assert again.up_to_date
    assert again.unresolved == ()


def test_a_later_update_still_knows_what_was_edited(folder: Path) -> None:
    edit(folder / "axolotl.yaml", "seed: 42", "seed: 7")
    room.write(plan(folder))
    found = plan(folder, OLD)
    assert [(k.key, k.value) for k in found.kept] == [("seed", 7)]
    assert found.conflicts == ()
    room.write(found)
    assert (folder / "axolotl.yaml").read_text() == render(OLD, pins=PINS)["axolotl.yaml"].decode().replace(
        "seed: 42", "seed: 7"
    )


def test_what_is_not_by_key_is_kept_and_the_new_text_goes_beside_it(folder: Path) -> None:
    for name in ("launch.sh", "requirements.txt", "README.md"):
        with (folder / name).open("a") as file:
            file.write("# mine\n")
    before = state(folder)
    quiet = Launch(29500, 16, OLD.recipe.launch.environment)
    answer = decision(dataclasses.replace(OLD.recipe, launch=quiet))
    pins = {**PINS, "torch": "2.14.0"}
    found = plan(folder, answer, pins)
    assert actions(found) == {
        "launch.sh": "kept", "requirements.txt": "kept", "recipe.lock": "replaced",
    }  # fmt: skip
    assert [row.name for row in found.unresolved] == ["launch.sh", "requirements.txt"]
    room.write(found)
    new = render(answer, pins=pins)
    assert state(folder) == {
        **before,
        "launch.sh.new": new["launch.sh"],
        "requirements.txt.new": new["requirements.txt"],
        "recipe.lock": new["recipe.lock"],
    }
    assert plan(folder, answer, pins).up_to_date


def test_a_file_under_the_name_of_the_new_text_is_not_lost(folder: Path) -> None:
    edit(folder / "requirements.txt", "torch==", "torch>=")
    (folder / "requirements.txt.new").write_text("mine")
    room.write(plan(folder, OLD, {**PINS, "torch": "2.14.0"}))
    backup = f"requirements.txt.new.bak-{lock.digest(b'mine')[:12]}"
    assert (folder / backup).read_text() == "mine"
    room.write(plan(folder, OLD, {**PINS, "torch": "2.15.0"}))  # ours of before is replaced
    assert b"torch==2.15.0" in (folder / "requirements.txt.new").read_bytes()
    assert len(list(folder.glob("*.bak-*"))) == 1


def test_a_variable_of_the_launcher_is_merged(folder: Path) -> None:
    edit(folder / "launch.sh", "default NCCL_DEBUG WARN", "default NCCL_DEBUG INFO")
    environment = (EnvVar("NCCL_SOCKET_IFNAME", "ib0", "another network card"),)
    answer = decision(dataclasses.replace(OLD.recipe, launch=Launch(29500, 16, environment)))
    found = plan(folder, answer)
    assert actions(found)["launch.sh"] == "merged"
    assert found.conflicts == ()
    room.write(found)
    expected = render(answer, pins=PINS)["launch.sh"].replace(b"NCCL_DEBUG WARN", b"NCCL_DEBUG INFO")
    assert (folder / "launch.sh").read_bytes() == expected
    assert (folder / "launch.sh").stat().st_mode & stat.S_IXUSR


def test_what_the_recipe_has_no_use_for_goes(tmp_path: Path) -> None:
    folder = tmp_path / "demo"
    create(ZERO, folder, pins=PINS)
    room.write(plan(folder, OLD))
    assert state(folder) == render(OLD, pins=PINS)
    room.write(plan(folder, ZERO))
    edit(folder / "deepspeed.json", '"stage": 3', '"stage": 2')
    edited = (folder / "deepspeed.json").read_bytes()
    found = plan(folder, OLD)
    assert actions(found)["deepspeed.json"] == "set aside"
    room.write(found)
    assert (folder / f"deepspeed.json.bak-{lock.digest(edited)[:12]}").read_bytes() == edited
    assert not (folder / "deepspeed.json").exists()
    assert plan(folder, OLD).up_to_date


def test_another_trainer(folder: Path) -> None:
    edit(folder / "axolotl.yaml", "seed: 42", "seed: 7")
    edit(folder / "accelerate.yaml", "main_process_port: 29500", "main_process_port: 29501")
    found = plan(folder, SCRIPT)
    assert actions(found)["axolotl.yaml"] == "set aside"
    assert actions(found)["train.py"] == "written"
    assert actions(found)["accelerate.yaml"] == "merged"
    room.write(found)
    assert b"main_process_port: 29501" in (folder / "accelerate.yaml").read_bytes()
    assert plan(folder, SCRIPT).up_to_date
    with (folder / "train.py").open("a") as file:
        file.write("# mine\n")
    edit(folder / "train.json", '"seed": 42', '"seed": 7')
    changed = decision(dataclasses.replace(SCRIPT.recipe, epochs=5.0))
    found = plan(folder, changed)
    assert actions(found) == {"DECISION.md": "replaced", "train.json": "merged", "recipe.lock": "replaced"}
    room.write(found)
    values = json.loads((folder / "train.json").read_bytes())
    assert (values["seed"], values["schedule"]["epochs"]) == (7, 5.0)


def test_a_file_of_somebody_else_is_not_replaced(folder: Path) -> None:
    (folder / "deepspeed.json").write_text('{"mine": 1}')
    found = plan(folder, ZERO)
    assert actions(found)["deepspeed.json"] == "kept"
    room.write(found)
    assert (folder / "deepspeed.json").read_text() == '{"mine": 1}'
    assert (folder / "deepspeed.json.new").read_bytes() == render(ZERO, pins=PINS)["deepspeed.json"]


def test_deleted_files(folder: Path) -> None:
    """What nothing needs stays deleted; without the rest it would not start."""
    for name in ("launch.slurm", "README.md", "accelerate.yaml"):
        (folder / name).unlink()
    found = plan(folder, OLD)
    assert actions(found) == {"accelerate.yaml": "written"}
    room.write(found)
    assert not (folder / "launch.slurm").exists()
    assert plan(folder, OLD).up_to_date


def test_recipe_yaml_is_theirs(folder: Path) -> None:
    with (folder / "recipe.yaml").open("a") as file:
        file.write("# why\n")
    before = (folder / "recipe.yaml").read_bytes()
    room.write(plan(folder))
    assert (folder / "recipe.yaml").read_bytes() == before


def test_what_cannot_be_read_is_kept(folder: Path) -> None:
    with (folder / "axolotl.yaml").open("a") as file:
        file.write("broken: [1\n")
    before = (folder / "axolotl.yaml").read_bytes()
    found = plan(folder)
    row = next(row for row in found.rows if row.name == "axolotl.yaml")
    assert row.reason.startswith("axolotl.yaml:")
    assert found.unresolved == (row,)
    room.write(found)
    assert (folder / "axolotl.yaml").read_bytes() == before
    assert (folder / "axolotl.yaml.new").read_bytes() == render(NEW, pins=PINS)["axolotl.yaml"]


def test_a_comment_without_a_place_keeps_the_old_file(folder: Path) -> None:
    with (folder / "axolotl.yaml").open("a") as file:
        file.write("plugins: [a]\n")
    edit(folder / "axolotl.yaml", "    split: train\n", "    split: train  # odd\n")
    edited = (folder / "axolotl.yaml").read_bytes()
    other = decision(dataclasses.replace(NEW.recipe, datasets=(dataset("/data/other.jsonl"),)))
    found = plan(folder, other)
    row = next(row for row in found.rows if row.name == "axolotl.yaml")
    assert len(row.lost) == 1
    room.write(found)
    assert (folder / row.beside).read_bytes() == edited
    assert row.beside == f"axolotl.yaml.bak-{lock.digest(edited)[:12]}"


def test_permissions_stay(folder: Path) -> None:
    (folder / "axolotl.yaml").chmod(0o600)
    room.write(plan(folder))
    assert stat.S_IMODE((folder / "axolotl.yaml").stat().st_mode) == 0o600
    assert (folder / "launch.sh").stat().st_mode & stat.S_IXUSR


# --- locks


def test_a_lock_of_before_without_the_texts(folder: Path) -> None:
    """Base is then the locked recipe as it is written today."""
    values = json.loads((folder / "recipe.lock").read_text())
    del values["lines"]
    (folder / "recipe.lock").write_text(json.dumps(values))
    edit(folder / "axolotl.yaml", "seed: 42", "seed: 7")
    edit(folder / "axolotl.yaml", "tf32: true\n", "")
    edit(folder / "axolotl.yaml", "num_epochs: 2.0", "num_epochs: 9")
    found = plan(folder)
    assert [(k.key, k.value) for k in found.kept] == [("tf32", MISSING), ("seed", 7)]
    assert [(c.key, c.base, c.yours, c.new) for c in found.conflicts] == [("num_epochs", 2.0, 9, 4.0)]
    room.write(found)
    assert plan(folder).up_to_date


def test_the_text_of_the_lock_tells_an_edit_from_what_another_version_wrote(folder: Path) -> None:
    """An older version wrote one key otherwise, and did not know another."""
    old = (
        (folder / "axolotl.yaml")
        .read_text()
        .replace("tf32: true\n", "tf32: false\n")
        .replace("load_in_8bit: false\n", "")
    )
    files = {**state(folder), "axolotl.yaml": old.encode()}
    files.pop("recipe.lock")
    (folder / "recipe.lock").write_text(lock.write(OLD.recipe, files))
    (folder / "axolotl.yaml").write_text(old.replace("seed: 42", "seed: 7"))
    room.write(plan(folder, OLD))
    assert (folder / "axolotl.yaml").read_bytes() == render(OLD, pins=PINS)["axolotl.yaml"].replace(
        b"seed: 42", b"seed: 7"
    )


def test_texts_of_a_lock_that_are_not_what_was_written_are_not_believed(folder: Path) -> None:
    values = json.loads((folder / "recipe.lock").read_text())
    values["lines"]["axolotl.yaml"] = ["seed: 7", ""]
    (folder / "recipe.lock").write_text(json.dumps(values))
    assert room.read_lock(folder).text("axolotl.yaml") is None
    edit(folder / "axolotl.yaml", "seed: 42", "seed: 7")
    assert [(k.key, k.value) for k in plan(folder).kept] == [("seed", 7)]


def test_a_lock_cannot_reach_what_is_not_generated(folder: Path) -> None:
    (folder / "notes.txt").write_text("mine")
    (folder.parent / "victim").write_text("mine")
    values = json.loads((folder / "recipe.lock").read_text())
    digest = lock.digest(b"mine")
    values["files"] |= {"notes.txt": digest, "../victim": digest, "train_x/../notes.txt": digest}
    (folder / "recipe.lock").write_text(json.dumps(values))
    room.write(plan(folder))
    assert (folder / "notes.txt").exists()
    assert (folder.parent / "victim").exists()


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda f: (f / "recipe.lock").unlink(), "has no recipe.lock"),
        (lambda f: (f / "recipe.lock").write_bytes(b"{"), "recipe.lock: not a recipe.lock"),
        (lambda f: (f / "recipe.lock").write_bytes(b"[]"), "recipe.lock"),
        (lambda f: (f / "recipe.lock").write_bytes(b'{"format_version": 99}'), "newer"),
        (lambda f: (f / "recipe.lock").write_bytes(b" " * 2**21), "recipe.lock"),
        (lambda f: linked(f / "recipe.lock"), "link"),
        (lambda f: linked(f / "axolotl.yaml"), "axolotl.yaml: this is a link"),
        (lambda f: foldered(f / "launch.sh"), "launch.sh: this is not a file"),
    ],
)
def test_what_is_not_a_project_is_one_clear_line(spoil: Callable[[Path], object], message: str, folder: Path) -> None:
    spoil(folder)
    before = state(folder)
    with pytest.raises(RecipegenError) as caught:
        plan(folder)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert state(folder) == before


def linked(path: Path) -> None:
    path.rename(path.with_name("real"))
    path.symlink_to("real")


def foldered(path: Path) -> None:
    path.unlink()
    path.mkdir()


def test_no_folder(tmp_path: Path) -> None:
    with pytest.raises(RecipegenError, match="no such folder"):
        room.read_lock(tmp_path / "none")
