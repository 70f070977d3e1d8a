"""Exact parameter counts of a ModelSpec: layers, embeddings, adapters, and what bitsandbytes quantises.

Shapes follow the modules of transformers 5.16.1 (models/<model_type>/modeling_*.py) and the adapters of peft 0.20.0;
tests/estimate/test_parameters_stack.py builds the real classes and compares the integers.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from recipegen.estimate.patterns import module_pattern
from recipegen.spec import QkNorm

if TYPE_CHECKING:
    from recipegen.spec import ModelSpec

Linear = tuple[int, int, bool]
"""A linear module: input features, output features, has a bias."""

_EMBEDDING, _HEAD = "embed_tokens", "lm_head"


# --- modules


def linear_modules(model: ModelSpec) -> dict[str, Linear]:
    """The linear modules of one decoder layer, by the names that adapters target.

    Of an MoE layer only attention: its experts are fused tensors and its router a bare parameter (`expert_tensors`).
    """
    modules = _attention(model)
    return modules if model.is_moe else {**modules, **_mlp(model)}


def _attention(model: ModelSpec) -> dict[str, Linear]:
    hidden, q, kv = model.hidden_size, model.q_size, model.kv_size
    output: dict[str, Linear] = {"o_proj": (q, hidden, model.o_bias)}
    if model.fused_qkv:
        return {"qkv_proj": (hidden, q + 2 * kv, model.qkv_bias), **output}
    return {
        "q_proj": (hidden, q, model.qkv_bias),
        "k_proj": (hidden, kv, model.qkv_bias),
        "v_proj": (hidden, kv, model.qkv_bias),
        **output,
    }


def _mlp(model: ModelSpec) -> dict[str, Linear]:
    hidden, width, bias = model.hidden_size, model.intermediate_size, model.mlp_bias
    down: dict[str, Linear] = {"down_proj": (width, hidden, bias)}
    if model.fused_gate_up:
        return {"gate_up_proj": (hidden, 2 * width, bias), **down}
    if not model.gated_mlp:
        return {"up_proj": (hidden, width, bias), **down}
    return {"gate_proj": (hidden, width, bias), "up_proj": (hidden, width, bias), **down}


def expert_tensors(model: ModelSpec) -> dict[str, tuple[int, ...]]:
    """The bare parameters of one MoE layer, by name, as shapes in elements: experts, router and shared experts.

    {} for a dense model. Order of axes: experts, output features, input features.
    """
    moe = model.moe
    if moe is None:
        return {}
    experts, width, hidden = moe.num_experts, moe.intermediate_size, model.hidden_size
    tensors: dict[str, tuple[int, ...]] = {
        "router.weight": (experts, hidden),
        "experts.gate_up_proj": (experts, 2 * width, hidden),
        "experts.down_proj": (experts, hidden, width),
    }
    if moe.router_bias:
        tensors["router.bias"] = (experts,)
    if moe.expert_bias:
        tensors["experts.gate_up_proj_bias"] = (experts, 2 * width)
        tensors["experts.down_proj_bias"] = (experts, hidden)
    if moe.shared_intermediate_size:
        tensors["shared_expert"] = (3, moe.shared_intermediate_size, hidden)
    if moe.shared_gate:
        tensors["shared_expert_gate"] = (1, hidden)
    return tensors


def dense_layers(model: ModelSpec) -> int:
    """How many decoder layers have a dense MLP: all of a dense model, the first few of some MoE models."""
    return model.num_hidden_layers if model.moe is None else model.moe.first_dense_layers


# --- counts


def linear_parameters(linear: Linear) -> int:
    """Weight and bias of one linear module."""
    features_in, features_out, bias = linear
    return features_in * features_out + (features_out if bias else 0)


def norm(model: ModelSpec) -> int:
    """Parameters of one norm over the hidden size."""
    return model.hidden_size * (2 if model.norm_bias else 1)


def per_layer(model: ModelSpec) -> int:
    """Parameters of one decoder layer: an MoE layer where the model has both kinds."""
    return _layer(model, dense=model.moe is None)


def _layer(model: ModelSpec, dense: bool) -> int:
    attention = sum(map(linear_parameters, _attention(model).values()))
    if dense:
        feed_forward = sum(map(linear_parameters, _mlp(model).values()))
    else:
        feed_forward = sum(map(math.prod, expert_tensors(model).values()))
    sinks = model.num_attention_heads if model.attention_sinks else 0
    return attention + feed_forward + sinks + _qk_norm(model) + model.norms_per_layer * norm(model)


def _qk_norm(model: ModelSpec) -> int:
    if model.qk_norm is QkNorm.PER_HEAD:
        return 2 * model.head_dim
    if model.qk_norm is QkNorm.FULL:
        return model.q_size + model.kv_size
    return 0


def embedding(model: ModelSpec) -> int:
    """The token embedding, V x H."""
    return model.vocab_size * model.hidden_size


def head(model: ModelSpec) -> int:
    """The output projection; 0 when it is the embedding itself."""
    if model.tie_word_embeddings:
        return 0
    return embedding(model) + (model.vocab_size if model.head_bias else 0)


def root(model: ModelSpec) -> int:
    """Parameters outside the decoder layers: embedding, head and final norm (the FSDP root group)."""
    return embedding(model) + head(model) + norm(model)


def layers(model: ModelSpec) -> int:
    """Parameters of all decoder layers."""
    dense = dense_layers(model)
    return dense * _layer(model, dense=True) + (model.num_hidden_layers - dense) * _layer(model, dense=False)


def text(model: ModelSpec) -> int:
    """Parameters of the text model alone."""
    return layers(model) + root(model)


def total(model: ModelSpec) -> int:
    """All parameters of the class that the trainer loads (with the vision tower of a multimodal model)."""
    return text(model) + model.extra_parameters


def active_parameters(model: ModelSpec) -> int:
    """Parameters that multiply one token: the N of 6 N FLOPs. Of the experts the chosen ones, and no table look-up.

    The text model only. A tied embedding counts once, as the head; published "active" counts of some MoE models
    include the look-up table.
    """
    lookup = 0 if model.tie_word_embeddings else embedding(model)
    return text(model) - lookup - _inactive(model)


def _inactive(model: ModelSpec) -> int:
    moe = model.moe
    if moe is None:
        return 0
    one_expert = sum(
        math.prod(shape) // moe.num_experts
        for name, shape in expert_tensors(model).items()
        if name.startswith("experts.")
    )
    idle = moe.num_experts - moe.experts_per_token
    return (model.num_hidden_layers - dense_layers(model)) * idle * one_expert


def disagreement(model: ModelSpec) -> str | None:
    """Why the published count is not the count of the shape, in one line; None when they agree.

    A tied head that is saved twice is no disagreement, nor are the rotary buffers of old Llama checkpoints.
    """
    published, counted = model.num_parameters, total(model)
    rotary_buffers = model.num_hidden_layers * model.head_dim // 2
    saved_twice = embedding(model) if model.tie_word_embeddings else 0
    if not published or published - counted in (0, rotary_buffers, saved_twice):
        return None
    return f"the weight files hold {published} parameters, the shape in config.json gives {counted}"


# --- adapters


def default_targets(model: ModelSpec) -> tuple[str, ...]:
    """What LoRA adapts unless told otherwise: every linear module of a dense model, attention alone of an MoE model.

    Never `all-linear`: that reaches experts and router. A multimodal model gets one pattern (see `is_pattern`),
    because its vision tower has modules of the same names, which a text fine-tune must not train.
    """
    names = tuple(linear_modules(model))
    if not model.is_multimodal:
        return names
    pattern = f"{re.escape(model.layers_path)}\\.\\d+\\.(self_attn|mlp)\\.({'|'.join(names)})"
    return (pattern,)


def is_pattern(targets: Sequence[str]) -> bool:
    """A single entry with regular-expression characters: peft matches it against whole module paths.

    It must be written as a string; peft reads the items of a list as plain names.
    """
    return len(targets) == 1 and re.fullmatch(r"[\w.]+", targets[0]) is None


def target_modules_value(targets: Sequence[str]) -> str | list[str]:
    """`lora_target_modules` as a trainer's file must state it: the pattern as a string, names as a list."""
    return targets[0] if is_pattern(targets) else list(targets)


