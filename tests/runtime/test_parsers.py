"""What nvidia-smi, /proc, /sys and lspci print, as values. The corpus is written after documented formats."""

import pytest

from recipegen.runtime import nvidia_smi, system
from recipegen.spec.units import GIB, MIB
from tests.runtime.boxes import captured


def test_a_query_of_eight_cards() -> None:
    found = nvidia_smi.gpus(captured("query-8x-rtx-5090.txt"))
    assert [gpu["index"] for gpu in found] == list(range(8))
    assert found[0] == {
        "index": 0,
        "name": "NVIDIA GeForce RTX 5090",
        "bus_id": "00000000:11:00.0",
        "memory_total_bytes": 32607 * MIB,
        "memory_used_bytes": 2 * MIB,
        "memory_free_bytes": 32119 * MIB,
        "driver_version": "580.82.09",
        "compute_capability": "sm_120",
        "pcie_generation": 1,
        "pcie_generation_max": 5,
        "pcie_width": 16,
        "pcie_width_max": 16,
        "persistence": False,
        "ecc": None,
        "mig": None,
        "power_limit_w": 575.0,
    }


def test_what_a_card_lacks_is_none() -> None:
    old = nvidia_smi.gpus(captured("query-2x-rtx-4090-48gb.txt"))
    assert [gpu["ecc"] for gpu in old] == [None, None]
    assert nvidia_smi.gpus(captured("query-4x-rtx-pro-6000.txt"))[0]["ecc"] is False
    h200 = nvidia_smi.gpus(captured("query-1x-h200.txt"))[0]
    assert (h200["ecc"], h200["mig"], h200["compute_capability"]) == (True, False, "sm_90")


@pytest.mark.parametrize("name", ["query-no-driver.txt", "query-mismatch.txt", "query-no-devices.txt"])
def test_a_query_that_failed_has_no_cards(name: str) -> None:
    assert nvidia_smi.gpus(captured(name)) == []
    assert nvidia_smi.refused_field(captured(name)) is None


def test_a_column_that_an_old_driver_refuses_is_named() -> None:
    assert nvidia_smi.refused_field(captured("query-refused.txt")) == "compute_cap"
    assert nvidia_smi.refused_field('Field "name" is not a valid field to query.') is None  # nothing goes without it
    assert nvidia_smi.refused_field('Field "evil" is not a valid field to query.') is None


def test_peer_status() -> None:
    none = nvidia_smi.peers(captured("p2p-8x-rtx-5090.txt"))
    assert len(none) == 8 * 7
    assert {pair["status"] for pair in none} == {"GNS"}
    assert {p["status"] for p in nvidia_smi.peers(captured("p2p-4x-rtx-pro-6000.txt"))} == {"OK"}
    partly = {(p["from"], p["to"]): p["status"] for p in nvidia_smi.peers(captured("p2p-4x-partly.txt"))}
    assert (partly[0, 1], partly[1, 2], partly[2, 1]) == ("OK", "CNS", "CNS")


def test_paths_between_cards_beside_nics_and_underlined_heads() -> None:
    links = nvidia_smi.links(captured("topo-8x-rtx-5090.txt"))
    assert len(links) == 8 * 7 // 2
    found = {(link["a"], link["b"]): link["path"] for link in links}
    assert (found[0, 3], found[0, 4]) == ("NODE", "SYS")
    assert {link["path"] for link in nvidia_smi.links(captured("topo-4x-rtx-pro-6000.txt"))} == {"PHB"}
    assert nvidia_smi.links(captured("topo-2x-nvlink.txt")) == [{"a": 0, "b": 1, "path": "NV18"}]


def test_the_newest_cuda_of_the_driver() -> None:
    assert nvidia_smi.cuda_version(captured("head-580.txt")) == "13.0"
    assert nvidia_smi.cuda_version("| NVIDIA-SMI 610.1  KMD Version: 610.1  CUDA UMD Version: 13.3 |") == "13.3"
    assert nvidia_smi.cuda_version("") is None


def test_memory() -> None:
    found = system.memory(captured("meminfo-768gib.txt"))
    assert found["ram_total_bytes"] == 792445332 * 1024
    assert found["swap_free_bytes"] == 8388604 * 1024
    assert system.memory("")["ram_total_bytes"] is None


def test_control_groups() -> None:
    assert system.cgroup_paths("0::/docker/abc\n") == {"": "/docker/abc"}
    assert system.cgroup_paths("4:memory,cpu:/slurm/job_1\n0::/\n") == {"memory": "/slurm/job_1", "": "/"}
    assert system.cgroup_paths("0::/../../../etc\n") == {}
    assert system.limit("max\n") is None
    assert system.limit("9223372036854771712\n") is None  # version 1's "no limit"
    assert system.limit("68719476736\n") == 64 * GIB
    assert system.reclaimable("anon 5\ninactive_file 4096\n") == 4096


def test_processor_links_and_ports() -> None:
    assert system.processor([("0", "0"), ("0", "1"), ("1", "0"), ("1", "1"), ("0", "0"), ("1", "1")]) == {
        "sockets": 2,
        "physical_cores": 4,
        "logical_cpus": 6,
    }
    assert system.processor([])["sockets"] is None
    assert (system.link_gbit_s("25000\n"), system.link_gbit_s("-1\n"), system.link_gbit_s("")) == (25.0, None, None)
    assert system.port_gbit_s("200 Gb/sec (4X HDR)\n") == 200.0
    assert system.port_state("4: ACTIVE\n") == "active"
    assert system.whole_disk(["nvme0n1", "sda", "sdaa"], "nvme0n1p2") == "nvme0n1"
    assert system.whole_disk(["sda", "sdaa"], "sdaa1") == "sdaa"


def test_acs_of_bridges_only_and_only_for_root() -> None:
    assert system.acs_redirects(captured("lspci-root.txt")) == ["00:01.1"]
    assert system.acs_redirects(captured("lspci-user.txt")) is None
    assert system.acs_redirects("") is None


def test_kernel_options_are_only_those_of_the_iommu() -> None:
    line = "root=UUID=secret iommu=pt amd_iommu=on pci=noacs password=hunter2 quiet"
    assert system.kernel_words(line) == ["iommu=pt", "amd_iommu=on", "pci=noacs"]
