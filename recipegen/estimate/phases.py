"""The moments of a training step, each a sum of named terms. The peak is the maximum over them, never a sum of maxima.

load                    the weights arrive
forward                 residuals of all layers, and under FSDP2 three gathered layers (the previous one is kept)
loss_forward            everything saved, the logits, the loss
loss_backward           as before, with the loss's backward: the peak of nearly every adapter run
layer_backward_first    the last decoder layer: all activations are there, few gradients
layer_backward_last     the first decoder layer: few activations, nearly all gradients
root_reduce_scatter     FSDP2: embeddings and head form one group, reduced at the very end
embedding_backward      without FSDP2: the gradient of the embeddings meets that of the head
tied_embedding          one matrix is both: two gradients and their sum
optimizer_step          gradients and the optimizer's temporaries
eval, save              without gradients; the state dict
"""

from __future__ import annotations

from dataclasses import replace

from recipegen.catalog.planning import planning
from recipegen.estimate.activations import (
    attention_backward,
    attention_mask,
    boundary_bytes,
    dora_norm,
    final_hidden,
    mlp_backward,
    probabilities_backward,
    probabilities_forward,
    recomputed_input_norm,
    rotary_tables,
    saved,
    saved_per_token,
    working_set,
)
from recipegen.estimate.lasting import (
    gradient_bytes,
    lasting,
    parameter_bytes,
    stored_parameter_bytes,
    trainable_on_gpu,
)
from recipegen.estimate.loss import evaluation_bytes, loss_bytes, saved_for_backward
from recipegen.estimate.symbols import Symbols
from recipegen.spec import Dtype, Phase, Term

_FSDP2 = "FSDP2: torch 2.13 distributed/fsdp/_fully_shard"
_SIMULATED = "tests/corpus/simulated-peaks.csv"
_DEEPSPEED = "DeepSpeed 0.18.9 runtime/zero"
#: where each term's formula comes from
BASIS = {
    "parameters": "N x stored dtype / shard degree",
    "quantisation_constants": "bitsandbytes Linear4bit: 1/64 + 4/16384 B per parameter, not sharded",
    "adapters": "LoRA parameters x dtype / shard degree",
    "master_weights": f"{_DEEPSPEED}: a separate fp32 copy",
    "optimizer_states": "moments and compensation per trainable parameter",
    "ddp_buckets": "torch DistributedDataParallel, gradient_as_bucket_view off",
    "gradients": "gradient dtype x trainable parameters / shard degree",
    "unsharded_gradients": f"{_FSDP2}: no_sync accumulates whole gradients on every GPU",
    "reduced_shards": f"{_FSDP2}: hybrid shard keeps the all-reduce inputs until backward ends",
    "root_group": f"{_FSDP2}: embeddings, head and final norm stay gathered",
    "gathered_layers": f"{_FSDP2}: the current layer and the one prefetched",
    "reduce_scatter": f"{_FSDP2}: the reduce-scatter's input",
    "gathered_parameters": f"{_DEEPSPEED}: max_live_parameters, prefetch",
    "reduce_buckets": f"{_DEEPSPEED}: reduce_bucket_size",
    "saved_activations": _SIMULATED,
    "attention_mask": _SIMULATED,
    "logits_and_loss": _SIMULATED,
    "layer_working_set": _SIMULATED,
    "weight_casts": "torch autocast keeps bf16 copies of fp32 weights",
    "head_gradient": "V x H in compute dtype",
    "embedding_gradients": "V x H, once for the embeddings, once for the head, once for their sum",
    "optimizer_temporaries": "catalog/stacks: foreach implementations",
    "largest_tensor": "one tensor in transit",
    "unsharded_model": "axolotl 0.19.0 loaders/model.py: QLoRA under FSDP loads whole on every GPU",
}


def _phase(name: str, *parts: dict[str, float]) -> Phase:
    """Terms of several groups under one name; zeros are left out, bytes are whole."""
    sums: dict[str, float] = {}
    for part in parts:
        for term, value in part.items():
            sums[term] = sums.get(term, 0.0) + value
    return Phase(name, tuple(Term(t, name, round(v), BASIS[t]) for t, v in sums.items() if v >= 0.5))


