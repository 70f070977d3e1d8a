"""Which recipe is which, and a clear row for everything that can happen to one between two sides."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from recipegen.check.checking import Options
from recipegen.check.gather import Target
from recipegen.check.policy import Policy
from recipegen.review.difference import RecipeDifference, Review, Status, Weight
from recipegen.review.gate import failures, reaches
from recipegen.review.pairs import ReviewOptions, review
from recipegen.review.sides import Wanted, opened, wanted
from recipegen.spec import Severity
from tests.review.repositories import AXOLOTL, ZERO, commit, faster, git, write

CHECK = Options(target=Target(hardware="kentino-8x-rtx-5090"), trainers=False)
OTHER = AXOLOTL.replace("lora_r: 16", "lora_r: 64")


@pytest.fixture(autouse=True)
def _inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "repository"
    folder.mkdir()
    monkeypatch.chdir(folder)


def reviewed(asked: Wanted | None = None, *, everything: bool = False) -> Review:
    with opened(asked or Wanted(base="HEAD~1", head="HEAD"), everything=everything) as sides:
        return review(sides.base, sides.head, ReviewOptions(CHECK, sides.policy_of, everything))


def rows(asked: Wanted | None = None, *, everything: bool = False) -> dict[str, RecipeDifference]:
    found = reviewed(asked, everything=everything)
    assert len({row.name for row in found.recipes}) == len(found.recipes)
    return {row.name: row for row in found.recipes}


def statuses(asked: Wanted | None = None, *, everything: bool = False) -> dict[str, str]:
    return {name: row.status.value for name, row in rows(asked, everything=everything).items()}


def between(words: Sequence[str]) -> Wanted:
    return wanted(words, None)


def step(before: dict[str, str | bytes | None], after: dict[str, str | bytes | None]) -> None:
    """Two commits."""
    commit(Path(), before)
    commit(Path(), after)


def test_added_removed_changed_and_left_alone() -> None:
    step(
        {"a/axolotl.yaml": AXOLOTL, "b/axolotl.yaml": AXOLOTL, "c/axolotl.yaml": AXOLOTL},
        {"a/axolotl.yaml": faster(), "b/axolotl.yaml": None, "d/axolotl.yaml": OTHER},
    )
    assert statuses() == {"a": "changed", "b": "removed", "d": "added"}
    assert statuses(everything=True) == {"a": "changed", "b": "removed", "c": "unchanged", "d": "added"}
    (change,) = rows()["a"].changes
    assert (change.path, change.before, change.after) == ("schedule.learning_rate", 2e-4, 1e-4)
    assert (change.where_before, change.where_after) == ("a/axolotl.yaml:12", "a/axolotl.yaml:12")


def test_the_other_way_round_is_the_mirror() -> None:
    step(
        {"a/axolotl.yaml": AXOLOTL, "b/axolotl.yaml": AXOLOTL, "e.yaml": AXOLOTL},
        {"a/axolotl.yaml": faster(), "b/axolotl.yaml": None, "d/axolotl.yaml": OTHER, "e.yaml": b"\0"},
    )
    mirror = {"added": "removed", "removed": "added"}
    there, back = statuses(), statuses(Wanted(base="HEAD", head="HEAD~1"))
    assert back == {name: mirror.get(status, status) for name, status in there.items()}
    assert there["e.yaml"] == "unreadable"


def test_the_same_revision_is_empty() -> None:
    commit(Path(), {"a/axolotl.yaml": AXOLOTL})
    assert statuses(Wanted(base="HEAD", head="HEAD")) == {}
    assert statuses(Wanted()) == {}
    assert statuses(Wanted(), everything=True) == {"a": "unchanged"}


def test_formatting_is_no_change() -> None:
    step({"a.yaml": AXOLOTL}, {"a.yaml": "# a comment\n" + AXOLOTL.replace("2.0e-4", "0.0002")})
    assert statuses() == {"a.yaml": "unchanged"}
    assert reviewed().changed == ()


# --- renames


def test_a_recipe_that_moved_is_renamed() -> None:
    step(
        {"old/a/axolotl.yaml": AXOLOTL, "old/b/axolotl.yaml": OTHER},
        {"old/a/axolotl.yaml": None, "old/b/axolotl.yaml": None, "new/y.yaml": "# moved\n" + AXOLOTL, "z.yaml": OTHER},
    )
    found = {name: (row.status.value, row.before_name) for name, row in rows().items()}
    assert found == {"new": ("renamed", "old/a"), "z.yaml": ("renamed", "old/b")}


def test_of_several_with_one_meaning_each_is_taken_once() -> None:
    step({"a/x.yaml": AXOLOTL, "a/y.yaml": AXOLOTL}, {"a/x.yaml": None, "a/y.yaml": None, "b/y.yaml": AXOLOTL})
    found = {name: (row.status.value, row.before_name) for name, row in rows().items()}
    assert sorted(status for status, _ in found.values()) == ["removed", "renamed"]


def test_a_main_file_that_moved_inside_of_its_folder_is_the_same_recipe() -> None:
    step({"a/axolotl.yaml": AXOLOTL}, {"a/axolotl.yaml": None, "a/config.yaml": faster()})
    assert statuses() == {"a": "changed"}


def test_a_second_recipe_in_the_folder_does_not_hide_the_first() -> None:
    step({"a/axolotl.yaml": AXOLOTL}, {"a/axolotl.yaml": faster(), "a/other.yaml": OTHER})
    assert statuses() == {"a/axolotl.yaml": "changed", "a/other.yaml": "added"}


def test_files_that_got_a_main_file_are_not_said_twice() -> None:
    step({"a/zero.json": ZERO}, {"a/axolotl.yaml": AXOLOTL + "deepspeed: zero.json\n"})
    assert statuses() == {"a": "changed"}


# --- what cannot be read


GARBAGE = {
    "binary": b"\x00\x01\x02",
    "empty": b"",
    "not YAML": b"\t- [",
    "not UTF-8": b"base_model: \xff\xfe\n",
    "another YAML": b"name: CI\njobs: {}\n",
    "too large": b"base_model: x\n" + b"#" * 2**21,
    "a pointer": b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n",
}


@pytest.mark.parametrize("how", GARBAGE)
@pytest.mark.parametrize("working_tree", [False, True])
def test_a_file_that_was_spoilt_is_a_row_with_the_reason(how: str, working_tree: bool) -> None:
    commit(Path(), {"a/axolotl.yaml": AXOLOTL, "b/axolotl.yaml": AXOLOTL})
    files: dict[str, str | bytes | None] = {"a/axolotl.yaml": GARBAGE[how], "b/axolotl.yaml": faster()}
    if working_tree:
        write(Path(), files)
    else:
        commit(Path(), files)
    found = rows(Wanted() if working_tree else None)
    assert found["b"].status is Status.CHANGED
    (row,) = [row for name, row in found.items() if name != "b"]
    assert row.status is Status.UNREADABLE, row
    assert any("a/axolotl.yaml" in problem for problem in row.problems), row.problems
    assert "temporary" not in repr(row)


@pytest.mark.parametrize("how", GARBAGE)
def test_a_file_that_was_mended_is_a_row_too(how: str) -> None:
    step({"a/axolotl.yaml": GARBAGE[how]}, {"a/axolotl.yaml": AXOLOTL})
    (row,) = rows().values()
    assert row.status is Status.UNREADABLE
    assert any(problem.startswith("before: a/axolotl.yaml") for problem in row.problems), row.problems


def test_a_new_file_that_is_broken_is_a_row_with_the_place() -> None:
    step({"b.yaml": AXOLOTL}, {"a/axolotl.yaml": "base_model: x\nadapter: [\n"})
    (row,) = rows().values()
    assert row.status is Status.UNREADABLE
    assert row.problems[0].startswith("after: a/axolotl.yaml:")


def test_data_that_is_no_recipe_is_no_row() -> None:
    large = "[" + "1," * 2**20 + "1]"
    step({"a.yaml": AXOLOTL, "data.json": "[1]", "own.json": ZERO}, {"data.json": large, "requirements.txt": b"\0"})
    assert statuses() == {}


def test_an_auxiliary_file_that_was_spoilt_is_said_with_its_recipe() -> None:
    accelerate = "compute_environment: LOCAL_MACHINE\ndistributed_type: MULTI_GPU\nnum_processes: 8\n"
    step({"a/axolotl.yaml": AXOLOTL, "a/accelerate.yaml": accelerate}, {"a/accelerate.yaml": b"\0"})
    (row,) = rows().values()
    assert row.name == "a"
    assert row.status in (Status.CHANGED, Status.UNREADABLE)
    assert "after: a/accelerate.yaml: a binary file" in row.problems


def test_a_link_in_the_place_of_a_recipe() -> None:
    commit(Path(), {"a/axolotl.yaml": AXOLOTL})
    Path("a/axolotl.yaml").unlink()
    Path("a/axolotl.yaml").symlink_to("/etc/passwd")
    commit(Path(), {})
    for asked in (None, Wanted(base="HEAD~1")):
        (row,) = rows(asked).values()
        assert row.status is Status.UNREADABLE
        assert row.problems == ("after: a/axolotl.yaml: a symbolic link, which is not followed",)


def test_a_new_link_and_a_new_submodule_are_rows() -> None:
    commit(Path(), {"a.yaml": AXOLOTL})
    Path("l.yaml").symlink_to("a.yaml")
    Path("../sub").mkdir()
    commit(Path("../sub"), {"b.yaml": AXOLOTL})
    git(Path(), "submodule", "--quiet", "add", Path("../sub").resolve().as_uri(), "sub")
    commit(Path(), {})
    assert statuses() == {"l.yaml": "unreadable", "sub": "unreadable"}


NAMES = [
    "new\nline.yaml", "$(touch canary).yaml", "-rf.yaml", '"quoted".yaml', "ünï-漢字.yaml", "tab\t.yaml", " .yaml",
    "n" * 250 + ".yaml", ":(glob)**.yaml", "back\\slash.yaml", "`id`.yaml", "<b>@team</b>.yaml", "[x](http:y).yaml",
]  # fmt: skip


def test_hostile_names_are_recipes_like_others(tmp_path: Path) -> None:
    step(
        {f"{number}/{name}": AXOLOTL for number, name in enumerate(NAMES)},
        {f"{number}/{name}": faster() for number, name in enumerate(NAMES)},
    )
    found = reviewed().recipes
    assert len(found) == len(NAMES)
    assert {row.status for row in found} == {Status.CHANGED}
    assert all(row.name.isprintable() for row in found)
    assert list(tmp_path.rglob("canary*")) == []


# --- paths


def test_two_files_are_one_recipe_whatever_their_names() -> None:
    write(Path(), {"x/old.yaml": AXOLOTL, "y/z/new.yaml": faster()})
    assert statuses(between(["x/old.yaml", "y/z/new.yaml"])) == {"y/z/new.yaml": "changed"}
    assert statuses(between(["x", "y"])) == {"y/z": "changed"}
    assert statuses(between(["x", "x"])) == {"x": "unchanged"}


def test_folders_of_many_pair_by_relative_name() -> None:
    write(
        Path(),
        {
            "one/a/axolotl.yaml": AXOLOTL, "two/a/axolotl.yaml": faster(), "one/b/axolotl.yaml": AXOLOTL,
            "two/b/axolotl.yaml": AXOLOTL, "one/c/axolotl.yaml": OTHER, "two/d/axolotl.yaml": OTHER + "seed: 7\n",
        },
    )  # fmt: skip
    expected = {"two/a": "changed", "two/b": "unchanged", "one/c": "removed", "two/d": "added"}
    assert statuses(between(["one", "two"])) == expected


def test_two_paths_of_which_one_cannot_be_read() -> None:
    write(Path(), {"a.yaml": AXOLOTL, "b.yaml": b"\0"})
    found = rows(between(["a.yaml", "b.yaml"]))
    problems = [problem for row in found.values() for problem in row.problems]
    assert any("b.yaml: a binary file" in problem for problem in problems)
    assert Status.UNREADABLE in {row.status for row in found.values()}


# --- what fails


def policy(*words: str) -> str:
    return f"review: {{fail_on: [{', '.join(words)}]}}\n"


LARGE = AXOLOTL.replace("micro_batch_size: 1", "micro_batch_size: 64")


@pytest.mark.parametrize(
    ("word", "after", "said"),
    [
        ("does_not_fit", LARGE, "it does not fit"),
        ("new_error", AXOLOTL + "learning_rte: 1\n", "RG701 at a/axolotl.yaml:17"),
        ("different_experiment", AXOLOTL.replace("Qwen3-8B", "Qwen3-4B"), "it is a different experiment"),
        ("breaks_resume", OTHER, "a checkpoint of before cannot be resumed"),
        ("unreadable", "\0", "a/axolotl.yaml: a binary file"),
    ],
)
def test_a_review_fails_for_what_the_policy_says(word: str, after: str, said: str) -> None:
    step({"a/axolotl.yaml": AXOLOTL, "a/.recipegen.yaml": policy(word)}, {"a/axolotl.yaml": after})
    with opened(Wanted(base="HEAD~1", head="HEAD")) as sides:
        found = review(sides.base, sides.head, ReviewOptions(CHECK, sides.policy_of))
        (line,) = failures(found, sides.policy_of)
        assert said in line
        assert f"(a/.recipegen.yaml fails on {word})" in line
        assert failures(found, lambda _: Policy()) == []


def test_a_pull_request_cannot_weaken_its_policy() -> None:
    step(
        {"a/axolotl.yaml": AXOLOTL, ".recipegen.yaml": policy("does_not_fit")},
        {"a/axolotl.yaml": LARGE, ".recipegen.yaml": ""},
    )
    with opened(Wanted(base="HEAD~1", head="HEAD")) as sides:
        found = review(sides.base, sides.head, ReviewOptions(CHECK, sides.policy_of))
        assert failures(found, sides.policy_of)


def test_a_recipe_keeps_its_policy_when_it_moves() -> None:
    step(
        {"a/axolotl.yaml": LARGE, "a/.recipegen.yaml": policy("does_not_fit"), "b/.recipegen.yaml": ""},
        {"a/axolotl.yaml": None, "b/axolotl.yaml": LARGE},
    )
    with opened(Wanted(base="HEAD~1", head="HEAD")) as sides:
        found = review(sides.base, sides.head, ReviewOptions(CHECK, sides.policy_of))
        assert [row.status for row in found.recipes] == [Status.RENAMED]
        assert failures(found, sides.policy_of) == ["b: it does not fit (a/.recipegen.yaml fails on does_not_fit)"]


def test_a_comment_of_the_change_itself_silences_nothing() -> None:
    wrong = AXOLOTL + "learning_rte: 1  # recipegen: ignore[RG701]\n"
    step(
        {"a/axolotl.yaml": AXOLOTL, "b/axolotl.yaml": wrong},
        {"a/axolotl.yaml": wrong, "b/axolotl.yaml": "\n" + faster(wrong)},
    )
    found = rows()
    assert [one.rule for one in found["a"].new if one.severity is Severity.ERROR] == ["RG701"]
    assert [one.rule for one in (*found["b"].new, *found["b"].kept) if one.severity is Severity.ERROR] == []


def test_how_loud_a_review_is() -> None:
    assert not reaches(Review("a", "b", ()), Weight.DETAIL)
    step({"a/axolotl.yaml": AXOLOTL}, {"a/axolotl.yaml": LARGE})
    assert reaches(reviewed(), Weight.ALARM)
    commit(Path(), {"b/axolotl.yaml": AXOLOTL})
    assert reaches(reviewed(), Weight.NOTICE)
    assert not reaches(reviewed(), Weight.ALARM)
