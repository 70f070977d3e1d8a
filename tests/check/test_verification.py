"""What no file shows: notes without a probe; with one of the box each is answered, with its number."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from recipegen.cli.main import run
from recipegen.spec.units import GB, GIB, MIB
from tests.runtime.boxes import PRO_6000, RTX_5090, captured, fake_torch, probed, write

ANSWERS = ("RG780", "RG784", "RG785", "RG786", "RG787")
NVME = Path(__file__).parents[1] / "formats/golden/full-zero3-nvme"  # nvme_path: /nvme/swap
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
EIGHT = "kentino-8x-rtx-5090"
FOUR = "kentino-4x-rtx-pro-6000"
Output = pytest.CaptureFixture[str]


def disk(path: str, free: int, **other: Any) -> dict[str, Any]:
    return {"path": path, "total_bytes": 4000 * GB, "free_bytes": free, "device": "nvme0n1", "rotational": False,
            "nvme": True, **other}  # fmt: skip


class Case:
    """A recipe and a probe in a folder, checked by the command."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: Output) -> None:
        self.folder, self.monkeypatch, self.capsys = folder, monkeypatch, capsys
        (folder / "recipe").mkdir()
        (folder / "recipe/axolotl.yaml").write_text(AXOLOTL)

    def box(self, **captured_as: Any) -> dict[str, Any]:
        """A probe of a box with room everywhere."""
        with self.monkeypatch.context() as patched:
            document = probed(self.folder / "box", patched, **(captured_as or RTX_5090))
        document["shm"] = {"total_bytes": 64 * GIB, "free_bytes": 64 * GIB}
        document["disks"] = [disk("/data", 3000 * GB)]
        return document

    def check(self, document: dict[str, Any] | None, *, hardware: str | None = EIGHT) -> dict[str, Any]:
        words = ["check", str(self.folder / "recipe"), "--format", "json"]
        words += ["--hardware", hardware] if hardware else []
        if document is not None:
            (self.folder / "box.json").write_text(json.dumps(document))
            words += ["--probe", str(self.folder / "box.json")]
        code = run(words)
        out, err = self.capsys.readouterr()
        answer = json.loads(out)
        assert code == answer["exit_code"]
        assert err.count("\n") == (code != 0)
        (project,) = answer["projects"]
        found = [f for f in project["findings"] if f["rule"] in ANSWERS]
        return {**project, "said": found, "code": code}


@pytest.fixture
def case(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Output) -> Case:
    return Case(tmp_path, monkeypatch, capsys)


def only(one: dict[str, Any], rule: str, severity: str) -> dict[str, Any]:
    """The one answer that is not good; errors make the command fail, warnings do not."""
    (found,) = one["said"]
    assert (found["rule"], found["severity"]) == (rule, severity), found
    assert one["code"] == (severity == "error")
    result: dict[str, Any] = found
    return result


def test_without_a_probe_they_are_notes_with_their_commands(case: Case) -> None:
    one = case.check(None)
    assert {(f["rule"], f["severity"]) for f in one["said"]} == {("RG780", "note")}
    assert {f["fix"].split()[0] for f in one["said"]} == {"nvidia-smi", "df"}
    assert one["verified"] == []
    assert one["code"] == 0


def test_a_good_box_answers_all_of_them(case: Case) -> None:
    one = case.check(case.box())
    assert one["said"] == []
    assert one["code"] == 0
    text = "\n".join(one["verified"])
    for word in ("driver 580", "8 GPUs", "free on the fullest GPU", "/dev/shm", "of the host's RAM", "free at /data"):
        assert word in text


def test_text_shows_them_only_with_v(case: Case) -> None:
    case.check(case.box())
    words = ["check", str(case.folder / "recipe"), "--hardware", EIGHT, "--probe", str(case.folder / "box.json")]
    assert run(words) == 0
    assert "verified" not in case.capsys.readouterr().out
    assert run([*words, "-v"]) == 0
    assert "  verified: driver 580.82.09" in case.capsys.readouterr().out


def test_what_the_probe_could_not_find_stays_a_note(case: Case) -> None:
    document = case.box()
    document["driver"] = {"version": None, "cuda_version": None}
    document["shm"] = None
    one = case.check(document)
    assert [(f["rule"], f["fix"].split()[0]) for f in one["said"]] == [("RG780", "nvidia-smi"), ("RG780", "df")]


def test_without_a_machine_it_says_how_to_name_the_box(case: Case) -> None:
    found = only(case.check(case.box(), hardware=None), "RG780", "note")
    assert found["fix"] == "recipegen hardware probe --format yaml --out box.yaml"


def test_what_is_wrong_with_the_box_itself(case: Case) -> None:
    document = case.box()
    document["problems"] = ["GPU 3 is linked by 8 PCIe lanes of 16"]
    assert "8 PCIe lanes of 16" in only(case.check(document), "RG784", "warning")["reason"]


