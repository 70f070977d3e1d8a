"""What travels in one optimizer step: operation, bytes over the bottleneck link of one GPU, seconds, and beside what.

Per optimizer step with a micro-batches (collectives.py turns a tensor into wire bytes):

DDP            all-reduce of gradients, beside the last backward; not at all before (no_sync)
FSDP full      all-gather of every layer and of the root group 2 a times (a when not resharded after forward);
               reduce-scatter of gradients a times, once when accumulation does not synchronise
FSDP hybrid    the same inside a node, and an all-reduce of every shard among the replicas: one NIC carries
               2 (R-1)/R of all gradients for R nodes, however many GPUs share it
ZeRO-1         all-reduce of gradients once, all-gather of the updated parameters once
ZeRO-2         the same with the all-reduce after every micro-batch: DeepSpeed 0.18.9 joins the slices of all ranks and
               all-reduces them (stage_1_and_2.py, use_multi_rank_bucket_allreduce), whatever reduce_scatter says
ZeRO-3         all-gather 2 a times, but for the last layers, which are used again before they are released
               (max_reuse_distance); reduce-scatter a times; what is offloaded crosses the host link and the disk
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from recipegen.catalog.planning import planning
from recipegen.estimate.activations import offloaded
from recipegen.estimate.collectives import collective, copy, network_link, node_link, world_link
from recipegen.spec import Collective, Strategy

if TYPE_CHECKING:
    from recipegen.estimate.collectives import Link
    from recipegen.estimate.symbols import Symbols
    from recipegen.spec import Cluster


@dataclass(frozen=True)
class Moves:
    """Collectives of one step by when they happen. Those of `forward`, `backward` and `last` come layer by layer."""

    forward: tuple[Collective, ...] = ()
    backward: tuple[Collective, ...] = ()
    #: beside the backward of the last micro-batch only
    last: tuple[Collective, ...] = ()
    #: beside nothing: the root group before and after the layers, what follows the optimizer step
    alone: tuple[Collective, ...] = ()

    @property
    def all(self) -> tuple[Collective, ...]:
        """Everything, one entry per operation, content and group."""
        found: dict[tuple[str, str, str], Collective] = {}
        for move in (*self.forward, *self.backward, *self.last, *self.alone):
            key = (move.operation, move.what, move.group)
            found[key] = add(found[key], move) if key in found else move
        return tuple(found.values())


def add(one: Collective, other: Collective) -> Collective:
    """Two transfers of the same kind as one; passes over parts of a model are not counted twice."""
    return replace(
        one,
        count_per_step=max(one.count_per_step, other.count_per_step),
        bytes_per_step=one.bytes_per_step + other.bytes_per_step,
        seconds=one.seconds + other.seconds,
    )


def gathered_bytes(x: Symbols, *, root: bool = True) -> float:
    """All parameters as an all-gather delivers them: compute dtype, quantised ones packed, adapters with them."""
    a = x.shape
    packed = a.Q if x.quantised else 0
    count = a.N - packed + a.X * a.moe_layers * (x.padding - 1.0) - (0 if root else a.P_r)
    return x.c * (count + x.n) + x.packed * packed


def _root_bytes(x: Symbols) -> float:
    return gathered_bytes(x) - gathered_bytes(x, root=False)


def _fsdp(x: Symbols, cluster: Cluster) -> Moves:
    a = x.accumulation
    link = node_link(cluster) if x.ranks_per_node >= x.S else world_link(cluster, x.nodes)
    reductions = a if x.sync_each_batch else 1
    again = a if x.reshard_after_forward else 0
    root = x.trained_root if x.full else 0
    h2d = cluster.node.host_to_device_gb_s

    def reduced(parameters: float) -> tuple[Collective, ...]:
        moves = [collective("reduce_scatter", "gradients", link, reductions, x.d * parameters, x.S)]
        replicas = x.W // x.S
        if x.hybrid and x.nodes > 1:
            wire = network_link(cluster)
            moves.append(collective("all_reduce", "gradients", wire, reductions, x.d * parameters, replicas))
        elif x.hybrid:
            moves.append(collective("all_reduce", "gradients", link, reductions, x.d * parameters / x.S, replicas))
        if x.parameter_offload:
            moves.append(copy("device_to_host", "gradients", reductions, x.d * parameters / x.S, h2d))
        return tuple(moves)

    def gathered(count: float, whole: float) -> tuple[Collective, ...]:
        moves = [collective("all_gather", "parameters", link, count, whole, x.S)]
        if x.parameter_offload:
            moves.append(copy("host_to_device", "parameters", count, whole / x.S, h2d))
        return tuple(moves)

    layers = gathered_bytes(x, root=False)
    reduce = reduced(x.n_t - root)
    return Moves(
        forward=gathered(a, layers),
        backward=gathered(again, layers) + (reduce if x.sync_each_batch or a == 1 else ()),
        last=() if x.sync_each_batch or a == 1 else reduce,
        alone=gathered(2 * a if x.root_reshards else a, _root_bytes(x)) + (reduced(root) if root else ()),
    )


def _zero_1_2(x: Symbols, cluster: Cluster) -> Moves:
    link, a = world_link(cluster, x.nodes), x.accumulation
    each = x.deepspeed is None or x.deepspeed.stage > 1
    reduce = [collective("all_reduce", "gradients", link, a if each else 1, x.d * x.n_t, x.W)]
    alone = [collective("all_gather", "parameters", link, 1, x.c * x.n_t, x.W)]
    if x.state_offload != "none":
        h2d, own = cluster.node.host_to_device_gb_s, x.d * x.n_t / x.W
        # DeepSpeed adds up on the GPU: from the second micro-batch on, the sum so far comes back first
        reduce.append(copy("device_to_host", "gradients", a if each else 1, own, h2d))
        if each and a > 1:
            reduce.append(copy("host_to_device", "gradients", a - 1, own, h2d))
        alone.append(copy("host_to_device", "parameters", 1, x.c * x.n_t / x.W, h2d))
        alone += _state_swaps(x, cluster)
    moves = tuple(reduce)
    return Moves(backward=moves if each else (), last=() if each else moves, alone=tuple(alone))


def _state_swaps(x: Symbols, cluster: Cluster) -> list[Collective]:
    if x.state_offload != "nvme":
        return []
    states = (x.o + x.m) * x.n_t / x.nodes
    node = cluster.node
    return [
        copy("nvme_read", "states", 1, states, node.nvme_read_gb_s),
        copy("nvme_write", "states", 1, states, node.nvme_write_gb_s),
    ]


def _zero_3(x: Symbols, cluster: Cluster) -> Moves:
    a, link, node = x.accumulation, world_link(cluster, x.nodes), cluster.node
    h2d = node.host_to_device_gb_s
    parameters = x.c * x.shape.N
    # forward to backward is twice the way to the end of the model
    released = max(0.0, 1.0 - planning().zero3_live_parameters / 2 / x.shape.N)
    gather = collective("all_gather", "parameters", link, a, gathered_bytes(x), x.W)
    again = collective("all_gather", "parameters", link, a, gathered_bytes(x) * released, x.W)
    forward, backward = [gather], [again, collective("reduce_scatter", "gradients", link, a, x.d * x.n_t, x.W)]
    alone: list[Collective] = []
    device = x.deepspeed.offload_param if x.deepspeed else "none"
    if device != "none":
        forward.append(copy("host_to_device", "parameters", a, parameters / x.W, h2d))
        backward.append(copy("host_to_device", "parameters", a, released * parameters / x.W, h2d))
    if device == "nvme":
        forward.append(copy("nvme_read", "parameters", a, parameters / x.nodes, node.nvme_read_gb_s))
        backward.append(copy("nvme_read", "parameters", a, released * parameters / x.nodes, node.nvme_read_gb_s))
    if x.state_offload != "none":
        backward.append(copy("device_to_host", "gradients", a, x.d * x.n_t / x.W, h2d))
        if device == "none":
            alone.append(copy("host_to_device", "parameters", 1, x.c * x.n_t / x.W, h2d))
        alone += _state_swaps(x, cluster)
    return Moves(tuple(forward), tuple(backward), (), tuple(alone))


def _ddp(x: Symbols, link: Link) -> Moves:
    return Moves(last=(collective("all_reduce", "gradients", link, 1, x.g * x.n_t, x.W),))


def _with_activations(base: Moves, x: Symbols, cluster: Cluster) -> Moves:
    moved, h2d = offloaded(x), cluster.node.host_to_device_gb_s
    if not moved:
        return base
    away = copy("device_to_host", "activations", x.accumulation, moved, h2d)
    back = copy("host_to_device", "activations", x.accumulation, moved, h2d)
    return replace(base, forward=(*base.forward, away), backward=(*base.backward, back))


def moves(x: Symbols, cluster: Cluster) -> Moves:
    """Everything that travels in one optimizer step."""
    if x.fsdp:
        base = _fsdp(x, cluster)
    elif x.zero2:
        base = _zero_1_2(x, cluster)
    elif x.zero3:
        base = _zero_3(x, cluster)
    elif x.strategy is Strategy.DDP and x.W > 1:
        base = _ddp(x, world_link(cluster, x.nodes))
    else:
        base = Moves()
    return _with_activations(base, x, cluster)


def seconds(moved: Iterable[Collective]) -> float:
    """Seconds of transfers one after the other."""
    return sum(move.seconds for move in moved)
