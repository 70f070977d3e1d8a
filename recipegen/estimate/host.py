"""Host memory per node: the peak while weights arrive, the steady state of training, the peak of saving. Bytes.

Loading, per node of R ranks, with the pinned transformers (tests/estimate/test_host_loading.py measures it):
  straight to the GPU   one GPU, DDP, ZeRO-2 and QLoRA read one tensor at a time: R x the largest tensor
  from a mapped file    FSDP2 builds the model on the CPU, but safetensors maps the file when the dtype is the
                        checkpoint's own: page cache only, shared and reclaimable. What is converted on the way
                        (another dtype, experts stacked into one tensor) is real memory in every loading rank
  cpu_ram_efficient_loading
                        local rank 0 loads; the others fill the whole model with zeros on the CPU
                        (transformers 5.16.1 _move_missing_keys_from_meta_to_device), unless Axolotl's patch keeps
                        them empty, which it does for adapters only. For a full fine-tune it costs (R - 1) models
Offload, ZeRO-3 (deepspeed 0.18.9 stage3.py), per trained parameter: master 4, moments 8, gradients 4 in a pinned buffer
per sub-group and 2 in one flat pinned buffer, parameters 2 in one more and 2 in the blocks from which they were moved,
which the pinned allocator keeps: 22 B, and what rounding blocks to powers of two adds (pinned.py). Published: 23 to 24.
Offload, FSDP2: sharded parameters pinned tensor by tensor, gradients that arrive in pinned blocks, states unpinned.
The page cache is not part of it: pages of the checkpoint's files, which the system drops when it needs memory.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from recipegen.catalog.planning import planning
from recipegen.estimate import pinned
from recipegen.estimate.activations import offloaded
from recipegen.estimate.lasting import stored_parameter_bytes
from recipegen.estimate.symbols import Symbols
from recipegen.spec import Dtype, HostMemory, Strategy, Term

if TYPE_CHECKING:
    from recipegen.spec import Cluster, ModelSpec, Recipe

_LOADING = "transformers 5.16.1 modeling_utils.py, axolotl 0.19.0 loaders"
_OFFLOAD = "https://deepspeed.readthedocs.io/en/latest/memory.html"
_PLANNING = "catalog/planning.yaml"


def _checkpoint_width(model: ModelSpec, x: Symbols) -> float:
    """Bytes of one parameter in the safetensors files."""
    width = model.download_bytes / x.shape.N if model.download_bytes else Dtype.BF16.bytes
    return Dtype.FP32.bytes if width > 3 else Dtype.BF16.bytes


def _fsdp_model_bytes(x: Symbols, recipe: Recipe, model: ModelSpec, ranks: int) -> float:
    """The model on the CPU of one node before FSDP2 shards it, without what is only mapped."""
    whole = stored_parameter_bytes(x)
    converted = whole if x.p != _checkpoint_width(model, x) else x.p * x.shape.X * x.shape.moe_layers
    if not (recipe.fsdp and recipe.fsdp.cpu_ram_efficient_loading):
        return ranks * converted
    others_stay_empty = recipe.method.is_adapter and recipe.trainer == "axolotl"
    return converted + (0.0 if others_stay_empty else (ranks - 1) * whole)


def _loading(x: Symbols, recipe: Recipe, model: ModelSpec, cluster: Cluster) -> dict[str, float]:
    ranks = x.ranks_per_node
    tensor = x.p * x.largest
    if x.zero3:
        return {"largest_tensor": ranks * tensor}
    if x.fsdp and not x.quantised:
        return {"model_on_cpu": _fsdp_model_bytes(x, recipe, model, ranks)}
    terms = {"largest_tensor": ranks * tensor}
    if x.strategy is Strategy.ZERO2 and 2 * x.c * x.n_t > cluster.gpu.memory_bytes:
        terms["model_on_cpu"] = ranks * 2 * x.c * x.n_t  # DeepSpeed flattens on the CPU what the GPU cannot hold twice
    return terms


def _pinned(size: float, ranks: int, pin: bool) -> float:
    """Bytes of one buffer per rank, `size` in all."""
    return ranks * pinned.block(size / ranks) if pin else size


def _fsdp_offload(x: Symbols, model: ModelSpec, ranks: int) -> dict[str, float]:
    if not x.parameter_offload:
        return {}
    share = ranks / x.S
    packed = x.packed if x.quantised else None
    factor = pinned.rounding(model, x.p, x.S, packed)
    terms = {"parameters": factor * stored_parameter_bytes(x) * share, "adapters": x.t * x.n * share}
    gradients = x.g * x.n_t * share
    terms["gradients"] = gradients * (pinned.rounding(model, x.g, x.S) if x.full else 1.0)
    return terms | {"optimizer_states": (x.o + x.m) * x.n_t * share}


def _saved_whole(x: Symbols, recipe: Recipe) -> dict[str, float]:
    """What rank 0 gathers in host memory to save: the model in one piece, and with FULL_STATE_DICT its optimizer's
    states with every checkpoint (accelerate 1.13.0 utils/fsdp_utils.py; DeepSpeed 0.18.9 engine.py,
    _zero3_consolidated_16bit_state_dict)."""
    if x.zero3:
        whole = bool(x.deepspeed and x.deepspeed.save_16bit_model)
        return {"gathered_model": x.c * x.shape.N} if whole else {}
    if not x.fsdp or recipe.fsdp is None:
        return {}
    terms = {"gathered_model": stored_parameter_bytes(x) + x.t * x.n}
    if recipe.fsdp.state_dict_type == "FULL_STATE_DICT" and not recipe.saving.save_only_model:
        terms["gathered_states"] = x.o * x.n_t
    return terms


def _zero_offload(x: Symbols, model: ModelSpec, ranks: int) -> dict[str, float]:
    zero = x.deepspeed
    if zero is None or not (x.zero2 or x.zero3):
        return {}
    constants, nodes, pin = planning(), x.nodes, zero.pin_memory
    trained = x.n_t / nodes
    terms: dict[str, float] = {}
    if zero.offload_param == "cpu":
        factor = pinned.rounding(model, x.p, x.W, x.packed if x.quantised else None) if pin else 1.0
        arrived = factor * stored_parameter_bytes(x) / nodes
        terms["parameters"] = _pinned(x.p * trained, ranks, True) if x.full else arrived + x.t * x.n / nodes
        if x.full:
            terms["parameters_as_they_arrived"] = arrived if pin else 0.0
    elif zero.offload_param == "nvme":
        terms["swap_buffers"] = ranks * pinned.block(zero.buffer_size * x.c) * zero.buffer_count
    if x.state_offload == "none":
        return terms
    group = min(zero.sub_group_size, x.n_t / x.W)
    if x.state_offload == "nvme":
        swap = ranks * constants.nvme_swap_tensors * pinned.block(Dtype.FP32.bytes * group)
        terms["swap_buffers"] = terms.get("swap_buffers", 0.0) + swap
    else:
        groups = math.ceil(x.n_t / x.W / group)
        terms["master_weights"] = Dtype.FP32.bytes * trained
        terms["optimizer_states"] = x.o * trained
        each = _pinned(Dtype.FP32.bytes * trained / groups, ranks, pin)
        terms["gradients"] = groups * each
    if x.zero3:
        terms["gradient_buffer"] = _pinned(x.c * trained, ranks, pin)
    return terms


def _offload(x: Symbols, model: ModelSpec, ranks: int) -> dict[str, float]:
    """Steady terms of parameters, gradients and states that live on the host."""
    return _fsdp_offload(x, model, ranks) if x.fsdp else _zero_offload(x, model, ranks)


def _processes(x: Symbols, recipe: Recipe, ranks: int) -> dict[str, float]:
    constants, loading = planning(), recipe.loading
    workers = ranks * loading.dataloader_workers
    batch = x.T * constants.batch_bytes_per_token
    ahead = max(workers, ranks) * (loading.prefetch_factor or 1) * batch
    return {
        "processes": ranks * constants.rank_process_bytes,
        "dataloader_workers": workers * constants.dataloader_worker_bytes,
        "prefetched_batches": ahead * (2 if loading.pin_memory else 1),
    }


def _pinned_activations(x: Symbols, ranks: int) -> float:
    """Offloaded activations of a micro-batch, one pinned block a layer."""
    return ranks * x.shape.L * pinned.block(offloaded(x) / x.shape.L)


_BASIS = {
    "model_on_cpu": _LOADING,
    "largest_tensor": _LOADING,
    "processes": _PLANNING,
    "dataloader_workers": _PLANNING,
    "prefetched_batches": _PLANNING,
    "offloaded_activations": "tokens x hidden size x layers, pinned",
    "paged_states": "moments of bitsandbytes' paged optimizers, in memory that the host and the GPU share",
    "gathered_model": "rank 0 saves the model in one piece",
    "gathered_states": "FULL_STATE_DICT: rank 0 saves all optimizer states",
}


def _terms(phase: str, parts: dict[str, float]) -> tuple[Term, ...]:
    return tuple(Term(n, phase, round(v), _BASIS.get(n, _OFFLOAD)) for n, v in parts.items() if v >= 0.5)


def host_memory(x: Symbols, recipe: Recipe, model: ModelSpec, cluster: Cluster) -> HostMemory:
    """Load peak, steady state and save peak of node 0."""
    ranks = x.ranks_per_node
    processes = _processes(x, recipe, ranks)
    offload = _offload(x, model, ranks)
    held = {name: offload[name] for name in ("parameters", "parameters_as_they_arrived") if name in offload}
    # the data loader starts after the weights are in place
    loading = _loading(x, recipe, model, cluster) | held | {"processes": processes["processes"]}
    paged = {"paged_states": x.o * x.n_t * ranks} if x.paged_states and not x.fsdp else {}
    steady = offload | {"offloaded_activations": _pinned_activations(x, ranks)} | paged | processes
    load_terms, steady_terms = _terms("load", loading), _terms("steady", steady)
    save_terms = _terms("save", _saved_whole(x, recipe))
    return HostMemory(
        load_peak_bytes=sum(t.bytes for t in load_terms),
        steady_bytes=sum(t.bytes for t in steady_terms),
        capacity_bytes=cluster.node.host_ram_bytes,
        terms=load_terms + steady_terms + save_terms,
        save_peak_bytes=sum(t.bytes for t in steady_terms + save_terms),
        page_cache_bytes=model.download_bytes or round(Dtype.BF16.bytes * x.shape.N),
    )
