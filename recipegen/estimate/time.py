"""How long one optimizer step takes, and what it waits for.

Compute, FLOPs per token with N the parameters a token passes through (an embedding that is only looked up is not):
    forward 2 N + attention, backward 4 N (2 N when the weights are frozen), recomputation 2 N once more
    attention, causal: 2 s q L forward, 2.5 times that backward with a flash kernel
Each direction of a micro-batch is bound by the slower of compute and communication; of the faster one a share
(1 - overlap) shows. Then comes what nothing hides: the optimizer step and, with offload, CPU Adam and NVMe.
"""

from __future__ import annotations

from collections.abc import Iterable

from recipegen.catalog.planning import planning
from recipegen.estimate.dataset_size import Training, steps_per_epoch, tokens_per_micro_batch
from recipegen.estimate.lasting import trainable_on_gpu
from recipegen.estimate.symbols import Symbols
from recipegen.estimate.traffic import Moves
from recipegen.spec import AttentionMemory, Cluster, Collective, Recipe, Time
from recipegen.spec.units import GB, TFLOP

_VERB = {
    "all_gather": "all-gather",
    "reduce_scatter": "reduce-scatter",
    "all_reduce": "all-reduce",
    "host_to_device": "host to GPU copies",
    "device_to_host": "GPU to host copies",
    "nvme_read": "reading",
    "nvme_write": "writing",
}
_FLASH_BACKWARD = 2.5  # forward is two matrix products, a flash backward five


def _label(move: Collective, cluster: Cluster) -> str:
    """`all-gather over PCIe`, `all-reduce over roce-100`, `reading states from NVMe`."""
    if move.operation.startswith("nvme"):
        side = "from" if move.operation == "nvme_read" else "to"
        return f"{_VERB[move.operation]} {move.what} {side} NVMe"
    if move.group in ("network", "world") and cluster.network:
        return f"{_VERB[move.operation]} over {cluster.network.name}"
    if move.group == "host":
        return f"{_VERB[move.operation]} of {move.what}"
    return f"{_VERB[move.operation]} inside the node"


def flops_per_token(x: Symbols) -> tuple[float, float, float]:
    """FLOPs of forward, backward and recomputation, per token."""
    a = x.shape
    VH = a.V * a.H
    N = a.N_active - (0 if a.tied else VH)
    causal = 1 if x.attention is AttentionMemory.FLASH else 2  # with a mask or in eager mode nothing is skipped
    attention = 2.0 * causal * x.s * a.q * a.L
    forward = 2.0 * N + attention + 2.0 * x.n
    backward = (4.0 if x.full else 2.0) * N + _FLASH_BACKWARD * attention + 4.0 * x.n
    recompute = 2.0 * (N - VH) + attention if x.checkpointing and not (x.activation_offload and not x.full) else 0.0
    return forward, backward, recompute


def _beside(compute_s: float, traffic: Iterable[Collective], cluster: Cluster, parts: dict[str, float]) -> None:
    """Add one stage to `parts`. Traffic of one link is serial; the slowest link or compute bounds the stage."""
    links: dict[str, list[Collective]] = {}
    for move in traffic:
        links.setdefault("nvme" if move.operation.startswith("nvme") else move.group, []).append(move)
    slowest = max(links.values(), key=lambda moved: sum(m.seconds for m in moved), default=[])
    communication_s = sum(m.seconds for m in slowest)
    shown = 1.0 - planning().overlap
    compute_share, traffic_share = (1.0, shown) if compute_s >= communication_s else (shown, 1.0)
    parts["compute"] = parts.get("compute", 0.0) + compute_s * compute_share
    for move in slowest:
        if move.seconds:
            label = _label(move, cluster)
            parts[label] = parts.get(label, 0.0) + move.seconds * traffic_share


def _optimizer(x: Symbols, cluster: Cluster, parts: dict[str, float]) -> None:
    """On the GPU bound by memory bandwidth (read and write parameters and states, read gradients); else CPU Adam."""
    if x.state_offload == "none":
        moved = trainable_on_gpu(x) * (2 * (x.t + x.o + x.m) + x.g)
        parts["optimizer step"] = moved / (cluster.gpu.memory_bandwidth_gb_s * GB)
    else:
        parts["CPU Adam"] = x.n_t / x.nodes / cluster.node.cpu_adam_params_per_s


def step_parts(x: Symbols, recipe: Recipe, cluster: Cluster, traffic: Moves, data: Training | None) -> dict[str, float]:
    """Seconds of one optimizer step by what they are spent on; they sum to the step."""
    tokens = tokens_per_micro_batch(recipe, data) / recipe.parallelism.cp
    factor = planning().qlora_compute_factor if x.quantised else 1.0
    per_token = factor / (cluster.gpu.training_tflops * TFLOP * x.tp)
    forward, backward, recompute = (tokens * flops * per_token for flops in flops_per_token(x))
    a = x.accumulation
    parts: dict[str, float] = {"compute": 0.0}
    _beside(a * forward, traffic.forward, cluster, parts)
    if traffic.last:  # the last micro-batch reduces, the others do not
        last = 1.0 / a
        rest = [_scaled(m, 1.0 - last) for m in traffic.backward]
        _beside((a - 1) * (backward + recompute), rest, cluster, parts)
        once = [_scaled(m, last) for m in traffic.backward]
        _beside(backward + recompute, (*once, *traffic.last), cluster, parts)
    else:
        _beside(a * (backward + recompute), traffic.backward, cluster, parts)
    for move in traffic.after:
        label = _label(move, cluster)
        parts[label] = parts.get(label, 0.0) + move.seconds
    _optimizer(x, cluster, parts)
    return parts


def _scaled(move: Collective, factor: float) -> Collective:
    return Collective(
        move.operation,
        move.what,
        move.group,
        move.count_per_step,
        round(move.bytes_per_step * factor),
        move.seconds * factor,
    )


def step_time(x: Symbols, recipe: Recipe, cluster: Cluster, traffic: Moves, data: Training | None) -> Time:
    """One optimizer step, the run, and what bounds it."""
    parts = step_parts(x, recipe, cluster, traffic, data)
    step_s = sum(parts.values())
    ranks = recipe.parallelism.data_parallel_ranks
    tokens = tokens_per_micro_batch(recipe, data) * recipe.gradient_accumulation * ranks
    forward, backward, _ = flops_per_token(x)
    model_flops = (forward + backward) * tokens / recipe.parallelism.world_size
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
        mfu=model_flops / step_s / (cluster.gpu.spec_tflops * TFLOP),
        parts_s=tuple(parts.items()),
    )
