"""Adapter and quantisation counts against real peft and bitsandbytes modules, on the meta device."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from recipegen.catalog import load_model
from recipegen.catalog.model import find
from recipegen.catalog.reading import load_yaml
from recipegen.estimate import parameters
from recipegen.spec import ModelSpec

pytestmark = pytest.mark.stack

RANK = 16
FAMILIES = [
    "Llama-3.2-1B",
    "Llama-3.1-8B",
    "Llama-3.3-70B-Instruct",
    "Qwen2.5-7B-Instruct",
    "Qwen3-14B",
    "Qwen3-30B-A3B",
    "Mistral-Nemo-Instruct-2407",
    "Mistral-Small-3.2-24B-Instruct-2506",
    "Mixtral-8x7B-v0.1",
    "gemma-2-9b-it",
    "gemma-3-4b-it",
    "Phi-4-mini-instruct",
    "gpt-oss-20b",
    "GLM-4-9B-0414",
    "granite-3.3-2b-instruct",
    "OLMo-2-1124-7B",
    "SmolLM3-3B",
]


def config_of(name: str) -> Mapping[str, Any]:
    path = find(name)
    assert path is not None
    config: Mapping[str, Any] = load_yaml(path)["config"]
    return config


def build(config: Mapping[str, Any]) -> Any:
    import torch
    from transformers import AutoModelForCausalLM, AutoModelForImageTextToText
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    loader = AutoModelForImageTextToText if "vision_config" in config else AutoModelForCausalLM
    values = {key: value for key, value in config.items() if key not in ("model_type", "quantization_config")}
    with torch.device("meta"):
        return loader.from_config(
            CONFIG_MAPPING[config["model_type"]](**json.loads(json.dumps(values))), dtype=torch.bfloat16
        )


def trained_by_peft(model: Any, targets: str | list[str], rank: int = RANK) -> int:
    from peft import LoraConfig, get_peft_model

    adapted = get_peft_model(model, LoraConfig(r=rank, lora_alpha=2 * rank, target_modules=targets))
    trainable, _ = adapted.get_nb_trainable_parameters()
    return int(trainable)


def shortened(name: str, layers: int = 2) -> tuple[ModelSpec, Mapping[str, Any]]:
    from recipegen.catalog.model_config import from_config

    config = json.loads(json.dumps(config_of(name)))
    (config.get("text_config") or config)["num_hidden_layers"] = layers
    return from_config(config, name), config


@pytest.mark.parametrize("name", FAMILIES)
def test_the_targets_we_write_train_what_we_say(name: str) -> None:
    spec = load_model(name)
    targets = parameters.default_targets(spec)
    real = trained_by_peft(build(config_of(name)), parameters.target_modules_value(targets))
    assert real == parameters.lora(spec, targets, RANK)
    assert real == spec.num_hidden_layers * parameters.lora_per_layer(spec, targets, RANK)


@pytest.mark.parametrize("targets", [("q_proj", "v_proj"), ("down_proj",), ("o_proj", "lm_head"), ("embed_tokens",)])
@pytest.mark.parametrize("name", ["Llama-3.2-1B", "Qwen2.5-7B-Instruct", "gemma-3-4b-it"])
def test_other_target_lists_train_what_we_say(name: str, targets: tuple[str, ...]) -> None:
    """Plain names reach the vision tower of a multimodal model too, and the count says so."""
    spec, config = shortened(name)
    assert trained_by_peft(build(config), list(targets)) == parameters.lora(spec, targets, RANK)


@pytest.mark.parametrize(
    "targets",
    [
        ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"),
        ("q_proj", "w1", "w2", "w3"),
        ("w2",),
        ("down_proj", "gate"),
        ("q_proj", "gate"),
    ],
)
@pytest.mark.parametrize("name", ["Qwen3-30B-A3B", "Mixtral-8x7B-v0.1", "gpt-oss-20b"])
def test_names_that_reach_experts_train_what_we_say(name: str, targets: tuple[str, ...]) -> None:
    spec, config = shortened(name)
    counted = parameters.lora(spec, targets, RANK)
    if not counted:
        with pytest.raises(ValueError, match="not found"):
            trained_by_peft(build(config), list(targets))
        return
    assert trained_by_peft(build(config), list(targets)) == counted


@pytest.mark.parametrize("name", FAMILIES)
def test_load_in_4bit_quantises_the_weights_that_we_count(name: str) -> None:
    import bitsandbytes
    from transformers import BitsAndBytesConfig
    from transformers.integrations.bitsandbytes import replace_with_bnb_linear
    from transformers.quantizers.base import get_keys_to_not_convert

    spec = load_model(name)
    model = build(config_of(name))
    kept = get_keys_to_not_convert(model)
    quantised = replace_with_bnb_linear(
        model, modules_to_not_convert=kept, quantization_config=BitsAndBytesConfig(load_in_4bit=True)
    )
    found = {
        path: module.in_features * module.out_features
        for path, module in quantised.named_modules()
        if isinstance(module, bitsandbytes.nn.Linear4bit)
    }
    assert sum(found.values()) == parameters.quantised_parameters(spec)
    last = f"{spec.layers_path}.{spec.num_hidden_layers - 1}."
    assert sum(n for path, n in found.items() if path.startswith(last)) == parameters.quantised_per_layer(spec)
    assert {path.rpartition(".")[2] for path in found if path.startswith(last)} == set(parameters.linear_modules(spec))


@pytest.mark.parametrize("name", ["Qwen3-30B-A3B", "Mixtral-8x7B-v0.1", "gpt-oss-20b"])
def test_expert_quantisation_takes_the_three_dimensional_parameters(name: str) -> None:
    """axolotl 0.19.0 monkeypatch/moe_quant.py: parameters of three axes with `expert` in their name."""
    spec, config = shortened(name)
    experts = sum(p.numel() for path, p in build(config).named_parameters() if p.ndim >= 3 and "expert" in path.lower())
    with_experts = parameters.quantised_parameters(spec, experts=True)
    assert with_experts - parameters.quantised_parameters(spec) == experts > 0
    per_layer = parameters.quantised_per_layer(spec, experts=True) - parameters.quantised_per_layer(spec)
    assert per_layer * spec.num_hidden_layers == experts


def test_a_full_fine_tune_trains_everything() -> None:
    spec, config = shortened("Qwen3-14B")
    trainable = sum(p.numel() for p in build(config).parameters() if p.requires_grad)
    assert trainable == parameters.total(spec)
