"""What a person asks to compare, and that a side holds what its tree holds and nothing else."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path

import pytest

from recipegen.check.checking import Checked, Options, check_projects
from recipegen.check.policy import Policy
from recipegen.review.sides import Side, Sides, Wanted, opened, wanted
from recipegen.spec import RecipegenError
from tests.review.repositories import AXOLOTL, BOX, INTENT, ZERO, commit, faster, git, write

MODEL = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64, "intermediate_size": 128,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 377,
    "max_position_embeddings": 2048, "tie_word_embeddings": False, "rms_norm_eps": 1e-6,
}  # fmt: skip
CANARY = "canary-5f3a"


@pytest.fixture(autouse=True)
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, and a place for temporary folders that is looked at."""
    folder = tmp_path / "repository"
    folder.mkdir()
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    monkeypatch.chdir(folder)
    return folder


def names(side: Side) -> dict[str, str]:
    """The names of the projects, with a word of their content."""
    return {
        one.name: "new" if any(b"1.0e-4" in content for content in one.files.values()) else "old"
        for one in side.projects
    }


def checked(side: Side) -> dict[str, Checked]:
    found = check_projects(side.projects, Options(trainers=False), lambda _: Policy())
    return {one.project.name: one for one in found}


# --- what is asked for


@pytest.mark.parametrize(
    ("words", "paths", "meant"),
    [
        ([], None, Wanted()),
        (["topic"], None, Wanted(base="topic")),
        (["main..topic"], None, Wanted(base="main", head="topic")),
        (["main...topic"], None, Wanted(base="main", head="topic", merge_base=True)),
        (["main..."], None, Wanted(base="main", head="HEAD", merge_base=True)),
        (["..topic"], None, Wanted(base="HEAD", head="topic")),
        (["main", "topic"], None, Wanted(base="main", head="topic")),
        (["a.yaml", "b.yaml"], None, Wanted(old="a.yaml", new="b.yaml")),
        (["a.yaml"], None, Wanted(paths=("a.yaml",))),
        (["topic", "a.yaml"], None, Wanted(base="topic", paths=("a.yaml",))),
        (["main", "topic", "a.yaml", "b.yaml"], None, Wanted("", "", "main", "topic", False, ("a.yaml", "b.yaml"))),
        ([], ["a.yaml"], Wanted(paths=("a.yaml",))),
        (["HEAD~1"], ["gone.yaml"], Wanted(base="HEAD~1", paths=("gone.yaml",))),
        (["a.yaml", "b.yaml"], [], Wanted(base="a.yaml", head="b.yaml")),
    ],
)
def test_words_of_the_command_line(words: list[str], paths: list[str] | None, meant: Wanted) -> None:
    write(Path(), {"a.yaml": AXOLOTL, "b.yaml": AXOLOTL})
    assert wanted(words, paths) == meant


@pytest.mark.parametrize(
    ("words", "paths", "said"),
    [
        (["a.yaml", "gone.yaml"], None, "'gone.yaml': no such file or folder"),
        (["a", "b", "c"], None, "'c': more than two revisions"),
        (["a..b..c"], None, "'b..c' is no revision"),
        (["a..b", "c"], None, "'a..b' is no revision"),
        (["-p"], [], "'-p' is no revision"),
        (["x\ny"], None, "is no revision"),
        (["main"], None, "'main' is a path and a revision"),
    ],
)
def test_words_that_mean_nothing(words: list[str], paths: list[str] | None, said: str) -> None:
    commit(Path(), {"a.yaml": AXOLOTL, "main/a.yaml": AXOLOTL})
    with pytest.raises(RecipegenError, match=said):
        wanted(words, paths)


# --- revisions


def test_only_recipes_that_can_differ_are_read() -> None:
    commit(Path(), {"a/axolotl.yaml": AXOLOTL, "b/axolotl.yaml": AXOLOTL, "note.md": "x"})
    commit(Path(), {"a/axolotl.yaml": faster(), "note.md": "y"})
    with opened(Wanted(base="HEAD~1", head="HEAD")) as sides:
        assert (names(sides.base), names(sides.head)) == ({"a": "old"}, {"a": "new"})
    with opened(Wanted(base="HEAD~1", head="HEAD"), everything=True) as sides:
        assert names(sides.head) == {"a": "new", "b": "old"}


