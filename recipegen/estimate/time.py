"""How long one optimizer step takes, and what it waits for.

Layers come one after the other: while one computes, the next is gathered and the gradients of the last are reduced. A
pass that computes c and communicates m seconds over L layers hides part of the shorter behind the longer; the transfer
of the first layer has nothing to hide behind:
    pass = c + m - overlap (L - 1) / L min(c, m)
Transfers of one link are serial. Head and loss, the root group, the optimizer step, CPU Adam and the disk come on top.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from recipegen.catalog.planning import planning
from recipegen.estimate import flops
from recipegen.estimate.collectives import backend_of
from recipegen.estimate.compute import compute
from recipegen.estimate.dataset_size import steps_per_epoch, tokens_per_micro_batch
from recipegen.estimate.kernels import kernels_of
from recipegen.estimate.lasting import trainable_on_gpu
from recipegen.spec import Time
from recipegen.spec.units import GB, TFLOP

if TYPE_CHECKING:
    from collections.abc import Iterable

    from recipegen.estimate.dataset_size import Training
    from recipegen.estimate.kernels import Kernels
    from recipegen.estimate.symbols import Symbols
    from recipegen.estimate.traffic import Moves
    from recipegen.spec import Cluster, Collective, Recipe

_VERB = {
    "all_gather": "all-gather",
    "reduce_scatter": "reduce-scatter",
    "all_reduce": "all-reduce",
    "host_to_device": "host to GPU copies",
    "device_to_host": "GPU to host copies",
    "nvme_read": "reading",
    "nvme_write": "writing",
}


def _label(move: Collective, cluster: Cluster) -> str:
    """`all-gather over PCIe`, `all-reduce over roce-100`, `reading states from NVMe`."""
    if move.operation.startswith("nvme"):
        side = "from" if move.operation == "nvme_read" else "to"
        return f"{_VERB[move.operation]} {move.what} {side} NVMe"
    if move.group in ("network", "world") and cluster.network:
        return f"{_VERB[move.operation]} over {cluster.network.name}"
    if move.group == "host":
        return f"{_VERB[move.operation]} of {move.what}"
    inside = "NVLink" if cluster.gpu.nvlink else "PCIe"
    return f"{_VERB[move.operation]} over {'gloo' if backend_of(cluster) == 'gloo' else inside}"


class _Parts:
    """Seconds of one step by what they are spent on."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.seconds: dict[str, float] = {"compute": 0.0}

    def add(self, name: str, seconds: float) -> None:
        if seconds:
            self.seconds[name] = self.seconds.get(name, 0.0) + seconds

    def alone(self, moves: Iterable[Collective]) -> None:
        """Transfers that nothing hides."""
        for move in moves:
            self.add(_label(move, self.cluster), move.seconds)

    def beside(self, compute_s: float, moves: Iterable[Collective], layers: int) -> None:
        """A pass over `layers` layers with transfers beside it; the busiest link is what compute waits for."""
        links: dict[str, list[Collective]] = {}
        for move in moves:
            link = "nvme" if move.operation.startswith("nvme") else "network" if move.group == "network" else "node"
            links.setdefault(link, []).append(move)
        busiest = max(links.values(), key=lambda moved: sum(m.seconds for m in moved), default=[])
        m = sum(move.seconds for move in busiest)
        hidden = planning().overlap * (layers - 1) / layers * min(compute_s, m)
        compute_first = compute_s >= m  # the longer one counts in full, the other with what it does not hide
        self.add("compute", compute_s - (0.0 if compute_first else hidden))
        shown = m - (hidden if compute_first else 0.0)
        for move in busiest:
            self.add(_label(move, self.cluster), shown * move.seconds / m if m else 0.0)


def _optimizer(x: Symbols, cluster: Cluster, parts: _Parts) -> None:
    """On the GPU bound by memory bandwidth, else CPU Adam.

    A fused step reads and writes parameters, states and a master copy and reads gradients. A foreach step makes a pass
    per operation: of parameters 4, gradients 2, first moments 3, second moments 5 and a temporary 6.
    """
    if x.state_offload != "none":
        parts.add("CPU Adam", x.n_t / x.nodes / cluster.node.cpu_adam_params_per_s)
        return
    each = 2 * (x.t + x.o + x.m) + x.g
    if x.f:
        each = 4 * x.t + 2 * x.g + 4 * x.o + 6 * x.f + 2 * x.m
    clipping = 3 * x.g
    bandwidth = cluster.gpu.memory_bandwidth_gb_s * planning().memory_share * GB
    parts.add("optimizer step", trainable_on_gpu(x) * (each + clipping) / bandwidth)


def step_parts(
    x: Symbols, recipe: Recipe, cluster: Cluster, traffic: Moves, tokens: float, kernels: Kernels | None = None
) -> dict[str, float]:
    """Seconds of one optimizer step by what they are spent on; they sum to the step.

    `tokens` are those of one GPU and micro-batch; `kernels` are the recipe's own unless given.
    """
    c = compute(x, cluster.gpu, kernels or kernels_of(recipe), tokens, tf32=recipe.tf32)
    a, layers = x.accumulation, x.shape.L
    parts = _Parts(cluster)
    parts.add("compute", a * c.head)
    parts.beside(a * c.forward, traffic.forward, layers)
    if traffic.last:  # the last micro-batch reduces, the others do not
        parts.beside((a - 1) * c.backward, (_scaled(m, 1.0 - 1.0 / a) for m in traffic.backward), layers)
        parts.beside(c.backward, (*(_scaled(m, 1.0 / a) for m in traffic.backward), *traffic.last), layers)
    else:
        parts.beside(a * c.backward, traffic.backward, layers)
    parts.alone(traffic.alone)
    _optimizer(x, cluster, parts)
    return parts.seconds


def _scaled(move: Collective, factor: float) -> Collective:
    return replace(move, bytes_per_step=round(move.bytes_per_step * factor), seconds=move.seconds * factor)


def step_time(x: Symbols, recipe: Recipe, cluster: Cluster, traffic: Moves, data: Training | None) -> Time:
    """One optimizer step, the run, and what bounds it."""
    per_rank = tokens_per_micro_batch(recipe, data)
    parts = step_parts(x, recipe, cluster, traffic, per_rank / recipe.parallelism.cp)
    step_s = sum(parts.values())
    tokens = per_rank * recipe.gradient_accumulation * recipe.parallelism.data_parallel_ranks
    useful = flops.model_flops(x) * tokens / recipe.parallelism.world_size
    name, longest = max(parts.items(), key=lambda part: part[1])
    steps = steps_per_epoch(recipe)
    total_steps = recipe.max_steps if recipe.max_steps else (round(steps * recipe.epochs) if steps else None)
    return Time(
        step_s=step_s,
        tokens_per_s=tokens / step_s,
        steps_per_epoch=steps,
        epoch_s=steps * step_s if steps else None,
        total_s=total_steps * step_s if total_steps else None,
        bound_by=f"{name}, {longest / step_s:.0%} of the step",
        mfu=useful / step_s / (cluster.gpu.spec_tflops * TFLOP),
        parts_s=tuple(parts.items()),
    )
