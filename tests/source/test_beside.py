"""The model's folder and the checkpoint beside a recipe's files: what is taken of them, and what is left alone."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from recipegen.source import Kind, Project, collect

CONFIG = '{"model_type": "llama", "tie_word_embeddings": true}'
INDEX = json.dumps({"metadata": {}, "weight_map": {"model.embed_tokens.weight": "a", "model.layers.0.x.weight": "a"}})


@pytest.fixture(autouse=True)
def _inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "all").mkdir()
    monkeypatch.chdir(tmp_path / "all")


def put(path: str | Path, text: str = "") -> None:
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text(text)


def project(text: str = "", folder: str = "p") -> Project:
    put(f"{folder}/axolotl.yaml", f"micro_batch_size: 1\nsequence_len: 8\n{text}")
    (found,) = collect([folder]).projects
    return found


def beside(text: str = "", folder: str = "p") -> list[str]:
    return [name for name in project(text, folder).files if name != "axolotl.yaml"]


@pytest.mark.parametrize("name", ["./model", "model", "model/", "../model", "x/../model"])
def test_the_models_folder_inside_and_next_to_the_project(name: str) -> None:
    folder = os.path.normpath(f"p/{name}")
    put(f"{folder}/config.json", CONFIG)
    put(f"{folder}/model.safetensors.index.json", INDEX)
    put(f"{folder}/tokenizer.json", "{}")
    found = project(f"base_model: {name}\n")
    inside = os.path.relpath(folder, "p")
    assert found.files[f"{inside}/config.json"] == CONFIG.encode()
    index = json.loads(found.files[f"{inside}/model.safetensors.index.json"])
    assert index == {"weight_map": {"model.embed_tokens.weight": ""}}  # names that a rule asks for, no others
    assert len(found.files) == 3
    assert found.kinds[f"{inside}/config.json"] is Kind.OTHER
    assert found.shown[f"{inside}/config.json"] == f"{folder}/config.json"


def test_an_absolute_name_counts_where_it_leads_beside_the_project() -> None:
    put("p/model/config.json", CONFIG)
    assert beside(f"base_model: {Path('p/model').absolute()}\n") == ["model/config.json"]


@pytest.mark.parametrize("name", ["org/model", "~/model", "/etc", "../..", "..", ".", "../../far", "''", "a\\0b", "no"])
def test_other_places_are_left_alone(name: str) -> None:
    put("../far/config.json", CONFIG)
    put("config.json", CONFIG)
    put("p/config.json", CONFIG)
    assert beside(f"base_model: {name}\n") == []


def test_links_are_not_followed() -> None:
    put("../far/config.json", CONFIG)
    put("p/real/config.json", CONFIG)
    Path("p/model").symlink_to(Path("../far").resolve())
    Path("p/other").mkdir()
    Path("p/other/config.json").symlink_to(Path("p/real/config.json").resolve())
    assert beside("base_model: ./model\n") == []
    assert beside("base_model: ./other\n") == []
    assert beside("base_model: ./real\n") == ["real/config.json"]


def test_pipes_and_large_files_are_not_read() -> None:
    Path("p/model").mkdir(parents=True)
    os.mkfifo("p/model/config.json")
    assert beside("base_model: ./model\n") == []
    put("p/big/config.json", " " * (2**20 + 1))
    assert beside("base_model: ./big\n") == []


def test_the_names_in_the_checkpoint_to_go_on_from() -> None:
    put("p/out/checkpoint-5/pytorch_model_fsdp_0/__0_0.distcp", "weights")
    put("p/out/checkpoint-5/pytorch_model_fsdp_0/.metadata", "weights")
    put("p/out/checkpoint-5/trainer_state.json", "{}")
    found = project("resume_from_checkpoint: ./out/checkpoint-5\n")
    names = [f"out/checkpoint-5/pytorch_model_fsdp_0/{name}" for name in (".metadata", "__0_0.distcp")]
    assert [name for name in found.files if name != "axolotl.yaml"] == names
    assert [found.files[name] for name in names] == [b"", b""]


def test_the_last_checkpoint_of_an_output_folder_that_is_gone_on_with() -> None:
    for number in (5, 10, 9):
        put(f"p/out/checkpoint-{number}/model.safetensors")
    text = "output_dir: ./out\n"
    assert beside(text) == []
    assert beside(f"{text}auto_resume_from_checkpoints: true\n") == ["out/checkpoint-10/model.safetensors"]


def test_a_crowded_checkpoint_is_not_listed_in_full() -> None:
    for number in range(100):
        put(f"p/out/shards/__{number}_0.distcp")
    assert len(beside("resume_from_checkpoint: out\n")) == 16


def test_arguments_name_a_model_in_their_own_word() -> None:
    put("p/model/config.json", CONFIG)
    put("p/args.yaml", "model_name_or_path: ./model\nlearning_rate: 1.0e-5\nnum_train_epochs: 1\n")
    (found,) = collect(["p"]).projects
    assert "model/config.json" in found.files
