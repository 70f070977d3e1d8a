"""What a file is, and which files are one recipe."""

from __future__ import annotations

from pathlib import Path

import pytest

from recipegen.formats import documents
from recipegen.source import Kind, Project, classify, collect
from recipegen.source.classify import is_document
from recipegen.source.projects import collect_given

AXOLOTL = "base_model: Qwen/Qwen3-8B\nmicro_batch_size: 1\n"
ACCELERATE = "compute_environment: LOCAL_MACHINE\ndistributed_type: MULTI_GPU\nnum_processes: 8\n"
DEEPSPEED = '{"zero_optimization": {"stage": 2}, "bf16": {"enabled": true}}'
ARGUMENTS = "model_name_or_path: Qwen/Qwen3-8B\nper_device_train_batch_size: 1\nlearning_rate: 1.0e-5\n"

CASES = {
    "axolotl": (AXOLOTL, "a.yaml", Kind.AXOLOTL),
    "axolotl without a model": ("sequence_len: 2048\nnum_epochs: 1\ndatasets: [{path: x}]\n", "a.yml", Kind.AXOLOTL),
    "axolotl as JSON": ('{"base_model": "x", "adapter": "lora"}', "a.json", Kind.AXOLOTL),
    "axolotl that is broken": ("base_model: x\nadapter: [\n", "a.yaml", Kind.AXOLOTL),
    "broken, by its name": ("\t- [", "my-axolotl.yaml", Kind.AXOLOTL),
    "accelerate": (ACCELERATE, "axolotl.yaml", Kind.ACCELERATE),
    "deepspeed": (DEEPSPEED, "zero.json", Kind.DEEPSPEED),
    "deepspeed by a switch": ('{"fp16": {"enabled": "auto"}}', "d.json", Kind.DEEPSPEED),
    "arguments": (ARGUMENTS, "sft.yaml", Kind.ARGUMENTS),
    "arguments as JSON": ('{"num_train_epochs": 1, "output_dir": "x", "bf16": true}', "a.json", Kind.ARGUMENTS),
    "recipe.yaml": ("format_version: 1\nmodel: m\nhardware: h\nepochs: 3\n", "r.yaml", Kind.RECIPE),
    "recipe.lock": ("{}", "recipe.lock", Kind.LOCK),
    "train.json": (
        '{"model": {}, "data": {}, "batch": {}, "optimizer": {}, "schedule": {}, "saving": {}}', "t.json",
        Kind.TRAIN_JSON,
    ),
    "script": ("#!/bin/bash\naccelerate launch train.py\n", "run", Kind.SCRIPT),
    "script by its ending": ("torchrun --nproc_per_node 8 train.py\n", "run.sh", Kind.SCRIPT),
    "other script": ("#!/bin/bash\nls\n", "ls.sh", Kind.OTHER),
    "batch file": ("#!/bin/bash\n#SBATCH --nodes=2\nsrun x\n", "job.slurm", Kind.SBATCH),
    "a model's configuration": ('{"architectures": [], "model_type": "llama", "hidden_size": 1}', "m.json", Kind.OTHER),
    "somebody else's YAML": ("name: CI\non: push\njobs: {}\n", "ci.yaml", Kind.OTHER),
    "a list": ("- 1\n- 2\n", "list.yaml", Kind.OTHER),
    "nothing": ("", "empty.yaml", Kind.OTHER),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_a_file_is_what_its_content_says(case: str) -> None:
    text, name, kind = CASES[case]
    content = text.encode()
    document = documents.read(content, name) if is_document(content, name) else None
    assert classify(content, name, document) is kind


@pytest.fixture(autouse=True)
def _inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def write(**files: str) -> None:
    """`a__b_yaml="..."` is the file a/b.yaml."""
    for name, text in files.items():
        path = Path("/".join(name.split("__")).replace("_", "."))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def grouped(*paths: str) -> dict[str, set[str]]:
    """Name of each project -> its files."""
    return {project.name: set(project.files) for project in collect(paths or ["."]).projects}


def only(*paths: str) -> Project:
    (project,) = collect(paths or ["."]).projects
    return project


def test_auxiliary_files_join_the_only_main_file() -> None:
    write(p__axolotl_yaml=AXOLOTL, p__accelerate_yaml=ACCELERATE, p__zero_json=DEEPSPEED, p__run_sh="torchrun x.py\n")
    project = only("p")
    assert (project.name, project.main) == ("p", "axolotl.yaml")
    assert set(project.files) == {"axolotl.yaml", "accelerate.yaml", "zero.json", "run.sh"}
    assert project.shown["zero.json"] == "p/zero.json"


def test_among_several_main_files_they_join_the_one_that_names_them() -> None:
    write(
        a_yaml=AXOLOTL + "deepspeed: zero.json\n",
        b_yaml=AXOLOTL,
        zero_json=DEEPSPEED,
        accelerate_yaml=ACCELERATE,
        run_sh="accelerate launch --config_file accelerate.yaml -m axolotl.cli.train b.yaml\n",
        lone_json=DEEPSPEED,
    )
    assert grouped() == {
        "a.yaml": {"a.yaml", "zero.json"},
        "b.yaml": {"b.yaml", "run.sh", "accelerate.yaml"},
        "lone.json": {"lone.json"},
    }


def test_a_lone_accelerate_or_deepspeed_file_is_a_project() -> None:
    write(accelerate_yaml=ACCELERATE, ds__one_json=DEEPSPEED, ds__two_json=DEEPSPEED)
    assert grouped() == {
        "accelerate.yaml": {"accelerate.yaml"},
        "ds/one.json": {"one.json"},
        "ds/two.json": {"two.json"},
    }


def test_a_script_with_its_files_is_a_project_without_a_main_file() -> None:
    write(p__run_sh='accelerate launch --config_file "$CONFIG" train.py\n', p__accelerate_yaml=ACCELERATE)
    project = only()
    assert (project.name, project.main, set(project.files)) == ("p", "", {"run.sh", "accelerate.yaml"})


def test_a_named_file_in_another_folder_joins_under_the_name_it_is_called() -> None:
    write(axolotl_yaml=AXOLOTL + "deepspeed: ./configs/zero.json\n", configs__zero_json=DEEPSPEED)
    assert grouped() == {"axolotl.yaml": {"axolotl.yaml", "configs/zero.json"}}


def test_a_name_is_also_seen_from_the_folder_where_the_run_starts() -> None:
    write(examples__a__axolotl_yaml=AXOLOTL + "deepspeed: configs/zero.json\n", configs__zero_json=DEEPSPEED)
    project = only("examples/a")
    assert set(project.files) == {"axolotl.yaml", "configs/zero.json"}


def test_a_single_path_brings_what_it_names_and_nothing_else() -> None:
    write(a_yaml=AXOLOTL + "deepspeed: zero.json\n", zero_json=DEEPSPEED, b_yaml=AXOLOTL, accelerate_yaml=ACCELERATE)
    assert grouped("a.yaml") == {"a.yaml": {"a.yaml", "zero.json"}}


def test_names_do_not_lead_outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(secret_json=DEEPSPEED, p__a_yaml=AXOLOTL + "deepspeed: ../secret.json\n", p__b_yaml=AXOLOTL)
    Path("p/b.yaml").write_text(AXOLOTL + f"deepspeed: {tmp_path}/secret.json\n")
    monkeypatch.chdir("p")
    assert grouped() == {"a.yaml": {"a.yaml"}, "b.yaml": {"b.yaml"}}


def test_recipe_and_lock_belong_to_every_main_file() -> None:
    write(a_yaml=AXOLOTL, b_yaml=AXOLOTL, recipe_yaml="format_version: 1\nmodel: m\nhardware: h\n", recipe_lock="{}")
    Path("recipe.yaml").write_text("format_version: 1\nmodel: m\nhardware: h\nnodes: 1\n")
    assert grouped() == {
        "a.yaml": {"a.yaml", "recipe.yaml", "recipe.lock"},
        "b.yaml": {"b.yaml", "recipe.yaml", "recipe.lock"},
    }


def test_a_mixture_of_paths_reads_each_file_once() -> None:
    write(p__axolotl_yaml=AXOLOTL, q_yaml=AXOLOTL)
    assert sorted(grouped("p", "p/axolotl.yaml", "q.yaml", "./q.yaml")) == ["p", "q.yaml"]


def test_files_of_other_tools_are_skipped_with_a_reason() -> None:
    write(p__axolotl_yaml=AXOLOTL, p__ci_yaml="jobs: {}\n")
    assert [s.shown for s in collect(["."]).skipped] == ["p/ci.yaml"]


def test_files_that_name_each_other_end() -> None:
    write(a_yaml=AXOLOTL + "deepspeed: a.yaml\n", b_yaml=ARGUMENTS + "deepspeed: c.yaml\nfsdp_config: b.yaml\n")
    Path("c.yaml").write_text(ARGUMENTS + "deepspeed: b.yaml\n")
    assert grouped() == {"a.yaml": {"a.yaml"}, "b.yaml": {"b.yaml"}, "c.yaml": {"c.yaml"}}


def test_files_that_are_not_on_the_disk_are_as_if_they_were(tmp_path: Path) -> None:
    contents = {
        "axolotl.yaml": b"base_model: m\ndeepspeed: ds.json\n",
        "ds.json": b'{"zero_optimization": {"stage": 2}}',
    }
    given = collect_given(tmp_path, contents).projects
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    there = collect([tmp_path]).projects
    assert [(p.main, p.files, p.kinds, p.folder) for p in given] == [
        (p.main, p.files, p.kinds, p.folder) for p in there
    ]
    (tmp_path / "ds.json").write_bytes(b"{}")
    assert collect_given(tmp_path, contents).projects[0].files["ds.json"] == contents["ds.json"]
