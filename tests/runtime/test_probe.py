"""The collector on boxes of files and a small nvidia-smi; nothing here was captured on a GPU machine."""

import json
import time
from pathlib import Path

import jsonschema
import pytest

from recipegen.catalog import load_cluster
from recipegen.runtime import Box, probe, profile_yaml, table
from recipegen.runtime.commands import Command, bounded
from recipegen.runtime.profile import nearest_gpu
from recipegen.spec import RecipegenError
from recipegen.spec.units import GIB, MIB
from tests.runtime.boxes import PRO_6000, RTX_5090, executable, fake_torch, probed, write

SCHEMA = json.loads((Path(__file__).parents[2] / "docs/schemas/hardware-probe.schema.json").read_text())


def missing(document: dict) -> dict[str, str]:
    return {row["what"]: row["reason"] for row in document["not_found"]}


def test_a_server_with_eight_cards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    document = probed(tmp_path, monkeypatch, **RTX_5090)
    jsonschema.validate(document, SCHEMA)
    assert len(document["gpus"]) == 8
    assert document["driver"] == {"version": "580.82.09", "cuda_version": "13.0"}
    host = document["host"]
    assert (host["sockets"], host["physical_cores"], host["logical_cpus"], host["numa_nodes"]) == (2, 64, 128, 2)
    assert document["network"] == [{"name": "enp1s0f0", "state": "up", "gbit_s": 25.0}]
    assert document["infiniband"][0]["gbit_s"] == 200
    assert document["iommu"]["kernel_options"] == ["iommu=pt", "amd_iommu=on"]
    assert "not installed for this Python" in missing(document)["torch"]
    assert "lspci is not installed" in missing(document)["PCIe ACS"]
    said = "\n".join(table(document))
    assert "56 of 56 GNS (GPU not supported)" in said
    assert "PCIe Gen5 x16 (Gen1 now: links slow down when idle)" in said
    assert "secret" not in json.dumps(document)


def test_without_a_driver_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    document = probed(tmp_path, monkeypatch)
    jsonschema.validate(document, SCHEMA)
    assert document["gpus"] == []
    assert missing(document)["GPUs"] == "no NVIDIA driver (nvidia-smi is not installed)"
    assert "no NVIDIA driver" in "\n".join(table(document))
    with pytest.raises(RecipegenError, match="no NVIDIA driver"):
        profile_yaml(document)


@pytest.mark.parametrize(
    ("query", "reason"),
    [
        ("query-no-driver.txt", "nvidia-smi lists no GPU"),
        ("query-no-devices.txt", "nvidia-smi lists no GPU"),
    ],
)
def test_a_driver_that_does_not_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, query: str, reason: str
) -> None:
    assert missing(probed(tmp_path, monkeypatch, query=query))["GPUs"] == reason


def test_a_mismatch_of_the_drivers_parts_is_a_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    document = probed(tmp_path, monkeypatch, query="query-mismatch.txt", head="query-mismatch.txt")
    assert any("different versions: reboot" in problem for problem in document["problems"])


