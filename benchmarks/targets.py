"""The `lora_targets` column: from the words people write to module names of the model."""

from __future__ import annotations

import re

from recipegen.estimate.parameters import adapter_modules, dense_layers, linear_modules
from recipegen.spec import ModelSpec

_WORDS = {
    "q": ("q_proj",),
    "k": ("k_proj",),
    "v": ("v_proj",),
    "o": ("o_proj",),
    "proj": ("o_proj",),  # litgpt's name of the attention's output
    "gate": ("gate_proj",),
    "up": ("up_proj",),
    "down": ("down_proj",),
    "mlp": ("gate_proj", "up_proj", "down_proj"),
    "head": ("lm_head",),
    # the first Qwen: one matrix for queries, keys and values; `c_proj` ends the attention and the MLP
    "c_attn": ("q_proj", "k_proj", "v_proj"),
    "c_proj": ("o_proj", "down_proj"),
    "w1": ("gate_proj",),
    "w2": ("up_proj",),
    # other architectures' names of the same matrices
    "wqkv": ("q_proj", "k_proj", "v_proj"),
    "query_key_value": ("q_proj", "k_proj", "v_proj"),
    "qkv_proj": ("q_proj", "k_proj", "v_proj"),
    "wq": ("q_proj",),
    "wk": ("k_proj",),
    "wv": ("v_proj",),
    "wo": ("o_proj",),
    "dense": ("o_proj",),
    "out_proj": ("o_proj",),
    "gate_up_proj": ("gate_proj", "up_proj"),
    "dense_h_to_4h": ("up_proj",),
    "dense_4h_to_h": ("down_proj",),
    "fc1": ("up_proj",),
    "fc2": ("down_proj",),
    # groups of them
    "qkv": ("q_proj", "k_proj", "v_proj"),
    "qkvo": ("q_proj", "k_proj", "v_proj", "o_proj"),
    "attn": ("q_proj", "k_proj", "v_proj", "o_proj"),
    "attention": ("q_proj", "k_proj", "v_proj", "o_proj"),
}
#: Llama's own names, where w2 is the last of the three (the first Qwen's is the second)
_LLAMA_MLP = {"w1": ("gate_proj",), "w2": ("down_proj",), "w3": ("up_proj",)}
_EXPERTS = re.compile(r"\bexperts(\.\w+)?\b")
_ALL_EXPERTS = re.compile(r"\bexperts\b(?!\.)")
_ALL = re.compile(r"(?:all|every)[-_ ]linear|\*_proj|^\s*(?:all|linear)(?:[-_ ](?:modules|layers))?\s*$", re.IGNORECASE)


def adapted_expert_parameters(model: ModelSpec, text: str, r: int) -> int:
    """Adapter parameters on fused expert matrices: r rows and columns for every expert (peft target_parameters)."""
    moe = model.moe
    if moe is None:
        return 0
    H, F = model.hidden_size, moe.intermediate_size
    whole = bool(_ALL_EXPERTS.search(text))
    up = H + 2 * F if whole or "experts.gate_up_proj" in text else 0
    down = F + H if whole or "experts.down_proj" in text else 0
    return r * (up + down) * moe.num_experts * (model.num_hidden_layers - dense_layers(model))


def trained_whole(model: ModelSpec, text: str) -> int:
    """Parameters of embeddings and head that are trained whole beside the adapter; peft trains copies of them."""
    if "fully trained" not in text:
        return 0
    named = ("embed_tokens" in text) + ("lm_head" in text and not model.tie_word_embeddings)
    return named * model.vocab_size * model.hidden_size


def targets_of(model: ModelSpec, text: str, default: str) -> tuple[str, ...] | str:
    """Module names for a text of targets, or why they cannot be named.

    `default`: what the framework adapts when the text says DEFAULT.
    """
    linear = tuple(linear_modules(model))
    words = _EXPERTS.sub("", re.sub(r"\(.*?\)", "", text)).strip()
    if _ALL.search(text):
        return linear
    if words.lower() == "default":
        if not default:
            return "the framework's default targets are not in the table"
        words = default
    known = adapter_modules(model)
    named: dict[str, None] = {}
    found = [word for word in re.split(r"[^\w.]+", words) if word]
    names = _WORDS | (_LLAMA_MLP if "w3" in found else {})
    for word in found:
        last = word.rpartition(".")[2]
        modules = (last,) if last in known else names.get(last.lower(), (last,))
        for module in modules:
            module = _fused(module, known)
            if module in known:
                named[module] = None
    if not named:
        return f"targets {text!r} name no module of {model.id}"
    return tuple(named)


def _fused(module: str, known: tuple[str, ...]) -> str:
    """The fused module that a model has in place of `module`."""
    if module in ("q_proj", "k_proj", "v_proj") and "qkv_proj" in known:
        return "qkv_proj"
    if module in ("gate_proj", "up_proj") and "gate_up_proj" in known:
        return "gate_up_proj"
    if module == "gate_proj" and module not in known:
        return "up_proj"
    return module
