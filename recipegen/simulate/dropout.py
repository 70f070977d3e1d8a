"""Dropout as CUDA has it: a mask of one byte per element and the result. PyTorch's CPU kernel keeps fp32 noise."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn


class _Masked(torch.autograd.Function):
    """torch.native_dropout on CUDA (aten/src/ATen/native/cuda/Dropout.cu): saves the mask alone."""

    @staticmethod
    def forward(ctx: Any, inputs: torch.Tensor, p: float) -> torch.Tensor:
        mask = torch.empty_like(inputs, dtype=torch.bool)
        ctx.save_for_backward(mask)
        ctx.scale = 1.0 / (1.0 - p)
        return torch.empty_like(inputs)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        (mask,) = ctx.saved_tensors
        del mask
        return torch.empty_like(gradients[0]), None


class Dropout(nn.Module):
    """Stands for nn.Dropout of probability `p` while training; values do not matter here, sizes do."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return _Masked.apply(inputs, self.p)  # type: ignore[no-any-return, no-untyped-call]


def replace_in(model: nn.Module) -> None:
    """Every nn.Dropout that drops something."""
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, nn.Dropout) and child.p > 0:
                setattr(module, name, Dropout(child.p))
