"""The file of --probe comes from anywhere: a probe, or one line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from recipegen.check import printers
from recipegen.check.checking import Options, check
from recipegen.check.gather import Target
from recipegen.check.probe import read_probe
from recipegen.cli.main import run
from recipegen.spec import RecipegenError

Output = pytest.CaptureFixture[str]
AXOLOTL = """\
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
HEAD = '"command": "hardware probe", "format_version": 1'


@pytest.fixture(autouse=True)
def _inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("axolotl.yaml").write_text(AXOLOTL)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "no JSON of a hardware probe"),
        (b"{", "no JSON of a hardware probe"),
        (b"\xff\xfe", "no JSON of a hardware probe"),
        (b"[" * 100_000, "no JSON of a hardware probe"),
        (b"[]", "JSON, but of no hardware probe"),
        (b'{"command": "plan", "format_version": 1}', "JSON, but of no hardware probe"),
        (b'{"command": "hardware probe", "format_version": 2}', "format_version is 2; this recipegen reads 1"),
        (b'{"command": "hardware probe", "format_version": true}', "format_version is"),
        (b" " * (2**20 + 1), "larger than 1 MiB"),
    ],
)
def test_what_is_no_probe_is_one_line(capsys: Output, content: bytes, said: str) -> None:
    Path("box.json").write_bytes(content)
    assert run(["check", "axolotl.yaml", "--probe", "box.json"]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert "box.json: " in err
    assert said in err


@pytest.mark.parametrize("path", ["missing.json", ".", "/dev/zero", "\udcff"])
def test_what_is_no_file_is_one_line(capsys: Output, path: str) -> None:
    assert run(["check", "axolotl.yaml", "--probe", path]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)


def test_its_words_cannot_write_to_a_terminal(capsys: Output) -> None:
    gpu = '{"index": 0, "name": "\\u001b[2J\\ud800\\nRTX", "memory_total_bytes": 34190917632}'
    Path("box.json").write_text(f'{{{HEAD}, "gpus": [{", ".join([gpu] * 8)}], "problems": ["\\u001b]0;a\\u0007"]}}')
    assert run(["check", "axolotl.yaml", "--hardware", "kentino-8x-rtx-5090", "--probe", "box.json", "-v"]) == 0
    out = capsys.readouterr().out
    assert "8 GPUs (?[2J? RTX)" in out
    assert "\x1b" not in out
    assert "\x07" not in out


_NUMBERS = st.integers() | st.integers(0, 2**40) | st.floats()
_TEXTS = st.text(st.characters(), max_size=8) | st.sampled_from(["580.82.09", "13.0", "OK", "DMA", "sm_120", "/data"])
_LEAVES = st.none() | st.booleans() | _NUMBERS | _TEXTS
_ANY = st.recursive(
    _LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


def _mapping(*names: str, **kinds: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """A mapping of these names that is nearly what it should be."""
    rooms = dict.fromkeys(names, _LEAVES) | kinds
    return st.fixed_dictionaries({}, optional={name: values | _ANY for name, values in rooms.items()})


def _rows(*names: str) -> st.SearchStrategy[Any]:
    return st.lists(_mapping(*names), max_size=3)


_DOCUMENT = _mapping(
    "taken_at",
    gpus=_rows("index", "name", "memory_total_bytes", "memory_free_bytes", "compute_capability"),
    torch=_mapping("version", "cuda_version", "cuda_available", devices=_rows("name", "memory_total_bytes")),
    host=_mapping("ram_available_bytes", "memory_limit_bytes", "memory_limit_used_bytes"),
    iommu=_mapping("acs_redirecting_bridges", gpu_domains=_rows("gpu", "kind")),
    driver=_mapping("version", "cuda_version"),
    shm=_mapping("total_bytes"),
    disks=_rows("path", "free_bytes", "total_bytes", "device", "nvme", "rotational"),
    peer_to_peer=_rows("from", "to", "status"),
    not_found=_rows("what", "reason"),
    problems=st.lists(_LEAVES, max_size=2),
)


@given(_DOCUMENT, st.sampled_from(["kentino-8x-rtx-5090", "kentino-4x-rtx-pro-6000"]))
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_document_is_answered(values: dict[str, Any], hardware: str) -> None:
    Path("box.json").write_text(json.dumps({"command": "hardware probe", "format_version": 1, **values}))
    options = Options(Target(hardware=hardware), trainers=False, probe=read_probe("box.json"))
    outcome = check(["axolotl.yaml"], options)
    lines = printers.text(
        outcome, costs=lambda _: iter(()), wrap=lambda text, indent: iter([indent + text]), verbose=True
    )
    assert all(line.isprintable() for line in lines)


@given(_ANY | st.fixed_dictionaries({"command": st.just("hardware probe"), "format_version": _ANY}))
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_json_is_a_probe_or_a_line(value: Any) -> None:
    Path("box.json").write_text(json.dumps(value))
    try:
        read_probe("box.json")
    except RecipegenError as error:
        assert str(error).isprintable()
