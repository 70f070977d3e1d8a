"""`recipegen diff` and `recipegen review`, as a person or a workflow calls them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from recipegen.cli.main import run
from tests.review.repositories import AXOLOTL, BOX, INTENT, commit, faster, git, write

BOX_OPTION = ("--hardware", "kentino-8x-rtx-5090")
LARGE = AXOLOTL.replace("micro_batch_size: 1", "micro_batch_size: 64")
Output = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def _inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "repository"
    folder.mkdir()
    monkeypatch.chdir(folder)


def two_branches(after: str = faster()) -> tuple[str, str]:
    """main, which went on, and a topic that changes a recipe; the names of both ends."""
    commit(Path(), {"recipes/a/axolotl.yaml": AXOLOTL, "recipes/b/axolotl.yaml": AXOLOTL})
    git(Path(), "checkout", "-q", "-b", "topic")
    topic = commit(Path(), {"recipes/a/axolotl.yaml": after})
    git(Path(), "checkout", "-q", "main")
    main = commit(Path(), {"recipes/b/axolotl.yaml": LARGE})
    return main, topic


def rows(capsys: Output, *arguments: str, code: int = 0) -> dict[str, str]:
    """Name and status of each recipe of the JSON answer."""
    assert run([*arguments[:1], *BOX_OPTION, "--format", "json", *arguments[1:]]) == code
    document = json.loads(capsys.readouterr().out)
    return {row["name"]: row["status"] for row in document["recipes"]}


def test_two_files(capsys: Output) -> None:
    write(Path(), {"old.yaml": AXOLOTL, "new.yaml": faster()})
    assert rows(capsys, "diff", "old.yaml", "new.yaml") == {"new.yaml": "changed"}


def test_without_words_it_is_head_and_the_working_tree(capsys: Output) -> None:
    two_branches()
    write(Path(), {"recipes/a/axolotl.yaml": faster(), "recipes/c/axolotl.yaml": AXOLOTL + "seed: 3\n"})
    assert rows(capsys, "diff") == {"recipes/a": "changed", "recipes/c": "added"}
    assert rows(capsys, "diff", "--", "recipes/c") == {"recipes/c": "added"}
    assert rows(capsys, "diff", "HEAD", "recipes/a") == {"recipes/a": "changed"}


def test_three_dots_are_what_a_branch_did(capsys: Output) -> None:
    two_branches()
    assert rows(capsys, "diff", "main...topic") == {"recipes/a": "changed"}
    assert rows(capsys, "diff", "main..topic") == {"recipes/a": "changed", "recipes/b": "changed"}
    assert rows(capsys, "diff", "main..topic", "--", "recipes/b") == {"recipes/b": "changed"}
    assert rows(capsys, "diff", "main...topic", "--all") == {"recipes/a": "changed", "recipes/b": "unchanged"}


def test_review_is_the_diff_of_three_dots(capsys: Output) -> None:
    main, topic = two_branches()
    assert rows(capsys, "review", "--base", main, "--head", topic) == {"recipes/a": "changed"}
    assert rows(capsys, "review", "--base", main, "--head", topic, "--", "recipes/b") == {}
    git(Path(), "checkout", "-q", "topic")
    assert rows(capsys, "review", "--base", "main") == {"recipes/a": "changed"}


@pytest.mark.parametrize("output", ["text", "markdown", "github", "annotations"])
@pytest.mark.parametrize("command", ["diff", "review"])
def test_every_format_says_which_recipe_and_what(command: str, output: str, capsys: Output) -> None:
    main, topic = two_branches(LARGE)
    words = [f"{main}...{topic}"] if command == "diff" else ["--base", main, "--head", topic]
    assert run([command, *words, *BOX_OPTION, "--format", output]) == 0
    out, err = capsys.readouterr()
    assert "recipes/a" in out
    assert "recipes/b" not in out
    assert err == ""
    assert "\x1b" not in out


def test_the_comment_has_the_tag_by_which_it_is_found(capsys: Output) -> None:
    main, topic = two_branches()
    assert run(["review", "--base", main, "--head", topic, "--format", "github", *BOX_OPTION]) == 0
    assert "<!-- recipegen-review -->" in capsys.readouterr().out


def test_the_machine_holds_for_both_sides(capsys: Output) -> None:
    write(Path(), {"old.yaml": AXOLOTL, "new.yaml": LARGE})
    assert run(["diff", "old.yaml", "new.yaml", "--hardware", "1x-rtx-4090", "--format", "json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["recipes"]
    assert row["verdict_before"] != row["verdict_after"]
    assert row["verdict_after"] == "does_not_fit"


def test_an_answer_in_a_file(capsys: Output) -> None:
    two_branches()
    assert run(["diff", "main...topic", "--output", "answer.txt", *BOX_OPTION]) == 0
    out, err = capsys.readouterr()
    assert (out, err) == ("", "")
    text = Path("answer.txt").read_text()
    assert "recipes/a" in text
    assert "\x1b" not in text


@pytest.mark.parametrize(
    ("after", "none", "notice", "alarm"),
    [(AXOLOTL + "# x\n", True, False, False), (LARGE, True, True, True)],
    ids=["a comment", "does not fit"],
)
def test_silence_below(after: str, none: bool, notice: bool, alarm: bool, capsys: Output) -> None:
    main, topic = two_branches(after)
    for word, printed in (("none", none), ("notice", notice), ("alarm", alarm)):
        words = ["--base", main, "--head", topic, "--format", "github", "--silent-below", word]
        assert run(["review", *words, *BOX_OPTION]) == 0
        assert bool(capsys.readouterr().out) is printed, word


# --- exit codes


def test_nothing_fails_without_a_policy_and_strict_fails(capsys: Output) -> None:
    two_branches(LARGE)
    assert run(["diff", "main...topic", *BOX_OPTION]) == 0
    assert capsys.readouterr().err == ""
    assert run(["diff", "main...topic", *BOX_OPTION, "--strict"]) == 1
    out, err = capsys.readouterr()
    assert err.startswith("diff failed: recipes/a: it does not fit (--strict)")
    assert err.count("\n") == 1
    assert "recipes/a" in out


def test_the_policy_of_the_base_decides(capsys: Output) -> None:
    commit(Path(), {"a.yaml": AXOLOTL, ".recipegen.yaml": "review: {fail_on: [does_not_fit]}\n"})
    commit(Path(), {"a.yaml": LARGE, ".recipegen.yaml": None})
    assert run(["review", "--base", "HEAD~1", "--silent-below", "alarm", *BOX_OPTION]) == 1
    out, err = capsys.readouterr()
    assert err == "review failed: a.yaml: it does not fit (.recipegen.yaml fails on does_not_fit)\n"
    assert out
    write(Path(), {"own.yaml": "strict: false\n"})
    assert run(["review", "--base", "HEAD~1", "--policy", "own.yaml", *BOX_OPTION]) == 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["diff", "nobranch"], "git has no commit 'nobranch' here"),
        (["diff", "nobranch...main"], "git has no commit 'nobranch' here"),
        (["diff", "a.yaml", "gone.yaml"], "'gone.yaml': no such file or folder"),
        (["diff", "--", "../.."], "../..: outside of this repository"),
        (["diff", "--upload-pack=x"], "No such option"),
        (["review", "--base", "--help", "--head", "main"], "'--help' is no revision"),
        (["review", "--base=--output=canary"], "'--output=canary' is no revision"),
        (["review", "--base", "$(touch canary)"], "git has no commit"),
        (["review"], "Missing option '--base'"),
        (["diff", "HEAD", "--hardware", "toaster"], "unknown hardware profile 'toaster'"),
        (["diff", "HEAD", "--policy", "gone.yaml"], "gone.yaml: cannot be read"),
        (["diff", "HEAD", "--output", "."], ".: is a folder"),
        (["diff", "HEAD", "--policy", "bad.yaml"], "bad.yaml:1: unknown"),
    ],
)
def test_bad_input_is_one_line_and_exit_2(words: list[str], said: str, capsys: Output) -> None:
    commit(Path(), {"a.yaml": AXOLOTL, "bad.yaml": "review: {fail_on: [everything]}\n"})
    write(Path(), {"a.yaml": faster()})
    assert run(words) == 2
    out, err = capsys.readouterr()
    assert said in err
    assert (out, err.count("\n")) == ("", 1)
    assert not Path("canary").exists()


def test_no_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Output) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["diff"]) == 2
    assert "not inside a git repository" in capsys.readouterr().err


def test_a_repository_without_a_commit(capsys: Output) -> None:
    git(Path(), "init", "-q")
    write(Path(), {"a.yaml": AXOLOTL})
    assert run(["diff"]) == 2
    assert "git has no commit 'HEAD' here" in capsys.readouterr().err


def test_a_shallow_clone_without_the_base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Output) -> None:
    main, topic = two_branches()
    git(tmp_path, "clone", "-q", "--depth", "1", "--branch", "topic", Path.cwd().as_uri(), "clone")
    monkeypatch.chdir(tmp_path / "clone")
    assert run(["review", "--base", main, "--head", topic]) == 2
    assert f"git has no commit '{main}' here. This clone is shallow" in capsys.readouterr().err
    git(Path(), "fetch", "-q", "--depth", "1", "origin", "main")
    assert run(["review", "--base", main, "--head", topic]) == 2
    err = capsys.readouterr().err
    assert "have no common commit here. This clone is shallow" in err
    assert err.count("\n") == 1


def test_a_bare_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Output) -> None:
    two_branches()
    git(tmp_path, "clone", "-q", "--bare", str(Path.cwd()), "bare.git")
    monkeypatch.chdir(tmp_path / "bare.git")
    assert rows(capsys, "diff", "main...topic", "--", "recipes/") == {"recipes/a": "changed"}
    assert run(["diff", "HEAD"]) == 2
    assert "this repository has no working tree" in capsys.readouterr().err


def test_as_a_hook_of_git_calls_it(monkeypatch: pytest.MonkeyPatch, capsys: Output) -> None:
    """git sets its own variables there, relative to its own folder."""
    two_branches()
    for name, value in (("GIT_DIR", ".git"), ("GIT_INDEX_FILE", ".git/index"), ("GIT_PREFIX", "")):
        monkeypatch.setenv(name, value)
    monkeypatch.chdir("recipes")
    assert rows(capsys, "diff", "main...topic") == {"recipes/a": "changed"}


def test_a_recipe_that_points_outside_says_nothing_of_what_is_there(tmp_path: Path, capsys: Output) -> None:
    write(tmp_path, {"box.yaml": BOX + "canary-5f3a: 1\n"})
    commit(Path(), {"r/axolotl.yaml": AXOLOTL})
    commit(Path(), {"r/axolotl.yaml": faster(), "r/recipe.yaml": INTENT.format("../../box.yaml")})
    for output in ("text", "json", "markdown", "github", "annotations"):
        assert run(["review", "--base", "HEAD~1", "--format", output]) == 0
        out, err = capsys.readouterr()
        assert "canary-5f3a" not in out + err
        assert "recipegen-" not in out.replace("recipegen-review", "")  # no place of a temporary folder


def test_the_whole_program_leaves_nothing_behind(tmp_path: Path) -> None:
    two_branches()
    (tmp_path / "temporary").mkdir()
    done = subprocess.run(
        [sys.executable, "-m", "recipegen.cli.main", "diff", "main...topic", *BOX_OPTION],
        env={**os.environ, "TMPDIR": str(tmp_path / "temporary"), "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert list((tmp_path / "temporary").iterdir()) == []
    assert git(Path(), "status", "--porcelain") == ""
