"""What the launcher exports on a machine and a network, and the network itself: the rules of environment.yaml and
networks.yaml, each with a condition on capabilities and counts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from recipegen.catalog.hardware_facts import Fact, Machine, read_table
from recipegen.catalog.hardware_fields import suggest
from recipegen.spec import EnvVar, Network, RecipegenError

MINIMUM = "min_"
NO_NETWORK = "none"


def network_names() -> list[str]:
    """What `--network` takes: none, tcp-25, roce-25, roce-100, ib-hdr, ib-ndr."""
    return list(read_table("networks"))


def check_network(name: object) -> str:
    """`name` if it is a network's name; else RecipegenError with the choices."""
    if not isinstance(name, str) or name not in read_table("networks"):
        raise RecipegenError(f"unknown network {name!r}", fix=suggest(name, network_names()))
    return name


def situation(machine: Machine, nodes: int, network: str) -> dict[str, Any]:
    """What the conditions of the two tables look at."""
    row = read_table("networks")[network]
    capabilities = ("pcie_generation", "nvlink", "peer_to_peer", "gpudirect_rdma")
    return {
        "nccl": machine.gpu["compute_capability"].value != "cpu",
        "world_size": nodes * machine.gpu_count,
        "gpus": machine.gpu_count,
        "sockets": machine.node["sockets"].value,
        "transport": row.get("transport", NO_NETWORK),
        "rdma": row.get("rdma", False),
        **{name: machine.gpu[name].value for name in capabilities},
    }


def holds(condition: Mapping[str, Any], facts: Mapping[str, Any]) -> bool:
    """Whether every entry holds: `min_gpus: 3` means facts["gpus"] >= 3, anything else is equality."""
    return all(
        facts[key.removeprefix(MINIMUM)] >= wanted if key.startswith(MINIMUM) else facts[key] == wanted
        for key, wanted in condition.items()
    )


def node_environment(facts: Mapping[str, Any]) -> tuple[EnvVar, ...]:
    """The node's variables, in the order of environment.yaml."""
    return _variables("node", facts)


def network_bandwidth(name: str, facts: Mapping[str, Any]) -> Fact:
    """GB/s of the ring per node, of the first case of networks.yaml that holds."""
    for case in read_table("networks")[name]["cases"]:
        if holds(case.get("when", {}), facts):
            return Fact(**case["bus_bandwidth_gb_s"])
    raise AssertionError(f"networks.yaml: {name} has no case without a condition")


def build_network(name: str, facts: Mapping[str, Any], bandwidth: Fact) -> Network:
    """The network between the nodes with its variables."""
    return Network(
        name=name,
        bus_bandwidth_gb_s=float(bandwidth.value),
        rdma=read_table("networks")[name]["rdma"],
        environment=_variables("network", facts),
        source=bandwidth.source,
    )


def _variables(section: str, facts: Mapping[str, Any]) -> tuple[EnvVar, ...]:
    return tuple(
        EnvVar(name=row["name"], value=row["value"], reason=row["reason"])
        for row in read_table("environment")[section]
        if holds(row["when"], facts)
    )
