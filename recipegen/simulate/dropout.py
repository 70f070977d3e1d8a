"""Dropout as CUDA has it: a mask of one byte per element and the result. PyTorch's CPU kernel keeps fp32 noise."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn


class _Masked(torch.autograd.Function):
    """torch.native_dropout on CUDA (aten/src/ATen/native/cuda/Dropout.cu): saves the mask alone."""

    @staticmethod
    def forward(ctx: Any, inputs: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(torch.empty_like(inputs, dtype=torch.bool))
        return torch.empty_like(inputs)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        return torch.empty_like(gradients[0])


class Dropout(nn.Module):
    """Stands for an nn.Dropout that drops something, while training: its sizes, not its values."""

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        dropped: torch.Tensor = _Masked.apply(inputs)
        return dropped


def replace_in(model: nn.Module) -> None:
    """Every nn.Dropout that drops something."""
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, nn.Dropout) and child.p > 0:
                setattr(module, name, Dropout())