def test_the_working_tree_is_what_git_would_add() -> None:
    commit(Path(), {"a/axolotl.yaml": AXOLOTL, "b/axolotl.yaml": AXOLOTL, ".gitignore": "out/\n"})
    write(Path(), {"a/axolotl.yaml": faster(), "b/axolotl.yaml": None, "out/c.yaml": AXOLOTL, "d.yaml": AXOLOTL})
    with opened(Wanted()) as sides:
        assert names(sides.base) == {"a": "old", "b": "old"}
        assert names(sides.head) == {"a": "new", "d.yaml": "old"}
        assert sides.head.root == Path.cwd()


def test_places_begin_at_the_top_from_any_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    commit(Path(), {"p/a/axolotl.yaml": AXOLOTL, "b.yaml": AXOLOTL})
    write(Path(), {"p/a/axolotl.yaml": faster(), "b.yaml": faster()})
    monkeypatch.chdir("p")
    with opened(Wanted(paths=(".",))) as sides:
        assert names(sides.base) == {"p/a": "old"}
        assert [one.shown for one in sides.head.projects] == [{"axolotl.yaml": "p/a/axolotl.yaml"}]
    with opened(Wanted(paths=("../b.yaml",))) as sides:
        assert names(sides.head) == {"b.yaml": "new"}
    with pytest.raises(RecipegenError, match="outside of this repository"), opened(Wanted(paths=("../..",))):
        pass


def test_what_is_copied_is_removed_also_after_an_error(tmp_path: Path) -> None:
    commit(Path(), {"a.yaml": AXOLOTL})
    commit(Path(), {"a.yaml": faster()})
    with opened(Wanted(base="HEAD~1", head="HEAD")) as sides:
        root = sides.base.root
        assert (root / "a.yaml").read_text() == AXOLOTL
        assert root.parent.stat().st_mode & 0o077 == 0
    assert list((tmp_path / "temporary").iterdir()) == []
    with pytest.raises(ZeroDivisionError), opened(Wanted(base="HEAD~1", head="HEAD")):
        raise ZeroDivisionError
    assert list((tmp_path / "temporary").iterdir()) == []
    assert git(Path(), "status", "--porcelain") == ""


def test_a_shared_file_of_another_folder_reaches_the_recipes_that_name_it() -> None:
    def using(name: str) -> str:
        return f"{AXOLOTL}deepspeed: {name}\n"

    commit(
        Path(),
        {
            "configs/zero.json": ZERO,
            "r/near/axolotl.yaml": using("../../configs/zero.json"),
            "r/top/axolotl.yaml": using("configs/zero.json"),
            "r/quoted/axolotl.yaml": using("'../../configs/zero.json'"),
            "r/script/axolotl.yaml": AXOLOTL,
            "r/script/launch.sh": 'accelerate launch --config_file "$HERE/../../configs/acc.yaml" train.py\n',
            "configs/acc.yaml": "distributed_type: DEEPSPEED\ndeepspeed_config: {deepspeed_config_file: zero.json}\n",
            "r/other/axolotl.yaml": using("../../configs/other.json"),
            "r/longer/axolotl.yaml": using("../../configs/not-zero.json"),
        },
    )
    commit(Path(), {"configs/zero.json": ZERO.replace("2", "3")})
    with opened(Wanted(base="HEAD~1", head="HEAD")) as sides:
        reached = {path for path in sides.head.reached if path.startswith("r/")}
        assert reached == {"r/near", "r/top", "r/quoted", "r/script"}
        files = {one.name: one.files for one in sides.head.projects}
        assert b": 3" in files["r/near"]["../../configs/zero.json"]
        assert b": 3" in files["r/top"]["configs/zero.json"]


def test_paths_limit_the_recipes_not_what_they_name() -> None:
    files = {"configs/zero.json": ZERO, "r/a/axolotl.yaml": AXOLOTL + "deepspeed: ../../configs/zero.json\n"}
    commit(Path(), {**files, "s/axolotl.yaml": AXOLOTL})
    commit(Path(), {"configs/zero.json": ZERO.replace("2", "3"), "s/axolotl.yaml": faster()})
    for path in ("r", "configs/", "r/a/axolotl.yaml"):
        with opened(Wanted(base="HEAD~1", head="HEAD", paths=(path,))) as sides:
            assert list(names(sides.head)) == ["r/a"], path


