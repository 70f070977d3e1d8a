"""Bytes that a decoder layer keeps for backward, and what its backward works with. Per GPU and micro-batch of T tokens.

Coefficients count tensors of the Hugging Face decoder layer (RMSNorm with an fp32 inside, gated MLP, rotary attention
with a flash kernel) and were checked against the simulated peaks in tests/corpus/simulated-peaks*.csv.
With activation checkpointing only the residual at each layer's boundary is kept: T r H L, r = 2 in bf16, 4 where
autocast runs over fp32 embeddings.
"""

from __future__ import annotations

from recipegen.catalog.planning import planning
from recipegen.estimate.symbols import Symbols
from recipegen.spec import AttentionMemory, Dtype


def residual_width(x: Symbols) -> float:
    """r: bytes per element of the residual stream; fp32 embeddings make it fp32 outside FSDP."""
    return 4.0 if (x.autocast and x.fp32_parameters) or x.embeddings_fp32 else x.c


def attention_saved(x: Symbols) -> float:
    """Per token and layer: q, k, v and the output for backward, by what the kernel keeps."""
    a = x.shape
    plain = x.attention is AttentionMemory.FLASH or (a.kv == a.q and x.attention is not AttentionMemory.EAGER)
    if x.packed_qkv and plain:  # rotated q and k, the output, and all of q, k, v behind a view of v
        return 4 * a.q + 2 * a.kv + 2 * (a.q + 2 * a.kv) + 4 * a.A
    if x.wide and x.fp32_attention:  # without grouped queries on the memory-efficient kernel, else on none:
        return 16 * a.q + 4 * a.A * (x.s if x.unfused_attention else 1)  # k and v repeated, fp32 probabilities kept
    if x.attention is AttentionMemory.FLASH:
        return 4 * a.q + 4 * a.kv + 4 * a.A  # q, k, v, output in bf16; one fp32 log-sum-exp per head
    if x.attention is AttentionMemory.VARLEN:
        return 8 * a.q + 4 * a.A  # axolotl 0.19.0 sdpa_varlen repeats keys and values to q width
    if x.attention is AttentionMemory.MASKED:  # keys and values repeated to q width: sdpa has no GQA with a mask,
        return 8 * a.q + 4 * a.A + 2 * x.s  # and makes a bf16 mask of the boolean one in every layer
    # eager: k, v repeated; the fp32 softmax and its bf16 copy, s x s per head; with sinks a bf16 softmax alone
    return 8 * a.q + (2 if a.sinks else 6) * a.A * x.s


def attention_mask(x: Symbols) -> float:
    """The s x s mask per sequence that checkpoints keep, one for all layers: boolean for sdpa, bf16 for eager."""
    if not x.checkpointing or x.attention in (AttentionMemory.FLASH, AttentionMemory.VARLEN):
        return 0.0
    return (1.0 if x.attention is AttentionMemory.MASKED else 2.0) * x.T * x.s


def adapter_inputs(x: Symbols) -> float:
    """Per token and layer: the inputs that adapters keep, in copies of their own or shared."""
    # DoRA: the magnitude's gradient needs the frozen and the low-rank result of every module
    results = 2 * x.c * x.adapted.outputs if x.dora else 0.0
    return _plain_adapter_inputs(x) + results


def _plain_adapter_inputs(x: Symbols) -> float:
    a, on = x.shape, x.adapted
    if x.packed_qkv:  # one input for q, k and v; their products are scattered into the width of all three
        return (x.own_copy or x.c) * on.inputs_packed + x.c * on.padded_outputs
    if x.own_copy:
        return x.own_copy * on.inputs
    down = a.F if on.down else 0
    return x.h * (a.H * on.attention_input + a.H * on.mlp_input + down)


def quantised_inputs(x: Symbols) -> float:
    """Per token and layer: inputs of quantised modules kept beside what attention and adapters keep."""
    a = x.shape
    if not x.quantised or not x.kept_graphs:
        return 0.0
    now = x.c * (2 * a.H + a.M)  # the output of attention is kept anyway
    before = x.c * (2 * a.H + a.q + a.M)
    return now + (x.kept_graphs - 1) * before


def saved_per_token(x: Symbols) -> float:
    """a_full: bytes per token that one layer keeps when nothing is recomputed."""
    a = x.shape
    attention, F_k = attention_saved(x), a.M
    if x.full:
        # under autocast every linear keeps its own bf16 copy of an fp32 input: q, k, v, (gate,) up
        casts = x.c * (5 if a.gated else 4) * a.H if x.autocast else 0.0
        kept = 8 * a.H * a.norms + casts + attention + (8 if a.gated else 4) * F_k
        if x.compiled:  # inductor recomputes elementwise work: the input and result of norms stay, and no fp32 copies
            kept = 4 * a.H * a.norms + attention + (6 if a.gated else 4) * F_k
        if a.qk_norm:
            kept += 6 * a.q + 6 * a.kv
    else:
        kept = (
            4 * a.H * a.norms + adapter_inputs(x) + attention + (3 if a.gated else 1) * x.h * F_k + quantised_inputs(x)
        )
        if a.qk_norm:
            kept += 4 * a.q + 4 * a.kv
    if a.E and not (x.full and x.autocast):
        kept += (4 if x.full else 2) * a.H * a.k + 8 * a.E  # frozen experts keep no copy of what they are given
    return kept


def selected_per_token(x: Symbols) -> float:
    """What selective checkpointing keeps of a layer: its input, the output of attention, and the result of every second
    matrix product, of which a dense layer has q, k, v, o, gate, up, down (torchtitan parallelize_llama.py)."""
    a = x.shape
    return residual_width(x) * a.H + x.c * (a.q + 2 * a.A) + x.c * (a.q + a.kv + a.M + a.H)