def test_an_old_driver_is_asked_again_without_the_column(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    document = probed(tmp_path, monkeypatch, query="old:query-mixed.txt")
    assert [gpu["compute_capability"] for gpu in document["gpus"]] == [None] * 3
    assert any("GPUs of different kinds" in problem for problem in document["problems"])


def test_a_narrow_slot_is_a_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    document = probed(tmp_path, monkeypatch, query="query-2x-rtx-4090-48gb.txt")
    assert "GPU 1 is linked by 8 PCIe lanes of 16" in document["problems"]


def test_what_torch_sees(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    device = {"name": "NVIDIA GeForce RTX 5090", "memory_total_bytes": 33684062208, "compute_capability": "sm_120"}
    answer = {"installed": True, "version": "2.13.0+cu130", "cuda_version": "14.0", "cuda_available": False}
    fake_torch(tmp_path / "x/python", json.dumps({**answer, "devices": [device] * 8, "bf16": True, "peers": []}))
    document = probed(tmp_path, monkeypatch, python=str(tmp_path / "x/python"), **RTX_5090)
    jsonschema.validate(document, SCHEMA)
    assert document["torch"]["devices"][0] == device
    assert "torch is built for CUDA 14.0, the driver runs up to 13.0" in document["problems"]
    assert "memory_gib: 31.37  # measured: torch" in profile_yaml(document)


def test_gpus_that_torch_may_not_use_are_a_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    device = {"name": "NVIDIA GeForce RTX 5090", "memory_total_bytes": 33684062208, "compute_capability": "sm_120"}
    answer = {"installed": True, "version": "2.13.0", "cuda_version": "13.0", "cuda_available": True}
    fake_torch(tmp_path / "x/python", json.dumps({**answer, "devices": [device] * 2}))
    document = probed(tmp_path, monkeypatch, python=str(tmp_path / "x/python"), **RTX_5090)
    assert document["problems"] == ["torch sees 2 of 8 GPUs"]


def test_a_container_has_the_memory_of_its_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    probed(tmp_path, monkeypatch, **RTX_5090)
    root = tmp_path / "root"
    write(root, "sys/fs/cgroup/memory.max", f"{64 * GIB}\n")
    write(root, "sys/fs/cgroup/memory.current", f"{10 * GIB}\n")
    write(root, "sys/fs/cgroup/memory.stat", f"anon 1\ninactive_file {4 * GIB}\n")
    document = probe(Box(root, python="/nonexistent/python", paths=(str(tmp_path),)))
    assert document["host"]["memory_limit_bytes"] == 64 * GIB
    assert document["host"]["memory_limit_used_bytes"] == 6 * GIB
    assert "host_ram_gib: 64.00  # measured: limit of the control group" in profile_yaml(document)


def test_addresses_that_the_iommu_translates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "root", "sys/bus/pci/devices/0000:11:00.0/iommu_group/type", "DMA-FQ\n")
    document = probed(tmp_path, monkeypatch, **PRO_6000)
    assert document["iommu"]["gpu_domains"][:2] == [{"gpu": 0, "kind": "DMA-FQ"}, {"gpu": 1, "kind": None}]


def test_a_driver_that_hangs_is_ended_with_its_children(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    executable(tmp_path / "nvidia-smi", f"#!/bin/sh\n(sleep 600) & echo $! > {tmp_path}/child; sleep 600\n")
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    assert "gave no answer in 0.5 s" in Command(["nvidia-smi"], 0.5).answer().problem
    state = Path("/proc", (tmp_path / "child").read_text().strip(), "stat")
    assert not state.exists() or state.read_text().rpartition(")")[2].split()[0] in "ZX"  # ended, if not yet reaped


def test_a_question_that_hangs_is_left() -> None:
    assert bounded(lambda: time.sleep(5), 0.05) is None
    assert bounded(lambda: 1, 1.0) == 1


def test_a_torch_that_is_broken_or_absent_is_no_crash(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise OSError('libcudart.so.13: cannot open shared object file')\n")
    document = probe(Box(python="/nonexistent/python", paths=(str(tmp_path),)))
    assert "is not installed" in missing(document)["torch"]


# --- the profile


@pytest.mark.parametrize(
    ("name", "gib", "key", "left"),
    [
        ("NVIDIA GeForce RTX 5090", 32, "rtx-5090", []),
        ("NVIDIA GeForce RTX 4090", 48, "rtx-4090", []),
        ("NVIDIA GeForce RTX 4090 D", 24, "rtx-4090", ["d"]),
        ("NVIDIA GeForce RTX 3090 Ti", 24, "rtx-3090", ["ti"]),
        ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", 96, "rtx-pro-6000", []),
        ("NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition", 96, "rtx-pro-6000-max-q", []),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", 96, "rtx-pro-6000-server", []),
        ("NVIDIA RTX 6000 Ada Generation", 48, "rtx-6000-ada", []),
        ("NVIDIA RTX A6000", 48, "a6000", []),
        ("NVIDIA A100-SXM4-80GB", 80, "a100-80gb", []),
        ("NVIDIA A100-SXM4-40GB", 40, "a100-40gb", []),
        ("NVIDIA A100 80GB PCIe", 80, "a100-80gb", ["pcie"]),
        ("NVIDIA H100 80GB HBM3", 80, "h100", []),
        ("NVIDIA H200", 141, "h200", []),
        ("NVIDIA L40S", 45, "l40s", []),
        ("NVIDIA L4", 22, "l4", []),
    ],
)
def test_the_nearest_card(name: str, gib: int, key: str, left: list[str]) -> None:
    assert nearest_gpu(name, gib * GIB) == (key, left)


@pytest.mark.parametrize("name", ["Tesla T4", "NVIDIA GeForce GTX 1080 Ti", "", "?"])
def test_a_card_that_is_like_none(name: str) -> None:
    assert nearest_gpu(name, 16 * GIB) is None


@pytest.mark.parametrize("smi", [RTX_5090, PRO_6000, {"query": "query-2x-rtx-4090-48gb.txt"}])
def test_the_profile_is_read_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, smi: dict[str, str]) -> None:
    document = probed(tmp_path, monkeypatch, **smi)
    path = tmp_path / "box.yaml"
    path.write_text(profile_yaml(document))
    cluster = load_cluster(path)
    assert cluster.node.gpu_count == len(document["gpus"])
    assert cluster.node.physical_cores == 64
    assert cluster.node.sockets == 2
    assert cluster.node.host_ram_bytes == pytest.approx(document["host"]["ram_total_bytes"], rel=1e-4)
    peers = {pair["status"] for pair in document["peer_to_peer"]}
    assert cluster.gpu.peer_to_peer is (peers == {"OK"})
    assert "# measured" in path.read_text()


def test_a_card_with_more_memory_than_its_name_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    document = probed(tmp_path, monkeypatch, query="query-2x-rtx-4090-48gb.txt")
    text = profile_yaml(document)
    assert "memory_gib: 47.34" in text
    assert "memory_taken_gib: 0.60" in text
    path = tmp_path / "box.yaml"
    path.write_text(text)
    assert load_cluster(path).gpu.memory_bytes == pytest.approx((49140 - 0.65 * 1024 - 611) * MIB, rel=1e-3)


def test_a_full_card_and_a_full_disk_are_no_values_of_a_profile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    document = probed(tmp_path, monkeypatch, **RTX_5090, change=(" 2, 32119", " 32300, 0"))
    document["disks"][0]["free_bytes"] = 0
    document["host"]["ram_total_bytes"] = GIB // 2
    path = tmp_path / "box.yaml"
    path.write_text(profile_yaml(document))
    assert "# memory_taken_gib: 31.54 is left out, a profile takes 0 to 31.06" in path.read_text()
    assert "# host_ram_gib: 0.50 is left out" in path.read_text()
    assert load_cluster(path).gpu.memory_bytes > 31 * GIB


def test_names_of_hostile_devices_stay_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    document = probed(tmp_path, monkeypatch, **PRO_6000)
    for gpu in document["gpus"]:
        gpu["name"] = 'RTX 5090 "\n- {evil: [*a'
    document["disks"][0]["path"] = "/x\ngpu_count: 64"
    path = tmp_path / "box.yaml"
    path.write_text(profile_yaml(document))
    assert load_cluster(path).node.gpu_count == 4


def test_of_several_kinds_the_commonest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = profile_yaml(probed(tmp_path, monkeypatch, query="query-mixed.txt"))
    assert "like: rtx-4090" in text
    assert "gpu_count: 2 " in text
    assert "1 more GPUs are of another kind" in text
