"""The `precision` column: what is kept in which dtype, given what the framework does."""

from __future__ import annotations

import re
from dataclasses import dataclass

from benchmarks.frameworks import Framework
from benchmarks.layout import Layout
from recipegen.estimate.symbols import ABSMAX_BYTES_PER_PARAMETER
from recipegen.spec import Dtype, Method, Precision

_UPCAST = ("embed_tokens", "lm_head", "norm")
#: GPTQ, AWQ: 4 bits, one fp16 scale and one 4-bit zero per group of 128 weights
_GROUP = 128
#: NVFP4: one 8-bit scale per 16 weights
_NVFP4_GROUP = 16
_GPTQ_CONSTANTS = (2 + 0.5) / _GROUP
#: bitsandbytes without double quantisation: one fp32 maximum per 64 weights
_SINGLE_QUANT_CONSTANTS = 4 / 64
_SINGLE_QUANT = re.compile(r"(?:no|without|w/o) (?:bnb )?(?:double|nested)|single[- ]quant")
_INT8 = re.compile(r"\bint8|\b8[- ]?bit|llm\.int8|in_8bit|fp8 base")
_OTHER_BITS = re.compile(r"\b(?:int)?([2356])[- ]?bits?\b|\bint([2356])\b")
_WHOLE_FP32 = re.compile(r"(?:full |pure )?(?:fp32|float32|tf32)\b(?! (?:master|embed))")


@dataclass(frozen=True)
class Kept:
    """Dtypes, and for a quantised base the bytes of one packed weight and of its constants."""

    precision: Precision
    autocast: bool
    packed_bytes: float = Dtype.NF4.bytes
    constant_bytes: float = ABSMAX_BYTES_PER_PARAMETER


def precision_of(
    text: str, method: Method, layout: Layout, facts: Framework, states: Dtype | None = None
) -> Kept | str:
    """What a precision text means for a method under an engine, or why it cannot be said.

    `states`: dtype of the optimizer's moments where the optimizer decides it.
    """
    word = text.lower().strip()
    if _OTHER_BITS.search(word):
        return f"precision {text.strip()!r}: a base of that many bits is none that a recipe can say"
    if _WHOLE_FP32.fullmatch(word) and not layout.is_deepspeed and method is Method.FULL:
        fp32 = Dtype.FP32
        return Kept(Precision(fp32, fp32, fp32, fp32, states or fp32, fp32), False)
    pure = "pure bf16" in word or "bf16-true" in word
    master = "fp32 sharded" in word or ("fp32 master" in word and "no fp32 master" not in word)
    autocast = "autocast" in word
    if not (pure or master or autocast):
        autocast = facts.plain == "autocast" or facts.plain == "fp32"
        pure = facts.plain == "pure_bf16"
        master = facts.plain == "fp32"
    sharded = layout.engine.startswith("fsdp")
    bf16, fp32 = Dtype.BF16, Dtype.FP32
    if method is Method.FULL:
        if layout.is_deepspeed:
            whole = "bf16_master_weights" in word
            kept = bf16 if whole else fp32
            return Kept(Precision(bf16, bf16, bf16, bf16, states or kept, bf16, master=kept), False)
        if master:
            return Kept(Precision(fp32, fp32, fp32, bf16 if sharded else fp32, states or fp32, bf16), not sharded)
        modules = _UPCAST if "fp32 embeddings" in word else ()
        kept_fp32 = Precision(bf16, bf16, bf16, bf16, states or bf16, bf16, fp32_modules=modules)
        return Kept(kept_fp32, (autocast or bool(modules)) and not sharded)
    trained = bf16 if layout.is_deepspeed else Dtype(facts.adapter)  # the engine casts the whole module
    base, packed, constants = bf16, Dtype.NF4.bytes, ABSMAX_BYTES_PER_PARAMETER
    if method is Method.QLORA:
        base = Dtype.NF4
        if _INT8.search(word):
            base, packed, constants = Dtype.INT8, Dtype.INT8.bytes, 0.0
        elif "gptq" in word or "awq" in word:
            constants = _GPTQ_CONSTANTS
        elif _SINGLE_QUANT.search(word):
            constants = _SINGLE_QUANT_CONSTANTS
    elif "nvfp4" in word:
        base, constants = Dtype.NF4, 1 / _NVFP4_GROUP
    elif _INT8.search(word):
        base, packed, constants = Dtype.INT8, Dtype.INT8.bytes, 0.0
    whole = not (sharded or layout.is_deepspeed)
    # prepare_model_for_kbit_training leaves GPTQ and AWQ models as they are
    upcast = method is Method.QLORA and facts.kbit_fp32 and whole and constants != _GPTQ_CONSTANTS
    modules = _UPCAST if upcast else ()
    reduction = bf16 if sharded else trained
    copy = fp32 if layout.is_deepspeed else None  # the engine's own
    states = states or copy or trained
    precision = Precision(base, trained, trained, reduction, states, bf16, fp32_modules=modules, master=copy)
    autocast = (autocast or bool(modules)) and not (pure or layout.is_deepspeed)
    return Kept(precision, autocast, packed, constants)