def final_hidden(x: Symbols) -> float:
    """Per token: the last norm's input and output, kept for the head."""
    H = x.shape.H
    return (8 if x.full else 4) * H + (4 * H if residual_width(x) > x.c else 0)


def rotary_tables(x: Symbols) -> float:
    """cos and sin in bf16, once."""
    return 4.0 * x.s * x.shape.D


def boundary_bytes(x: Symbols, layers: float) -> float:
    """Residuals at the boundaries of `layers` checkpointed layers."""
    return x.T * residual_width(x) * x.shape.H * layers


def saved(x: Symbols, layers: float) -> float:
    """Activations of `layers` layers kept for backward, on the GPU."""
    if x.selective_checkpointing:
        return x.T * selected_per_token(x) * layers
    if x.checkpointing and not x.offloads_everything:
        on_gpu = min(layers, planning().offloaded_layers_in_flight) if x.activation_offload else layers
        return boundary_bytes(x, on_gpu)
    if x.activation_offload:
        layers = min(layers, planning().offloaded_layers_in_flight)
    return (x.T * saved_per_token(x) + expert_updates(x)) * layers


def offloaded(x: Symbols) -> float:
    """Activations of one micro-batch that wait in host memory, per rank."""
    if not x.activation_offload:
        return 0.0
    per_layer = saved_per_token(x) if x.offloads_everything else residual_width(x) * x.shape.H
    return x.T * per_layer * x.shape.L


def _adapter_mlp_backward(x: Symbols) -> float:
    """Per token: gradients inside a frozen MLP beside what the layer has saved, by where adapters sit."""
    a, on = x.shape, x.adapted
    F_k = a.M
    if a.E:
        return 4 * F_k + 5 * a.H * a.k + 2 * a.H
    after = 4 * a.H if a.norms >= 4 else 0  # a norm after the MLP, whose input is gone by then
    if on.down:
        own = 6 * F_k + 10 * a.H if x.own_copy else 4 * F_k + 2 * a.H
        return own + after
    plain = 6 * F_k + 2 * a.H - after
    if on.mlp_input and x.own_copy:
        return max(plain, 4 * F_k + 10 * a.H)
    return plain


def expert_updates(x: Symbols) -> float:
    """Adapters on fused experts: peft's ParamWrapper makes a layer's whole update and its sum with the experts."""
    return 2 * x.c * x.shape.X if x.adapted.experts else 0.0


def mlp_backward(x: Symbols) -> float:
    """Inside the MLP of a layer's backward, with all that the layer has saved or recomputed."""
    a = x.shape
    if not x.full:
        return x.T * (saved_per_token(x) + x.h / x.c * _adapter_mlp_backward(x)) + expert_updates(x)
    work = x.T * (saved_per_token(x) + (0 if a.E else 4 * a.M) + 2 * a.H)
    return work + (3 * x.c * a.H * a.F * a.E if a.E else x.c * a.H * a.F)


def dora_norm(x: Symbols) -> float:
    """What DoRA needs for a moment, while the layer is saved, to make the norm of the updated weight of the widest
    module: peft sends an identity matrix through the adapter (peft 0.20.0 tuners/lora/dora.py). Beside it lie the fp32
    copy of the module's input, and two in bf16, where adapters keep copies of their own."""
    if not x.dora:
        return 0.0
    widest = x.adapted.widest_input
    inputs = (Dtype.FP32.bytes + 2 * x.c) * x.T * widest if x.own_copy else 0.0
    return (Dtype.FP32.bytes + x.c) * widest * widest + x.c * widest * x.adapted.widest_output + inputs


def attention_backward(x: Symbols) -> float:
    """At the end of attention and the input norm, where the weight gradients of the whole layer are alive."""
    a = x.shape
    width = x.h / x.c * (8 * a.H * (a.norms // 2) + 8 * a.H + 4 * a.q + 4 * a.kv)
    return x.T * width + (x.c * a.P_l if x.full else 0.0)


def probabilities_backward(x: Symbols) -> float:
    """Inside attention where no fused kernel runs: s x s per head."""
    a = x.shape
    if x.unfused_attention:  # probabilities and their two gradients in fp32
        return x.T * (16 * a.H + 16 * a.q + 12 * a.A * x.s)
    if x.attention is not AttentionMemory.EAGER:
        return 0.0
    # softmax backward: fp32 probabilities, their gradient and the result; of a dense layer's weight gradients those of
    # q, k, v are still to come. With sinks the softmax is in bf16 (transformers 5.16.1 modeling_gpt_oss.py)
    weights = x.c * (a.P_l - a.H * (a.q + 2 * a.kv)) if x.full and not a.E else 0.0
    return x.T * (8 * a.H + 8 * a.q + (6 if a.sinks else 12) * a.A * x.s) + weights


def probabilities_forward(x: Symbols) -> float:
    """What eager attention makes beside what it keeps: the scores, and with sinks the same with a column more."""
    if x.attention is not AttentionMemory.EAGER:
        return 0.0
    return x.T * (4 if x.shape.sinks else 2) * x.shape.A * x.s


def recomputed_input_norm(x: Symbols) -> float:
    """The first thing that the recomputation of a checkpointed layer makes: fp32 input, its square, bf16 results."""
    return 26.0 * x.T * x.shape.H


def working_set(x: Symbols) -> float:
    """The larger of the moments of one layer's backward."""
    moments = (mlp_backward(x), attention_backward(x), probabilities_backward(x))
    return max(*moments, x.T * saved_per_token(x) + dora_norm(x))
