"""Reading files that somebody else wrote: bounded, regular, never outside of the folder, never waiting."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from recipegen.source import Limits, collect, read_bounded
from recipegen.spec import RecipegenError

AXOLOTL = "base_model: Qwen/Qwen3-8B\nmicro_batch_size: 1\n"


@pytest.fixture(autouse=True)
def _inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")


def test_a_pipe_is_refused_without_waiting() -> None:
    os.mkfifo("axolotl.yaml")
    for path in (".", "axolotl.yaml"):
        (refused,) = collect([path]).refused
        assert refused.reason == "not a regular file"
        assert refused.certain


def test_a_socket_is_refused() -> None:
    with socket.socket(socket.AF_UNIX) as one:
        one.bind("axolotl.yaml")
        assert [r.reason for r in collect(["."]).refused] == ["not a regular file"]


def test_a_device_is_refused() -> None:
    (refused,) = collect(["/dev/zero"]).refused
    assert refused.reason == "not a regular file"


@pytest.mark.parametrize("path", [".", "axolotl.yaml"])
def test_a_link_to_the_outside_is_refused(path: str, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("base_model: secret\n")
    Path("axolotl.yaml").symlink_to(tmp_path / "secret")
    found = collect([path])
    assert [r.reason for r in found.refused] == ["a link to a place outside of this folder"]
    assert found.projects == ()


def test_a_link_inside_is_followed_and_a_broken_or_circular_one_is_refused() -> None:
    Path("real.yaml").write_text(AXOLOTL)
    Path("axolotl.yaml").symlink_to("real.yaml")
    Path("broken.yaml").symlink_to("nowhere.yaml")
    Path("circle.yaml").symlink_to("circle.yaml")
    found = collect(["."])
    assert [p.main for p in found.projects] == ["axolotl.yaml", "real.yaml"]
    assert sorted(r.shown for r in found.refused) == ["broken.yaml", "circle.yaml"]


def test_folders_behind_links_are_not_entered(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere/axolotl.yaml").write_text(AXOLOTL)
    Path("there").symlink_to(tmp_path / "elsewhere")
    Path("here").symlink_to(".")
    assert collect(["."]).projects == ()


def test_a_large_file_is_refused_unread() -> None:
    with open("axolotl.yaml", "wb") as file:
        file.truncate(50_000_000)
    (refused,) = collect(["."]).refused
    assert refused.reason == "50,000,000 bytes; at most 1024 KiB of a recipe's file are read"


def test_a_binary_file_is_refused_and_data_beside_a_recipe_is_no_error() -> None:
    Path("axolotl.yaml").write_bytes(b"base_model: \0\1\2")
    Path("data.json").write_bytes(b"[" + b"1," * 600_000)
    assert {r.shown: r.certain for r in collect(["."]).refused} == {"axolotl.yaml": True, "data.json": False}


def test_a_file_without_permission_is_refused() -> None:
    Path("axolotl.yaml").write_text(AXOLOTL)
    Path("axolotl.yaml").chmod(0)
    if os.access("axolotl.yaml", os.R_OK):
        pytest.skip("this user may read everything")
    assert [r.reason for r in collect(["."]).refused] == ["cannot be read: Permission denied"]


@pytest.mark.parametrize("path", ["missing.yaml", "a\0b", "x" * 5000])
def test_a_path_that_is_not_there_is_an_error(path: str) -> None:
    with pytest.raises(RecipegenError):
        collect([path])


def test_more_files_than_the_limit_is_an_error() -> None:
    for number in range(6):
        Path(f"{number}.yaml").write_text(AXOLOTL)
    with pytest.raises(RecipegenError, match="more than 5 files"):
        collect(["."], Limits(files=5))
    with pytest.raises(RecipegenError, match="more than 3 entries"):
        collect(["."], Limits(entries=3))


def test_deep_folders_end_somewhere() -> None:
    Path("a/b/c").mkdir(parents=True)
    Path("a/b/c/axolotl.yaml").write_text(AXOLOTL)
    assert collect(["."], Limits(depth=2)).projects == ()
    assert len(collect(["."], Limits(depth=3)).projects) == 1


def test_what_a_run_leaves_behind_is_not_read() -> None:
    for folder in ("checkpoint-100", ".git", "node_modules", "last_run_prepared"):
        Path(folder).mkdir()
        (Path(folder) / "axolotl.yaml").write_text(AXOLOTL)
    Path("config.json").write_text('{"base_model": "x"}')
    found = collect(["."])
    assert found.projects == ()
    assert found.skipped == ()


def test_reading_one_file_says_why_not() -> None:
    os.mkfifo("policy")
    with pytest.raises(RecipegenError, match="policy: not a regular file"):
        read_bounded(Path("policy"))
    with pytest.raises(RecipegenError, match="missing: cannot be read"):
        read_bounded(Path("missing"))


def test_names_with_odd_characters_are_shown_on_one_line() -> None:
    Path("a\nb.yaml").write_text(AXOLOTL)
    (project,) = collect(["."]).projects
    assert project.name == "a?b.yaml"
