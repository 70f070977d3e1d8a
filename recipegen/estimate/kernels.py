"""What a layer costs beside its matrix products: bytes that elementwise kernels move, and kernels that are launched.

Counted on the Hugging Face decoder layer in bf16, eager, per token and layer of a forward pass (H hidden, F MLP width,
q and kv attention widths); bytes are reads plus writes of every kernel:
    RMSNorm        36 H: to fp32 2 + 4, square 8, mean 4, times rsqrt 8, to bf16 6, times weight 4; fused 4 H
    residual       3 r each, two of them, r bytes of the residual stream
    rotary         20 B per element of q and k: times cos 4, rotate 6, times sin 4, sum 6; fused 4
    gated MLP      10 F: silu 4, product 6; fused 6 F
    experts        gather, weight and scatter of k copies of the token: 16 H k
    attention      eager: 24 A s for scores, scale, mask, fp32 softmax and its bf16 copy
    adapters       of in + out of every adapted module: 5 (scale 4, add 6 of out); 11 where they are fp32, since peft
                   casts the input to fp32 and autocast casts it back (12 of in, 10 of out). Published FSDP runs with
                   fp32 adapters are no faster than single ones, so sharding is not taken to spare the casts
Where norms and embeddings are fp32 without autocast, everything between two matrix products is: twice the bytes, and
28 H for a norm, which has no copies to convert. A backward moves about twice the bytes of its forward and launches
twice the kernels.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from recipegen.estimate.activations import residual_width
from recipegen.spec import AttentionMemory, Dtype, LossKernel

if TYPE_CHECKING:
    from recipegen.estimate.symbols import Symbols
    from recipegen.spec import Recipe

BACKWARD = 2.0  # bytes and kernels of a backward pass over those of its forward pass

# --- kernels of an eager forward: RMSNorm 8 each, q k v o gate up down 7, rotary 10, attention 2, MLP 2, residuals 2
_NORM, _NORM_FUSED = 8, 1
_LAYER, _LAYER_FUSED = 23, 13
_ADAPTER, _ADAPTER_FUSED = 7, 3  # casts, A, B, scale, add
_DEQUANTISE = 3  # constants, weights, and the product that waits for them
_MOE = 12  # router, top-k, sort, grouped products
_SHARDED = 12  # copies into and out of the flat buffers of a collective

# --- bytes per token and vocabulary entry, forward and backward, while the logits pass through the loss
_LOGITS = {
    LossKernel.CHUNKED_UPCAST: 10.0,  # written 2, read 2, read and replaced by the gradient 4, read by the product 2
    LossKernel.FUSED_LINEAR: 10.0,
    LossKernel.CUT: 0.0,
}


@dataclass(frozen=True)
class Kernels:
    """How the layers are computed.

    `fused_layers`: norms, rotary and MLP in one kernel each (Liger, torch.compile). `fp32_adapters`: the products of
    the adapters run in fp32, as they do where neither autocast nor sharding casts them.
    """

    fused_layers: bool = False
    fused_adapters: bool = False
    fp32_adapters: bool = False
    adapted_modules: int = 0
    rank: int = 1
    dora: bool = False


def kernels_of(recipe: Recipe) -> Kernels:
    """The kernels of a recipe."""
    adapter = recipe.adapter
    if adapter is None:
        return Kernels(fused_layers=recipe.torch_compile)
    targets = adapter.target_modules
    modules = targets[0].count("|") + 1 if len(targets) == 1 else len(targets)  # a pattern lists its names with |
    return Kernels(recipe.torch_compile, adapter.fused_kernels, False, modules, adapter.r, adapter.use_dora)


def layer_bytes(x: Symbols, kernels: Kernels) -> float:
    """Bytes per token that the elementwise kernels of one layer move in a forward pass."""
    a = x.shape
    fused, wide = kernels.fused_layers, fp32_between(x)
    scale = 2.0 if wide else 1.0
    norms = (4.0 * scale if fused else 28.0 if wide else 36.0) * (a.norms * a.H + (a.q + a.kv if a.qk_norm else 0))
    residual = 6.0 * (Dtype.FP32.bytes if wide else residual_width(x)) * a.H
    rotary = (4.0 if fused else 20.0) * scale * (a.q + a.kv)
    mlp = (6.0 if fused else 10.0) * scale * a.M + (16.0 * scale * a.H * a.k if a.E else 0.0)
    attention = 24.0 * a.A * x.s if x.attention is AttentionMemory.EAGER else 0.0
    return norms + residual + rotary + mlp + attention + adapter_bytes(x, kernels)


def fp32_between(x: Symbols) -> bool:
    """Activations are fp32 outside the matrix products: fp32 norms and embeddings, and no autocast to narrow them."""
    return x.embeddings_fp32 and not x.autocast and not x.fp32_parameters


def adapter_bytes(x: Symbols, kernels: Kernels) -> float:
    """The adapters' share of it. n_l / r is the sum of inputs and outputs of the adapted modules."""
    if x.full:
        return 0.0
    widths = x.n_l / kernels.rank
    if x.shape.E:  # of the experts' adapters a token meets k
        widths = min(widths, 2.0 * kernels.adapted_modules * x.shape.H * x.shape.k)
    per_width = 2.0 if kernels.fused_adapters else 11.0 if x.t > x.c else 5.0
    return per_width * widths


def dora_bytes(x: Symbols, kernels: Kernels) -> float:
    """Bytes of one layer's pass that DoRA spends on the norms of adapted weights, whatever the tokens.

    Per weight: the adapters' product written 2 and read 2, the weight read 2, their sum written 4 and read 4
    (peft 0.20.0 tuners/lora/dora.py). Modules are taken for square: (in + out)^2 / 4 weights each.
    """
    if not kernels.dora or not kernels.adapted_modules:
        return 0.0
    widths = x.n_l / kernels.rank / kernels.adapted_modules
    return 14.0 * kernels.adapted_modules * widths**2 / 4


def logits_bytes(x: Symbols) -> float:
    """Bytes per token that the loss moves, forward and backward.

    Over kept logits every copy of them that exists is written once and read once.
    """
    return _LOGITS.get(x.loss, 2.0 * (x.stock_forward + x.stock_backward)) * x.shape.V


def launches(x: Symbols, kernels: Kernels) -> float:
    """Kernels of one layer's forward pass."""
    a = x.shape
    norm, layer = (_NORM_FUSED, _LAYER_FUSED) if kernels.fused_layers else (_NORM, _LAYER)
    count = layer + norm * (a.norms + (2 if a.qk_norm else 0))
    count += kernels.adapted_modules * (_ADAPTER_FUSED if kernels.fused_adapters else _ADAPTER)
    count += _DEQUANTISE * 7 if x.quantised else 0
    count += _MOE if a.E else 0
    count += _SHARDED if x.fsdp or x.zero3 else 0
    return float(count)
