"""git's plumbing: what a revision holds, and that nothing which a repository configures is run."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from recipegen.review import git as module
from recipegen.review.git import FILE, LINK, MODULE, blob_name, open_repository
from recipegen.spec import RecipegenError
from tests.review.repositories import AXOLOTL, commit, environment, git


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "repository"
    folder.mkdir()
    return folder


def test_a_revision_is_a_commit_and_its_files(repository: Path) -> None:
    first = commit(repository, {"a/axolotl.yaml": AXOLOTL, "b": "x"})
    second = commit(repository, {"b": None})
    opened = open_repository(repository / "a")
    assert (opened.top, opened.shallow, opened.object_format) == (repository, False, "sha1")
    assert [opened.commit(name) for name in ("HEAD", "main", "HEAD~1", second[:10])] == [second, second, first, second]
    entries = opened.entries(first)
    assert entries.keys() == {"a/axolotl.yaml", "b"}
    entry = entries["a/axolotl.yaml"]
    assert (entry.kind, entry.oid) == (FILE, blob_name(AXOLOTL.encode(), "sha1"))
    assert opened.contents([entry.oid], 2**20, 2**20) == {entry.oid: AXOLOTL.encode()}
    assert opened.entries(second).keys() == {"a/axolotl.yaml"}


def test_a_repository_of_sha256_has_the_same_names_for_its_files(repository: Path) -> None:
    git(repository, "init", "-q", "--object-format=sha256")
    head = commit(repository, {"a.yaml": AXOLOTL})
    opened = open_repository(repository)
    assert opened.entries(head)["a.yaml"].oid == blob_name(AXOLOTL.encode(), opened.object_format)


@pytest.mark.parametrize(
    "revision",
    [
        "",
        "-",
        "--help",
        "--output=canary",
        "-p",
        "nobranch",
        "main\n",
        "main\0",
        "HEAD^{tree}^{commit}",
        "x" * 5000,
        "$(touch canary)",
    ],
)
def test_what_is_no_commit_is_one_clear_error(revision: str, repository: Path) -> None:
    commit(repository, {"a.yaml": AXOLOTL})
    with pytest.raises(RecipegenError) as caught:
        open_repository(repository).commit(revision)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400
    assert sorted(os.listdir(repository)) == [".git", "a.yaml"]


NAMES = [
    "new\nline.yaml", "$(touch canary).yaml", "-rf.yaml", "--help", "\"quoted\".yaml", "ünï-漢字.yaml", "tab\t.yaml",
    " .yaml", "a/" + "n" * 250 + ".yaml", ":(glob)**.yaml", "back\\slash.yaml", "HEAD", "`id`.yaml", "x'y.yaml",
]  # fmt: skip


def test_names_are_taken_as_they_are(repository: Path) -> None:
    head = commit(repository, dict.fromkeys(NAMES, AXOLOTL))
    opened = open_repository(repository)
    assert opened.entries(head).keys() == set(NAMES)
    assert set(opened.names()[0]) == set(NAMES)
    assert not (repository / "canary").exists()


def test_a_name_that_is_not_utf_8(repository: Path) -> None:
    (repository / os.fsdecode(b"\xff.yaml")).write_text(AXOLOTL)
    head = commit(repository, {})
    assert open_repository(repository).entries(head).keys() == {os.fsdecode(b"\xff.yaml")}


def test_links_and_submodules_are_told_apart(repository: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    commit(other, {"axolotl.yaml": AXOLOTL})
    commit(repository, {"a.yaml": AXOLOTL})
    (repository / "link.yaml").symlink_to("/etc/passwd")
    git(repository, "submodule", "--quiet", "add", str(other), "sub")
    head = commit(repository, {})
    kinds = {path: entry.kind for path, entry in open_repository(repository).entries(head).items()}
    assert kinds == {".gitmodules": FILE, "a.yaml": FILE, "link.yaml": LINK, "sub": MODULE}


def test_contents_are_bounded(repository: Path) -> None:
    head = commit(repository, {"small": "12", "large": "x" * 3000})
    opened = open_repository(repository)
    oids = {path: entry.oid for path, entry in opened.entries(head).items()}
    missing = "0" * 40
    found = opened.contents([*oids.values(), missing], 2048, 2**20)
    assert found[oids["small"]] == b"12"
    assert found[oids["large"]] == "3,000 bytes; at most 2 KiB of a recipe's file are read"
    assert found[missing] == "this clone does not have its content"
    with pytest.raises(RecipegenError, match="more than 0 MiB"):
        opened.contents(oids.values(), 4096, 100)


def test_a_damaged_object_is_said_and_the_others_are_read(repository: Path) -> None:
    head = commit(repository, {f"{number}.yaml": AXOLOTL + f"# {number}\n" for number in range(8)})
    opened = open_repository(repository)
    oids = {path: entry.oid for path, entry in opened.entries(head).items()}
    broken = repository / ".git/objects" / oids["3.yaml"][:2] / oids["3.yaml"][2:]
    broken.chmod(0o600)
    broken.write_bytes(b"no object")
    found = opened.contents(oids.values(), 2**20, 2**20)
    assert isinstance(found.pop(oids["3.yaml"]), str)
    assert set(found.values()) == {(AXOLOTL + f"# {number}\n").encode() for number in range(8) if number != 3}


def test_the_merge_base_is_where_the_branches_went_apart(repository: Path) -> None:
    start = commit(repository, {"a.yaml": AXOLOTL})
    git(repository, "checkout", "-q", "-b", "topic")
    commit(repository, {"b.yaml": AXOLOTL})
    git(repository, "checkout", "-q", "main")
    commit(repository, {"c.yaml": AXOLOTL})
    assert open_repository(repository).merge_base("main", "topic") == start
    git(repository, "checkout", "-q", "--orphan", "alone")
    commit(repository, {"d.yaml": AXOLOTL})
    with pytest.raises(RecipegenError, match="'main' and 'alone' have no common commit here"):
        open_repository(repository).merge_base("main", "alone")


def test_a_shallow_clone_says_what_it_lacks(repository: Path, tmp_path: Path) -> None:
    base = commit(repository, {"a.yaml": AXOLOTL})
    commit(repository, {"a.yaml": AXOLOTL + "\n"})
    git(tmp_path, "clone", "-q", "--depth", "1", repository.as_uri(), "clone")
    opened = open_repository(tmp_path / "clone")
    assert opened.shallow
    with pytest.raises(
        RecipegenError, match=r"git has no commit '[0-9a-f]{40}' here\. This clone is shallow: `git fetch"
    ):
        opened.commit(base)


def test_a_partial_clone_does_not_fetch(repository: Path, tmp_path: Path) -> None:
    head = commit(repository, {"a.yaml": AXOLOTL})
    git(repository, "config", "uploadpack.allowFilter", "true")
    git(tmp_path, "clone", "-q", "--no-checkout", "--filter=blob:none", repository.as_uri(), "clone")
    opened = open_repository(tmp_path / "clone")
    oid = opened.entries(head)["a.yaml"].oid
    assert opened.contents([oid], 2**20, 2**20) == {oid: "this clone does not have its content"}


def test_a_bare_repository_has_commits_and_no_working_tree(repository: Path, tmp_path: Path) -> None:
    head = commit(repository, {"a.yaml": AXOLOTL})
    git(tmp_path, "clone", "-q", "--bare", str(repository), "bare.git")
    opened = open_repository(tmp_path / "bare.git")
    assert opened.top is None
    assert opened.entries(opened.commit("main")).keys() == {"a.yaml"}
    assert opened.commit("HEAD") == head


def test_no_repository_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(RecipegenError, match=r"not inside a git repository\. Compare two paths"):
        open_repository(tmp_path)


def test_without_git_there_is_a_clear_error(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(repository))
    with pytest.raises(RecipegenError, match="git is not installed"):
        open_repository(repository)


def test_a_git_that_hangs_is_ended(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (repository / "git").write_text("#!/bin/sh\nexec sleep 60\n")
    (repository / "git").chmod(0o755)
    monkeypatch.setenv("PATH", f"{repository}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(module, "TIMEOUT_S", 0.2)
    with pytest.raises(RecipegenError, match="git rev-parse took longer than"):
        open_repository(repository)


def test_an_answer_without_end_is_cut(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (repository / "git").write_text("#!/bin/sh\nexec yes\n")
    (repository / "git").chmod(0o755)
    monkeypatch.setenv("PATH", f"{repository}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(module, "_MOST_OUTPUT", 2**16)
    with pytest.raises(RecipegenError, match="git rev-parse answered more than"):
        open_repository(repository)


def test_nothing_that_the_repository_configures_is_run(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    canary = repository.parent / "canary"
    script = repository.parent / "script"
    script.write_text(f"#!/bin/sh\ntouch '{canary}'\ncat\n")
    script.chmod(0o755)
    first = commit(repository, {"a.yaml": AXOLOTL, ".gitattributes": "*.yaml filter=bad diff=bad merge=bad\n"})
    second = commit(repository, {"a.yaml": AXOLOTL + "# new\n"})
    for hook in ("post-checkout", "post-index-change", "reference-transaction", "fsmonitor-watchman", "pre-commit"):
        path = repository / ".git/hooks" / hook
        path.parent.mkdir(exist_ok=True)
        path.write_text(script.read_text())
        path.chmod(0o755)
    for key in (
        "core.fsmonitor", "core.pager", "core.sshCommand", "core.askPass", "core.editor", "diff.external",
        "diff.bad.command", "diff.bad.textconv", "filter.bad.clean", "filter.bad.smudge", "filter.bad.process",
        "merge.bad.driver", "pager.ls-files", "pager.cat-file", "core.gitProxy", "gpg.program", "credential.helper",
        "alias.ls-tree", "core.alternateRefsCommand",
    ):  # fmt: skip
        git(repository, "config", key, f"!{script}" if key.startswith("alias") else str(script))
    (repository / "a.yaml").write_text(AXOLOTL + "# newer\n")
    # What would run it: the same questions without the settings of this module.
    loud = subprocess.run(["git", "diff", first], cwd=repository, capture_output=True, env=environment())
    assert canary.exists(), loud
    canary.unlink()
    monkeypatch.setenv("GIT_EXTERNAL_DIFF", str(script))
    monkeypatch.setenv("GIT_PAGER", str(script))
    monkeypatch.setenv("GIT_DIR", "/nonexistent")
    index = (repository / ".git/index").stat().st_mtime_ns
    opened = open_repository(repository)
    assert opened.merge_base("HEAD~1", "HEAD") == first
    entries = opened.entries(second)
    assert opened.contents([entries["a.yaml"].oid], 2**20, 2**20)
    assert set(opened.names()[0]) == {"a.yaml", ".gitattributes"}
    assert not canary.exists()
    assert (repository / ".git/index").stat().st_mtime_ns == index
