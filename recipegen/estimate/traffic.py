"""What travels in one optimizer step: the operation, the bytes over the bottleneck link, the seconds.

A ring moves (n-1)/n of a tensor for an all-gather or a reduce-scatter and twice that for an all-reduce, over n ranks;
seconds are those bytes over the bus bandwidth (nccl-tests' definition). Per optimizer step with a micro-batches:

DDP            all-reduce of gradients, once
FSDP2 full     all-gather of parameters 2 a (backward without the root group; a when not resharded), reduce-scatter a
               times, once when accumulation does not synchronise
FSDP2 hybrid   the same inside a node, and an all-reduce of every shard between the nodes: one NIC carries
               2 (R-1)/R of all gradients for R replicas, however many GPUs share it
ZeRO-2         reduce-scatter a, all-gather of updated parameters once
ZeRO-3         all-gather 2 a, reduce-scatter a, and what is offloaded over host links and NVMe
"""

from __future__ import annotations

from dataclasses import dataclass

from recipegen.estimate.activations import offloaded
from recipegen.estimate.symbols import Symbols
from recipegen.spec import Cluster, Collective, Dtype, Strategy
from recipegen.spec.units import GB


@dataclass(frozen=True)
class Link:
    """A path that collectives share: its group's name and how fast it is, GB/s."""

    group: str
    gb_s: float


@dataclass(frozen=True)
class Moves:
    """Collectives of one step and when they happen: beside forward, beside backward, or after it."""

    forward: tuple[Collective, ...] = ()
    backward: tuple[Collective, ...] = ()
    #: beside the backward of the last micro-batch only
    last: tuple[Collective, ...] = ()
    #: after backward, hidden behind nothing
    after: tuple[Collective, ...] = ()

    @property
    def all(self) -> tuple[Collective, ...]:
        return self.forward + self.backward + self.last + self.after


def gathered_bytes(x: Symbols, *, root: bool = True) -> float:
    """All parameters as an all-gather delivers them: compute dtype, quantised ones packed."""
    a = x.shape
    packed = a.Q if x.quantised else 0
    count = a.N - packed + a.X * a.moe_layers * (x.padding - 1.0) - (0 if root else a.P_r)
    return x.c * count + Dtype.NF4.bytes * packed


def _world(x: Symbols, cluster: Cluster) -> Link:
    """All ranks in one ring: as slow as its slowest hop."""
    if x.nodes > 1 and cluster.network:
        node = cluster.node.bus_bandwidth_gb_s or cluster.network.bus_bandwidth_gb_s
        return Link("world", min(node, cluster.network.bus_bandwidth_gb_s))
    return Link("node", cluster.node.bus_bandwidth_gb_s)


def _collective(operation: str, what: str, link: Link, count: int, whole: float, ranks: int) -> Collective:
    """`count` passes over `whole` bytes each, as a ring of `ranks`."""
    share = (ranks - 1) / ranks * (2 if operation == "all_reduce" else 1)
    moved = count * whole * share
    seconds = moved / (link.gb_s * GB) if link.gb_s else 0.0
    return Collective(operation, what, link.group, count, round(moved), seconds)


def _copy(operation: str, what: str, group: str, count: int, moved: float, gb_s: float) -> Collective:
    return Collective(operation, what, group, count, round(moved), moved / (gb_s * GB) if gb_s else 0.0)


def _shard_link(x: Symbols, cluster: Cluster) -> Link:
    inside = x.ranks_per_node >= x.S
    return Link("node", cluster.node.bus_bandwidth_gb_s) if inside else _world(x, cluster)