def adapter_modules(model: ModelSpec) -> tuple[str, ...]:
    """Every module name that peft can adapt in this model, experts and router of an MoE model included."""
    names = list(linear_modules(model))
    if dense_layers(model):
        names += [name for name in _mlp(model) if name not in names]
    if model.moe is not None:
        names += [name for _, name in model.moe.adapter_names if name not in names]
    names += [group.name for group in model.extra_linear if group.name not in names]
    return (*names, _EMBEDDING, _HEAD)


def unknown_targets(model: ModelSpec, targets: Sequence[str]) -> tuple[str, ...]:
    """The targets that name no module of the model."""
    if is_pattern(targets):
        return () if lora(model, targets, 1) else tuple(targets)
    known = adapter_modules(model)
    return tuple(t for t in targets if t.rpartition(".")[2] not in known)


def lora(model: ModelSpec, targets: Sequence[str], r: int) -> int:
    """Trainable parameters of a LoRA of rank `r` on `targets`, as peft builds it: r (in + out) per module.

    Experts are fused, so peft gives each an own pair, and joins gate and up with rank 2 r.
    """
    count = model.num_hidden_layers * _adapted(_attention_paths(model), targets, r)
    dense = dense_layers(model)
    count += dense * _adapted(_mlp_paths(model), targets, r)
    count += (model.num_hidden_layers - dense) * _adapted_experts(model, targets, r)
    outside = [(g.name, g.in_features, g.out_features, g.count) for g in model.extra_linear]
    if not is_pattern(targets):
        count += sum(n * r * (i + o) for name, i, o, n in outside if _matches(name, targets))
    for name in (_EMBEDDING, _HEAD):
        if not is_pattern(targets) and _matches(name, targets):
            count += r * (model.hidden_size + model.vocab_size)
    return count


