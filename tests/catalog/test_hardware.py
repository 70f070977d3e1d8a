"""The hardware catalogue: names, facts, capabilities, networks and what the launcher exports."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from recipegen.catalog.cluster import (
    describe_hardware,
    gpu_names,
    hardware_names,
    load_cluster,
    network_names,
    resolve_hardware,
)
from recipegen.catalog.hardware_environment import holds
from recipegen.catalog.hardware_fields import override_fields
from recipegen.spec import Cluster, RecipegenError
from recipegen.spec.units import GB, GIB

FOLDER = Path(__file__).parents[2] / "recipegen" / "catalog" / "hardware"
MARKS = {"measured", "spec", "derived", "claimed"}
KENTINO_GPUS = ["rtx-4090", "rtx-5090", "rtx-pro-6000", "rtx-pro-6000-server", "rtx-pro-6000-max-q"]
KENTINO = [f"kentino-{count}x-{gpu}" for gpu in KENTINO_GPUS for count in (1, 2, 4, 8)]
OTHERS = ["l40s", "l40", "l4", "rtx-3090", "rtx-4080", "a10g", "a5000", "a6000", "rtx-6000-ada"]
NVLINK = ["a100-40gb", "a100-80gb", "h100", "h200", "b200"]
MEMORY_GIB = {
    "rtx-4090": 23.65,
    "rtx-5090": 31.37,
    "rtx-pro-6000": 94.97,
    "rtx-pro-6000-server": 94.97,
    "rtx-pro-6000-max-q": 94.97,
    "l40s": 44.4,
    "l40": 44.4,
    "l4": 22.0,
    "a100-80gb": 79.14,
    "h100": 79.11,
}


def attempt(name: str, **arguments: object) -> Cluster | str:
    """The cluster, or the line a person reads. Anything else propagates and fails the test."""
    try:
        return load_cluster(name, **arguments)
    except RecipegenError as error:
        return str(error)


def environment(cluster: Cluster) -> dict[str, str | None]:
    variables = cluster.node.environment + (cluster.network.environment if cluster.network else ())
    names = [variable.name for variable in variables]
    assert len(names) == len(set(names))
    return {variable.name: variable.value for variable in variables}


# ---------------------------------------------------------------------------------------------------- names


@pytest.mark.parametrize("name", KENTINO)
def test_every_kentino_box_loads(name: str) -> None:
    cluster = load_cluster(name)
    count, gpu = re.fullmatch(r"kentino-(\d)x-(.*)", name).groups()
    assert cluster.name == name
    assert cluster.world_size == cluster.node.gpu_count == int(count)
    assert cluster.gpu.memory_bytes == pytest.approx(MEMORY_GIB[gpu] * GIB, rel=1e-3)


@pytest.mark.parametrize("gpu", KENTINO_GPUS + OTHERS + NVLINK)
def test_any_gpu_loads_in_any_count(gpu: str) -> None:
    clusters = [load_cluster(f"{count}x-{gpu}") for count in range(1, 17)]
    assert [cluster.node.gpu_count for cluster in clusters] == list(range(1, 17))
    assert clusters[0].node.bus_bandwidth_gb_s == 0
    assert all(cluster.node.bus_bandwidth_gb_s > 0 for cluster in clusters[1:])
    if gpu in MEMORY_GIB:
        assert clusters[0].gpu.memory_bytes == pytest.approx(MEMORY_GIB[gpu] * GIB, rel=1e-3)


def test_the_list_has_the_kentino_boxes_first_and_only_names_that_load() -> None:
    names = hardware_names()
    assert sorted(names[:20]) == sorted(KENTINO)
    assert len(names) == len(set(names)) == 20 + 4 * len(gpu_names())
    assert sorted(gpu_names()) == sorted(KENTINO_GPUS + OTHERS + NVLINK)
    for name in names:
        assert load_cluster(name).name == name


def test_names_are_read_as_people_write_them() -> None:
    assert load_cluster("8X RTX_5090") == load_cluster("8x-rtx-5090")


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("8x-rtx5090", "8x-rtx-5090"),
        ("kentino-8x-rtx-5900", "kentino-8x-rtx-5090"),
        ("kentino-3x-rtx-4090", "kentino-4x-rtx-4090"),
        ("rtx-5090", "1x-rtx-5090"),
        ("17x-h100", "h100"),
        ("toaster", "COUNTx-GPU"),
        ("", "COUNTx-GPU"),
        ("kentino-8x-h100", "8x-h100"),
        ("../gpus/rtx-5090", "path"),
    ],
)
def test_an_unknown_name_gets_the_near_ones(name: str, hint: str) -> None:
    with pytest.raises(RecipegenError, match=re.escape(hint)) as caught:
        load_cluster(name)
    assert "\n" not in str(caught.value)


@given(st.text(max_size=200))
def test_no_name_is_a_traceback(name: str) -> None:
    answer = attempt(name)
    assert isinstance(answer, Cluster) or answer.isprintable()


# ---------------------------------------------------------------------------------------------------- facts


def facts_of(value: object, path: str):
    if isinstance(value, dict):
        if "value" in value and "mark" in value:
            yield path, value
        else:
            for key, inner in value.items():
                yield from facts_of(inner, f"{path}/{key}")
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from facts_of(inner, f"{path}/{index}")


def all_facts():
    for file in [*FOLDER.glob("gpus/*.yaml"), FOLDER / "hosts.yaml", FOLDER / "networks.yaml"]:
        yield from facts_of(yaml.safe_load(file.read_text()), file.name)


def test_every_fact_has_a_mark_and_a_source() -> None:
    facts = list(all_facts())
    assert len(facts) > 400
    for path, fact in facts:
        assert fact["mark"] in MARKS, path
        assert fact["source"].startswith("https://"), path
        assert set(fact) <= {"value", "mark", "source", "note"}, path


def test_what_is_derived_says_from_what() -> None:
    assert [path for path, fact in all_facts() if fact["mark"] == "derived" and not fact.get("note")] == []


@pytest.mark.parametrize("file", sorted(FOLDER.glob("gpus/*.yaml")), ids=lambda file: file.stem)
def test_a_gpu_file_states_every_fact_as_a_fact(file: Path) -> None:
    table = yaml.safe_load(file.read_text())
    stated = set(table["facts"])
    required = {name.removeprefix("gpu_") for name, field in override_fields().items() if field.section == "gpu"}
    # a training rate and what else uses the card are a person's own; the catalogue has matrix products
    assert required - {"training_tflops", "memory_taken_gib"} | {"compute_capability"} == stated
    assert all("mark" in fact for fact in table["facts"].values())
    assert table["facts"]["fp32_tflops"]["value"] < table["facts"]["matmul_tflops"]["value"]
    assert set(table["by_gpu_count"]) == {1, 2, 4, 8}
    assert all("host_to_device_gb_s" in row for row in table["by_gpu_count"].values())
    assert all("all_reduce_gb_s" in row for count, row in table["by_gpu_count"].items() if count > 1)


def test_catalogue_values_lie_within_the_limits_people_get() -> None:
    for name in hardware_names():
        description = resolve_hardware(name)
        for key, field in override_fields().items():
            fact = description.gpu.get(field.name) or description.node.get(field.name)
            if fact is not None and field.type != "boolean":
                assert field.min <= fact.value <= field.max, (name, key)


def test_the_description_names_the_origin_of_the_numbers() -> None:
    description = resolve_hardware("kentino-8x-rtx-pro-6000", nodes=2, network="roce-100", overrides={"sockets": 1})
    assert description.gpu["memory_gib"].mark == "measured"
    assert description.node["sockets"].mark == "stated"
    assert description.node["cpu_adam_params_per_s"].value == description.cluster.node.cpu_adam_params_per_s
    assert description.network is not None
    assert description.network.value == description.cluster.network.bus_bandwidth_gb_s


def test_the_description_is_plain_json() -> None:
    described = describe_hardware("kentino-8x-rtx-5090", nodes=2, network="roce-100")
    assert json.loads(json.dumps(described)) == described
    assert described["gpu"]["memory_gib"]["value"] == 31.37
    assert described["network"]["bus_bandwidth_gb_s"]["mark"] == "derived"
    assert {variable["name"] for variable in described["environment"]} >= {"NCCL_P2P_DISABLE", "NCCL_IB_DISABLE"}
    assert "network" not in describe_hardware("1x-l4")


def test_planning_rates_of_the_boxes() -> None:
    """Measured with nccl-tests elsewhere; hosts and rates as the catalogue derives them."""
    pro = load_cluster("kentino-8x-rtx-pro-6000").node
    assert (pro.bus_bandwidth_gb_s, pro.all_gather_gb_s, pro.reduce_scatter_gb_s) == (24.7, 23.0, 23.6)
    assert load_cluster("kentino-4x-rtx-pro-6000-max-q").node.bus_bandwidth_gb_s == 26.4
    assert load_cluster("kentino-8x-rtx-5090").node.bus_bandwidth_gb_s == 15
    assert load_cluster("kentino-4x-rtx-5090").node.bus_bandwidth_gb_s == 25
    assert load_cluster("kentino-8x-rtx-4090").node.bus_bandwidth_gb_s == 10
    assert load_cluster("kentino-8x-rtx-4090").node.all_gather_gb_s is None
    assert [load_cluster(f"kentino-{n}x-rtx-5090").node.host_ram_bytes / GB for n in (1, 2, 4, 8)] == [
        128,
        192,
        384,
        768,
    ]
    assert [load_cluster(f"kentino-{n}x-rtx-5090").node.sockets for n in (1, 2, 4, 8)] == [1, 1, 1, 2]
    assert [load_cluster(f"kentino-8x-{gpu}").gpu.matmul_tflops for gpu in KENTINO_GPUS] == [166, 235, 384, 400, 320]


def test_capabilities_by_architecture() -> None:
    gpus = {name: load_cluster(f"1x-{name}").gpu for name in gpu_names()}
    assert all(gpu.bf16 and gpu.tf32 and gpu.triton and gpu.pinned_memory for gpu in gpus.values())
    fp8 = {"sm_89", "sm_90", "sm_100", "sm_120"}
    assert all(gpu.fp8 == (gpu.compute_capability in fp8) for gpu in gpus.values())
    built = {"sm_80", "sm_86", "sm_89", "sm_90"}
    assert all(gpu.flash_attention == (gpu.compute_capability in built) for gpu in gpus.values())
    assert all(gpu.fused_linear_loss == (gpu.compute_capability != "sm_120") for gpu in gpus.values())
    geforce = {"rtx-3090", "rtx-4080", "rtx-4090", "rtx-5090"}
    assert {name for name, gpu in gpus.items() if not gpu.peer_to_peer} == geforce | {"a10g"}
    assert {name for name, gpu in gpus.items() if not gpu.gpudirect_rdma} == geforce | {"a10g"}


# ---------------------------------------------------------------------------------------------------- nodes and network


def test_several_nodes_need_a_network_and_the_error_lists_them() -> None:
    with pytest.raises(RecipegenError, match="--network: tcp-25, roce-25, roce-100, ib-hdr, ib-ndr"):
        load_cluster("kentino-8x-rtx-5090", nodes=2)
    assert network_names() == ["none", "tcp-25", "roce-25", "roce-100", "ib-hdr", "ib-ndr"]


@pytest.mark.parametrize("network", ["ib", "ROCE-100", "", None, 3, ["tcp-25"]])
def test_an_unknown_network_is_refused(network: object) -> None:
    with pytest.raises(RecipegenError, match="unknown network"):
        load_cluster("1x-l4", nodes=2, network=network)


@pytest.mark.parametrize("nodes", [0, -1, True, 1.0, "2", None])
def test_a_number_of_nodes_that_is_none_is_refused(nodes: object) -> None:
    with pytest.raises(RecipegenError, match="nodes is"):
        load_cluster("1x-l4", nodes=nodes, network="tcp-25")


def test_one_node_has_no_network() -> None:
    assert load_cluster("8x-h100", network="ib-ndr").network is None


def test_the_rate_between_nodes_follows_capabilities() -> None:
    def rate(name: str, network: str, **overrides: object) -> float:
        return load_cluster(name, nodes=2, network=network, overrides=overrides).network.bus_bandwidth_gb_s

    assert rate("kentino-8x-rtx-pro-6000", "roce-100") == 11.5
    assert rate("kentino-8x-rtx-5090", "roce-100") == 7.5  # no GPUDirect: through host memory
    assert rate("kentino-8x-rtx-5090", "roce-100", gpu_gpudirect_rdma=True) == 11.5
    assert rate("kentino-8x-rtx-pro-6000", "ib-hdr") == 15.5  # NIC on a root port
    assert rate("8x-h100", "ib-hdr") == 23.5  # NIC behind the GPU's own switch
    assert rate("8x-l40s", "ib-ndr") == rate("8x-h100", "ib-hdr")  # Gen4 slot
    assert rate("8x-h100", "ib-ndr") == 46
    assert rate("8x-h100", "ib-ndr", network_bus_bandwidth_gb_s=90) == 90


# ---------------------------------------------------------------------------------------------------- environment


def test_every_variable_has_a_sound_name_a_reason_and_a_source() -> None:
    table = yaml.safe_load((FOLDER / "environment.yaml").read_text())
    conditions = {
        "nccl", "rdma", "transport", "nvlink", "peer_to_peer", "gpudirect_rdma",
        "min_world_size", "min_gpus", "min_sockets", "min_pcie_generation",
    }  # fmt: skip
    for row in [*table["node"], *table["network"]]:
        assert re.fullmatch("[A-Z][A-Z0-9_]*", row["name"])
        assert row["reason"].isprintable()
        assert row["source"].startswith("https://")
        assert row["value"] is None or isinstance(row["value"], str)
        assert set(row["when"]) <= conditions
        assert row["value"] is not None or row["name"] in row["reason"]  # a comment has to say what to set


def test_one_gpu_exports_nothing() -> None:
    assert environment(load_cluster("kentino-1x-rtx-pro-6000")) == {}


def test_geforce_says_that_it_has_no_peer_to_peer() -> None:
    for name in ("kentino-2x-rtx-4090", "kentino-8x-rtx-5090"):
        assert environment(load_cluster(name)) == {"NCCL_DEBUG": "WARN", "NCCL_P2P_DISABLE": "1"}


def test_pro_6000_raises_the_peer_to_peer_level_only_above_two_gpus() -> None:
    assert "NCCL_P2P_LEVEL" not in environment(load_cluster("kentino-2x-rtx-pro-6000"))
    assert environment(load_cluster("kentino-4x-rtx-pro-6000"))["NCCL_P2P_LEVEL"] == "SYS"
    eight = environment(load_cluster("kentino-8x-rtx-pro-6000-server"))
    assert eight["NCCL_P2P_LEVEL"] == "SYS"
    assert eight["NCCL_MIN_CTAS"] is None  # a comment: measured in nccl-tests only
    assert "NCCL_P2P_DISABLE" not in eight


def test_nvlink_boxes_keep_nccls_own_choice() -> None:
    assert environment(load_cluster("8x-h100")) == {"NCCL_DEBUG": "WARN"}


def test_tcp_turns_infiniband_off_and_opens_more_sockets() -> None:
    variables = environment(load_cluster("kentino-8x-rtx-pro-6000", nodes=2, network="tcp-25"))
    assert variables["NCCL_IB_DISABLE"] == "1"
    assert int(variables["NCCL_SOCKET_NTHREADS"]) * int(variables["NCCL_NSOCKS_PERTHREAD"]) <= 64
    assert variables["NCCL_SOCKET_IFNAME"] is None  # only the owner knows the interface
    assert "NCCL_NET_GDR_LEVEL" not in variables


def test_rdma_keeps_infiniband_on_and_uses_gpudirect_where_it_exists() -> None:
    pro = environment(load_cluster("kentino-8x-rtx-pro-6000", nodes=2, network="roce-100"))
    assert pro["NCCL_IB_DISABLE"] == "0"
    assert pro["NCCL_NET_GDR_LEVEL"] == "PHB"
    assert pro["NCCL_IB_QPS_PER_CONNECTION"] == "2"
    geforce = environment(load_cluster("kentino-8x-rtx-5090", nodes=2, network="ib-hdr"))
    assert "NCCL_NET_GDR_LEVEL" not in geforce
    assert "NCCL_IB_QPS_PER_CONNECTION" not in geforce


def test_an_override_of_a_capability_changes_the_environment() -> None:
    patched = load_cluster("kentino-4x-rtx-5090", overrides={"gpu_peer_to_peer": True})
    assert patched.gpu.peer_to_peer
    assert "NCCL_P2P_DISABLE" not in environment(patched)


def test_conditions() -> None:
    assert holds({}, {})
    assert holds({"min_gpus": 3, "rdma": True}, {"gpus": 3, "rdma": True})
    assert not holds({"min_gpus": 3}, {"gpus": 2})
    assert not holds({"rdma": True}, {"rdma": False})


@pytest.mark.parametrize("network", ["tcp-25", "roce-25", "roce-100", "ib-hdr", "ib-ndr"])
@pytest.mark.parametrize("name", hardware_names()[::7])
def test_every_profile_and_network_gives_distinct_variables(name: str, network: str) -> None:
    cluster = load_cluster(name, nodes=2, network=network)
    assert environment(cluster)["NCCL_DEBUG"] == "WARN"
    assert cluster.network.bus_bandwidth_gb_s > 0


# ---------------------------------------------------------------------------------------------------- overrides


def test_overrides_win() -> None:
    node = load_cluster(
        "kentino-8x-rtx-pro-6000",
        overrides={
            "host_ram_gib": 1024,
            "nvme_gb": 500,
            "sockets": 1,
            "physical_cores": 96,
            "bus_bandwidth_gb_s": 40,
            "host_to_device_gb_s": 14.3,
            "gpu_memory_gib": 90,
            "gpu_fused_linear_loss": True,
        },
    ).node
    assert node.host_ram_bytes == 1024 * GIB
    assert node.nvme_bytes == 500 * GB
    assert (node.sockets, node.physical_cores) == (1, 96)
    assert node.cpu_adam_params_per_s == 2e9  # per socket
    assert (node.bus_bandwidth_gb_s, node.all_gather_gb_s, node.reduce_scatter_gb_s) == (40, None, None)
    assert node.host_to_device_gb_s == 14.3
    assert node.gpu.memory_bytes == 90 * GIB
    assert node.gpu.fused_linear_loss


def test_what_a_display_holds_is_not_there_for_training() -> None:
    free, shared = (load_cluster("8x-l4", overrides=o).gpu.memory_bytes for o in ({}, {"gpu_memory_taken_gib": 1.5}))
    assert free - shared == 1.5 * 2**30


def test_a_whole_number_may_come_as_a_float() -> None:
    assert load_cluster("8x-l4", overrides={"sockets": 1.0}).node.sockets == 1


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"host_ram": 512}, "host_ram_gib"),
        ({"gpu_memory": 24}, "gpu_memory_gib"),
        ({3: 4}, "unknown hardware override 3"),
        ({"host_ram_gib": "512"}, "it must be a number"),
        ({"host_ram_gib": True}, "it must be a number"),
        ({"host_ram_gib": None}, "it must be a number"),
        ({"host_ram_gib": -1}, "between"),
        ({"host_ram_gib": 824633720832}, "between"),  # bytes instead of GiB
        ({"gpu_memory_gib": float("nan")}, "between"),
        ({"gpu_memory_taken_gib": 40}, "gpu_memory_taken_gib is 40"),
        ({"nvme_gb": float("inf")}, "between"),
        ({"sockets": 1.5}, "whole number"),
        ({"sockets": 0}, "between"),
        ({"gpu_peer_to_peer": "yes"}, "true or false"),
        ({"gpu_peer_to_peer": 1}, "true or false"),
        ({"network_bus_bandwidth_gb_s": 10}, "one node"),
        ({"bus_bandwidth_gb_s": 0}, "bus_bandwidth_gb_s is 0.0; with 8 GPUs it must be at least 0.001"),
        ({"bus_bandwidth_gb_s": 1e-300}, "with 8 GPUs it must be at least 0.001"),
        ({"all_gather_gb_s": 0}, "between"),
        ({"reduce_scatter_gb_s": 0}, "between"),
        ({"host_to_device_gb_s": 0}, "between"),
        ({"cpu_adam_params_per_s": 0}, "between"),
        ({"gpu_memory_bandwidth_gb_s": 0}, "between"),
        ({"gpu_training_tflops": 0}, "between"),
        ({"nvme_read_gb_s": 0}, "nvme_read_gb_s is 0.0; with nvme_gb above 0"),
        ({"nvme_gb": 100, "nvme_write_gb_s": 0}, "nvme_write_gb_s is 0.0; with nvme_gb above 0"),
        ({"gpu_training_tflops": 300}, "gpu_training_tflops is 300.0, more than gpu_spec_tflops 209.5"),
        ({"gpu_spec_tflops": 10, "gpu_training_tflops": 20}, "more than gpu_spec_tflops 10.0"),
        ({"cpu_adam_params_per_s": "1.5e999"}, "between"),
        ({"cpu_adam_params_per_s": "1.5e"}, "it must be a number"),
        ({"cpu_adam_params_per_s": "1e9 params"}, "it must be a number"),
        ({"sockets": "1.5e0"}, "it must be a whole number"),
        ([1], "mapping"),
    ],
)
def test_a_bad_override_is_one_clear_line(overrides: object, message: str) -> None:
    with pytest.raises(RecipegenError, match=re.escape(message)) as caught:
        load_cluster("kentino-8x-rtx-5090", overrides=overrides)
    assert str(caught.value).isprintable()


def test_a_rate_may_be_zero_where_there_is_nothing_to_carry() -> None:
    assert load_cluster("1x-l40s", overrides={"bus_bandwidth_gb_s": 0}).node.bus_bandwidth_gb_s == 0
    no_disk = load_cluster("2x-l40s", overrides={"nvme_gb": 0, "nvme_read_gb_s": 0, "nvme_write_gb_s": 0})
    assert no_disk.node.nvme_bytes == 0


@pytest.mark.parametrize("text", ["1.5e9", "1.5E9", "15e8", "1.5e+9", "1.5e09"])
def test_scientific_notation_that_yaml_takes_for_text_is_a_number(text: str) -> None:
    node = load_cluster("2x-l40s", overrides={"cpu_adam_params_per_s": text, "sockets": "2e0"}).node
    assert (node.cpu_adam_params_per_s, node.sockets) == (1.5e9, 2)


@pytest.mark.parametrize("name", hardware_names())
def test_the_catalogues_own_rates_can_be_true_together(name: str) -> None:
    resolved = resolve_hardware(name)
    # boost clocks can pass the clock that a vendor's number is for
    assert 0 < resolved.gpu["matmul_tflops"].value <= 1.15 * resolved.gpu["spec_tflops"].value
    assert resolved.cluster.node.nvme_read_gb_s > 0
    assert resolved.cluster.node.nvme_write_gb_s > 0
    assert (resolved.cluster.node.bus_bandwidth_gb_s > 0) == (resolved.cluster.node.gpu_count > 1)


ANY_VALUE = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=20), st.lists(st.integers(), max_size=2),
    st.just(10**5000),
)  # fmt: skip


@given(
    st.dictionaries(st.one_of(st.sampled_from(sorted(override_fields())), st.text(max_size=12)), ANY_VALUE, max_size=4)
)
def test_any_override_gives_a_cluster_or_one_line(overrides: dict[str, object]) -> None:
    answer = attempt("2x-rtx-pro-6000", nodes=2, network="ib-hdr", overrides=overrides)
    if isinstance(answer, str):
        assert answer.isprintable()
    else:
        assert answer.node.host_ram_bytes > 0
        assert answer.gpu.memory_bytes > 0
        assert set(overrides) <= set(override_fields())


@given(st.data())
def test_a_sane_override_shows_in_the_cluster(data: st.DataObject) -> None:
    key, field = data.draw(st.sampled_from(sorted(override_fields().items())))
    if field.type == "boolean":
        value: object = data.draw(st.booleans())
    elif field.type == "integer":
        value = data.draw(st.integers(int(field.min), int(field.max)))
    else:
        value = data.draw(st.floats(max(field.min, field.min_in_use), field.max, allow_nan=False))
    overrides: dict[str, object] = {key: value}
    if key == "gpu_training_tflops":  # the peak of the GPU bounds it, and it the peak
        overrides["gpu_spec_tflops"] = override_fields()["gpu_spec_tflops"].max
    if key == "gpu_memory_taken_gib":  # so does the memory what is taken of it
        overrides["gpu_memory_gib"], overrides[key] = 2048.0, min(value, 2047.0)
        value = overrides[key]
    description = resolve_hardware("2x-h100", nodes=2, network="ib-ndr", overrides=overrides)
    facts = {"gpu": description.gpu, "node": description.node}
    fact = description.network if field.section == "network" else facts[field.section][field.name]
    assert fact.value == value
    assert fact.mark == "stated"


# ---------------------------------------------------------------------------------------------------- lightness

LIGHT = """
import sys
opened = []
sys.addaudithook(lambda event, args: opened.append(str(args[0])) if event == "open" else None)
from recipegen.catalog.cluster import load_cluster
load_cluster("kentino-8x-rtx-5090", nodes=2, network="roce-100")
heavy = {"pydantic", "rich", "torch", "transformers", "huggingface_hub", "pyarrow", "tokenizers", "jinja2", "numpy"}
print(sorted({name.split(".")[0] for name in sys.modules} & heavy))
print(sorted(path.rsplit("hardware/", 1)[1] for path in opened if path.endswith(".yaml") and "/hardware/" in path))
"""


def test_one_profile_reads_only_the_files_it_needs_and_nothing_heavy() -> None:
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", LIGHT], cwd=root, capture_output=True, text=True, check=True)
    heavy, files = done.stdout.splitlines()
    assert heavy == "[]"
    assert files == str(["environment.yaml", "families.yaml", "gpus/rtx-5090.yaml", "hosts.yaml", "networks.yaml"])
