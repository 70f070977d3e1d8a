"""The symbols that follow from the model alone; symbols.py says what the letters mean."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from recipegen.estimate import parameters
from recipegen.spec import QkNorm

if TYPE_CHECKING:
    from recipegen.spec import ModelSpec


@dataclass(frozen=True)
class Shape:
    """What follows from the model alone."""

    H: int
    F: int
    V: int
    L: int
    q: int
    kv: int
    A: int
    D: int
    E: int
    k: int
    #: width of the MLP that a token passes: its experts, and the shared ones
    M: int
    norms: int
    qk_norm: bool
    softcap: bool
    sinks: bool
    tied: bool
    N: int
    N_active: int
    P_l: int
    P_r: int
    X: int
    moe_layers: int
    gated: bool
    Q: int
    Q_l: int
    norm_parameters: int


@lru_cache(maxsize=256)
def shape(model: ModelSpec) -> Shape:
    """The symbols of a model; computed once per model."""
    H = model.hidden_size
    moe = model.moe
    tensors = parameters.expert_tensors(model)
    return Shape(
        H=H,
        F=moe.intermediate_size if moe else model.intermediate_size,
        V=model.vocab_size,
        L=model.num_hidden_layers,
        q=model.q_size,
        kv=model.kv_size,
        A=model.num_attention_heads,
        D=model.head_dim,
        E=moe.num_experts if moe else 0,
        k=moe.experts_per_token if moe else 1,
        M=moe.intermediate_size * moe.experts_per_token + moe.shared_intermediate_size
        if moe
        else model.intermediate_size,
        norms=model.norms_per_layer,
        qk_norm=model.qk_norm is not QkNorm.NONE,
        softcap=model.logit_softcap,
        sinks=model.attention_sinks,
        tied=model.tie_word_embeddings,
        N=parameters.total(model),
        N_active=parameters.active_parameters(model),
        P_l=parameters.per_layer(model),
        P_r=parameters.root(model) + model.extra_parameters,  # what is outside the decoder is in FSDP2's root group
        X=sum(math.prod(size) for name, size in tensors.items() if name.startswith("experts.")),
        moe_layers=model.num_hidden_layers - parameters.dense_layers(model) if moe else 0,
        gated=model.gated_mlp or model.is_moe,
        Q=parameters.quantised_parameters(model),
        Q_l=parameters.quantised_per_layer(model),
        norm_parameters=parameters.norm(model) * (model.norms_per_layer * model.num_hidden_layers + 1),
    )
