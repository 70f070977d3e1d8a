"""The gallery: what is asked for, what is written, and what is said when it is not what would be made today."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from recipegen.cli.main import cli
from recipegen.cli.solve import solve
from recipegen.project import gallery
from recipegen.spec import RecipegenError

LIST = """\
format_version: 1
dataset: HuggingFaceTB/smol-smoltalk
dataset_format: messages
groups:
  - hardware: [kentino-8x-rtx-4090]
    model: [Qwen3-0.6B, Llama-3.3-70B-Instruct]
    method: [lora]
    sequence_len: [4096]
  - hardware: [kentino-8x-rtx-4090]
    nodes: 2
    network: roce-100
    model: [Qwen3-0.6B]
    method: [full]
    sequence_len: [1000]
"""
PROJECTS = ("8x-rtx-4090/qwen3-0.6b-lora-4k", "8x-rtx-4090-2-nodes/qwen3-0.6b-full-1000")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "gallery.yaml").write_text(LIST, encoding="utf-8")
    assert run(tmp_path) == 0
    return tmp_path


def run(root: Path, *words: str) -> int:
    found = CliRunner().invoke(cli, ["gallery", "build", str(root), *words], standalone_mode=False)
    if found.exception:
        raise found.exception
    return int(found.return_value)


def tree(root: Path) -> dict[str, bytes]:
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def test_what_fits_becomes_a_project_and_everything_is_a_row(root: Path) -> None:
    folders = {str(path.parent.relative_to(root)) for path in root.rglob("recipe.lock")}
    assert folders == set(PROJECTS)
    index = (root / "README.md").read_text(encoding="utf-8")
    assert "2 projects of 3 requests" in index
    assert all(f"]({folder})" in index for folder in PROJECTS)
    (row,) = [line for line in index.splitlines() if "70B" in line]
    assert "does not fit" in row
    assert "](" not in row


def test_a_second_build_changes_nothing(root: Path) -> None:
    before = tree(root)
    assert run(root, "--check") == 0
    assert run(root) == 0
    assert tree(root) == before


@pytest.mark.parametrize(
    "name", [f"{PROJECTS[0]}/axolotl.yaml", f"{PROJECTS[0]}/recipe.yaml", f"{PROJECTS[0]}/recipe.lock", "README.md"]
)
@pytest.mark.parametrize("how", ["changed", "removed"])
def test_what_differs_is_said_and_made_again(root: Path, name: str, how: str) -> None:
    before = tree(root)
    if how == "removed":
        (root / name).unlink()
    else:
        (root / name).write_bytes(before[name] + b"# by hand\n")
    changed = tree(root)
    assert run(root, "--check") == 1
    assert tree(root) == changed
    assert run(root) == 0
    assert tree(root) == before


def test_what_is_not_asked_for_any_more_goes(root: Path) -> None:
    (root / "notes.txt").write_text("mine", encoding="utf-8")
    (root / PROJECTS[0] / "left.txt").write_text("left over", encoding="utf-8")
    (root / "gallery.yaml").write_text(LIST[: LIST.rindex("  - hardware")], encoding="utf-8")
    assert run(root, "--check") == 1
    assert run(root) == 0
    assert {name.rpartition("/")[0] for name in tree(root)} == {"", PROJECTS[0]}
    assert (root / "notes.txt").read_text(encoding="utf-8") == "mine"
    assert (root / PROJECTS[0] / "left.txt").exists()
    assert not (root / PROJECTS[1]).parent.exists()
    assert run(root, "--check") == 0


def test_what_people_put_beside_stays(root: Path) -> None:
    checkpoint = root / PROJECTS[1] / "outputs/checkpoint-10/model.safetensors"
    checkpoint.parent.mkdir(parents=True)
    checkpoint.write_bytes(b"weights")
    edited = root / PROJECTS[1] / "axolotl.yaml"
    edited.write_text(edited.read_text(encoding="utf-8") + "# mine\n", encoding="utf-8")
    copied = root / "8x-rtx-4090/my-copy"
    shutil.copytree(root / PROJECTS[0], copied)
    before = tree(copied)
    (root / "gallery.yaml").write_text(LIST[: LIST.rindex("  - hardware")], encoding="utf-8")
    assert run(root) == 0
    assert checkpoint.read_bytes() == b"weights"
    assert edited.read_text(encoding="utf-8").endswith("# mine\n")
    assert tree(copied) == before
    assert not (root / PROJECTS[1] / "launch.sh").exists()
    assert run(root, "--check") == 0


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("format_version: 1", "format_version: 2", "gallery.yaml:1: format_version must be 1"),
        ("dataset_format", "data_format", "gallery.yaml:3: unknown key 'data_format'"),
        ("method: [lora]", "method: lora", "gallery.yaml:7: method must be a list"),
        ("nodes: 2", "nodes: two", "gallery.yaml:10: nodes: 'two'"),
        ("[1000]", "[-1]", "gallery.yaml:14: -1 is no length"),
        ("[full]", "[bogus]", "gallery.yaml:13: method: 'bogus'"),
        ("    method: [full]\n", "    methods: [full]\n", "unknown key 'methods'"),
        ("Qwen3-0.6B, Llama-3.3-70B-Instruct", "Qwen3-0.6B, Qwen3-0.6B", "qwen3-0.6b-lora-4k is asked for twice"),
    ],
)
def test_a_list_that_is_none_is_said_with_its_line(root: Path, old: str, new: str, said: str) -> None:
    before = tree(root)
    (root / "gallery.yaml").write_text(LIST.replace(old, new, 1), encoding="utf-8")
    with pytest.raises(RecipegenError) as caught:
        run(root)
    assert said in str(caught.value)
    assert {**tree(root), "gallery.yaml": b""} == {**before, "gallery.yaml": b""}


def test_an_unknown_model_writes_nothing(root: Path) -> None:
    before = tree(root)
    (root / "gallery.yaml").write_text(LIST.replace("[Qwen3-0.6B]", "[Qwen3-0.65B]"), encoding="utf-8")
    with pytest.raises(RecipegenError):
        run(root)
    assert {**tree(root), "gallery.yaml": b""} == {**before, "gallery.yaml": b""}


def test_the_list_of_this_repository_asks_for_what_customers_ask(tmp_path: Path) -> None:
    cells = gallery.read_list(Path(__file__).parents[2] / "recipes" / gallery.LIST)
    requests = [cell.request for cell in cells]
    assert {r.method for r in requests} == {"full", "lora", "qlora"}
    assert {r.nodes for r in requests} == {1, 2}
    assert {r.sequence_len for r in requests} == {4096, 32768}
    assert len({r.hardware for r in requests}) >= 6
    assert len(list((Path(__file__).parents[2] / "recipes").glob("*/*/recipe.lock"))) >= 60


def test_the_row_has_the_numbers_of_the_decision(root: Path) -> None:
    cell = gallery.read_list(root / gallery.LIST)[0]
    decision = solve(cell.request)
    (row,) = [line for line in (root / "README.md").read_text().splitlines() if f"]({cell.folder})" in line]
    assert f"{decision.estimate.time.tokens_per_s:,.0f} tokens/s" in row
    assert decision.recipe.optimizer.name in row
