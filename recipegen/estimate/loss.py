"""The logits and the loss: often the peak, and the term that a loss kernel changes.

stock           forward 10 T V (bf16 logits 2, fp32 copy 4, log-softmax 4), backward 12 T V (log-softmax 4, gradient of
                nll 4, gradient of log-softmax 4); a final soft-cap keeps 2 T V more (Hugging Face 5.16)
chunked_upcast  the bf16 logits and their gradient, 4 T V, and one chunk in fp32; as stock where it is not compiled
fused_linear    no logits: one chunk 2 c V, the gradient of the hidden states 2 T H, and 8 V H for a trained bf16 head:
                its gradient 2, a chunk's product 2, that in fp32 4; then 2 (Liger 0.8.1 ops/fused_linear_cross_entropy.py)
cut             2 T H, and 2 V H for the head (cut cross entropy)
"""

from __future__ import annotations

import math

from recipegen.catalog.planning import planning
from recipegen.estimate.symbols import Symbols
from recipegen.spec import LossKernel


def logits_are_kept(x: Symbols) -> bool:
    """True when T x V logits exist at some moment of the step."""
    return x.loss in (LossKernel.STOCK, LossKernel.CHUNKED_UPCAST)


def _stock(x: Symbols, direction: str) -> float:
    stock = x.stock_forward if direction == "forward" else x.stock_backward
    kept = (stock + (2 if x.shape.softcap else 0)) * x.T * x.shape.V
    if x.head_chunks and x.full and direction == "backward":  # the sum so far and one chunk's gradient of the head
        kept += 2 * x.g * x.shape.V * x.shape.H
    return kept


def loss_bytes(x: Symbols, direction: str) -> float:
    """Logits and what the loss keeps beside them; `direction` is forward or backward."""
    T, V, H = x.T, x.shape.V, x.shape.H
    if x.loss is LossKernel.FUSED_LINEAR:
        # Liger's chunk: T split into about V / H pieces, rounded up to a power of two.
        chunk = min(1 << (math.ceil(T / math.ceil(V / H)) - 1).bit_length(), T)
        head = x.fused_head_loss if direction == "forward" else x.fused_head_after
        return 2 * chunk * V + 2 * T * H + (head * V * H if x.full else 0)
    if x.loss is LossKernel.CUT:
        return 2 * T * H + (2 * V * H if x.full else 0)
    if x.loss is LossKernel.CHUNKED_UPCAST and x.loss_compiled:
        softcap = 2 if x.shape.softcap else 0
        kept = (4 + softcap) * T * V + 8 * T * V / planning().chunked_loss_chunks
        upcast = 6 * T * V if x.outputs_upcast and direction == "forward" else 0.0  # logits and their fp32 copy
        return max(kept, upcast)
    return _stock(x, direction)


def evaluation_bytes(x: Symbols) -> float:
    """Without gradients, at the micro-batch of training. Liger's fused loss is for training only: evaluation has its
    logits as stock does."""
    if x.loss is LossKernel.CHUNKED_UPCAST and x.loss_compiled:
        return loss_bytes(x, "forward")
    return _stock(x, "forward")
