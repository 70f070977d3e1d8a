"""`create` writes a whole project or nothing, keeps what is not ours, and stays inside its folder."""

from __future__ import annotations

import dataclasses
import errno
import os
import stat
from pathlib import Path

import pytest
import yaml

from recipegen.formats import lock
from recipegen.project import Created, create, render
from recipegen.project.files import GENERATED
from recipegen.spec import Decision, RecipegenError, Strategy
from tests.recipes_for_tests import PINS, dataset, decision, recipe, recipes

SAMPLES = dict(recipes())


def make(folder: Path, answer: Decision | None = None, force: bool = False) -> Created:
    return create(answer or decision(), folder, force, pins=PINS)


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file() and not path.is_symlink()}


def changed() -> Decision:
    """Another answer: every file differs, deepspeed.json is gone."""
    return decision(recipe(Strategy.DDP, model="Qwen/Qwen3-8B"))


@pytest.mark.parametrize("name", SAMPLES)
def test_the_lock_knows_every_file(name: str) -> None:
    files = render(decision(SAMPLES[name]), pins=PINS)
    digests = lock.read_digests(files[lock.NAME])
    assert digests == {key: lock.digest(data) for key, data in files.items() if key != lock.NAME}
    assert set(files) <= GENERATED
    assert ("deepspeed.json" in files) == SAMPLES[name].parallelism.strategy.is_deepspeed
    assert lock.read(files[lock.NAME]).recipe == SAMPLES[name]


def test_rendering_twice_gives_the_same_bytes() -> None:
    assert render(decision(), pins=PINS) == render(decision(), pins=PINS)


def test_a_new_project(tmp_path: Path) -> None:
    names = make(tmp_path / "deep" / "demo")
    folder = tmp_path / "deep" / "demo"
    assert sorted(names) == sorted(content(folder))
    assert names.backups == {}
    assert names[-1] == lock.NAME
    for name in names:
        assert bool((folder / name).stat().st_mode & stat.S_IXUSR) == name.startswith("launch.")
    assert sorted(path.name for path in (tmp_path / "deep").iterdir()) == ["demo"]


def test_permissions_follow_the_umask(tmp_path: Path) -> None:
    old = os.umask(0o027)
    try:
        make(tmp_path / "demo")
    finally:
        os.umask(old)
    assert stat.S_IMODE((tmp_path / "demo").stat().st_mode) == 0o750
    assert stat.S_IMODE((tmp_path / "demo" / "axolotl.yaml").stat().st_mode) == 0o640
    assert stat.S_IMODE((tmp_path / "demo" / "launch.sh").stat().st_mode) == 0o750


def test_an_empty_folder_is_used(tmp_path: Path) -> None:
    (tmp_path / "demo").mkdir()
    make(tmp_path / "demo")
    assert (tmp_path / "demo" / "axolotl.yaml").is_file()


@pytest.mark.parametrize(
    "name",
    ["", ".", "..", ".hidden", "-rf", "a b", "a\nb", "a$(x)", "a;b", "é", "x" * 101, "a'b", "a*", "~", "a\\b", "a:b"],
)
def test_a_bad_name_is_refused(name: str, tmp_path: Path) -> None:
    place = tmp_path / "home"
    place.mkdir()
    if name in ("", ".", ".."):  # these name a folder that is already there
        (place / "mine").write_text("x")
    with pytest.raises(RecipegenError) as caught:
        create(decision(), f"{place}{os.sep}{name}" if name else str(place), pins=PINS)
    assert "\n" not in str(caught.value)
    assert sorted(path.name for path in place.iterdir()) in ([], ["mine"])


def test_a_folder_with_something_in_it_is_refused(tmp_path: Path) -> None:
    (tmp_path / "demo").mkdir()
    (tmp_path / "demo" / "mine.txt").write_text("mine")
    with pytest.raises(RecipegenError, match=r"not empty.*--force"):
        make(tmp_path / "demo")
    assert content(tmp_path / "demo") == {"mine.txt": b"mine"}


def test_a_file_in_the_way_is_refused(tmp_path: Path) -> None:
    (tmp_path / "demo").write_text("mine")
    for force in (False, True):
        with pytest.raises(RecipegenError, match="not a folder"):
            make(tmp_path / "demo", force=force)
    assert (tmp_path / "demo").read_text() == "mine"