def test_links_pointers_and_submodules_are_said_and_not_followed(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    commit(outside, {"axolotl.yaml": AXOLOTL + f"# {CANARY}\n"})
    commit(Path(), {"a.yaml": AXOLOTL})
    Path("link.yaml").symlink_to(outside / "axolotl.yaml")
    Path("folder").symlink_to(outside)
    git(Path(), "submodule", "--quiet", "add", str(outside), "sub")
    pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 12\n"
    commit(Path(), {"lfs.yaml": pointer})
    with opened(Wanted(base="HEAD~1", head="HEAD")) as sides:
        assert sides.head.troubles == {
            "link.yaml": "a symbolic link, which is not followed",
            "lfs.yaml": "a Git LFS pointer; its content is not in git, and nothing is fetched",
            "sub": "a submodule, whose files are not looked at",
        }
        assert names(sides.head) == {"a.yaml": "old"}
        assert not any(path.is_symlink() for path in sides.head.root.rglob("*"))


def test_files_behind_a_link_to_a_folder_are_not_of_the_working_tree(tmp_path: Path) -> None:
    commit(Path(), {"a/axolotl.yaml": AXOLOTL})
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/axolotl.yaml").write_text(AXOLOTL + f"# {CANARY}\n")
    Path("a/axolotl.yaml").unlink()
    Path("a").rmdir()
    Path("a").symlink_to(tmp_path / "outside")
    with opened(Wanted()) as sides:
        assert (list(names(sides.base)), sides.head.projects) == (["a"], ())


def test_what_a_sparse_checkout_leaves_out_is_not_removed() -> None:
    commit(Path(), {"a/axolotl.yaml": AXOLOTL, "b/axolotl.yaml": AXOLOTL})
    git(Path(), "sparse-checkout", "set", "a")
    assert not Path("b").exists()
    write(Path(), {"a/axolotl.yaml": faster()})
    with opened(Wanted(), everything=True) as sides:
        assert names(sides.base) == {"a": "old"}
        assert names(sides.head) == {"a": "new"}


@pytest.mark.parametrize("name", ["../x.yaml", "a/../../x.yaml", ".git/x.yaml", ".GIT/x.yaml", "./x.yaml", "a//x.yaml"])
def test_a_tree_that_no_git_would_write_stays_inside(name: str, tmp_path: Path) -> None:
    """Objects can be made by hand, and a name in them can be anything."""
    commit(Path(), {"a.yaml": AXOLOTL})
    blob = git(Path(), "hash-object", "-w", "--stdin", stdin=faster().encode())
    tree = b"100644 " + name.encode() + b"\0" + bytes.fromhex(blob)
    oid = git(Path(), "hash-object", "-t", "tree", "-w", "--stdin", "--literally", stdin=tree)
    head = git(Path(), "commit-tree", "-m", "x", oid)
    with opened(Wanted(base="HEAD", head=head)) as sides:
        assert sides.head.projects == ()
        inside = sides.head.root.parent
        found = {path for path in tmp_path.rglob("x.yaml") if not path.is_relative_to(inside)}
    assert found == set()


# --- what a recipe names


OUTSIDE = [
    "{outside}/box.yaml",
    "../../outside/box.yaml",
    "../outside/box.yaml",
    "~/box.yaml",
    ".git/box.yaml",
    "l.yaml",
    "d/box.yaml",
]


@pytest.mark.parametrize("name", OUTSIDE)
@pytest.mark.parametrize("head", ["HEAD", None])
def test_no_hardware_profile_of_outside_is_read(
    name: str, head: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outside = tmp_path / "outside"
    write(outside, {"box.yaml": f"{BOX}description: {CANARY}\n{CANARY}: 1\n"})
    monkeypatch.setenv("HOME", str(outside))
    commit(Path(), {"r/axolotl.yaml": AXOLOTL})
    Path("r/l.yaml").symlink_to(outside / "box.yaml")
    Path("r/d").symlink_to(outside)
    write(Path(".git"), {"box.yaml": (outside / "box.yaml").read_text()})
    commit(Path(), {"r/axolotl.yaml": faster(), "r/recipe.yaml": INTENT.format(name.format(outside=outside))})
    with opened(Wanted(base="HEAD~1", head=head)) as sides:
        one = checked(sides.head)["r"]
    said = [found.reason for found in one.findings if found.rule == "RG702"]
    assert len(said) == 1
    assert "no YAML file inside of this tree" in said[0]
    assert CANARY not in repr(one)
    assert one.subject.cluster is None


def test_a_hardware_profile_of_the_tree_is_read_and_shown_from_its_top() -> None:
    commit(
        Path(), {"boxes/box.yaml": BOX, "r/axolotl.yaml": AXOLOTL, "r/recipe.yaml": INTENT.format("../boxes/box.yaml")}
    )
    commit(Path(), {"boxes/box.yaml": BOX.replace("2", "4", 1).replace("gpu_count: 2", "gpu_count: 4")})
    commit(Path(), {"boxes/box.yaml": BOX.replace("gpu_count: 2", "gpu_count: 4")})
    with opened(Wanted(base="HEAD~2", head="HEAD")) as sides:
        clusters = [checked(side)["r"].subject.cluster for side in (sides.base, sides.head)]
    assert [one.node.gpu_count for one in clusters if one] == [2, 4]
    assert [one.name for one in clusters if one] == ["boxes/box.yaml"] * 2
    assert "temporary" not in repr(clusters)


def test_an_error_in_a_profile_of_the_tree_has_its_place() -> None:
    commit(Path(), {"box.yaml": BOX, "r/axolotl.yaml": AXOLOTL, "r/recipe.yaml": INTENT.format("../box.yaml")})
    commit(Path(), {"box.yaml": BOX + "colour: red\n"})
    with opened(Wanted(base="HEAD~1", head="HEAD")) as sides:
        findings = checked(sides.head)["r"].findings
    assert any("box.yaml:4: unknown key" in found.reason for found in findings)
    assert "temporary" not in repr(findings)


@pytest.mark.parametrize("name", ["{outside}/model", "../../outside/model", "../outside/model", "~/model", "l", "m"])
@pytest.mark.parametrize("head", ["HEAD", None])
def test_no_model_of_outside_is_read(
    name: str, head: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outside = tmp_path / "outside"
    write(outside, {"model/config.json": json.dumps({**MODEL, "hidden_size": 4096, "x": CANARY})})
    monkeypatch.setenv("HOME", str(outside))
    text = AXOLOTL.replace("Qwen/Qwen3-8B", name.format(outside=outside))
    commit(Path(), {"r/axolotl.yaml": text})
    Path("r/l").symlink_to(outside / "model")
    Path("r/m").mkdir()
    Path("r/m/config.json").symlink_to(outside / "model/config.json")
    commit(Path(), {"r/axolotl.yaml": faster(text)})
    with opened(Wanted(base="HEAD~1", head=head)) as sides:
        for side in (sides.base, sides.head):
            one = checked(side)["r"]
            assert one.subject.assembled.model is None
            assert CANARY not in repr(one)


def test_a_model_of_the_tree_is_read_on_both_sides() -> None:
    text = AXOLOTL.replace("Qwen/Qwen3-8B", "../models/tiny")
    commit(Path(), {"models/tiny/config.json": json.dumps(MODEL), "r/axolotl.yaml": text})
    commit(Path(), {"models/tiny/config.json": json.dumps({**MODEL, "hidden_size": 128})})
    with opened(Wanted(base="HEAD~1", head="HEAD")) as sides:
        models = [checked(side)["r"].subject.assembled.model for side in (sides.base, sides.head)]
    assert [one.hidden_size for one in models if one] == [64, 128]


def test_a_model_that_git_ignores_is_that_of_the_working_tree_on_both_sides() -> None:
    text = AXOLOTL.replace("Qwen/Qwen3-8B", "./tiny")
    commit(Path(), {"r/axolotl.yaml": text, ".gitignore": "tiny/\n"})
    write(Path(), {"r/tiny/config.json": json.dumps(MODEL), "r/axolotl.yaml": faster(text)})
    with opened(Wanted()) as sides:
        models = [checked(side)["r"].subject.assembled.model for side in (sides.base, sides.head)]
    assert [one.hidden_size for one in models if one] == [64, 64]


@pytest.mark.parametrize("name", ["{outside}/zero.json", "../../outside/zero.json", "l.json", "d/zero.json"])
def test_no_deepspeed_file_of_outside_is_read(name: str, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    write(outside, {"zero.json": ZERO.replace("2", f'2, "{CANARY}": 1')})
    text = AXOLOTL + f"deepspeed: {name.format(outside=outside)}\n"
    commit(Path(), {"r/axolotl.yaml": text})
    Path("r/l.json").symlink_to(outside / "zero.json")
    Path("r/d").symlink_to(outside)
    write(Path(), {"r/axolotl.yaml": faster(text)})
    with opened(Wanted()) as sides:
        for side in (sides.base, sides.head):
            assert CANARY not in repr(checked(side))


def test_a_persons_own_files_may_name_any(tmp_path: Path) -> None:
    write(tmp_path, {"outside/box.yaml": BOX})
    write(Path(), {"a/axolotl.yaml": AXOLOTL, "a/recipe.yaml": INTENT.format(tmp_path / "outside/box.yaml")})
    write(Path(), {"b/axolotl.yaml": faster(), "b/recipe.yaml": INTENT.format("../../outside/box.yaml")})
    with opened(wanted(["a", "b"], None)) as sides:
        clusters = [one.subject.cluster for side in (sides.base, sides.head) for one in checked(side).values()]
    assert [one.node.gpu_count for one in clusters if one] == [2, 2]


# --- the policy


def policy_words(sides: Sides, path: str) -> tuple[str, ...]:
    return sides.policy_of(path).fail_on


def test_the_policy_is_that_of_the_base() -> None:
    word = "review: {{fail_on: [{}]}}\n"
    commit(
        Path(),
        {
            ".recipegen.yaml": word.format("new_error"),
            "r/.recipegen.yaml": word.format("does_not_fit"),
            "r/a/axolotl.yaml": AXOLOTL,
            "r/empty/.recipegen.yaml": "",
        },
    )
    commit(Path(), {".recipegen.yaml": None, "r/.recipegen.yaml": "", "r/a/axolotl.yaml": faster()})
    with opened(Wanted(base="HEAD~1", head="HEAD")) as sides:
        assert policy_words(sides, "r/a") == ("does_not_fit",)
        assert policy_words(sides, "r/a/axolotl.yaml") == ("does_not_fit",)
        assert policy_words(sides, "r/empty/new.yaml") == ()
        assert policy_words(sides, "s/new") == policy_words(sides, "x.yaml") == ("new_error",)
    write(Path(), {"own.yaml": word.format("breaks_resume")})
    with opened(Wanted(base="HEAD~1", head="HEAD"), policy_file=Path("own.yaml")) as sides:
        assert policy_words(sides, "r/a") == ("breaks_resume",)


def test_an_error_in_the_policy_has_file_and_line() -> None:
    commit(Path(), {"r/.recipegen.yaml": "strict: false\nreview:\n  fail_on: [does_not_fitt]\n", "r/a.yaml": AXOLOTL})
    commit(Path(), {"r/a.yaml": faster()})
    with opened(Wanted(base="HEAD~1", head="HEAD")) as sides:  # noqa: SIM117
        with pytest.raises(
            RecipegenError, match=r"^r/\.recipegen\.yaml:3: unknown .*does_not_fitt.* Did you mean does_n"
        ):
            sides.policy_of("r/a.yaml")


def test_the_policy_of_two_paths_is_that_of_the_current_folder() -> None:
    write(Path(), {"a.yaml": AXOLOTL, "b.yaml": faster(), ".recipegen.yaml": "review: {fail_on: [tight]}\n"})
    with opened(wanted(["a.yaml", "b.yaml"], None)) as sides:
        assert policy_words(sides, "b.yaml") == ("tight",)


# --- paths


def test_a_path_without_a_recipe_is_an_error(tmp_path: Path) -> None:
    write(Path(), {"a.yaml": AXOLOTL, "empty/note.md": "x"})
    with pytest.raises(RecipegenError, match="empty: no file of a recipe"), opened(wanted(["a.yaml", "empty"], None)):
        pass
    assert os.listdir(tmp_path / "temporary") == []
