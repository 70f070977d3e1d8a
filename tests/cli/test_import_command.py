"""`recipegen import`, as a person calls it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from referencing import Registry, Resource

from recipegen.cli.main import run

SCHEMAS = Path(__file__).parents[2] / "docs/schemas"
AXOLOTL = """\
base_model: Qwen/Qwen3-8B
datasets:
  - path: data.jsonl
    type: alpaca
adapter: lora
lora_r: 16
lora_alpha: 32
lora_target_linear: true
sequence_len: 2048
sample_packing: true
micro_batch_size: 1
gradient_accumulation_steps: 4
learning_rate: 2.0e-4
num_epochs: 1
optimizer: adamw_torch_fused
lr_scheduler: cosine
bf16: auto
attn_implementation: sdpa
gradient_checkpointing: true
output_dir: ./out
special_tokens:
  pad_token: <|endoftext|>
"""
BOX = ("--hardware", "kentino-8x-rtx-pro-6000")
Output = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def _inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    row = json.dumps({"instruction": "a " * 60, "input": "", "output": "b " * 200})
    Path("data.jsonl").write_text((row + "\n") * 3000)
    Path("axolotl.yaml").write_text(AXOLOTL)


def test_a_file_becomes_a_project(capsys: Output) -> None:
    assert run(["import", "axolotl.yaml", *BOX]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("FITS  Qwen/Qwen3-8B")
    for said in ("Kept as pins (", "Changed", "Decided otherwise", "time per step", "memory needed per GPU"):
        assert said in out
    assert 'output_dir: "./out" -> "./outputs" (axolotl.yaml:20)' in out
    assert "Wrote axolotl-imported/" in out
    assert err == ""
    recipe = yaml.safe_load(Path("axolotl-imported/recipe.yaml").read_text())
    assert recipe["pins"]["micro_batch_size"] == 1
    assert recipe["passthrough"]["axolotl"] == {"special_tokens.pad_token": "<|endoftext|>"}
    written = yaml.safe_load(Path("axolotl-imported/axolotl.yaml").read_text())
    assert written["special_tokens"] == {"pad_token": "<|endoftext|>"}
    assert written["datasets"] == [{"path": str(Path("data.jsonl").absolute()), "type": "alpaca"}]
    assert Path("axolotl.yaml").read_text() == AXOLOTL


def test_the_project_is_checked_and_made_again_from_its_recipe_yaml(capsys: Output) -> None:
    assert run(["import", "axolotl.yaml", *BOX, "--out", "tune"]) == 0
    assert run(["check", "tune"]) == 0
    assert run(["new", "again", "--recipe", "tune/recipe.yaml"]) == 0
    capsys.readouterr()
    first, second = (yaml.safe_load(Path(name, "axolotl.yaml").read_text()) for name in ("tune", "again"))
    assert {key for key in first if first[key] != second[key]} <= {"datasets"}
    assert set(first) == set(second)


def test_an_imported_project_that_is_imported_again_changes_nothing(capsys: Output) -> None:
    assert run(["import", "axolotl.yaml", *BOX, "--out", "tune"]) == 0
    capsys.readouterr()
    assert run(["import", "tune", "--out", "again", "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["changed"] == []


def schema_errors(document: object) -> list[str]:
    schemas = [json.loads((SCHEMAS / name).read_text()) for name in ("import.schema.json", "plan.schema.json")]
    registry: Registry[Any] = Registry().with_resources((s["$id"], Resource.from_contents(s)) for s in schemas)
    return [e.message for e in jsonschema.Draft202012Validator(schemas[0], registry=registry).iter_errors(document)]


@pytest.mark.parametrize("micro", [1, 64])
def test_json_is_the_whole_of_stdout_and_matches_its_schema(micro: int, capsys: Output) -> None:
    Path("axolotl.yaml").write_text(AXOLOTL.replace("micro_batch_size: 1", f"micro_batch_size: {micro}"))
    code = run(["import", "axolotl.yaml", *BOX, "--format", "json"])
    document = json.loads(capsys.readouterr().out)
    assert schema_errors(document) == []
    assert code == (0 if micro == 1 else 1)
    assert document["folder"] == "axolotl-imported"
    assert document["gain"]["otherwise"]["verdict"] == "fits"


def test_what_does_not_fit_is_imported_all_the_same_and_says_so(capsys: Output) -> None:
    Path("axolotl.yaml").write_text(AXOLOTL.replace("micro_batch_size: 1", "micro_batch_size: 64"))
    assert run(["import", "axolotl.yaml", *BOX]) == 1
    out, err = capsys.readouterr()
    assert out.startswith("DOES NOT FIT")
    assert "verdict: does not fit -> fits" in out
    assert "Next: it does not fit" in out
    assert "./launch.sh" not in out
    assert err.startswith("does not fit: ")
    assert err.count("\n") == 1
    assert "micro_batch_size: 64" in Path("axolotl-imported/recipe.yaml").read_text()
    assert run(["check", "axolotl-imported"]) == 1
    assert capsys.readouterr().out.startswith("DOES NOT FIT")


def test_the_verdict_is_that_of_check_not_of_what_would_be_generated(capsys: Output) -> None:
    # recipegen itself writes no fused kernels beside a dropout; a file that has both runs.
    own = "lora_dropout: 0.05\nlora_mlp_kernel: true\nlora_qkv_kernel: true\nlora_o_kernel: true\n"
    Path("axolotl.yaml").write_text(AXOLOTL + own)
    assert run(["check", "axolotl.yaml", *BOX]) == 0
    assert run(["import", "axolotl.yaml", *BOX, "--out", "tune"]) == 0
    out = capsys.readouterr().out
    assert "DOES NOT FIT" not in out
    assert run(["check", "tune"]) == 0


def test_what_the_trainer_refuses_is_to_be_mended_first(capsys: Output) -> None:
    Path("axolotl.yaml").write_text(AXOLOTL.replace("type: alpaca", "typ: alpaca"))  # kept in the entry, and dropped
    assert run(["import", "axolotl.yaml", *BOX, "--out", "tune"]) == 2
    err = capsys.readouterr().err
    assert "does not pass validation" in err
    assert "Mend the original first" in err
    assert not Path("tune").exists()


def test_an_existing_folder_is_left_alone_without_force(capsys: Output) -> None:
    Path("tune").mkdir()
    Path("tune/notes.txt").write_text("mine")
    assert run(["import", "axolotl.yaml", *BOX, "--out", "tune"]) == 2
    assert "this folder is not empty" in capsys.readouterr().err
    assert os.listdir("tune") == ["notes.txt"]
    assert run(["import", "axolotl.yaml", *BOX, "--out", "tune", "--force"]) == 0
    assert Path("tune/notes.txt").read_text() == "mine"


def test_a_folder_is_imported_into_itself_with_backups(capsys: Output) -> None:
    Path("old").mkdir()
    os.rename("axolotl.yaml", "old/axolotl.yaml")
    os.rename("data.jsonl", "old/data.jsonl")
    assert run(["import", "old", *BOX, "--out", "old", "--force"]) == 0
    assert "axolotl.yaml was edited: your version is kept as axolotl.yaml.bak-" in capsys.readouterr().out
    assert yaml.safe_load(Path("old/axolotl.yaml").read_text())["datasets"][0]["path"] == "./data.jsonl"


@pytest.mark.parametrize(
    "args",
    [
        [], ["missing", *BOX], ["axolotl.yaml"], ["axolotl.yaml", "--hardware", "no-such-box"],
        ["axolotl.yaml", *BOX, "--out", "-x"], ["axolotl.yaml", *BOX, "--out", "a b"],
        ["axolotl.yaml", *BOX, "--dataset", "missing.jsonl"], ["axolotl.yaml", *BOX, "--stack", "x"],
        ["axolotl.yaml", *BOX, "--nodes", "2"], ["data.jsonl", *BOX], ["axolotl.yaml", *BOX, "--dataset-format", "x"],
    ],
)  # fmt: skip
def test_bad_input_exits_2_with_one_line_and_writes_nothing(args: list[str], capsys: Output) -> None:
    assert run(["import", *args]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert sorted(os.listdir()) == ["axolotl.yaml", "data.jsonl"]


def test_what_no_recipe_describes_is_one_line(capsys: Output) -> None:
    Path("axolotl.yaml").write_text(AXOLOTL + "rl: dpo\n")
    assert run(["import", "axolotl.yaml", *BOX]) == 2
    assert "axolotl.yaml:23: rl: 'dpo'" in capsys.readouterr().err


def test_other_trainers_files_need_their_data(capsys: Output) -> None:
    Path("sft.yaml").write_text(
        "model_name_or_path: Qwen/Qwen3-8B\nper_device_train_batch_size: 1\nlearning_rate: 2.0e-4\nuse_peft: true\n"
        "lora_r: 16\nlora_alpha: 32\nlora_target_modules: all-linear\nbf16: true\n"
        "num_train_epochs: 1\nmax_length: 2048\n"
    )
    assert run(["import", "sft.yaml", *BOX]) == 2
    assert "Give --dataset" in capsys.readouterr().err
    code = run(["import", "sft.yaml", *BOX, "--dataset", "data.jsonl"])
    assert code in (0, 1, 2)
    assert "bug" not in capsys.readouterr().err


def test_nothing_heavy_is_imported_and_no_network_is_used() -> None:
    program = f"""
import socket, sys
def refused(*a, **k): raise AssertionError("the network was used")
socket.socket.connect = refused
from recipegen.check.gather import Target
from recipegen.project.import_project import import_project, read
from pathlib import Path
target = Target(hardware={BOX[1]!r})
import_project(read(["axolotl.yaml"], target), Path("new").absolute(), target)
heavy = {{"torch", "transformers", "datasets", "axolotl", "accelerate", "deepspeed"}} & set(sys.modules)
assert not heavy, heavy
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
