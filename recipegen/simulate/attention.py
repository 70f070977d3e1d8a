"""Attention as a CUDA flash kernel allocates it: q, k, v and the output, one fp32 number per head and row, no mask.

On fake tensors transformers would build an S x S mask for sdpa and repeat keys and values, which a flash kernel (dense
or over packed rows) does not need. So attention and mask functions of our own are registered; the aten operator has a
meta kernel and takes grouped queries as they are. It is not on autocast's list, so the cast that sdpa gets is here.
"""

from __future__ import annotations

from typing import Any

import torch

from recipegen.spec import AttentionMemory

NAME = "recipegen_attention"  # a name with "flash" makes transformers look for a kernel package
VARLEN = "recipegen_varlen"
IMPLEMENTATION = {
    AttentionMemory.FLASH: NAME,
    AttentionMemory.VARLEN: VARLEN,
    AttentionMemory.MASKED: "sdpa",
    AttentionMemory.EAGER: "eager",
}


def register(real: bool) -> None:
    """Make the implementation known to transformers; `real` tensors take torch's own sdpa without a mask."""
    from transformers import AttentionInterface
    from transformers.masking_utils import AttentionMaskInterface

    AttentionInterface.register(NAME, _on_real_tensors if real else _flash)
    AttentionMaskInterface.register(NAME, _no_mask)
    AttentionInterface.register(VARLEN, _repeated)
    AttentionMaskInterface.register(VARLEN, _no_mask)


def _no_mask(*_: Any, **__: Any) -> None:
    return None


def _flash(module: Any, query: Any, key: Any, value: Any, *_: Any, scaling: Any = None, **__: Any) -> tuple[Any, None]:
    """(batch, heads, rows, width) in, (batch, rows, heads, width) out."""
    if torch.is_autocast_enabled("cpu"):
        query, key, value = (x.to(torch.bfloat16) for x in (query, key, value))
    out = torch.ops.aten._scaled_dot_product_flash_attention(query, key, value, 0.0, True, scale=scaling)[0]
    return out.transpose(1, 2).contiguous(), None


def _repeated(
    module: Any, query: Any, key: Any, value: Any, *_: Any, scaling: Any = None, **__: Any
) -> tuple[Any, None]:
    """Axolotl's path over packed rows: torch's varlen kernel knows no grouped queries, so keys and values repeat."""
    groups = query.shape[1] // key.shape[1]
    if groups > 1:
        key, value = (x.repeat_interleave(groups, dim=1) for x in (key, value))
    attend = _flash if torch._guards.detect_fake_mode() else _on_real_tensors
    return attend(module, query, key, value, scaling=scaling)


def _on_real_tensors(
    module: Any, query: Any, key: Any, value: Any, *_: Any, scaling: Any = None, **__: Any
) -> tuple[Any, None]:
    grouped = key.shape[1] != query.shape[1]
    out = torch.nn.functional.scaled_dot_product_attention(
        query, key, value, is_causal=True, scale=scaling, enable_gqa=grouped
    )
    return out.transpose(1, 2).contiguous(), None
