"""Which linear modules of a decoder layer carry an adapter, and what that makes a layer keep.

A frozen linear module keeps nothing of its input: its input's gradient needs the weight alone. An adapter on it does.
Where peft casts the input to the adapter's dtype (`_cast_input_dtype`), every adapter keeps a copy of its own; where
the dtypes agree the adapters of one input share it, and the output of attention is kept anyway.
Checked by simulation per target list (tests/simulate, tests/corpus/simulated-peaks-hard.csv).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from recipegen.estimate import parameters

if TYPE_CHECKING:
    from recipegen.spec import ModelSpec

_ATTENTION_INPUT = {"q_proj", "k_proj", "v_proj", "qkv_proj"}
_QKV = ("q_proj", "k_proj", "v_proj")
_MLP_INPUT = {"gate_proj", "up_proj", "gate_up_proj"}


@dataclass(frozen=True)
class Adapted:
    """Adapters of one decoder layer. `inputs`: elements per token of all adapted modules' inputs together."""

    inputs: int = 0
    #: the same where one module makes queries, keys and values
    inputs_packed: int = 0
    #: elements per token of all adapted modules' outputs
    outputs: int = 0
    #: widths of adapted queries, keys and values where not all three are adapted
    padded_outputs: int = 0
    attention_input: bool = False  # some of q, k, v
    mlp_input: bool = False  # some of gate, up
    down: bool = False
    experts: bool = False
    #: of the adapted module with the widest input: its input and output
    widest_input: int = 0
    widest_output: int = 0


NOTHING_ADAPTED = Adapted()


@lru_cache(maxsize=1024)
def adapted(model: ModelSpec, targets: Sequence[str]) -> Adapted:
    """What a target list reaches; all False without targets."""
    linear = parameters.adapted_modules(model, targets)
    inputs = sum(size for size, _, _ in linear.values())
    widest = max(((size, width) for size, width, _ in linear.values()), default=(0, 0))
    parts = [linear[name] for name in _QKV if name in linear]
    return Adapted(
        inputs=inputs,
        outputs=sum(width for _, width, _ in linear.values()),
        inputs_packed=inputs - sum(size for size, _, _ in parts[1:]),
        padded_outputs=sum(width for _, width, _ in parts) if len(parts) < len(_QKV) else 0,
        attention_input=any(name in _ATTENTION_INPUT for name in linear),
        mlp_input=any(name in _MLP_INPUT for name in linear),
        down="down_proj" in linear,
        experts=parameters.adapts_experts(model, targets),
        widest_input=widest[0],
        widest_output=widest[1],
    )