# --- GPUs and driver


def test_a_driver_that_is_too_old(case: Case) -> None:
    found = only(case.check(case.box(**RTX_5090, change=("580.82.09", "570.86.15"))), "RG784", "error")
    assert "570.86.15" in found["reason"]
    assert "580 or newer" in found["reason"]


def torch(folder: Path, version: str, cuda: str, *, works: bool) -> str:
    device = {"name": "NVIDIA GeForce RTX 5090", "memory_total_bytes": 33684062208, "compute_capability": "sm_120"}
    answer = {"installed": True, "version": version, "cuda_version": cuda, "cuda_available": works}
    fake_torch(folder / "torch/python", json.dumps({**answer, "devices": [device] * 8 if works else []}))
    return str(folder / "torch/python")


@pytest.mark.parametrize(
    ("version", "cuda", "works", "said"),
    [
        ("2.13.0+cu130", "13.0", True, []),  # NVIDIA's compatibility package: it runs
        ("2.13.0+cu126", "12.6", False, []),  # another build of the same torch
        ("2.7.1+cu126", "12.6", True, [("warning", "comes with CUDA 13.x")]),  # what the stack pins would not run
        ("2.13.0+cu130", "13.0", False, [("error", "CUDA 13.0 of the installed torch 2.13.0+cu130 needs 580")]),
    ],
)
def test_an_old_driver_and_the_torch_that_is_there(
    case: Case, version: str, cuda: str, works: bool, said: list[tuple[str, str]]
) -> None:
    python = torch(case.folder, version, cuda, works=works)
    document = case.box(**RTX_5090, python=python, change=("580.82.09", "570.86.15"))
    document["problems"] = []  # of the box: said beside
    found = case.check(document)["said"]
    assert [f["severity"] for f in found] == [severity for severity, _ in said]
    assert all(words in f["reason"] for f, (_, words) in zip(found, said, strict=True))


def test_fewer_gpus_than_processes(case: Case) -> None:
    document = case.box()
    document["gpus"] = document["gpus"][:4]
    assert "8 processes on a node, and the box has 4" in only(case.check(document), "RG784", "error")["reason"]


def test_no_gpu_at_all(case: Case) -> None:
    with case.monkeypatch.context() as patched:
        document = probed(case.folder / "box", patched)
    one = case.check({**document, "shm": None, "disks": []})
    errors = [f["reason"] for f in one["said"] if f["severity"] == "error"]
    assert errors == [
        "8 GPUs are needed on a node, and the probe found none: no NVIDIA driver (nvidia-smi is not installed)"
    ]
    assert one["code"] == 1


def test_another_card_than_the_profile(case: Case) -> None:
    one = case.check(case.box(), hardware="kentino-8x-rtx-4090")
    assert {f["severity"] for f in one["said"]} == {"warning"}
    assert any("estimates and kernels are of another card" in f["reason"] for f in one["said"])


def test_more_memory_than_the_profile_counts_on(case: Case) -> None:
    document = case.box(**RTX_5090, change=(" 32607, 2, 32119", " 49140, 2, 48500"))
    assert "47.99 GiB; the profile" in only(case.check(document), "RG785", "warning")["reason"]


def test_memory_that_something_else_holds(case: Case) -> None:
    one = case.check(case.box(**RTX_5090, change=(" 2, 32119", " 22361, 9760")))
    found = only(one, "RG785", "error")
    assert "9.53 GiB free of 31.84 GiB" in found["reason"]
    assert found["available_bytes"] == 9760 * MIB < found["required_bytes"]
    assert one["verdict"] == "does_not_fit"


def test_a_gpu_more_than_is_used_may_be_full(case: Case) -> None:
    (case.folder / "recipe/accelerate.yaml").write_text("distributed_type: MULTI_GPU\nnum_processes: 4\n")
    document = case.box(**RTX_5090, change=(",\n0, NVIDIA", ""))
    document["gpus"][0]["memory_free_bytes"] = GIB
    found = only(case.check(document, hardware="kentino-4x-rtx-5090"), "RG785", "warning")
    assert found["reason"].startswith("GPU 0: too little memory is free")
    assert "CUDA_VISIBLE_DEVICES=1,2,3,4" in found["fix"]


# --- between the GPUs


def test_peers_that_the_driver_refuses(case: Case) -> None:
    document = case.box(**{**PRO_6000, "peers": "p2p-4x-partly.txt"})
    found = only(case.check(document, hardware=FOUR), "RG784", "warning")
    assert "the driver says CNS between GPU" in found["reason"]


