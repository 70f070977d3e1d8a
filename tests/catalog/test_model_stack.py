"""The catalogue against the classes that trainers load: transformers builds each model on the meta device."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from recipegen.catalog import model_names
from recipegen.catalog.model import find
from recipegen.catalog.model_config import architecture_facts, from_config
from recipegen.catalog.reading import load_yaml
from recipegen.estimate import parameters

pytestmark = pytest.mark.stack

ARCHITECTURES = sorted(architecture_facts()["architectures"])
SMALL = {
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "vocab_size": 1000,
    "max_position_embeddings": 128,
    "num_experts": 5,
    "num_local_experts": 5,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 24,
}


def build(config: Mapping[str, Any]) -> Any:
    """The model that a trainer loads for a config.json, without memory for its weights."""
    import torch
    from transformers import AutoModelForCausalLM, AutoModelForImageTextToText
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    loader = AutoModelForImageTextToText if "vision_config" in config else AutoModelForCausalLM
    values = {key: value for key, value in config.items() if key not in ("model_type", "quantization_config")}
    with torch.device("meta"):
        return loader.from_config(
            CONFIG_MAPPING[config["model_type"]](**json.loads(json.dumps(values))), dtype=torch.bfloat16
        )


def shapes() -> dict[str, tuple[list[str], dict[str, Any], int]]:
    """Catalogue models by distinct shape: their names, one config, the count they state."""
    found: dict[str, tuple[list[str], dict[str, Any], int]] = {}
    for name in model_names():
        path = find(name)
        assert path is not None
        facts = load_yaml(path)
        shape = {k: v for k, v in facts["config"].items() if k not in ("max_position_embeddings", "sliding_window")}
        names = found.setdefault(
            json.dumps(shape, sort_keys=True), ([], dict(facts["config"]), facts["num_parameters"])
        )[0]
        names.append(name)
    return found


@pytest.mark.parametrize("entry", shapes().values(), ids=lambda entry: entry[0][0].partition("/")[2])
def test_the_real_class_has_the_number_of_parameters_that_we_state(
    entry: tuple[list[str], dict[str, Any], int],
) -> None:
    names, config, stated = entry
    spec = from_config(config, names[0])
    model = build(config)
    assert sum(p.numel() for p in model.parameters()) == stated == parameters.total(spec)
    layers = model.get_submodule(spec.layers_path)
    assert len(layers) == spec.num_hidden_layers
    assert type(layers[0]).__name__ == spec.layer_class
    assert sum(p.numel() for p in layers[-1].parameters()) == parameters.per_layer(spec)


@pytest.mark.parametrize("model_type", ARCHITECTURES)
def test_missing_keys_mean_what_the_class_makes_of_them(model_type: str) -> None:
    """An empty config.json of an architecture: our defaults are the class's own."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    defaults = CONFIG_MAPPING[model_type]()
    spec = from_config(
        {
            "model_type": model_type,
            "hidden_size": defaults.hidden_size,
            "intermediate_size": defaults.intermediate_size,
            "num_hidden_layers": 2,
        },
        model_type,
    )
    model = build({"model_type": model_type, "num_hidden_layers": 2})
    assert sum(p.numel() for p in model.parameters()) == parameters.total(spec)
    assert spec.tie_word_embeddings == defaults.tie_word_embeddings
    assert spec.max_position_embeddings == defaults.max_position_embeddings
    assert spec.num_attention_heads == defaults.num_attention_heads
    assert spec.sliding_window == defaults.to_dict().get("sliding_window")


@pytest.mark.parametrize("biases", [False, True])
@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("model_type", ARCHITECTURES)
def test_every_switch_of_an_architecture_changes_the_count_as_in_the_class(
    model_type: str, tied: bool, biases: bool
) -> None:
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    known = CONFIG_MAPPING[model_type]().to_dict()
    config = {"model_type": model_type, "tie_word_embeddings": tied}
    config |= {key: value for key, value in SMALL.items() if key in known or key == "head_dim"}
    config |= {key: value for key, value in SMALL.items() if key == "num_experts" and model_type == "qwen3_moe"}
    config |= {key: biases for key in ("attention_bias", "mlp_bias") if key in known}
    config["pad_token_id"] = 0
    spec = from_config(config, model_type)
    model = build(config)
    assert sum(p.numel() for p in model.parameters()) == parameters.total(spec)
    layer = model.get_submodule(spec.layers_path)[0]
    assert type(layer).__name__ == spec.layer_class
    assert sum(p.numel() for p in layer.parameters()) == parameters.per_layer(spec)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("model_type", ["gemma3", "mistral3"])
def test_a_multimodal_config_counts_its_tower_and_reads_the_outer_tie(model_type: str, tied: bool) -> None:
    text = {**SMALL, "num_hidden_layers": 2}
    vision = {"hidden_size": 32, "intermediate_size": 72, "num_hidden_layers": 2, "num_attention_heads": 4}
    vision |= {"image_size": 56, "patch_size": 14}
    if model_type == "gemma3":
        text["model_type"], vision["model_type"] = "gemma3_text", "siglip_vision_model"
        vision["vision_use_head"] = False
    config: dict[str, Any] = {"model_type": model_type, "text_config": text, "vision_config": vision}
    if model_type == "gemma3":
        config["mm_tokens_per_image"] = 4
    config["tie_word_embeddings"] = tied
    spec = from_config(config, model_type)
    model = build(config)
    assert sum(p.numel() for p in model.parameters()) == parameters.total(spec)
    assert len(model.get_submodule(spec.layers_path)) == 2