def test_force_replaces_keeps_and_moves(tmp_path: Path) -> None:
    folder = tmp_path / "demo"
    make(folder, decision(recipe(Strategy.ZERO3_CPU)))
    edited = (folder / "axolotl.yaml").read_bytes() + b"seed: 7\n"
    (folder / "axolotl.yaml").write_bytes(edited)
    (folder / "notes.txt").write_text("mine")
    (folder / "outputs").mkdir()
    (folder / "outputs" / "model").write_text("weights")
    written = make(folder, changed(), force=True)
    assert written.backups == {"axolotl.yaml": f"axolotl.yaml.bak-{lock.digest(edited)[:12]}"}
    assert sorted(written.files) == sorted(render(changed(), pins=PINS))
    backup = folder / f"axolotl.yaml.bak-{lock.digest(edited)[:12]}"
    assert backup.read_bytes() == edited
    assert yaml.safe_load((folder / "axolotl.yaml").read_bytes())["base_model"] == "Qwen/Qwen3-8B"
    assert (folder / "notes.txt").read_text() == "mine"
    assert (folder / "outputs" / "model").read_text() == "weights"
    assert not (folder / "deepspeed.json").exists()  # ours, unedited, no longer part of the recipe
    assert [path.name for path in folder.iterdir() if ".bak-" in path.name] == [backup.name]
    assert (folder / "launch.sh").stat().st_mode & stat.S_IXUSR


def test_an_edited_file_that_is_no_longer_written_is_kept_aside(tmp_path: Path) -> None:
    folder = tmp_path / "demo"
    make(folder, decision(recipe(Strategy.ZERO3_CPU)))
    (folder / "deepspeed.json").write_text("{}")
    make(folder, changed(), force=True)
    assert (folder / f"deepspeed.json.bak-{lock.digest(b'{}')[:12]}").read_text() == "{}"
    assert not (folder / "deepspeed.json").exists()


def test_the_same_edit_twice_gets_a_number(tmp_path: Path) -> None:
    folder = tmp_path / "demo"
    make(folder)
    for _ in range(2):
        (folder / "README.md").write_text("mine")
        make(folder, force=True)
    assert len([path for path in folder.iterdir() if path.name.startswith("README.md.bak-")]) == 2


def test_without_a_lock_every_file_of_ours_is_kept_aside(tmp_path: Path) -> None:
    folder = tmp_path / "demo"
    folder.mkdir()
    (folder / "README.md").write_text("mine")
    (folder / lock.NAME).write_text("not a lock")
    make(folder, force=True)
    assert (folder / f"README.md.bak-{lock.digest(b'mine')[:12]}").read_text() == "mine"


def test_a_lock_cannot_make_us_delete_a_foreign_file(tmp_path: Path) -> None:
    folder = tmp_path / "demo"
    make(folder)
    (folder / "data.jsonl").write_text("{}")
    outside = tmp_path / "outside"
    outside.write_text("{}")
    files = {"data.jsonl": b"{}", "../outside": b"{}", "/etc/passwd": b"{}", "..": b"", "train_mine.py": b""}
    (folder / lock.NAME).write_text(lock.write(recipe(), files))
    make(folder, changed(), force=True)
    assert (folder / "data.jsonl").read_text() == "{}"
    assert outside.read_text() == "{}"


def test_a_link_instead_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "demo").symlink_to(tmp_path / "elsewhere")
    for force in (False, True):
        with pytest.raises(RecipegenError, match="link"):
            make(tmp_path / "demo", force=force)
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    with pytest.raises(RecipegenError, match="link"):
        make(tmp_path / "dangling")
    assert content(tmp_path / "elsewhere") == {}
    assert not (tmp_path / "nowhere").exists()


def test_links_inside_the_folder_are_not_followed(tmp_path: Path) -> None:
    folder, victim = tmp_path / "demo", tmp_path / "victim"
    make(folder)
    victim.write_text("precious")
    for name in ("axolotl.yaml", "launch.sh", lock.NAME):
        (folder / name).unlink()
        (folder / name).symlink_to(victim)
    make(folder, changed(), force=True)
    assert victim.read_text() == "precious"
    assert not (folder / "axolotl.yaml").is_symlink()
    assert (folder / "axolotl.yaml.bak-link").is_symlink()


def test_a_folder_where_a_file_must_go_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "demo"
    make(folder)
    before = content(folder)
    (folder / "axolotl.yaml").unlink()
    (folder / "axolotl.yaml").mkdir()
    with pytest.raises(RecipegenError, match="a folder stands"):
        make(folder, changed(), force=True)
    del before["axolotl.yaml"]
    assert content(folder) == before


def test_a_read_only_place_is_one_clear_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system", str(tmp_path))

    monkeypatch.setattr(os, "mkdir", refuse)
    with pytest.raises(RecipegenError, match=f"{tmp_path}: cannot write the project: Read-only file system"):
        make(tmp_path / "demo")
    assert list(tmp_path.iterdir()) == []


def test_a_place_that_cannot_hold_folders_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RecipegenError, match="cannot write the project"):
        make(tmp_path / "file" / "demo")


def test_a_recipe_that_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(RecipegenError):
        make(tmp_path / "demo", decision(recipe(datasets=(dataset("a\0b"),))))
    with pytest.raises(RecipegenError):
        make(tmp_path / "demo", decision(dataclasses.replace(recipe(), val_set_size=float("nan"))))
    assert list(tmp_path.iterdir()) == []
