"""What no file shows: notes without a probe; with one of the box each is answered, with its number."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from recipegen.check.checking import Checked, Options, check
from recipegen.check.gather import Target
from recipegen.check.probe import read_probe
from recipegen.cli.main import run
from recipegen.spec import RecipegenError, Severity, Verdict
from recipegen.spec.units import GB, GIB, MIB
from tests.runtime.boxes import probed

RTX_5090 = {"query": "query-8x-rtx-5090.txt", "peers": "p2p-8x-rtx-5090.txt", "links": "topo-8x-rtx-5090.txt"}
PRO_6000 = {
    "query": "query-4x-rtx-pro-6000.txt",
    "peers": "p2p-4x-rtx-pro-6000.txt",
    "links": "topo-4x-rtx-pro-6000.txt",
}
AXOLOTL = """\
base_model: Qwen/Qwen3-8B
datasets:
  - path: data.jsonl
    type: alpaca
sequence_len: 2048
adapter: lora
lora_r: 16
lora_alpha: 32
lora_target_linear: true
micro_batch_size: 1
gradient_accumulation_steps: 1
num_epochs: 1
optimizer: adamw_torch_fused
learning_rate: 2.0e-4
bf16: true
gradient_checkpointing: true
output_dir: ./outputs
"""


@pytest.fixture
def box(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A good box: 8 RTX 5090 with room everywhere."""
    document = probed(tmp_path / "box", monkeypatch, **RTX_5090)
    document["shm"] = {"total_bytes": 64 * GIB, "free_bytes": 64 * GIB}
    document["disks"] = [{"path": "/data", "total_bytes": 4000 * GB, "free_bytes": 3000 * GB, "device": "nvme0n1",
                          "rotational": False, "nvme": True}]  # fmt: skip
    document["problems"] = []
    return document


def checked(
    tmp_path: Path, document: dict[str, Any] | None, text: str = AXOLOTL, hardware: str = "8x-rtx-5090"
) -> Checked:
    (tmp_path / "axolotl.yaml").write_text(text, encoding="utf-8")
    probe = None
    if document is not None:
        (tmp_path / "box.json").write_text(json.dumps(document), encoding="utf-8")
        probe = read_probe(tmp_path / "box.json")
    options = Options(Target(hardware=f"kentino-{hardware}"), trainers=False, probe=probe)
    (one,) = check([tmp_path / "axolotl.yaml"], options).checked
    return one


def said(one: Checked, *severities: Severity) -> list[str]:
    return [f.reason for f in one.findings if f.rule == "RG780" and f.severity in (severities or tuple(Severity))]


def test_without_a_probe_they_are_notes_with_their_commands(tmp_path: Path) -> None:
    one = checked(tmp_path, None)
    found = [f for f in one.findings if f.rule == "RG780"]
    assert {f.severity for f in found} == {Severity.NOTE}
    assert {f.fix.split()[0] for f in found} == {"nvidia-smi", "df"}
    assert one.verified == ()


def test_a_good_box_answers_all_of_them(tmp_path: Path, box: dict[str, Any]) -> None:
    one = checked(tmp_path, box)
    assert said(one) == []
    text = "\n".join(one.verified)
    for word in ("driver 580", "8 GPUs", "free on the fullest GPU", "/dev/shm", "of the host's RAM", "free at /data"):
        assert word in text
    assert not one.failed


def test_a_driver_that_is_too_old(tmp_path: Path, box: dict[str, Any]) -> None:
    box["driver"]["version"] = "570.86.15"
    (reason,) = said(checked(tmp_path, box), Severity.ERROR)
    assert "570.86.15" in reason
    assert "580 or newer" in reason


def test_fewer_gpus_than_processes(tmp_path: Path, box: dict[str, Any]) -> None:
    box["gpus"] = box["gpus"][:4]
    one = checked(tmp_path, box)
    assert any("8 processes on a node, and the box has 4 GPUs" in reason for reason in said(one, Severity.ERROR))
    assert one.failed


def test_no_gpu_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = checked(tmp_path, probed(tmp_path / "box", monkeypatch))
    assert any("no NVIDIA driver" in reason for reason in said(one, Severity.ERROR))


def test_another_card_than_the_profile(tmp_path: Path, box: dict[str, Any]) -> None:
    one = checked(tmp_path, box, hardware="8x-rtx-4090")
    assert any("estimates and kernels are of another card" in reason for reason in said(one, Severity.WARNING))


