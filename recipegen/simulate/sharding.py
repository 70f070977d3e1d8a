"""FSDP2 and DDP around the model, as Accelerate and Axolotl put them there.

Accelerate wraps every decoder layer, bottom up, then the root, all with the same arguments (1.13.0,
utils/fsdp_utils.py fsdp2_prepare_model). Axolotl replaces that function; with an adapter it first makes a group of
every lora_A, lora_B and magnitude vector (0.19.0, monkeypatch/accelerate/fsdp2.py). Collectives run on torch's fake
process group. DDP's reducer needs real tensors, so its buckets are emulated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist

from recipegen.simulate.build import TORCH, Model
from recipegen.simulate.options import Options
from recipegen.simulate.tracker import Tracker, describe
from recipegen.spec import Parallelism, Recipe, Strategy


@contextmanager
def process_group(parallelism: Parallelism) -> Iterator[Any]:
    """Rank 0 of as many ranks as the recipe has, none of which exists; yields FSDP2's mesh, None without FSDP2.

    Enter it before the fake mode: a mesh reads its ranks.
    """
    if not parallelism.strategy.is_fsdp:
        yield None
        return
    from torch.testing._internal.distributed.fake_pg import FakeStore

    if dist.is_initialized():
        dist.destroy_process_group()
    dist.init_process_group("fake", rank=0, world_size=parallelism.world_size, store=FakeStore())
    try:
        yield _mesh(parallelism)
    finally:
        dist.destroy_process_group()


def _mesh(parallelism: Parallelism) -> Any:
    from torch.distributed.device_mesh import init_device_mesh

    if parallelism.strategy is Strategy.FSDP2_HYBRID:
        shape = (parallelism.dp_replicate, parallelism.dp_shard)
        return init_device_mesh("cpu", shape, mesh_dim_names=("dp_replicate", "dp_shard"))
    return init_device_mesh("cpu", (parallelism.world_size,), mesh_dim_names=("dp_shard",))


def shard(model: Model, recipe: Recipe, mesh: Any, options: Options) -> None:
    """fully_shard with the recipe's policy, over the groups of its trainer unless the options say otherwise."""
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    assert recipe.fsdp is not None
    compute = TORCH[recipe.precision.compute]
    policy = MixedPrecisionPolicy(
        param_dtype=compute, reduce_dtype=TORCH[recipe.precision.reduction], output_dtype=compute
    )
    reshard = recipe.fsdp.reshard_after_forward
    shared = {"mesh": mesh, "mp_policy": policy}
    adapters = recipe.trainer == "axolotl" if options.adapter_groups is None else options.adapter_groups
    for module in modules_to_wrap(model, adapters=adapters):
        fully_shard(module, reshard_after_forward=reshard, **shared)
    if options.split_root:
        embeddings, head = model.base.get_input_embeddings(), model.base.get_output_embeddings()
        fully_shard(embeddings, reshard_after_forward=reshard, **shared)
        if head.weight is not embeddings.weight:
            fully_shard(head, reshard_after_forward=False, **shared)
    fully_shard(model.outer, reshard_after_forward=reshard, **shared)


def modules_to_wrap(model: Model, *, adapters: bool) -> list[Any]:
    """The modules that become a group of their own, in the order in which they do; the root comes after them."""
    from peft.tuners.lora.layer import LoraLayer, ParamWrapper

    layers, found = {id(layer) for layer in model.layers}, []
    for module in _bottom_up(model.outer):
        if adapters and isinstance(module, LoraLayer) and not isinstance(module, ParamWrapper):
            for name in module.active_adapters:
                for parts in (module.lora_A, module.lora_B, module.lora_magnitude_vector):
                    if name in parts:
                        found.append(parts[name])
            if len(module.lora_embedding_A):
                found.append(module)
        if id(module) in layers:
            found.append(module)
    return found


def _bottom_up(module: Any) -> Iterator[Any]:
    for child in module.children():
        yield from _bottom_up(child)
    yield module


@contextmanager
def labelled(model: Model, tracker: Tracker, on_root_backward: Callable[[], None]) -> Iterator[None]:
    """Say what FSDP2's tensors are for, and when the root's gradients are reduced, while this is open."""
    from torch.distributed.fsdp import FSDPModule
    from torch.distributed.fsdp._fully_shard._fsdp_param_group import FSDPParamGroup

    post_backward, wait = FSDPParamGroup.post_backward, FSDPParamGroup.wait_for_unshard
    outside = (model.outer, model.base.get_input_embeddings(), model.base.get_output_embeddings())
    of_root = {id(group) for module in outside if isinstance(module, FSDPModule) for group in _groups(module)}
    roots = {id(group) for group in _groups(model.outer)}

    def gathered(self: Any) -> Any:
        label = "root_group" if id(self) in of_root else "gathered_layers"
        arriving = getattr(self, "_all_gather_result", None)
        if arriving is not None:
            tracker.mark(arriving.all_gather_output, label, describe("all_gather", arriving.all_gather_output))
        result = wait(self)
        for parameter in self.fsdp_params:
            for tensor in getattr(parameter, "all_gather_outputs", None) or []:
                tracker.mark(tensor, label)
        return result

    def reduced(self: Any, *args: Any) -> Any:
        if id(self) in roots:
            on_root_backward()
        if not self.reduce_grads:  # no_sync: they wait whole
            for parameter in self.fsdp_params:
                whole = getattr(parameter, "_unsharded_param", None)
                if whole is not None and whole.grad is not None:
                    tracker.mark(whole.grad, "unsharded_gradients")
        result = post_backward(self, *args)
        for parameter in self.fsdp_params:
            _mark_gradients(parameter, tracker)
        return result

    FSDPParamGroup.post_backward, FSDPParamGroup.wait_for_unshard = reduced, gathered
    try:
        yield
    finally:
        FSDPParamGroup.post_backward, FSDPParamGroup.wait_for_unshard = post_backward, wait


def _groups(module: Any) -> list[Any]:
    groups: list[Any] = module._get_fsdp_state()._fsdp_param_groups
    return groups


def _mark_gradients(parameter: Any, tracker: Tracker) -> None:
    """The sharded gradient of one FSDP parameter, and the whole one that waits for the last micro-batch."""
    if parameter.sharded_param.grad is not None:
        tracker.mark(parameter.sharded_param.grad, "gradients")
    waiting = getattr(parameter, "unsharded_accumulated_grad", None)
    if waiting is not None:
        tracker.mark(waiting, "unsharded_gradients")


def buckets(parameters: list[Any], tracker: Tracker) -> list[Any]:
    """DDP's flat copies of all gradients (gradient_as_bucket_view is off by default); keep the list alive."""
    made = [torch.empty(p.numel(), dtype=p.dtype, device="cpu") for p in parameters]
    for bucket in made:
        tracker.mark(bucket, "ddp_buckets", "bucket")
    return made
