"""Floating point operations of one token, by pass. A multiply-add is two.

With N_l the layer parameters that multiply a token, V H the head, n the adapters, s the sequence, q = heads x head_dim:
    forward    2 N_l + 2 V H + 2 n + attention
    backward   the same for the gradients of inputs, and again for those of weights where weights are trained
    recompute  2 N_l + 2 n + attention once more under activation checkpointing, not the head
    attention  2 s q L forward where the kernel skips what is causally masked, twice that where a mask is read;
               2.5 times that backward in a flash kernel (five matrix products for two), twice in an eager one
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from recipegen.spec import AttentionMemory

if TYPE_CHECKING:
    from recipegen.estimate.symbols import Symbols

_FLASH_BACKWARD = 2.5


@dataclass(frozen=True)
class Flops:
    """Operations per token: of the layers' own weights, of the head, of the adapters and of attention."""

    layers: float
    head: float
    adapters: float
    attention: float

    @property
    def all(self) -> float:
        return self.layers + self.head + self.adapters + self.attention


def forward(x: Symbols) -> Flops:
    """One forward pass."""
    a = x.shape
    head = a.V * a.H
    causal = 1 if x.attention in (AttentionMemory.FLASH, AttentionMemory.VARLEN) else 2
    return Flops(2.0 * (a.N_active - head), 2.0 * head, 2.0 * x.n, 2.0 * causal * x.s * a.q * a.L)


def backward(x: Symbols) -> Flops:
    """One backward pass, nothing recomputed. Weight gradients only where weights are trained."""
    f = forward(x)
    passes = 2.0 if x.full else 1.0
    attention = 2.0 if x.attention is AttentionMemory.EAGER else _FLASH_BACKWARD
    return Flops(passes * f.layers, passes * f.head, 2.0 * f.adapters, attention * f.attention)


def recompute(x: Symbols) -> Flops:
    """What activation checkpointing computes once more."""
    if not recomputes(x):
        return Flops(0.0, 0.0, 0.0, 0.0)
    f = forward(x)
    if x.selective_checkpointing:  # the results of matrix products are kept
        return Flops(0.0, 0.0, 0.0, 0.0)
    return Flops(f.layers, 0.0, f.adapters, f.attention)


def recomputes(x: Symbols) -> bool:
    """Adapters with offloaded activations keep everything, on the host, instead."""
    return x.checkpointing and not x.offloads_everything


def model_flops(x: Symbols) -> float:
    """What the mathematics needs per token: the numerator of MFU, recomputation left out."""
    return forward(x).all + backward(x).all