def test_memory_that_something_else_holds(tmp_path: Path, box: dict[str, Any]) -> None:
    for gpu in box["gpus"]:
        gpu["memory_free_bytes"] = 10 * GIB
    one = checked(tmp_path, box)
    assert any("10.00 GiB free" in reason for reason in said(one, Severity.ERROR))
    assert one.failed


def test_peers_that_the_driver_refuses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, box: dict[str, Any]) -> None:
    document = probed(tmp_path / "other", monkeypatch, **PRO_6000)
    document["peer_to_peer"][0]["status"] = "CNS"
    one = checked(tmp_path, document, hardware="4x-rtx-pro-6000")
    assert any("the driver says CNS" in reason for reason in said(one, Severity.WARNING))


@pytest.mark.parametrize(("size", "severity"), [(64 * MIB, Severity.ERROR), (512 * MIB, Severity.WARNING)])
def test_a_small_shared_memory(tmp_path: Path, box: dict[str, Any], size: int, severity: Severity) -> None:
    box["shm"]["total_bytes"] = size
    assert any(f"{size // MIB} MiB of /dev/shm" in reason for reason in said(checked(tmp_path, box), severity))


def test_too_little_ram(tmp_path: Path, box: dict[str, Any]) -> None:
    box["host"].update(memory_limit_bytes=8 * GB, memory_limit_used_bytes=0)
    one = checked(tmp_path, box)
    assert any("8.0 GB of the container's limit" in reason for reason in said(one, Severity.ERROR))


@pytest.mark.parametrize(("free", "severity"), [(1 * GB, Severity.ERROR), (25 * GB, Severity.WARNING)])
def test_too_little_disk(tmp_path: Path, box: dict[str, Any], free: int, severity: Severity) -> None:
    box["disks"][0]["free_bytes"] = free
    assert any("are free at /data" in reason for reason in said(checked(tmp_path, box), severity))


def test_what_is_wrong_with_the_box_itself_is_repeated(tmp_path: Path, box: dict[str, Any]) -> None:
    box["problems"] = ["GPU 3 is linked by 8 PCIe lanes of 16"]
    assert any("8 PCIe lanes of 16" in reason for reason in said(checked(tmp_path, box), Severity.WARNING))


def test_what_the_probe_could_not_find_stays_a_note(tmp_path: Path, box: dict[str, Any]) -> None:
    box["driver"] = {"version": None, "cuda_version": None}
    box["shm"] = None
    one = checked(tmp_path, box)
    assert {f.fix.split()[0] for f in one.findings if f.rule == "RG780"} == {"nvidia-smi", "df"}


def test_the_command(tmp_path: Path, box: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    one = checked(tmp_path, box)
    assert one.verdict is Verdict.FITS
    words = ["check", str(tmp_path / "axolotl.yaml"), "--hardware", "kentino-8x-rtx-5090", "--probe"]
    assert run([*words, str(tmp_path / "box.json"), "-v"]) == 0
    assert "verified: driver 580.82.09" in capsys.readouterr().out
    assert run([*words, str(tmp_path / "box.json"), "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["projects"][0]["verified"]
    box["gpus"] = box["gpus"][:2]
    (tmp_path / "box.json").write_text(json.dumps(box))
    assert run([*words, str(tmp_path / "box.json")]) == 1
    capsys.readouterr()
    for text in ("", "{", "[]", '{"command": "plan"}', '{"command": "hardware probe", "format_version": 9}'):
        (tmp_path / "box.json").write_text(text)
        assert run([*words, str(tmp_path / "box.json")]) == 2
        assert capsys.readouterr().err.count("\n") == 1
    assert run([*words, str(tmp_path / "missing.json")]) == 2


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
_KEYS = st.sampled_from(
    ["gpus", "torch", "host", "iommu", "driver", "shm", "disks", "peer_to_peer", "problems", "not_found", "taken_at"]
)


@given(st.dictionaries(_KEYS, _JSON), st.sampled_from([1, 1, 1, True, "1", None]))
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
def test_any_document_is_a_probe_or_a_line(tmp_path: Path, values: dict[str, Any], version: Any) -> None:
    file = tmp_path / "any.json"
    file.write_text(json.dumps({"command": "hardware probe", "format_version": version, **values}))
    try:
        probe = read_probe(file)
    except RecipegenError as error:
        assert "\n" not in str(error)
        return
    (tmp_path / "axolotl.yaml").write_text(AXOLOTL, encoding="utf-8")
    options = Options(Target(hardware="kentino-8x-rtx-5090"), trainers=False, probe=probe)
    assert check([tmp_path / "axolotl.yaml"], options).checked
