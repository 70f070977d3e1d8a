"""The logits and the loss: often the peak, and the term that a loss kernel changes.

stock           forward 10 T V (bf16 logits 2, fp32 copy 4, log-softmax 4), backward 12 T V (log-softmax 4, gradient of
                nll 4, gradient of log-softmax 4); a final soft-cap keeps 2 T V more (Hugging Face 5.16)
chunked_upcast  compiled: the bf16 logits 2 T V, in backward their gradient as well; not compiled: the bf16 logits, the
                log-softmax of every chunk 4 T V and one chunk's copies. In train.py, where the loss is outside the
                model: the logits, their gradient and the sum of its pieces; where Accelerate upcasts outputs the
                fp32 copy and its gradient, 4 T V each, and 8 V for every token of one chunk
fused_linear    no logits: one chunk 2 c V, the gradient of the hidden states 2 T H, and 8 V H for a trained bf16 head:
                its gradient 2, a chunk's product 2, that in fp32 4; then 2 (Liger 0.8.1,
                ops/fused_linear_cross_entropy.py)
cut             2 T H, and 2 V H for the head (cut cross entropy)
"""

from __future__ import annotations

import math

from recipegen.catalog.planning import planning
from recipegen.estimate.symbols import Symbols
from recipegen.spec import LossKernel


def _stock(x: Symbols, direction: str) -> float:
    stock = x.stock_forward if direction == "forward" else x.stock_backward
    kept = (stock + (2 if x.shape.softcap else 0)) * x.T * x.shape.V
    if x.head_chunks and x.full and direction == "backward":  # the sum so far and one chunk's gradient of the head
        kept += 2 * x.g * x.shape.V * x.shape.H
    if x.quantised_head:  # dequantised, and in the dtype of what it meets (bitsandbytes MatMul4Bit)
        kept += 2 * x.c * x.shape.V * x.shape.H
    return kept


def loss_bytes(x: Symbols, direction: str) -> float:
    """Logits and what the loss keeps beside them; `direction` is forward or backward."""
    T, V, H = x.T, x.shape.V, x.shape.H
    if x.loss is LossKernel.FUSED_LINEAR:
        # Liger's chunk: T split into about V / H pieces, rounded up to a power of two.
        chunk = min(1 << (math.ceil(T / math.ceil(V / H)) - 1).bit_length(), T)
        head = x.fused_head_loss if direction == "forward" else x.fused_head_after
        if x.head_fp32:  # gradient in fp32 and the bf16 product
            head = 6.0 if direction == "forward" else 4.0
        return 2 * chunk * V + 2 * T * H + (head * V * H if x.full else 0)
    if x.loss is LossKernel.CUT:
        return 2 * T * H + (2 * V * H if x.full else 0)
    if x.loss is LossKernel.CHUNKED_UPCAST:
        return _chunked(x, direction)
    return _stock(x, direction)


def _chunked(x: Symbols, direction: str) -> float:
    T, V, softcap = x.T, x.shape.V, 2 if x.shape.softcap else 0
    # Axolotl cuts (rows, sequence, V) along the sequence, so with several rows every chunk is copied to be flat
    cut = 2 if x.batch_rows > 1 and x.loss_inside_model and direction == "forward" else 0
    copy = 4 if x.outputs_upcast else 0  # Accelerate's fp32 copy of the logits
    if direction == "forward":
        compiled = x.loss_compiled or not x.loss_inside_model
        per_logit = 2 + copy + (0 if compiled else 4 + (0 if copy else 4 / planning().chunked_loss_chunks))
    elif not x.loss_inside_model and copy:  # the copy and its gradient; a chunk's fp32 softmax and gradient
        return 8 * T * V + 8 * min(T, planning().train_py_loss_chunk) * V + softcap * T * V
    elif not x.loss_inside_model:
        per_logit = 6
    else:
        per_logit = 4 if x.loss_compiled else 6
    return (per_logit + softcap + cut) * T * V


def saved_for_backward(x: Symbols) -> float:
    """What the loss holds when backward begins, before its own backward."""
    T, V, H = x.T, x.shape.V, x.shape.H
    if x.loss in (LossKernel.FUSED_LINEAR, LossKernel.CUT):
        return 2 * T * H + (x.fused_head_after * V * H if x.full and x.loss is LossKernel.FUSED_LINEAR else 0.0)
    kept = 2 if x.loss is LossKernel.CHUNKED_UPCAST and x.loss_compiled else 4
    return (kept + (2 if x.shape.softcap else 0)) * T * V


def evaluation_bytes(x: Symbols) -> float:
    """Without gradients, at the micro-batch of training. Liger's fused loss is for training only: evaluation has its
    logits as stock does."""
    if x.loss is LossKernel.CHUNKED_UPCAST:
        return _chunked(x, "forward")
    return _stock(x, "forward")
