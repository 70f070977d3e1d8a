"""The loss kernels: transformers' own as it is, the others as the code they stand for allocates.

stock           transformers' loss inside the model's forward (Axolotl), or train.py's outside of it (Accelerate)
chunked_upcast  the whole T x V logits, raised to fp32 a chunk at a time; compiled, a chunk leaves nothing behind
fused_linear    Liger's fused linear cross entropy: Triton, so its allocations are repeated here with plain operators
cut             cut cross entropy: one fp32 number per token is kept
Everything but stock and the uncompiled chunks is emulated.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

from recipegen.spec import LossKernel

IGNORE = -100
_CHUNKS = 8  # axolotl 0.19.0 monkeypatch/loss/chunked.py num_output_chunks
_PIECE = 1024  # tokens per piece in our train.py (LOSS_CHUNK)

Loss = Callable[..., Any]


# --- chunks


class _CompiledChunk(torch.autograd.Function):
    """Cross entropy of one chunk as inductor fuses it: it keeps its input and one number per token."""

    @staticmethod
    def forward(ctx: Any, logits: Any, labels: Any) -> Any:
        rows = torch.empty(logits.shape[0], dtype=torch.float32, device=logits.device)
        ctx.save_for_backward(logits, rows)
        return rows.sum()

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return torch.empty_like(ctx.saved_tensors[0]), None


def _plain_chunk(logits: Any, labels: Any) -> Any:
    return functional.cross_entropy(logits.float(), labels, ignore_index=IGNORE, reduction="sum")


def chunked(compiled: bool) -> Loss:
    """Axolotl's `chunked_cross_entropy`: chunks along the sequence, each raised to fp32 alone."""

    def loss(logits: Any, labels: Any, vocab_size: Any = None, **_: Any) -> Any:
        shifted = functional.pad(labels, (0, 1), value=IGNORE)[..., 1:].contiguous()
        total: Any = 0.0
        for piece, target in zip(logits.chunk(_CHUNKS, dim=1), shifted.chunk(_CHUNKS, dim=1), strict=True):
            rows = piece.reshape(-1, piece.shape[-1]), target.reshape(-1)
            total = total + (_CompiledChunk.apply(*rows) if compiled else _plain_chunk(*rows))
        return total / (shifted != IGNORE).sum()

    return loss


def outside(kernel: LossKernel) -> Callable[[Any, Any], Any]:
    """train.py's sum of token losses from (batch, rows, vocabulary) logits."""

    def loss(logits: Any, labels: Any) -> Any:
        logits, targets = logits.flatten(0, 1), labels.flatten()
        if kernel is not LossKernel.CHUNKED_UPCAST:
            return _plain_chunk(logits, targets)
        from torch.utils.checkpoint import checkpoint

        pieces = zip(logits.split(_PIECE), targets.split(_PIECE), strict=True)
        return torch.stack([checkpoint(_plain_chunk, *piece, use_reentrant=False) for piece in pieces]).sum()

    return loss


# --- no logits


class FusedLinear(torch.autograd.Function):
    """Liger's fused linear cross entropy, its Triton kernel left out (it works in place).

    A chunk's logits become their own gradient; the gradients of the hidden states and of the head are made in forward.
    Source: liger-kernel 0.8.1 ops/fused_linear_cross_entropy.py. Its CUDA path adds bf16 products to an fp32 gradient
    of the head without a copy; a bf16 one gets the product and an fp32 copy of it.
    """

    @staticmethod
    def forward(ctx: Any, hidden: Any, weight: Any, labels: Any) -> Any:
        tokens, width = hidden.shape
        pieces = math.ceil(weight.shape[0] / width)
        rows = 1 << (math.ceil(tokens / pieces) - 1).bit_length()
        hidden_gradient = torch.zeros_like(hidden)
        head_gradient = torch.zeros_like(weight) if weight.requires_grad else None
        losses = torch.zeros(tokens, dtype=torch.float32, device=hidden.device)
        for start in range(0, tokens, rows):
            part = hidden[start : start + rows]
            logits = part @ weight.t()
            hidden_gradient[start : start + rows] = logits @ weight
            if head_gradient is None:
                continue
            if head_gradient.dtype is torch.float32 and logits.dtype is torch.bfloat16:
                part.to(logits.dtype)  # addmm with out_dtype=fp32 into the gradient
            else:
                head_gradient += torch.mm(logits.t(), part.to(logits.dtype)).float()
        ctx.save_for_backward(hidden_gradient, head_gradient)
        return losses.sum()

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return (*ctx.saved_tensors, None)


class Cut(torch.autograd.Function):
    """Cut cross entropy: only the log-sum-exp of every token is kept, logits never exist as a whole."""

    @staticmethod
    def forward(ctx: Any, hidden: Any, weight: Any, labels: Any) -> Any:
        rows = torch.empty(hidden.shape[0], dtype=torch.float32, device=hidden.device)
        ctx.save_for_backward(hidden, weight, rows)
        return rows.sum()

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        hidden, weight, _ = ctx.saved_tensors
        return torch.empty_like(hidden), torch.empty_like(weight) if ctx.needs_input_grad[1] else None, None


WITHOUT_LOGITS: dict[LossKernel, Any] = {LossKernel.FUSED_LINEAR: FusedLinear, LossKernel.CUT: Cut}


def forward_without_logits(base: Any, kernel: LossKernel, autocast: bool) -> Callable[..., Any]:
    """A forward for the transformers class that hands its last hidden states and the head to the kernel."""
    function = WITHOUT_LOGITS[kernel]

    def forward(input_ids: Any = None, labels: Any = None, **inputs: Any) -> Any:
        hidden = base.model(input_ids=input_ids, **inputs)[0]
        base.recipegen_loss_begins()
        weight = base.get_output_embeddings().weight
        if autocast and kernel is LossKernel.CUT:
            weight = weight.to(torch.bfloat16)
        flat = hidden.view(-1, hidden.shape[-1])
        return {"loss": function.apply(flat, weight, labels.flatten())}

    return forward
