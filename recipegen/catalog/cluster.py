"""From a hardware name or a person's own profile to a `Cluster`. Facts: catalog/hardware; this file holds none."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from recipegen.catalog.bounded_yaml import shown, shown_path
from recipegen.catalog.hardware_environment import (
    NO_NETWORK,
    build_network,
    check_network,
    network_bandwidth,
    network_names,
    node_environment,
    situation,
)
from recipegen.catalog.hardware_facts import (
    PER_SOCKET,
    STATED,
    Fact,
    Machine,
    gpu_names,
    known_machine,
    read_table,
)
from recipegen.catalog.hardware_fields import GPU_PREFIX, check_overrides, check_together, override_fields, suggest
from recipegen.spec import Cluster, Gpu, Node, RecipegenError
from recipegen.spec.units import GB, GIB

__all__ = [
    "ResolvedHardware",
    "describe_hardware",
    "gpu_names",
    "hardware_names",
    "is_hardware_name",
    "load_cluster",
    "network_names",
    "resolve_hardware",
]

_NAME = re.compile(r"(?P<count>[0-9]{1,4})x-(?P<gpu>[a-z0-9-]+)")
_PROFILE_SUFFIXES = (".yaml", ".yml")


@dataclass(frozen=True)
class ResolvedHardware:
    """A cluster and the facts it was built from, each with its mark and source."""

    cluster: Cluster
    gpu: Mapping[str, Fact]
    node: Mapping[str, Fact]
    network: Fact | None


def hardware_names() -> list[str]:
    """The profiles worth listing: every Kentino box, and 1, 2, 4 and 8 of every GPU. Any COUNTx-GPU up to 16 loads."""
    return [
        f"{family['prefix']}{count}x-{gpu}"
        for family in read_table("families").values()
        for gpu in _gpus_of(family)
        for count in family.get("listed_counts", family["gpu_counts"])
    ]


def load_cluster(
    name_or_path: str | Path,
    *,
    nodes: int = 1,
    network: str = NO_NETWORK,
    overrides: Mapping[str, Any] | None = None,
) -> Cluster:
    """`nodes` machines of the profile `name_or_path`, joined by `network`.

    `name_or_path`: `kentino-8x-rtx-5090`, `4x-l40s`, or a YAML file of the user's own (docs/hardware.md). `overrides`:
    keys of override_fields(), such as host_ram_gib, nvme_gb, sockets, gpu_memory_gib; they win over the profile.
    With one node the network plays no part and the cluster has none. Raises RecipegenError for anything unknown or
    out of range, and for several nodes without a network.
    """
    return resolve_hardware(name_or_path, nodes=nodes, network=network, overrides=overrides).cluster


def resolve_hardware(
    name_or_path: str | Path,
    *,
    nodes: int = 1,
    network: str = NO_NETWORK,
    overrides: Mapping[str, Any] | None = None,
) -> ResolvedHardware:
    """As load_cluster, with the facts it was built from."""
    _check_nodes(nodes)
    network = check_network(network)
    if nodes > 1 and network == NO_NETWORK:
        choices = ", ".join(choice for choice in network_names() if choice != NO_NETWORK)
        raise RecipegenError(f"{nodes} nodes need a network between them", fix=f"Give --network: {choices}")
    machine = _with_overrides(_machine(name_or_path), check_overrides(overrides))
    return _assemble(machine, nodes, network)


def describe_hardware(
    name_or_path: str | Path,
    *,
    nodes: int = 1,
    network: str = NO_NETWORK,
    overrides: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The profile for people and for JSON: every number with its mark and source, then what the launcher exports."""
    resolved = resolve_hardware(name_or_path, nodes=nodes, network=network, overrides=overrides)
    cluster = resolved.cluster
    variables = (*cluster.node.environment, *(cluster.network.environment if cluster.network else ()))
    described: dict[str, Any] = {
        "name": cluster.name,
        "description": cluster.description,
        "source": cluster.source,
        "nodes": cluster.nodes,
        "gpu_count": cluster.node.gpu_count,
        "gpu_name": cluster.gpu.name,
        "gpu": {name: asdict(fact) for name, fact in resolved.gpu.items()},
        "node": {name: asdict(fact) for name, fact in resolved.node.items()},
        "environment": [asdict(variable) for variable in variables],
    }
    if cluster.network is not None and resolved.network is not None:
        described["network"] = {"name": cluster.network.name, "bus_bandwidth_gb_s": asdict(resolved.network)}
    return described


