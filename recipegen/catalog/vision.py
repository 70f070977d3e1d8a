"""The part of a multimodal model that is not its text decoder: vision tower and projector.

It is loaded, takes memory and is quantised like the rest, though a text fine-tune does not train it. Shapes follow
transformers 5.16.1: models/{siglip,pixtral,gemma3,mistral3}/modeling_*.py; asserted on the real classes in the tests.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from recipegen.spec import LinearGroup, RecipegenError


@dataclass(frozen=True)
class Tower:
    """All parameters outside the text decoder, and which of them are linear modules."""

    parameters: int
    linear: tuple[LinearGroup, ...]


def tower(config: Mapping[str, Any], multimodal: Mapping[str, Any], text_hidden: int, where: str) -> Tower:
    """Vision tower and projector of a multimodal config. `text_hidden` is the decoder's hidden size."""
    from recipegen.catalog.model_config import architecture_facts

    facts = architecture_facts()
    section = config.get("vision_config")
    if not isinstance(section, dict):
        raise RecipegenError("vision_config is missing or not a mapping", where=where)
    kind = section.get("model_type", multimodal["default_vision"])
    defaults = facts["vision"].get(kind) if isinstance(kind, str) else None
    if defaults is None:
        raise RecipegenError(
            f"vision tower {kind!r} is not known", where=where, fix=f"Known: {', '.join(facts['vision'])}."
        )

    def size(key: str) -> int:
        value = section.get(key)
        value = defaults[key] if value is None else value
        if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= facts["limits"]["vision"]:
            raise RecipegenError(f"vision_config.{key} is not a whole number in range", where=where)
        return value

    if kind == "siglip_vision_model":
        if section.get("vision_use_head", defaults["vision_use_head"]) is not False:
            raise RecipegenError("a SigLIP tower with a pooling head is not known", where=where)
        own, linear = _siglip(size)
    else:
        own, linear = _pixtral(size)
    hidden = size("hidden_size")
    if multimodal["projector"] == "gemma3":
        own += hidden * text_hidden + hidden  # a bare matrix (not a linear module) and the soft-token norm
    else:
        own += hidden  # the norm before the patch merger
        linear = (*linear, *_mistral3_projector(config, hidden, text_hidden, where))
    return Tower(own + sum(_parameters(group) for group in linear), linear)


def _parameters(group: LinearGroup) -> int:
    return group.count * (group.in_features * group.out_features + (group.out_features if group.bias else 0))


def _siglip(size: Any) -> tuple[int, tuple[LinearGroup, ...]]:
    hidden, mlp, layers = size("hidden_size"), size("intermediate_size"), size("num_hidden_layers")
    patch = size("patch_size")
    positions = (size("image_size") // patch) ** 2
    linear = (
        *(LinearGroup(name, hidden, hidden, True, layers) for name in ("q_proj", "k_proj", "v_proj", "out_proj")),
        LinearGroup("fc1", hidden, mlp, True, layers),
        LinearGroup("fc2", mlp, hidden, True, layers),
    )
    embedding = size("num_channels") * patch * patch * hidden + hidden + positions * hidden
    norms = 2 * hidden * (2 * layers + 1)  # LayerNorm: weight and bias; two a layer and one at the end
    return embedding + norms, linear


def _pixtral(size: Any) -> tuple[int, tuple[LinearGroup, ...]]:
    hidden, mlp, layers = size("hidden_size"), size("intermediate_size"), size("num_hidden_layers")
    patch = size("patch_size")
    linear = (
        *(LinearGroup(name, hidden, hidden, False, layers) for name in ("q_proj", "k_proj", "v_proj", "o_proj")),
        LinearGroup("gate_proj", hidden, mlp, False, layers),
        LinearGroup("up_proj", hidden, mlp, False, layers),
        LinearGroup("down_proj", mlp, hidden, False, layers),
    )
    embedding = size("num_channels") * patch * patch * hidden
    norms = hidden * (2 * layers + 1)  # RMSNorm: two a layer and one before the first
    return embedding + norms, linear


def _mistral3_projector(
    config: Mapping[str, Any], hidden: int, text_hidden: int, where: str
) -> tuple[LinearGroup, ...]:
    merge = config.get("spatial_merge_size", 2)
    bias = config.get("multimodal_projector_bias", False)
    if not isinstance(merge, int) or isinstance(merge, bool) or not 1 <= merge <= 64 or not isinstance(bias, bool):
        raise RecipegenError("spatial_merge_size or multimodal_projector_bias is out of range", where=where)
    return (
        LinearGroup("merging_layer", hidden * merge * merge, hidden, False, 1),
        LinearGroup("linear_1", hidden, text_hidden, bias, 1),
        LinearGroup("linear_2", text_hidden, text_hidden, bias, 1),
    )