# --- terms that change during a step


def _gradients(x: Symbols, layers_done: float) -> dict[str, float]:
    """Gradients alive when backward has passed `layers_done` of L layers of the last micro-batch."""
    if x.optimizer_in_backward:
        return {}
    whole = gradient_bytes(x)
    done = layers_done / x.shape.L
    layer_share = x.n_l * x.shape.L / x.n_t if x.n_t else 0.0  # the root's gradients come at the end
    # FSDP2 sends each shard to the host as it comes; FSDP1 keeps them until backward ends (_accumulate_sharded_grad)
    leaves = x.state_offload != "none" and not (x.fsdp and x.fsdp_version == 1)
    own = x.n_t if x.deepspeed and x.deepspeed.stage == 1 else trainable_on_gpu(x)  # ZeRO-1 splits the states alone
    now = 0.0 if leaves else x.g * own * min(layer_share, 1.0) * done
    if x.zero3:
        return {"gradients": whole}  # the partition is there from start to end
    if x.zero2:  # a later micro-batch's partition is added to the sum when its backward ends
        return {"gradients": now + (whole if x.accumulation > 1 else 0.0)}
    if x.accumulation == 1:
        kept = x.d * trainable_on_gpu(x) * layer_share * done if x.hybrid and x.d != x.g else 0.0
        return {"gradients": now, "reduced_shards": kept}
    if x.unsharded_accumulation:
        return {"gradients": now, "unsharded_gradients": x.d * (x.n_t - x.n_l * layers_done)}
    kept = x.d * trainable_on_gpu(x) * layer_share * done if x.hybrid else 0.0
    return {"gradients": max(whole, now), "reduced_shards": kept}


def root_group(x: Symbols, *, backward: bool = False) -> float:
    """Embeddings, head and final norm in one group, gathered from forward to the end of backward. Where embeddings and
    head are groups of their own, the head alone stays, until its backward is done."""
    a = x.shape
    if not x.split_root:
        return x.c * a.P_r / x.tp
    return 0.0 if backward else x.c * a.V * a.H


def _gathered(x: Symbols, *, layers: int, layers_left: float, backward: bool = False) -> dict[str, float]:
    """Weights that are whole on this GPU for a while: the root group and `layers` decoder layers."""
    if x.fsdp:
        root = {"root_group": root_group(x, backward=backward)}
        if not x.reshard_after_forward:
            return root | {"gathered_layers": x.layer_bytes * layers_left}
        return root | {"gathered_layers": x.layer_bytes * layers}
    if x.zero3 and x.deepspeed:
        most = x.shape.P_l + x.deepspeed.prefetch_bucket_size + x.shape.V * x.shape.H
        return {"gathered_parameters": x.c * min(x.shape.N, max(planning().zero3_live_parameters, most))}
    return {}


def _buckets(x: Symbols) -> dict[str, float]:
    """DeepSpeed's flat buffers, in the dtype of the reduction: ZeRO-2's during backward, ZeRO-3's from start to end."""
    if x.deepspeed is None:
        return {}
    pieces = planning().zero_overlap_buckets if x.zero2 else 1
    return {
        "reduce_buckets": x.d * x.deepspeed.reduce_bucket_size * pieces
    }  # allocated whole, however little is trained


def _between(x: Symbols) -> dict[str, float]:
    """Gradients and buckets that are there while no backward runs."""
    return _gradients(x, 0) | (_buckets(x) if x.zero3 else {})


def _casts(x: Symbols, *, whole: bool) -> float:
    """bf16 copies of fp32 weights that autocast keeps: of all linears, or of the head alone."""
    a = x.shape
    if not x.autocast:
        return 0.0
    if x.fp32_parameters and whole:
        return x.c * (a.N if a.tied else a.N - a.V * a.H)
    return x.c * a.V * a.H if x.fp32_parameters or x.head_fp32 else 0.0


