"""The short lists of words that a recipe and a model are described with. Enums alone: the estimate needs no more."""

from __future__ import annotations

from enum import Enum


class QkNorm(str, Enum):
    """Normalisation of queries and keys inside attention."""

    NONE = "none"
    PER_HEAD = "per_head"  # weight of head_dim (Qwen3, Gemma 3)
    FULL = "full"  # weight over all heads (OLMo 2)


class Method(str, Enum):
    """What is trained."""

    FULL = "full"
    LORA = "lora"
    QLORA = "qlora"

    @property
    def is_adapter(self) -> bool:
        return self is not Method.FULL


class LossKernel(str, Enum):
    """How the loss is computed, which decides what happens to the T x V logits."""

    STOCK = "stock"
    CHUNKED_UPCAST = "chunked_upcast"  # Axolotl `chunked_cross_entropy`: full logits, chunked upcast
    FUSED_LINEAR = "fused_linear"  # Liger: no logits
    CUT = "cut"  # cut cross entropy: needs a git install, never generated


class AttentionMemory(str, Enum):
    """What attention keeps for backward."""

    FLASH = "flash"  # output and one fp32 number per head and token
    VARLEN = "varlen"  # the same, with keys and values repeated for every query head (torch's varlen_attn)
    MASKED = "masked"  # sdpa with an S x S mask
    EAGER = "eager"  # all S x S probabilities
