"""Bytes that torch's own wrappers hold on rank 0 of two, and what Accelerate puts around them, as JSON on stdout.

usage: claims_two_ranks.py CASE ...   (see CASES)

The process group is torch's fake one, which sends nothing: gloo frees in threads that the profiler does not see. Only
`accelerate` is started by torchrun with two real ranks and the CPU shim. One line REPORT a case.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from cpu_allocations import measured, timeline
from torch import nn
from torch.utils.checkpoint import checkpoint

WIDTH, TOKENS, LAYERS = 64, 512, 6
BOUNDARY = TOKENS * WIDTH * 4  # one layer's input, fp32
CPU = torch.device("cpu")


class Layer(nn.Module):
    """A base weight and an adapter on it; `inside` checkpoints as transformers' GradientCheckpointingLayer does."""

    def __init__(self, trained: bool, inside: bool, reentrant: bool) -> None:
        super().__init__()
        self.base = nn.Linear(WIDTH, WIDTH, bias=False)
        self.base.weight.requires_grad_(trained)
        self.down = nn.Linear(WIDTH, 2, bias=False)
        self.up = nn.Linear(2, WIDTH, bias=False)
        self.inside, self.reentrant = inside, reentrant

    def _body(self, x: Any) -> Any:
        return x + torch.tanh(self.base(x)) + self.up(self.down(x))

    def forward(self, x: Any) -> Any:
        return checkpoint(self._body, x, use_reentrant=self.reentrant) if self.inside else self._body(x)


class Mark(torch.autograd.Function):
    """Notes the time when backward comes by."""

    @staticmethod
    def forward(ctx: Any, x: Any, times: list[int]) -> Any:
        ctx.times = times
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        ctx.times.append(time.time_ns())
        return grad, None


class Model(nn.Module):
    def __init__(self, layers: list[Any], inside: bool, reentrant: bool, times: list[int]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.head = nn.Linear(WIDTH, WIDTH, bias=False)
        self.head.weight.requires_grad_(
            layers[0].base.weight.requires_grad if not hasattr(layers[0], "module") else False
        )
        self.inside, self.reentrant, self.times = inside, reentrant, times

    def forward(self, x: Any) -> Any:
        x = Mark.apply(x, self.times)
        for layer in self.layers:
            x = layer(x) if self.inside else checkpoint(layer, x, use_reentrant=self.reentrant)
        return self.head(x)


def boundaries(wrap: str, trained: bool, reentrant: bool, inside: bool) -> dict[str, float]:
    """Layer inputs that live when backward has passed all layers, and after it, in units of one."""
    from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard

    def fsdp1(module: nn.Module) -> Any:
        return FullyShardedDataParallel(module, device_id=CPU, use_orig_params=False)

    torch.manual_seed(0)
    times: list[int] = []
    layers: list[Any] = [Layer(trained, inside, reentrant) for _ in range(LAYERS)]
    if wrap == "fsdp1":
        for layer in layers if not trained else []:  # as peft's fsdp_auto_wrap_policy: adapters on their own
            layer.down, layer.up = fsdp1(layer.down), fsdp1(layer.up)
        layers = [fsdp1(layer) for layer in layers]
    model: Any = Model(layers, inside, reentrant, times)
    model.head.weight.requires_grad_(trained)
    if wrap == "fsdp1":
        model = fsdp1(model)
    elif wrap == "fsdp2":
        for layer in layers:
            fully_shard(layer)
        fully_shard(model)
    source = torch.randn(TOKENS, WIDTH)

    def step() -> None:
        model(source.clone().requires_grad_(True)).sum().backward()

    step()
    times.clear()
    found = timeline(step)
    return {"end": found.live(times[0]) / BOUNDARY, "after": found.live(time.time_ns()) / BOUNDARY}


def fsdp1() -> dict[str, Any]:
    out: dict[str, Any] = {}
    for trained in (False, True):
        for reentrant in (True, False):
            for inside in (True, False):
                name = f"{'trained' if trained else 'frozen'} {'reentrant' if reentrant else 'plain'} " + (
                    "inside" if inside else "outside"
                )
                out[name] = boundaries("fsdp1", trained, reentrant, inside)
    out["fsdp2"] = boundaries("fsdp2", False, True, False)
    from torch.distributed.fsdp import _runtime_utils

    class Nothing:
        def remove(self) -> None: ...

    original = _runtime_utils.register_multi_grad_hook
    _runtime_utils.register_multi_grad_hook = lambda *_, **__: Nothing()
    out["without the hook"] = boundaries("fsdp1", False, True, False)
    _runtime_utils.register_multi_grad_hook = original
    return out


class Stack(nn.Module):
    """Square layers; `PARAMETERS` in all."""

    def __init__(self, dtype: Any) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(256, 256, bias=False, dtype=dtype) for _ in range(LAYERS))

    def forward(self, x: Any) -> Any:
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return x