def _kept(x: Symbols, layers: float) -> dict[str, float]:
    """Saved activations of `layers` layers, the final norm and the rotary tables."""
    return {
        "saved_activations": saved(x, layers) + x.T * final_hidden(x) + rotary_tables(x),
        "attention_mask": attention_mask(x),
    }


# --- phases


def _load(x: Symbols) -> Phase:
    a = x.shape
    tensor = {"largest_tensor": x.p * x.largest}
    if x.fsdp and x.quantised:
        constants = lasting(x)["quantisation_constants"]
        return _phase(
            "load", {"unsharded_model": stored_parameter_bytes(x), "quantisation_constants": constants}, tensor
        )
    if x.fsdp:
        return _phase("load", {"parameters": parameter_bytes(x), "root_group": x.p * a.P_r}, tensor)
    constants = lasting(x)["quantisation_constants"]
    return _phase("load", {"parameters": parameter_bytes(x), "quantisation_constants": constants}, tensor)


def _forward(x: Symbols, base: dict[str, float]) -> Phase:
    """The larger of the start, where FSDP2's root group is there twice (its flat buffer and the weights copied out
    of it) beside two layers, and the end with all boundaries and a third layer. Without FSDP2 one layer."""
    gradients = _between(x) if x.zero3 or x.accumulation > 1 else {}
    if x.fsdp and x.fsdp_version == 2 and x.checkpointing and x.reshard_after_forward:
        second = {"root_group": root_group(x)}
        first = {"saved_activations": saved(x, 1), "attention_mask": attention_mask(x)}
        start = _phase("forward", base, gradients, _gathered(x, layers=2, layers_left=x.shape.L), second, first)
    else:
        start = None
    if not x.fsdp or (x.reshard_after_forward and x.adapter_groups):
        in_flight = 0.0
    else:  # a third layer; without resharding the flat buffers of two all-gathers beside the layers
        in_flight = x.layer_bytes * (1 if x.reshard_after_forward or x.adapter_groups else 2)
    end = _phase(
        "forward",
        base,
        gradients,
        _gathered(x, layers=2, layers_left=x.shape.L),
        {"gathered_layers": in_flight},
        {"saved_activations": saved(x, x.shape.L), "attention_mask": attention_mask(x)},
        {"layer_working_set": max(dora_norm(x), probabilities_forward(x))},
        {"layer_working_set": x.T * saved_per_token(x) if x.checkpointing and not x.fsdp else 0.0},
    )
    return max((phase for phase in (start, end) if phase), key=lambda phase: phase.bytes)


def _loss_gathered(x: Symbols, direction: str) -> dict[str, float]:
    """Weights that are gathered while the loss runs. A loss outside the model finds the root group freed after forward;
    it is gathered again when the gradient of the logits arrives."""
    if x.fsdp and x.root_reshards and not x.loss_inside_model:
        return {"root_group": root_group(x)} if x.split_root else {}
    waiting = 0 if x.adapter_groups and direction == "forward" else 1
    return _gathered(x, layers=waiting, layers_left=x.shape.L)


def _loss(x: Symbols, base: dict[str, float], direction: str) -> Phase:
    whole = direction == "forward" or not x.checkpointing
    # forward still holds the all-gather's output of the last layer
    last = (
        {"gathered_layers": x.layer_bytes} if x.fsdp and not x.reshard_after_forward and direction == "forward" else {}
    )
    kept = {"logits_and_loss": loss_bytes(x, direction), "weight_casts": _casts(x, whole=whole)}
    backward = direction == "backward"
    gradients = _gradients(x, 0) | _buckets(x) if backward else _between(x) if x.accumulation > 1 or x.zero3 else {}
    activations = _kept(x, x.shape.L)
    name = f"loss_{direction}"
    during = _phase(name, base, last, gradients, _loss_gathered(x, direction), activations, kept)
    if not backward or not x.root_reshards:
        return during
    # backward begins with the root group gathered again: its flat buffer and the weights copied out of it
    twice = {"root_group": 2 * root_group(x), "logits_and_loss": saved_for_backward(x)}
    return max(during, _phase(name, base, gradients, activations, twice), key=lambda phase: phase.bytes)


