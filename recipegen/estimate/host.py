"""Host memory per node: the peak while the weights arrive, and the steady state of training. Bytes.

Loading, per node of R ranks, with the pinned transformers (tests/estimate/test_host_loading.py measures it):
  straight to the GPU   one GPU, DDP, ZeRO-2 and QLoRA read one tensor at a time: R x the largest tensor
  from a mapped file    FSDP2 builds the model on the CPU, but safetensors maps the file when the dtype is the
                        checkpoint's own: page cache only, shared and reclaimable. What is converted on the way
                        (another dtype, experts stacked into one tensor) is real memory in every loading rank
  cpu_ram_efficient_loading
                        local rank 0 loads; the others fill the whole model with zeros on the CPU
                        (transformers 5.16.1 _move_missing_keys_from_meta_to_device), unless Axolotl's patch keeps
                        them empty, which it does for adapters only. For a full fine-tune it costs (R - 1) models
Offload, ZeRO-3: parameters 2 (when offloaded too) + master 4 + moments 8 + gradients 4 = 16 or 18 B per parameter over
the nodes, times a measured 1.3 for pinned buffers and fragments (DeepSpeed's own rule of thumb is 1.5).
The page cache is never counted.
"""

from __future__ import annotations

from recipegen.catalog.planning import planning
from recipegen.estimate.activations import offloaded
from recipegen.estimate.lasting import stored_parameter_bytes
from recipegen.estimate.symbols import Symbols
from recipegen.spec import Cluster, Dtype, HostMemory, ModelSpec, Recipe, Strategy, Term

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
    tensor = x.p * max(x.shape.V * x.shape.H, x.shape.X)
    if x.zero3:
        return {"largest_tensor": ranks * tensor}
    if x.fsdp and not x.quantised:
        return {"model_on_cpu": _fsdp_model_bytes(x, recipe, model, ranks)}
    terms = {"largest_tensor": ranks * tensor}
    if x.strategy is Strategy.ZERO2 and 2 * x.c * x.n_t > cluster.gpu.memory_bytes:
        terms["model_on_cpu"] = ranks * 2 * x.c * x.n_t  # DeepSpeed flattens on the CPU what the GPU cannot hold twice
    return terms


def _offload(x: Symbols, ranks: int, nodes: int) -> dict[str, float]:
    """Steady terms of parameters, gradients and states that live on the host."""
    constants = planning()
    if x.fsdp:
        if not x.parameter_offload:
            return {}
        share = ranks / x.S
        base = {"parameters": stored_parameter_bytes(x) * share, "adapters": x.t * x.n * share}
        return base | {"gradients": x.g * x.n_t * share, "optimizer_states": (x.o + x.m) * x.n_t * share}
    if x.deepspeed is None or not x.zero3:
        return {}
    zero = x.deepspeed
    terms: dict[str, float] = {}
    if zero.offload_param == "cpu":
        terms["parameters"] = (stored_parameter_bytes(x) + x.t * x.n) / nodes
    elif zero.offload_param == "nvme":
        terms["swap_buffers"] = ranks * zero.buffer_count * zero.buffer_size * x.c
    if x.state_offload == "nvme":
        group = min(zero.sub_group_size, x.n_t / x.W)
        swap = ranks * constants.nvme_swap_tensors * Dtype.FP32.bytes * group
        terms["swap_buffers"] = terms.get("swap_buffers", 0.0) + swap
    elif x.state_offload == "cpu":
        terms["master_weights"] = Dtype.FP32.bytes * x.n_t / nodes
        terms["optimizer_states"] = x.o * x.n_t / nodes
        terms["gradients"] = Dtype.FP32.bytes * x.n_t / nodes
    terms["offload_buffers"] = (constants.cpu_offload_overhead - 1.0) * sum(terms.values())
    return terms


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


_BASIS = {
    "model_on_cpu": _LOADING,
    "largest_tensor": _LOADING,
    "processes": _PLANNING,
    "dataloader_workers": _PLANNING,
    "prefetched_batches": _PLANNING,
    "offloaded_activations": "tokens x hidden size x layers, pinned",
}


def _terms(phase: str, parts: dict[str, float]) -> tuple[Term, ...]:
    return tuple(Term(n, phase, round(v), _BASIS.get(n, _OFFLOAD)) for n, v in parts.items() if v >= 0.5)


def host_memory(x: Symbols, recipe: Recipe, model: ModelSpec, cluster: Cluster) -> HostMemory:
    """Load peak and steady state of one node."""
    ranks, nodes = x.ranks_per_node, x.nodes
    processes = _processes(x, recipe, ranks)
    offload = _offload(x, ranks, nodes)
    held = {"parameters": offload["parameters"]} if x.zero3 and "parameters" in offload else {}
    # the data loader starts after the weights are in place
    loading = _loading(x, recipe, model, cluster) | held | {"processes": processes["processes"]}
    steady = offload | {"offloaded_activations": ranks * offloaded(x)} | processes
    load_terms, steady_terms = _terms("load", loading), _terms("steady", steady)
    return HostMemory(
        load_peak_bytes=sum(t.bytes for t in load_terms),
        steady_bytes=sum(t.bytes for t in steady_terms),
        capacity_bytes=cluster.node.host_ram_bytes,
        terms=load_terms + steady_terms,
    )