PARAMETERS = LAYERS * 256 * 256


def ddp() -> dict[str, Any]:
    """What lives beside the parameters, in units of them."""
    out = {}
    for view in (True, False):
        model = Stack(torch.float32)
        held: list[Any] = []

        def wrap(model: Any = model, view: bool = view, held: list[Any] = held) -> None:
            held.append(nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=view, init_sync=False))
            gc.collect()

        def backward(held: list[Any] = held) -> None:
            held[0](torch.ones(1, 256)).sum().backward()
            gc.collect()

        moments = measured(wrap, backward, backward)
        made, first, second = (moment.left / (4 * PARAMETERS) for moment in moments)
        out["view" if view else "copy"] = {"made": made, "first": first, "second": second}
    return out


def sharded(reduce: str, *, sync: bool, hybrid: bool) -> dict[str, float]:
    """Bytes per parameter after one backward, and inside it when only the first layer's gradient is missing."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    mesh = init_device_mesh("cpu", (2, 1), mesh_dim_names=("replicate", "shard")) if hybrid else None
    mesh = mesh or init_device_mesh("cpu", (2,))
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=getattr(torch, reduce))
    model = Stack(torch.float32)
    for layer in model.layers:
        fully_shard(layer, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    model.set_requires_gradient_sync(sync)
    times: list[int] = []

    def step() -> None:
        model(Mark.apply(torch.ones(1, 256, requires_grad=True), times)).sum().backward()

    found = timeline(step)
    accumulated = {
        str(p.unsharded_accumulated_grad.dtype)
        for module in model.layers
        for p in module._get_fsdp_state()._fsdp_param_group.fsdp_params
        if p.unsharded_accumulated_grad is not None
    }
    return {
        "inside": found.live(times[-1]) / PARAMETERS,
        "after": found.live(time.time_ns()) / PARAMETERS,
        "accumulated": sorted(accumulated),
    }


def fsdp2() -> dict[str, Any]:
    return {
        f"{reduce} {'sync' if sync else 'no_sync'} {'hybrid' if hybrid else 'full'}": sharded(
            reduce, sync=sync, hybrid=hybrid
        )
        for reduce in ("float32", "bfloat16")
        for sync in (True, False)
        for hybrid in (True, False)
        if sync or not hybrid
    }


def accelerate() -> dict[str, Any]:
    """Which strategies run the model under autocast and copy its outputs to fp32."""
    from accelerate import Accelerator, FullyShardedDataParallelPlugin
    from accelerate.state import AcceleratorState

    class Seen(Stack):
        autocast = False

        def forward(self, x: Any) -> Any:
            self.autocast = torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda")
            return {"logits": super().forward(x.to(self.layers[0].weight.dtype))}

    out = {}
    cases = (("ddp", 0),) if os.environ["RECIPEGEN_TEST_CPU"] == "ddp" else (("fsdp2", 2), ("fsdp1", 1))
    for name, version in cases:
        AcceleratorState._reset_state(reset_partial_state=True)
        plugin = None
        if version:
            plugin = FullyShardedDataParallelPlugin(
                fsdp_version=version,
                auto_wrap_policy="transformer_based_wrap",
                transformer_cls_names_to_wrap=["Linear"],
                cpu_ram_efficient_loading=False,
            )
        accelerator = Accelerator(mixed_precision="bf16", fsdp_plugin=plugin)
        made = Seen(torch.bfloat16)
        network, _ = accelerator.prepare(made, torch.optim.AdamW(made.parameters()))
        logits = network(torch.ones(1, 256))["logits"]
        out[name] = {"native_amp": accelerator.native_amp, "autocast": made.autocast, "logits": str(logits.dtype)}
        out[name]["type"] = str(accelerator.distributed_type)
    return out


CASES: dict[str, Callable[[], dict[str, Any]]] = {"fsdp1": fsdp1, "ddp": ddp, "fsdp2": fsdp2, "accelerate": accelerate}


def alone(case: str) -> None:
    """A case in a group of its own; DDP's buckets need a real one, of one rank."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    if case == "ddp":
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    elif case != "accelerate":
        dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    found = CASES[case]()
    if dist.get_rank() == 0:
        print("REPORT " + json.dumps({case: found}), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    for name in sys.argv[1:]:
        alone(name)