def lora_per_layer(model: ModelSpec, targets: Sequence[str], r: int) -> int:
    """LoRA parameters of one decoder layer (an MoE layer where the model has both kinds)."""
    count = _adapted(_attention_paths(model), targets, r)
    if model.moe is None:
        return count + _adapted(_mlp_paths(model), targets, r)
    return count + _adapted_experts(model, targets, r)


def _attention_paths(model: ModelSpec) -> Iterator[tuple[str, Linear]]:
    return ((f"{model.layers_path}.0.self_attn.{name}", linear) for name, linear in _attention(model).items())


def _mlp_paths(model: ModelSpec) -> Iterator[tuple[str, Linear]]:
    return ((f"{model.layers_path}.0.mlp.{name}", linear) for name, linear in _mlp(model).items())


def _matches(path: str, targets: Sequence[str]) -> bool:
    """peft's rule: a pattern must match the whole path, a name its end (peft 0.20.0 check_target_module_exists)."""
    if is_pattern(targets):
        return module_pattern(targets[0]).fullmatch(path) is not None
    return any(path == target or path.endswith(f".{target}") for target in targets)


def adapted_modules(model: ModelSpec, targets: Sequence[str]) -> dict[str, Linear]:
    """The linear modules of one decoder layer (an MoE layer where there are both kinds) that `targets` adapt."""
    paths = list(_attention_paths(model)) + ([] if model.is_moe else list(_mlp_paths(model)))
    return {path.rpartition(".")[2]: linear for path, linear in paths if _matches(path, targets)}


def adapts_experts(model: ModelSpec, targets: Sequence[str]) -> bool:
    """True when the fused experts of an MoE model carry adapters."""
    return _adapted_experts(model, targets, 1) > 0


def _adapted(modules: Iterator[tuple[str, Linear]], targets: Sequence[str], r: int) -> int:
    return sum(r * (linear[0] + linear[1]) for path, linear in modules if _matches(path, targets))


def _adapted_experts(model: ModelSpec, targets: Sequence[str], r: int) -> int:
    moe = model.moe
    if moe is None or is_pattern(targets):
        return 0
    hit = {part for part, name in moe.adapter_names if name in targets}
    hidden, width, experts = model.hidden_size, moe.intermediate_size, moe.num_experts
    count = 0
    fused = len(hit & {"gate", "up"})
    if fused:
        count += experts * fused * r * (hidden + 2 * width)
    if "down" in hit:
        count += experts * r * (width + hidden)
    if "router" in hit:
        count += r * (hidden + experts)
    return count


def saved_copies(model: ModelSpec, modules: Sequence[str]) -> int:
    """Parameters of the copies that train whole beside an adapter (`modules_to_save`): of the embeddings and the head.

    A tied head is copied on its own (peft 0.20.0 ModulesToSaveWrapper; ensure_weight_tying is not switched on). Other
    names count as nothing: `unsaved_modules` names them.
    """
    names = {name.rpartition(".")[2] for name in modules}
    bias = model.vocab_size if model.head_bias and _HEAD in names else 0
    return len(names & {_EMBEDDING, _HEAD}) * embedding(model) + bias


def unsaved_modules(modules: Sequence[str]) -> tuple[str, ...]:
    """The names of `modules_to_save` whose copies are not counted."""
    return tuple(name for name in modules if name.rpartition(".")[2] not in (_EMBEDDING, _HEAD))


# --- quantisation


def quantised_per_layer(model: ModelSpec, experts: bool = False) -> int:
    """Weights of one decoder layer (an MoE layer where there are both kinds) that become NF4; see below."""
    weights = sum(i * o for i, o, _ in linear_modules(model).values())
    return weights + (_expert_weights(model) if experts else 0)


def quantised_parameters(model: ModelSpec, experts: bool = False) -> int:
    """Weights that `load_in_4bit` turns into NF4: of every linear module except the head. Biases stay as they are.

    The experts of an MoE model are fused parameters, not linear modules, and stay bf16, unless the trainer quantises
    them too (`experts`: Axolotl's quantize_moe_experts, CUDA only). Source: transformers 5.16.1
    integrations/bitsandbytes.py replace_with_bnb_linear; axolotl 0.19.0 monkeypatch/moe_quant.py.
    """
    dense = dense_layers(model)
    attention = sum(i * o for i, o, _ in _attention(model).values())
    mlp = sum(i * o for i, o, _ in _mlp(model).values())
    outside = sum(g.count * g.in_features * g.out_features for g in model.extra_linear)
    count = model.num_hidden_layers * attention + dense * mlp + outside
    if experts:
        count += (model.num_hidden_layers - dense) * _expert_weights(model)
    return count


def _expert_weights(model: ModelSpec) -> int:
    return sum(
        math.prod(shape)
        for name, shape in expert_tensors(model).items()
        if name.startswith("experts.") and len(shape) == 3
    )