def _boundaries_kept(x: Symbols, done: float, left: float) -> float:
    """Checkpointed inputs of the layers that backward has not passed.

    FSDP1 with frozen weights and reentrant checkpoints around its units (Transformers before
    GradientCheckpointingLayer) frees none: its reshard hooks hold the recomputed input of every layer, and with it that
    input's gradient, until backward ends (torch.distributed.fsdp _runtime_utils,
    _register_post_backward_reshard_only_hook).
    """
    if x.fsdp and x.fsdp_version == 1 and not x.full and x.reentrant_around:
        return boundary_bytes(x, x.shape.L + done)
    return boundary_bytes(x, left)


def _layer_moment(x: Symbols) -> tuple[int, float]:
    """Layers gathered beside the current one, and the working set, at the worst moment of a layer's backward.

    FSDP2 gathers the next layer ahead. Where every adapter is a group of its own those come between: the second copy of
    a layer is there when it arrives (its flat buffer) and when the next one's begins to, not inside the MLP.
    """
    if not (x.fsdp and x.reshard_after_forward):
        return 0, working_set(x)
    if not x.adapter_groups:
        return 1, working_set(x)
    start = recomputed_input_norm(x) if x.checkpointing else 0.0
    moments = (
        (1, start),
        (0, x.T * saved_per_token(x) + dora_norm(x)),
        (0, mlp_backward(x)),
        (0, probabilities_backward(x)),
        (1, attention_backward(x)),
    )
    return max(moments, key=lambda moment: moment[0] * x.layer_bytes + moment[1])


def _layer_backward(x: Symbols, base: dict[str, float], name: str, done: float, left: float) -> Phase:
    a = x.shape
    head = (x.c if x.fsdp or x.deepspeed else max(x.g, Dtype.FP32.bytes if x.head_fp32 else 0)) * a.V * a.H
    if x.unsharded_accumulation and x.d == x.c:
        head = 0.0  # added in place to the unsharded gradients
    # the previous layer's gradients are still in the reduce-scatter's input
    scatter = x.d * x.n_l_padded if x.fsdp and done > 0 else 0.0
    if x.split_root:  # the head was reduced by itself
        scatter = scatter or x.d * a.V * a.H
        head = x.g * a.V * a.H / x.S
    ahead, work = _layer_moment(x)
    if x.checkpointing and not x.activation_offload:
        kept = _boundaries_kept(x, done, left)
    else:
        kept = saved(x, left if x.checkpointing else max(left - 1, 0))
    return _phase(
        name,
        base,
        {"head_gradient": head if x.full else 0.0},
        _gradients(x, done),
        _gathered(x, layers=1, layers_left=left, backward=True),
        {"gathered_layers": ahead * x.layer_bytes},
        _buckets(x),
        {"reduce_scatter": scatter, "saved_activations": kept, "attention_mask": attention_mask(x)},
        {"layer_working_set": work},
    )


def _sharded_root(x: Symbols, base: dict[str, float]) -> tuple[Phase, ...]:
    """FSDP2 reduces embeddings, head and final norm at the end: in one group, or the embeddings alone."""
    a = x.shape
    VH, P_r = a.V * a.H, x.trained_root
    gradients = _gradients(x, a.L)
    if x.split_root:
        shard = {"gradients": x.g * VH / x.S}  # the head's
        scatter = {"reduce_scatter": (x.c + x.d + x.d / x.S) * VH}
        return (_phase("root_reduce_scatter", base, gradients, shard, scatter),)
    fresh = (x.d + x.d / x.S + (x.g / x.S if x.d != x.g else 0.0)) * P_r + x.c * VH
    left = {"unsharded_gradients": x.d * P_r} if x.unsharded_accumulation else {}
    gradients = {k: v for k, v in gradients.items() if k != "unsharded_gradients"} | left
    out = [_phase("root_reduce_scatter", base, gradients, {"reduce_scatter": max(x.c * a.P_r + x.d * P_r, fresh)})]
    if a.tied:
        copies = {"embedding_gradients": 3 * x.c * VH, "reduce_scatter": x.d * x.layer}
        if x.unsharded_accumulation:  # the end of a micro-batch that reduces nothing
            gradients = {"unsharded_gradients": x.d * (x.n_t - P_r)}
            copies.pop("reduce_scatter")
        out.append(_phase("tied_embedding", base, gradients, {"root_group": x.c * a.P_r}, copies))
    return tuple(out)