def is_hardware_name(text: str) -> bool:
    """Whether the catalogue has this machine; nothing is opened for the answer."""
    return _named_machine(text) is not None


def _check_nodes(nodes: object) -> None:
    if isinstance(nodes, bool) or not isinstance(nodes, int) or nodes < 1:
        raise RecipegenError(f"nodes is {shown(nodes)}; it must be a whole number, 1 or more", fix="Give --nodes.")


def _machine(name_or_path: str | Path) -> Machine:
    """The machine behind a name or a path; the catalogue's names come first."""
    text = os.fspath(name_or_path)
    machine = _named_machine(text) if isinstance(name_or_path, str) else None
    if machine is not None:
        return machine
    if text.lower().endswith(_PROFILE_SUFFIXES) or _is_file(text):
        from recipegen.catalog.hardware_file import read_profile

        return read_profile(text)
    raise _unknown(text)


def _named_machine(text: str) -> Machine | None:
    name = text.strip().lower().replace("_", "-").replace(" ", "-")
    for family in read_table("families").values():
        if not name.startswith(family["prefix"]):
            continue
        match = _NAME.fullmatch(name.removeprefix(family["prefix"]))
        if match and match["gpu"] in _gpus_of(family) and int(match["count"]) in family["gpu_counts"]:
            count = int(match["count"])
            canonical = f"{family['prefix']}{count}x-{match['gpu']}"
            return known_machine(canonical, match["gpu"], count, description=family.get("description", ""))
    return None


def _unknown(text: str) -> RecipegenError:
    """The error for a name that is neither in the catalogue nor a file, with the nearest names that are."""
    kind = "hardware profile"
    if os.sep in text:
        return RecipegenError(f"no {kind} at this path", where=shown_path(text))
    known = [*hardware_names(), *_all_names()]
    gpu = text.strip().lower().replace("_", "-").replace(" ", "-")
    if gpu in gpu_names():  # a GPU without a count
        fix = f"Say how many: 1x-{gpu}, 8x-{gpu}"
    else:
        fix = suggest(gpu, dict.fromkeys(known))
        if not fix.startswith("Did"):
            fix = f"A name is COUNTx-GPU, with 1 to 16 of {', '.join(gpu_names())}, or the path of a YAML profile"
    return RecipegenError(f"unknown {kind} {shown(text)}", fix=fix)


@cache
def _all_names() -> tuple[str, ...]:
    return tuple(
        f"{family['prefix']}{count}x-{gpu}"
        for family in read_table("families").values()
        for gpu in _gpus_of(family)
        for count in family["gpu_counts"]
    )


def _gpus_of(family: Mapping[str, Any]) -> tuple[str, ...]:
    return gpu_names() if family["gpus"] == "all" else tuple(family["gpus"])


def _is_file(text: str) -> bool:
    try:
        return os.path.isfile(text)
    except ValueError:  # a zero byte
        return False


def _with_overrides(machine: Machine, overrides: Mapping[str, float | int | bool]) -> Machine:
    """The machine with every override in the place of the fact of that name."""
    if not overrides:
        return machine
    stated: dict[str, dict[str, Fact]] = {"gpu": {}, "node": {}, "network": {}}
    for key, value in overrides.items():
        field = override_fields()[key]
        stated[field.section][field.name] = Fact(value, STATED, "hardware_overrides")
    node = {**machine.node, **stated["node"], **stated["network"]}
    if "bus_bandwidth_gb_s" in stated["node"]:
        # One stated rate replaces the three measured ones, unless those are stated too.
        for name in ("all_gather_gb_s", "reduce_scatter_gb_s"):
            if name not in stated["node"]:
                node.pop(name, None)
    changed = replace(machine, gpu={**machine.gpu, **stated["gpu"]}, node=node)
    check_together(changed, prefix=GPU_PREFIX)
    return changed