def test_peers_behind_an_iommu_that_translates(case: Case) -> None:
    write(case.folder / "box/root", "sys/bus/pci/devices/0000:11:00.0/iommu_group/type", "DMA-FQ\n")
    found = only(case.check(case.box(**PRO_6000), hardware=FOUR), "RG784", "warning")
    assert "the driver says OK, but the IOMMU translates their addresses" in found["reason"]
    assert "iommu=pt" in found["fix"]


def test_peers_behind_a_bridge_that_redirects(case: Case) -> None:
    document = case.box(**PRO_6000, lspci="lspci-root.txt")
    assert "PCIe ACS redirects them" in only(case.check(document, hardware=FOUR), "RG784", "warning")["reason"]


def test_peers_that_work(case: Case) -> None:
    one = case.check(case.box(**PRO_6000), hardware=FOUR)
    assert one["said"] == []
    assert "peer-to-peer: the driver says OK for all 12 directions" in one["verified"]


@pytest.mark.parametrize(
    ("size", "smi", "hardware", "severity"),
    [
        (64 * MIB, RTX_5090, EIGHT, "error"),
        (512 * MIB, RTX_5090, EIGHT, "warning"),
        (64 * MIB, PRO_6000, FOUR, "warning"),  # peer-to-peer works: it is hardly used
    ],
)
def test_a_small_shared_memory(case: Case, size: int, smi: dict[str, str], hardware: str, severity: str) -> None:
    document = case.box(**smi)
    document["shm"]["total_bytes"] = size
    one = case.check(document, hardware=hardware)
    assert f"{size // MIB} MiB of /dev/shm" in only(one, "RG784", severity)["reason"]
    assert one["verdict"] == "fits"


# --- RAM and disks


def test_too_little_ram(case: Case) -> None:
    meminfo = captured("meminfo-768gib.txt")
    document = case.box()
    assert any("of the host's RAM free" in said for said in case.check(document)["verified"])
    lines = [f"MemAvailable:  {4 * 10**6} kB" if x.startswith("MemAvailable") else x for x in meminfo.splitlines()]
    write(case.folder / "less", "proc/meminfo", "\n".join(lines) + "\n")
    from recipegen.runtime import Box, probe

    document["host"] = probe(Box(case.folder / "less", python="/nonexistent"))["host"]
    one = case.check(document)
    assert "4.1 GB of the host's RAM were free" in only(one, "RG786", "error")["reason"]
    assert one["verdict"] == "does_not_fit"


def test_a_tight_limit_of_the_container(case: Case) -> None:
    write(case.folder / "box/root", "sys/fs/cgroup/memory.max", f"{10 * GB}\n")
    write(case.folder / "box/root", "sys/fs/cgroup/memory.current", f"{2 * GB}\n")
    found = only(case.check(case.box()), "RG786", "error")
    assert "8.0 GB of the container's limit were free" in found["reason"]


@pytest.mark.parametrize(("free", "severity", "verdict"), [(1, "error", "does_not_fit"), (25, "warning", "fits")])
def test_too_little_disk(case: Case, free: int, severity: str, verdict: str) -> None:
    """25 GB hold the checkpoints; the model's files may lie elsewhere."""
    document = case.box()
    document["disks"][0]["free_bytes"] = free * GB
    one = case.check(document)
    assert f"{free}.0 GB are free at /data" in only(one, "RG787", severity)["reason"]
    assert one["verdict"] == verdict


@pytest.fixture
def swapping(case: Case) -> Case:
    shutil.rmtree(case.folder / "recipe")
    shutil.copytree(NVME, case.folder / "recipe")
    return case


def of_disks(one: dict[str, Any]) -> list[tuple[str, str]]:
    return [(f["severity"], f["reason"]) for f in one["said"] if "NVMe" in f["reason"] or f["rule"] == "RG787"]


def test_an_nvme_disk_that_was_not_probed_stays_a_note(swapping: Case) -> None:
    ((severity, reason),) = of_disks(swapping.check(swapping.box()))
    assert severity == "note"
    assert "swapped states must fit" in reason


@pytest.mark.parametrize(
    ("nvme", "said"),
    [
        ({}, []),
        ({"free_bytes": 100 * GB}, ["error"]),
        ({"nvme": False, "device": "sdb"}, ["warning"]),
        ({"rotational": True, "nvme": False, "device": "sdb"}, ["warning"]),
        ({"device": "nvme0n1"}, ["error"]),  # the project's disk: both must fit on it
    ],
)
def test_the_nvme_disk(swapping: Case, nvme: dict[str, Any], said: list[str]) -> None:
    document = swapping.box()
    document["disks"] = [
        disk("/data", 400 * GB),
        disk("/nvme/swap", 400 * GB, **{"device": "nvme1n1", **nvme}),
    ]
    one = swapping.check(document)
    assert [severity for severity, _ in of_disks(one)] == said
    if said == []:
        assert any("of swapped states must fit" in text for text in one["verified"])