def _root(x: Symbols, base: dict[str, float]) -> tuple[Phase, ...]:
    """The end of backward of a full fine-tune, where embeddings and head come together."""
    a = x.shape
    if not x.full:
        return ()
    if x.fsdp:
        return _sharded_root(x, base)
    width = Dtype.FP32.bytes if x.embeddings_fp32 else max(x.g, x.c)
    name = "tied_embedding" if a.tied else "embedding_backward"
    copies = {"embedding_gradients": (3 if a.tied else 2) * width * a.V * a.H}
    activations = {"saved_activations": x.T * 2.0 * a.H}
    return (_phase(name, base, _gradients(x, a.L), _buckets(x), copies, activations),)


def _optimizer_step(x: Symbols, base: dict[str, float]) -> Phase:
    on_gpu = x.state_offload == "none"
    gradients = {"gradients": gradient_bytes(x)} | (_buckets(x) if x.zero3 else {})
    temporaries = x.f * trainable_on_gpu(x) + (x.f_largest * x.largest / x.S if x.full else 0.0)
    if x.deepspeed and x.m:  # flattened and cast to the master's dtype: all at once, or ZeRO-3 a sub-group at a time
        count = trainable_on_gpu(x)
        temporaries += (x.g + x.m) * (min(count, x.deepspeed.sub_group_size) if x.zero3 else count)
    return _phase("optimizer_step", base, gradients, {"optimizer_temporaries": temporaries if on_gpu else 0.0})


def _evaluation(x: Symbols, base: dict[str, float]) -> Phase:
    # the all-gather's output of the last layer, except where adapters are groups of their own and came after it
    waiting = 0 if x.adapter_groups else 1
    return _phase(
        "eval",
        base,
        _between(x) if x.zero3 else {},
        _gathered(x, layers=waiting, layers_left=x.shape.L),
        {"logits_and_loss": evaluation_bytes(x), "weight_casts": _casts(x, whole=True)},
        {"saved_activations": x.T * final_hidden(x)},
    )


def _save(x: Symbols, base: dict[str, float]) -> Phase:
    tensor = {"largest_tensor": x.p * x.largest} if x.fsdp or x.zero3 else {}
    return _phase("save", base, _between(x) if x.zero3 else {}, tensor)


def phases(x: Symbols) -> tuple[Phase, ...]:
    """Every moment at which a step can peak, in the order of time."""
    if x.sequence_parallel and x.tp > 1:
        x = replace(x, T=-(-x.T // x.tp))  # what a GPU keeps of heads, MLP, vocabulary or rows is its share of each
    base = lasting(x)
    L = x.shape.L
    out = (
        _load(x),
        _forward(x, base),
        _loss(x, base, "forward"),
        _loss(x, base, "backward"),
        # the very first one has no reduce-scatter behind it, the second has one layer's activations less
        max(
            (_layer_backward(x, base, "layer_backward_first", done, L - done) for done in (0, 1)),
            key=lambda phase: phase.bytes,
        ),
        # under FSDP2 the one before the first layer still has a reduce-scatter and a gathered layer ahead
        max(
            (_layer_backward(x, base, "layer_backward_last", L - left, left) for left in ((2,) if x.fsdp else (2, 1))),
            key=lambda phase: phase.bytes,
        ),
        *_root(x, base),
        _optimizer_step(x, base),
        _save(x, base),
    )
    return (*out, _evaluation(x, base)) if x.evaluates else out