def _assemble(machine: Machine, nodes: int, network_name: str) -> ResolvedHardware:
    node_facts = dict(machine.node)
    stated_bandwidth = node_facts.pop("network_bus_bandwidth_gb_s", None)
    if stated_bandwidth is not None and nodes == 1:
        raise RecipegenError("network_bus_bandwidth_gb_s is given for one node", fix="Remove it, or give --nodes.")
    if "host_ram_gib" in node_facts:
        node_facts.pop("host_ram_gb", None)
    facts = situation(machine, nodes, network_name)
    per_socket = node_facts.pop(PER_SOCKET, None)
    if "cpu_adam_params_per_s" not in node_facts:
        assert per_socket is not None  # a Machine has one of the two
        node_facts["cpu_adam_params_per_s"] = replace(
            per_socket,
            value=per_socket.value * facts["sockets"],
            note="; ".join(filter(None, (f"{facts['sockets']} sockets", per_socket.note))),
        )
    network, bandwidth = None, None
    if nodes > 1:
        bandwidth = stated_bandwidth or network_bandwidth(network_name, facts)
        network = build_network(network_name, facts, bandwidth)
    node = _node(machine, node_facts, facts)
    cluster = Cluster(machine.name, node, nodes, network, machine.description, machine.source)
    return ResolvedHardware(cluster, machine.gpu, node_facts, bandwidth)


def _node(machine: Machine, node_facts: Mapping[str, Fact], facts: Mapping[str, Any]) -> Node:
    def number(name: str) -> float:
        return float(node_facts[name].value)

    def optional(name: str) -> float | None:
        return number(name) if name in node_facts else None

    ram = number("host_ram_gib") * GIB if "host_ram_gib" in node_facts else number("host_ram_gb") * GB
    environment = node_environment(facts) if machine.environment is None else machine.environment
    return Node(
        gpu=_gpu(machine),
        gpu_count=machine.gpu_count,
        host_ram_bytes=round(ram),
        nvme_bytes=round(number("nvme_gb") * GB),
        nvme_read_gb_s=number("nvme_read_gb_s"),
        nvme_write_gb_s=number("nvme_write_gb_s"),
        sockets=int(node_facts["sockets"].value),
        physical_cores=int(node_facts["physical_cores"].value),
        bus_bandwidth_gb_s=number("bus_bandwidth_gb_s") if machine.gpu_count > 1 else 0.0,
        host_to_device_gb_s=number("host_to_device_gb_s"),
        cpu_adam_params_per_s=number("cpu_adam_params_per_s"),
        environment=environment,
        all_gather_gb_s=optional("all_gather_gb_s"),
        reduce_scatter_gb_s=optional("reduce_scatter_gb_s"),
    )


def _gpu(machine: Machine) -> Gpu:
    value = {name: fact.value for name, fact in machine.gpu.items()}

    def rate(name: str) -> float | None:
        return float(value[name]) if name in value else None

    return Gpu(
        name=machine.gpu_name,
        memory_bytes=round((value["memory_gib"] - value.get("memory_taken_gib", 0.0)) * GIB),
        compute_capability=value["compute_capability"],
        spec_tflops=float(value["spec_tflops"]),
        training_tflops=rate("training_tflops"),
        matmul_tflops=rate("matmul_tflops"),
        fp32_tflops=rate("fp32_tflops"),
        memory_bandwidth_gb_s=float(value["memory_bandwidth_gb_s"]),
        power_w=value["power_w"],
        nvlink=value["nvlink"],
        bf16=value["bf16"],
        fp8=value["fp8"],
        tf32=value["tf32"],
        triton=value["triton"],
        flash_attention=value["flash_attention"],
        fused_linear_loss=value["fused_linear_loss"],
        pinned_memory=value["pinned_memory"],
        peer_to_peer=value["peer_to_peer"],
        gpudirect_rdma=value["gpudirect_rdma"],
        source=machine.gpu["memory_gib"].source,
    )
