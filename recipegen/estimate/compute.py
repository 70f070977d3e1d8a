"""How long the arithmetic of one micro-batch takes on one GPU, communication aside.

A layer's pass takes the longer of two things:
    GPU    matrix products at the share of a measured matrix product that training reaches, not faster than the weights
           can be read; attention at the share that its kernel reaches; the bytes of elementwise kernels, of 4-bit
           weights being unpacked and of FSDP's copies into and out of its buffers, at the share of memory bandwidth
           that such kernels reach
    host   its kernels, launched one after the other: what bounds short micro-batches of an eager step
A person's own `training_tflops` replaces all of it: operations over that rate.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from recipegen.catalog.planning import planning
from recipegen.estimate import flops
from recipegen.estimate.kernels import BACKWARD, dora_bytes, launches, layer_bytes, logits_bytes
from recipegen.estimate.lasting import trainable_on_gpu
from recipegen.spec import AttentionMemory, Dtype
from recipegen.spec.units import GB, TFLOP

if TYPE_CHECKING:
    from recipegen.estimate.flops import Flops
    from recipegen.estimate.kernels import Kernels
    from recipegen.estimate.symbols import Symbols
    from recipegen.spec import Gpu

_LINEARS = 7  # q k v o gate up down


@dataclass(frozen=True)
class Compute:
    """Seconds of one micro-batch: all layers forward, all layers backward with recomputation, head and loss."""

    forward: float
    backward: float
    head: float

    @property
    def all(self) -> float:
        return self.forward + self.backward + self.head


@dataclass(frozen=True)
class Rates:
    """Operations per second of matrix products, of the head's and the adapters', of attention; bytes per second."""

    products: float
    head: float
    adapters: float
    attention: float
    memory: float


def rates(x: Symbols, gpu: Gpu, kernels: Kernels, *, tf32: bool) -> Rates:
    """What training reaches of the card. fp16 runs at the rate of bf16, TF32 at half, fp32 outside the tensor cores."""
    p = planning()
    assert gpu.matmul_tflops is not None  # checked by the caller
    half = gpu.matmul_tflops * p.matmul_share * TFLOP * x.tp
    plain = (gpu.fp32_tflops or gpu.matmul_tflops / 2) * p.matmul_share * TFLOP * x.tp
    single = half / 2 if tf32 else min(half / 2, plain)
    products = half if x.c < Dtype.FP32.bytes else single
    adapters = single if kernels.fp32_adapters else products
    head = single if x.head_fp32 and not x.autocast else products
    attention = products  # eager: two matrix products, and the bytes between them
    if x.attention is not AttentionMemory.EAGER:
        share = p.masked_attention_share if x.attention is AttentionMemory.MASKED else p.flash_attention_share
        attention = gpu.matmul_tflops * share * TFLOP * x.tp * (products / half)
    return Rates(products, head, adapters, attention, gpu.memory_bandwidth_gb_s * p.memory_share * GB * x.tp)


def compute(x: Symbols, gpu: Gpu, kernels: Kernels, tokens: float, *, tf32: bool = True) -> Compute:
    """Seconds of one micro-batch of `tokens` per GPU."""
    forward, backward, again = flops.forward(x), flops.backward(x), flops.recompute(x)
    if gpu.training_tflops is not None:
        per_token = tokens / (gpu.training_tflops * TFLOP * x.tp)
        head = forward.head + backward.head
        return Compute(
            (forward.all - forward.head) * per_token,
            (backward.all - backward.head + again.all) * per_token,
            head * per_token,
        )
    r = rates(x, gpu, kernels, tf32=tf32)
    L, p = x.shape.L, planning()
    moved = L * (tokens * layer_bytes(x, kernels) + dora_bytes(x, kernels))
    unpacked = x.shape.Q * (x.packed + x.c) if x.quantised else 0.0
    host = L * launches(x, kernels) * p.kernel_launch_s
    by_hooks = x.deepspeed is not None and x.deepspeed.stage == 3
    fetches = L * _fetched(x, kernels) * p.zero3_fetch_s if by_hooks else 0.0

    def one(f: Flops, bytes_moved: float, host_s: float) -> float:
        return max(_products(x, f, tokens, r) + bytes_moved / r.memory, host_s)

    ahead = one(forward, moved + unpacked + _gather_copies(x), host + fetches)
    back = one(
        backward, BACKWARD * moved + unpacked + _gather_copies(x) + _gradient_copies(x), BACKWARD * host + fetches
    )
    if flops.recomputes(x):
        back += one(again, moved + unpacked, host)
    head = tokens * ((forward.head + backward.head) / r.head + logits_bytes(x) / r.memory)
    return Compute(ahead, back, head)


def _products(x: Symbols, f: Flops, tokens: float, r: Rates) -> float:
    """Matrix products of the layers: as operations, but not faster than their weights can be read."""
    if not f.layers:
        return tokens * f.attention / r.attention
    weights = x.c * x.shape.L * x.shape.P_l
    own = max(tokens * f.layers / r.products, weights / r.memory)
    return own + tokens * (f.attention / r.attention + f.adapters / r.adapters)


def _fetched(x: Symbols, kernels: Kernels) -> float:
    """Parameter tensors of one layer, which ZeRO-3 fetches and releases one by one."""
    return float(_LINEARS + x.shape.norms + 2 * kernels.adapted_modules)


def _gather_copies(x: Symbols) -> float:
    """Bytes of copying gathered layers out of the flat buffer, read and written."""
    if x.S == 1 or not (x.fsdp or x.zero3):
        return 0.0
    return 2.0 * x.layer_bytes * x.shape.L


def _gradient_copies(x: Symbols) -> float:
    """Bytes of copying gradients into a flat buffer, and of adding them up over micro-batches."""
    flat = (x.g + x.d) * x.n_t if x.W > 1 else 0.0
    own = x.n_t if x.unsharded_accumulation or x.W == 1 else trainable_on_gpu(x)
    return flat + 3.0 * x.g * own * (1.0 - 1.0 / x.accumulation)