def _fsdp(x: Symbols, cluster: Cluster) -> Moves:
    a, link = x.accumulation, _shard_link(x, cluster)
    reductions = a if x.sync_each_batch else 1
    again = 0 if not x.reshard_after_forward else a
    scatter = _collective("reduce_scatter", "gradients", link, reductions, x.d * x.n_t, x.S)
    reduce: tuple[Collective, ...] = (scatter,)
    replicas = x.W // x.S
    if x.hybrid and cluster.network and x.nodes > 1:
        wire = Link("network", cluster.network.bus_bandwidth_gb_s)
        reduce += (_collective("all_reduce", "gradients", wire, reductions, x.d * x.n_t, replicas),)
    elif x.hybrid:
        reduce += (_collective("all_reduce", "gradients", link, reductions, x.d * x.n_t / x.S, replicas),)
    return Moves(
        forward=(_collective("all_gather", "parameters", link, a, gathered_bytes(x), x.S),),
        backward=(_collective("all_gather", "parameters", link, again, gathered_bytes(x, root=False), x.S),)
        + (reduce if x.sync_each_batch else ()),
        last=() if x.sync_each_batch else reduce,
    )


def _zero2(x: Symbols, cluster: Cluster) -> Moves:
    link = _world(x, cluster)
    return Moves(
        backward=(_collective("reduce_scatter", "gradients", link, x.accumulation, x.d * x.n_t, x.W),),
        after=(_collective("all_gather", "parameters", link, 1, x.c * x.n_t, x.W),),
    )


def _zero3(x: Symbols, cluster: Cluster) -> Moves:
    a, link, node = x.accumulation, _world(x, cluster), cluster.node
    h2d = node.host_to_device_gb_s
    parameters = x.c * x.shape.N
    gather = _collective("all_gather", "parameters", link, a, gathered_bytes(x), x.W)
    scatter = _collective("reduce_scatter", "gradients", link, a, x.d * x.n_t, x.W)
    forward, backward = [gather], [gather, scatter]
    after: list[Collective] = []
    device = x.deepspeed.offload_param if x.deepspeed else "none"
    if device != "none":
        move = _copy("host_to_device", "parameters", "host", a, a * parameters / x.W, h2d)
        forward.append(move)
        backward.append(move)
    if device == "nvme":
        read = _copy("nvme_read", "parameters", "host", a, a * parameters / x.nodes, node.nvme_read_gb_s)
        forward.append(read)
        backward.append(read)
    if x.state_offload != "none":
        backward.append(_copy("device_to_host", "gradients", "host", a, a * x.d * x.n_t / x.W, h2d))
        if device == "none":
            after.append(_copy("host_to_device", "parameters", "host", 1, x.c * x.n_t / x.W, h2d))
    if x.state_offload == "nvme":
        states = (x.o + x.m) * x.n_t / x.nodes
        after.append(_copy("nvme_read", "states", "host", 1, states, node.nvme_read_gb_s))
        after.append(_copy("nvme_write", "states", "host", 1, states, node.nvme_write_gb_s))
    return Moves(tuple(forward), tuple(backward), (), tuple(after))


def _activations(x: Symbols, cluster: Cluster) -> tuple[tuple[Collective, ...], tuple[Collective, ...]]:
    moved, h2d = x.accumulation * offloaded(x), cluster.node.host_to_device_gb_s
    if not moved:
        return (), ()
    away = _copy("device_to_host", "activations", "host", x.accumulation, moved, h2d)
    back = _copy("host_to_device", "activations", "host", x.accumulation, moved, h2d)
    return (away,), (back,)


def moves(x: Symbols, cluster: Cluster) -> Moves:
    """Everything that travels in one optimizer step."""
    if x.fsdp:
        base = _fsdp(x, cluster)
        if x.parameter_offload:
            h2d = cluster.node.host_to_device_gb_s
            share = x.accumulation * gathered_bytes(x) / x.S
            down = _copy("host_to_device", "parameters", "host", x.accumulation, share, h2d)
            up = _copy("device_to_host", "gradients", "host", x.accumulation, x.accumulation * x.g * x.n_t / x.S, h2d)
            base = Moves((*base.forward, down), (*base.backward, down, up), base.last, base.after)
    elif x.zero2:
        base = _zero2(x, cluster)
    elif x.zero3:
        base = _zero3(x, cluster)
    elif x.strategy is Strategy.DDP and x.W > 1:
        base = Moves(last=(_collective("all_reduce", "gradients", _world(x, cluster), 1, x.g * x.n_t, x.W),))
    else:
        base = Moves()
    away, back = _activations(x, cluster)
    return Moves(base.forward + away, base.backward + back, base.last, base.after)
