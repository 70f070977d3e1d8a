"""QLoRA's frozen base, emulated: what bitsandbytes' NF4 linear stores and allocates, without bitsandbytes.

Storage is that of `bitsandbytes.nn.Linear4bit` with double quantisation and bf16 storage (which FSDP2 can shard): half
a byte per weight, one uint8 per 64 weights, one fp32 per 256 of those. Forward and backward de-quantise one weight.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn

_BLOCK = 64  # weights per absmax (bitsandbytes blocksize)
_NESTED = 256  # absmax values per scale of their own
_CODE, _NESTED_CODE = 16, 256  # entries of the two look-up tables
STORAGE = torch.bfloat16


class _Dequantised(torch.autograd.Function):
    """y = x W^T with W de-quantised for the product and again for its backward (bitsandbytes MatMul4Bit)."""

    @staticmethod
    def forward(ctx: Any, x: Any, features_out: int, features_in: int) -> Any:
        ctx.shape = (features_out, features_in)
        return nn.functional.linear(x, torch.empty(ctx.shape, dtype=x.dtype, device=x.device))

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return grad @ torch.empty(ctx.shape, dtype=grad.dtype, device=grad.device), None, None


class Linear4bit(nn.Linear):
    """Takes the place of an `nn.Linear`; its bias stays as it is."""

    def __init__(self, source: Any) -> None:
        nn.Module.__init__(self)
        self.in_features, self.out_features = source.in_features, source.out_features
        weights, device = self.in_features * self.out_features, source.weight.device
        packed = weights // 2 // STORAGE.itemsize
        self.weight = nn.Parameter(torch.empty(packed, 1, dtype=STORAGE, device=device), requires_grad=False)
        blocks = math.ceil(weights / _BLOCK)
        for name, count, dtype in (
            ("absmax", blocks, torch.uint8),
            ("nested_absmax", math.ceil(blocks / _NESTED), torch.float32),
            ("code", _CODE, torch.float32),
            ("nested_code", _NESTED_CODE, torch.float32),
        ):
            self.register_buffer(name, torch.empty(count, dtype=dtype, device=device))
        self.bias = source.bias

    def forward(self, x: Any) -> Any:
        compute = torch.bfloat16 if x.dtype is torch.float32 else x.dtype  # bnb_4bit_compute_dtype
        y = _Dequantised.apply(x.to(compute), self.out_features, self.in_features)
        if self.bias is not None:
            y = y + self.bias.to(compute)
        return y.to(x.dtype)


def quantise(model: Any) -> None:
    """Replace every linear module but the head, as transformers does for `load_in_4bit`."""
    head = model.get_output_embeddings()
    for path, module in list(model.named_modules()):
        if type(module) is nn.Linear and module is not head:
            parent, _, name = path.rpartition(".")
            setattr(model.get_submodule(parent), name, Linear4bit(module))


def lora_forward(layer: Any, x: Any, *args: Any, **kwargs: Any) -> Any:
    """peft's forward over a 4-bit base: the base's result is cloned, and autocast makes a cast of the input needless.

    Source: peft 0.20.0 tuners/lora/bnb.py Linear4bit.forward.
    """
    result = layer.base_layer(x, *args, **kwargs).clone()
    for name in layer.active_adapters:
        convert = not torch.is_autocast_enabled("cpu")
        kept = result.dtype
        if convert:
            x = layer._cast_input_dtype(x, layer.lora_A[name].weight.dtype)
        update = layer.lora_B[name](layer.lora_A[name](layer.lora_dropout[name](x))) * layer.scaling[name]
        result = result + (update.to(kept) if convert else update)
    return result
