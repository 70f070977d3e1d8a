"""One transfer: bytes on the wire by the backend's table, seconds by the link's own rate.

A backend moves (n - 1) / n of a tensor over n ranks, times a factor per operation (catalog/backends.yaml): NCCL's ring
once for an all-gather or a reduce-scatter, twice for an all-reduce. Seconds are those bytes over nccl-tests' bus
bandwidth, which is defined so that this holds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from recipegen.catalog.backends import wire_factors
from recipegen.spec import Collective
from recipegen.spec.units import GB

if TYPE_CHECKING:
    from recipegen.spec import Cluster


@dataclass(frozen=True)
class Link:
    """A path that collectives share: its group's name, the backend, and GB/s of bus bandwidth by operation."""

    group: str  # node, network, world
    backend: str
    all_reduce_gb_s: float
    all_gather_gb_s: float
    reduce_scatter_gb_s: float

    def gb_s(self, operation: str) -> float:
        rate: float = getattr(self, f"{operation}_gb_s")
        return rate


def backend_of(cluster: Cluster) -> str:
    """NCCL between GPUs, gloo between processes of a CPU profile."""
    return "gloo" if cluster.gpu.compute_capability == "cpu" else "nccl"


def node_link(cluster: Cluster) -> Link:
    """Between the GPUs of one node."""
    node = cluster.node
    bus = node.bus_bandwidth_gb_s
    return Link("node", backend_of(cluster), bus, node.all_gather_gb_s or bus, node.reduce_scatter_gb_s or bus)


def network_link(cluster: Cluster) -> Link:
    """Between nodes: ring rates, per node."""
    assert cluster.network is not None  # a Cluster of several nodes has one
    bus = cluster.network.bus_bandwidth_gb_s
    return Link("network", backend_of(cluster), bus, bus, bus)


def world_link(cluster: Cluster, nodes: int) -> Link:
    """All ranks in one ring: as slow as its slowest hop."""
    if nodes == 1 or cluster.network is None:
        return node_link(cluster)
    inside, between = node_link(cluster), network_link(cluster).all_reduce_gb_s
    slowest = [min(rate or between, between) for rate in
               (inside.all_reduce_gb_s, inside.all_gather_gb_s, inside.reduce_scatter_gb_s)]  # fmt: skip
    return Link("world", inside.backend, *slowest)


def collective(operation: str, what: str, link: Link, count: float, whole: float, ranks: int) -> Collective:
    """`count` passes over `whole` bytes each among `ranks`."""
    moved = count * whole * wire_factors(link.backend)[operation] * (ranks - 1) / ranks
    rate = link.gb_s(operation)
    return Collective(operation, what, link.group, round(count), round(moved), moved / (rate * GB) if rate else 0.0)


def copy(operation: str, what: str, count: float, whole: float, gb_s: float) -> Collective:
    """`count` copies of `whole` bytes each between a GPU, its host and the disk."""
    moved = count * whole
    return Collective(operation, what, "host", round(count), round(moved), moved / (gb_s * GB) if gb_s else 0.0)
