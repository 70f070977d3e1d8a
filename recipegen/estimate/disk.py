"""Disk per node: the download, the prepared data, the checkpoints that are kept, the result, and swap.

A checkpoint holds parameters and optimizer states: full N (t + o + m), adapter n (t + o + m). It is counted whole for
each node, which is right for a shared folder and an upper bound for local ones.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from recipegen.catalog.planning import planning
from recipegen.estimate.dataset_size import Training
from recipegen.estimate.lasting import stored_parameter_bytes
from recipegen.estimate.symbols import Symbols
from recipegen.spec import Disk, Dtype, Strategy

if TYPE_CHECKING:
    from recipegen.spec import Cluster, ModelSpec, Recipe


def checkpoint_bytes(x: Symbols, recipe: Recipe) -> int:
    """One checkpoint: weights, and optimizer states unless only the model is saved.

    FULL_STATE_DICT writes the weights of a full fine-tune twice (Accelerate's file and the Trainer's safetensors), and
    so does ZeRO-2 (its module states and the safetensors). ZeRO-3 keeps its weights as the fp32 master, beside one set
    of gathered safetensors (deepspeed 0.18.9 engine.py, save_checkpoint).
    """
    weights = stored_parameter_bytes(x) if x.full else x.t * x.n
    states = 0.0 if recipe.saving.save_only_model else (x.o + x.m) * x.n_t
    twice = x.full and (
        (recipe.fsdp is not None and recipe.fsdp.state_dict_type == "FULL_STATE_DICT") or x.strategy is Strategy.ZERO2
    )
    if x.zero3:
        weights = x.c * x.shape.N if x.deepspeed and x.deepspeed.save_16bit_model else 0.0
    return round(weights * (2 if twice else 1) + states)


def result_bytes(x: Symbols) -> int:
    """What is saved after the last step: the model, or the adapter and the bf16 model that it is merged into."""
    if x.full:
        return round(x.c * x.shape.N if x.zero3 else stored_parameter_bytes(x))
    return round(x.t * x.n + Dtype.BF16.bytes * x.shape.N)


def disk(x: Symbols, recipe: Recipe, model: ModelSpec, cluster: Cluster, data: Training | None) -> Disk:
    """Bytes on the disk of one node."""
    swap = 0.0
    if x.state_offload == "nvme":  # master, moments and the gradient of every parameter
        swap += (x.o + x.m + Dtype.FP32.bytes) * x.n_t / x.nodes
    if x.deepspeed and x.deepspeed.offload_param == "nvme":
        swap += stored_parameter_bytes(x) / x.nodes
    tokens = data.tokens if data else 0.0
    return Disk(
        download_bytes=model.download_bytes or round(Dtype.BF16.bytes * x.shape.N),
        prepared_bytes=round(tokens * planning().prepared_bytes_per_token),
        checkpoint_bytes=checkpoint_bytes(x, recipe),
        checkpoints_kept=recipe.saving.save_total_limit + 1,
        swap_bytes=round(swap),
        capacity_bytes=cluster.node.nvme_bytes,
        result_bytes=result_bytes(x),
    )
