"""What lies on the GPU from the first step to the last: parameters, adapters, master weights, states, DDP buckets.

Full fine-tune, sharded over S:   N (p + o + m) / S      (o = 2 x state dtype for AdamW: 8 B/param in pure bf16)
Adapter:                          N p / S + n (t + o + m) / S
QLoRA:                            ((N - Q) p + Q / 2) / S + Q (1/64 + 4/16384), the constants not sharded
DDP, more than one rank:          + n_t g, the buckets (gradient_as_bucket_view is off by default)
"""

from __future__ import annotations

from recipegen.estimate.symbols import Symbols
from recipegen.spec import Dtype, Strategy

#: names of the terms that last; the allocator does not spread these
LASTING = frozenset(
    {
        "parameters",
        "quantisation_constants",
        "adapters",
        "master_weights",
        "optimizer_states",
        "ddp_buckets",
        "unsharded_model",
    }
)


def stored_parameter_bytes(x: Symbols) -> float:
    """All base parameters as one process would hold them, unsharded, without quantisation constants."""
    N, Q = x.shape.N, x.shape.Q if x.quantised else 0
    return x.p * (N - Q) + x.packed * Q + (Dtype.FP32.bytes - x.p) * x.n_fp32


def parameter_bytes(x: Symbols) -> float:
    """Base parameters on one GPU."""
    if x.parameter_offload:
        return 0.0
    if x.strategy is Strategy.ZERO2:
        return stored_parameter_bytes(x) / x.tp
    experts = x.p * x.shape.X * x.shape.moe_layers
    return (stored_parameter_bytes(x) - experts + experts * x.padding) / x.S


def trainable_on_gpu(x: Symbols) -> float:
    """Elements of trainable parameters whose gradients and states live on one GPU."""
    if x.strategy is Strategy.ZERO2:
        return x.n_t / x.W
    return x.sharded(x.n_t) if x.full else x.n_t / x.S


def gradient_bytes(x: Symbols) -> float:
    """All gradients as they lie when backward has finished."""
    if x.state_offload != "none" or x.optimizer_in_backward:
        return 0.0  # they go to the host as they come, or are used and freed at once
    if x.deepspeed and x.deepspeed.stage == 1:
        return x.g * x.n_t  # ZeRO-1 splits the states alone
    fp32 = (Dtype.FP32.bytes - x.g) * x.n_fp32 / x.S if x.full else 0.0
    return x.g * trainable_on_gpu(x) + fp32


def state_bytes(x: Symbols) -> float:
    """Optimizer moments and compensation; the moments of modules kept in fp32 are fp32."""
    if x.state_offload != "none" or x.paged_states:
        return 0.0
    fp32 = x.o_fp32 * x.n_fp32 / x.S
    return x.o * trainable_on_gpu(x) + fp32


def lasting(x: Symbols) -> dict[str, float]:
    """Terms that are there in every phase of a step; name -> bytes."""
    ddp = x.strategy is Strategy.DDP and x.W > 1
    return {
        "parameters": parameter_bytes(x),
        "quantisation_constants": x.shape.Q * x.packed_constants if x.quantised else 0.0,
        "adapters": x.t * x.n / (1 if x.strategy is Strategy.ZERO2 else x.S) if not x.parameter_offload else 0.0,
        "master_weights": x.m * trainable_on_gpu(x) if x.state_offload == "none" else 0.0,
        "optimizer_states": state_bytes(x),
        "ddp_buckets": gradient_bytes(x) if ddp else 0.0,
    }
