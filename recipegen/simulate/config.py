"""A ModelSpec as the keys of a transformers configuration: what decides shapes, and nothing else.

The inverse of catalog/model_config.py. A multimodal model gets a vision tower of one tiny layer; the caller replaces it
by one block of as many parameters as the real one has, because a text batch stores the tower and never runs it.
"""

from __future__ import annotations

from typing import Any

from recipegen.catalog.model_config import architecture_facts
from recipegen.spec import ModelSpec, RecipegenError

_TINY = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 1}
_TINY_VISION: dict[str, dict[str, Any]] = {
    "siglip_vision_model": {**_TINY, "image_size": 896, "patch_size": 14, "vision_use_head": False},
    "pixtral": {**_TINY, "image_size": 64, "patch_size": 16, "head_dim": 16},
}
_PROJECTOR_VISION = {"gemma3": "siglip_vision_model", "mistral3": "pixtral"}
_MAY_LACK_A_WINDOW = ("mistral", "mixtral")  # null in their configurations means full attention
_SOFTCAP = 30.0  # any number switches the operation on


def config_values(model: ModelSpec) -> dict[str, Any]:
    """Keys of the configuration class of `model.model_type`, nested `text_config` and `vision_config` included."""
    if not model.is_multimodal:
        return _text(model, model.model_type)
    vision = _PROJECTOR_VISION.get(model.model_type)
    if vision is None:
        raise RecipegenError(f"{model.model_type} is multimodal in a way that the simulation does not know")
    text_type = _text_type(model)
    return {
        "tie_word_embeddings": model.tie_word_embeddings,
        "text_config": {"model_type": text_type, **_text(model, text_type)},
        "vision_config": {"model_type": vision, **_TINY_VISION[vision]},
    }


def _text_type(model: ModelSpec) -> str:
    """The text part's model_type: the architecture whose decoder layer the model has."""
    rows = architecture_facts()["architectures"]
    found: list[str] = [name for name, row in rows.items() if row["layer_class"] == model.layer_class]
    if not found:
        raise RecipegenError(f"no known architecture has {model.layer_class}")
    return found[0]


def _text(model: ModelSpec, model_type: str) -> dict[str, Any]:
    values: dict[str, Any] = {
        "vocab_size": model.vocab_size,
        "hidden_size": model.hidden_size,
        "intermediate_size": model.intermediate_size,
        "num_hidden_layers": model.num_hidden_layers,
        "num_attention_heads": model.num_attention_heads,
        "num_key_value_heads": model.num_key_value_heads,
        "head_dim": model.head_dim,
        "max_position_embeddings": model.max_position_embeddings,
        "tie_word_embeddings": model.tie_word_embeddings,
        "pad_token_id": 0,  # some classes' default lies outside a small vocabulary
        "use_cache": False,
    }
    row = architecture_facts()["architectures"][model_type]
    if model.sliding_window is not None or model_type in _MAY_LACK_A_WINDOW:
        values["sliding_window"] = model.sliding_window
    for key in ("qkv_bias", "o_bias", "mlp_bias"):
        if isinstance(row.get(key), str):
            values[row[key]] = getattr(model, key)
    if isinstance(row.get("window_switch"), str):
        values[row["window_switch"]] = model.sliding_window is not None
    if "final_logit_softcapping" in row["defaults"]:
        values["final_logit_softcapping"] = _SOFTCAP if model.logit_softcap else None
    if model.moe is not None:
        keys = row["moe"]
        values[keys["num_experts"]] = model.moe.num_experts
        values[keys["experts_per_token"]] = model.moe.experts_per_token
        values[keys["intermediate_size"]] = model.moe.intermediate_size
        if model_type == "qwen3_moe":
            values |= {"decoder_sparse_step": 1, "mlp_only_layers": list(range(model.moe.first_dense_layers))}
    return values
