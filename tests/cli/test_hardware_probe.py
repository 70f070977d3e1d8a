"""`recipegen hardware probe` on this machine, with an nvidia-smi of ours or none."""

from __future__ import annotations

import json
import os
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from click.shell_completion import ShellComplete

from recipegen.cli.main import cli, run
from tests.runtime.boxes import RTX_5090, executable, fake_smi, fake_torch

SCHEMA = json.loads((Path(__file__).parents[2] / "docs/schemas/hardware-probe.schema.json").read_text())
PROBE = ["hardware", "probe"]
RECIPE = """\
base_model: Qwen/Qwen3-8B
datasets: [{path: data.jsonl, type: alpaca}]
sequence_len: 2048
adapter: lora
lora_r: 16
lora_alpha: 32
lora_target_linear: true
micro_batch_size: 1
num_epochs: 1
optimizer: adamw_torch_fused
learning_rate: 2.0e-4
bf16: true
gradient_checkpointing: true
"""
Output = pytest.CaptureFixture[str]


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only folder of commands; without nvidia-smi, and with a Python that lacks torch."""
    folder = tmp_path / "tools"
    folder.mkdir()
    for name in ("sh", "cat", "cut", "sleep", "head"):
        source = next(Path(place, name) for place in ("/bin", "/usr/bin") if Path(place, name).exists())
        (folder / name).symlink_to(source)
    fake_torch(folder / "python", '{"installed": false}')
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.chdir(tmp_path)
    return folder


def answer(capsys: Output, *words: str) -> dict[str, Any]:
    assert run([*PROBE, "--format", "json", "--python", "python", *words]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    document: dict[str, Any] = json.loads(out)
    jsonschema.validate(document, SCHEMA)
    return document


def why_no_gpus(document: dict[str, Any]) -> str:
    assert document["gpus"] == []
    (reason,) = [row["reason"] for row in document["not_found"] if row["what"] == "GPUs"]
    return str(reason)


def test_without_a_gpu_it_says_what_is_there_and_what_is_not(tools: Path, capsys: Output) -> None:
    assert run([*PROBE, "--python", "python"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert "host RAM" in out
    assert "no NVIDIA driver (nvidia-smi is not installed)" in out.partition("could not be found:")[2]


def test_its_json_holds_to_the_schema(tools: Path, tmp_path: Path, capsys: Output) -> None:
    document = answer(capsys, "--path", str(tmp_path), "--path", "/nonexistent")
    assert why_no_gpus(document) == "no NVIDIA driver (nvidia-smi is not installed)"
    assert document["host"]["ram_total_bytes"] > 0
    here, nowhere = document["disks"]
    assert here["free_bytes"] > 0
    assert nowhere["free_bytes"] is None
    assert any(row["what"] == "disk of /nonexistent" for row in document["not_found"])


def test_no_profile_without_a_gpu(tools: Path, capsys: Output) -> None:
    assert run([*PROBE, "--format", "yaml", "--python", "python", "--out", "box.yaml"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err == (
        "error: no profile without a GPU: no NVIDIA driver (nvidia-smi is not installed). Run it on the training box.\n"
    )
    assert not Path("box.yaml").exists()


@pytest.mark.stack
def test_the_torch_of_this_python_is_asked(capsys: Output) -> None:
    assert run([*PROBE, "--format", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    jsonschema.validate(document, SCHEMA)
    assert document["torch"]["version"] == version("torch")


def test_eight_cards(tools: Path, capsys: Output) -> None:
    fake_smi(tools, **RTX_5090)
    assert run([*PROBE, "--python", "python"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("GPU 0                 NVIDIA GeForce RTX 5090, 31.84 GiB")
    assert "driver                580.82.09, CUDA up to 13.0" in out
    document = answer(capsys)
    assert len(document["gpus"]) == 8
    assert len(document["peer_to_peer"]) == 56


def test_an_nvidia_smi_that_hangs(tools: Path, capsys: Output) -> None:
    executable(tools / "nvidia-smi", "#!/bin/sh\necho '0, NVIDIA'\nsleep 600\n")
    document = answer(capsys, "--timeout", "0.3")
    assert why_no_gpus(document) == "nvidia-smi gave no answer in 0.3 s: 0, NVIDIA"


@pytest.mark.parametrize(
    "script",
    [
        "head -c 300000 /dev/urandom",
        "head -c 300000 /dev/zero",
        "echo 'GPU0 GPU1'; echo 'GPU0 X'; echo '0, , , , , , , , , , , , , , , '; exit 9",
        "echo '\x1b[4mGPU0\x1b[0m'; echo 'Field \"name\" is not a valid field to query.'; exit 2",
        "kill -9 $$",
    ],
)
def test_an_nvidia_smi_that_prints_anything(tools: Path, capsys: Output, script: str) -> None:
    executable(tools / "nvidia-smi", f"#!/bin/sh\n{script}\n")
    assert why_no_gpus(answer(capsys))
    assert run([*PROBE, "--python", "python"]) == 0
    assert "\x1b" not in capsys.readouterr().out
    assert run([*PROBE, "--format", "yaml", "--python", "python"]) == 2
    assert capsys.readouterr().err.startswith("error: no profile without a GPU: nvidia-smi ")


def test_a_torch_that_prints_anything(tools: Path, capsys: Output) -> None:
    fake_smi(tools, **RTX_5090)
    fake_torch(tools / "python", '{"installed": true, "devices": [{}, 1], "peers": {"a": 1}, "version": []}')
    assert answer(capsys)["torch"]["devices"] == []
    assert run([*PROBE, "--python", "python"]) == 0
    assert "torch                 broken" in capsys.readouterr().out


def test_the_profile_of_eight_cards_is_one_to_plan_and_check_with(tools: Path, capsys: Output) -> None:
    fake_smi(tools, **RTX_5090)
    assert run([*PROBE, "--format", "yaml", "--python", "python", "--out", "box.yaml"]) == 0
    assert run([*PROBE, "--format", "json", "--python", "python", "--out", "box.json"]) == 0
    assert capsys.readouterr() == ("", "")
    assert yaml.safe_load(Path("box.yaml").read_text())["gpu_count"] == 8

    run(["plan", "--hardware", "box.yaml", "--model", "Qwen3-8B", "--method", "qlora", "--format", "json"])
    out, err = capsys.readouterr()
    assert not err.startswith("error")
    recipe = json.loads(out)["recipe"]
    assert recipe["parallelism"]["gpus_per_node"] == 8

    Path("axolotl.yaml").write_text(RECIPE)
    run(["check", "axolotl.yaml", "--hardware", "box.yaml", "--probe", "box.json", "--format", "json"])
    (project,) = json.loads(capsys.readouterr().out)["projects"]
    assert project["gpus"] == 8
    # Of itself the box has nothing to say but of this machine's host and disk.
    assert {f["rule"] for f in project["findings"]}.isdisjoint({"RG784", "RG785"} - _of_this_machine())
    assert any("8 GPUs (NVIDIA GeForce RTX 5090)" in said for said in project["verified"])


def _of_this_machine() -> set[str]:
    """A small /dev/shm is a finding too."""
    try:
        space = os.statvfs("/dev/shm")
    except OSError:
        return set()
    return set() if space.f_blocks * space.f_frsize >= 2**30 else {"RG784"}


def test_the_answer_is_written_whole_or_not(tools: Path, capsys: Output) -> None:
    Path("folder").mkdir()
    for place in ("folder", "missing/box.json"):
        assert run([*PROBE, "--python", "python", "--out", place]) == 2
        out, err = capsys.readouterr()
        assert (out, err.count("\n")) == ("", 1)
        assert place in err
    assert os.listdir("folder") == []
    assert run([*PROBE, "--python", "python", "--out", "box.txt"]) == 0
    assert "host RAM" in Path("box.txt").read_text()


@pytest.mark.parametrize(
    ("words", "said"),
    [(["--format", "xml"], "--format"), (["--timeout", "0"], "--timeout"), (["--python"], "--python")],
)
def test_a_wrong_option_is_one_line(tools: Path, capsys: Output, words: list[str], said: str) -> None:
    assert run([*PROBE, *words]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert said in err


def test_a_python_that_is_not_there_is_said(tools: Path, capsys: Output) -> None:
    assert run([*PROBE, "--python", "/nonexistent/python"]) == 0
    assert "/nonexistent/python is not installed" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("args", "incomplete", "kind", "said"),
    [
        (["hardware"], "pr", "plain", "probe"),
        (["hardware", "probe"], "--pa", "plain", "--path"),
        (["hardware", "probe", "--format"], "y", "plain", "yaml"),
        (["hardware", "probe", "--out"], "b", "file", "b"),
        (["check"], "--pr", "plain", "--probe"),
        (["check", "--probe"], "bo", "file", "bo"),
    ],
)
def test_the_shell_completes_it(args: list[str], incomplete: str, kind: str, said: str) -> None:
    found = ShellComplete(cli, {}, "recipegen", "_RECIPEGEN_COMPLETE").get_completions(args, incomplete)
    assert [(item.type, item.value) for item in found] == [(kind, said)]


@pytest.mark.parametrize("command", [PROBE, ["check"]])
def test_the_help_has_the_example(capsys: Output, command: list[str]) -> None:
    assert run([*command, "--help"]) == 0
    assert "recipegen check . --probe box.json" in capsys.readouterr().out
