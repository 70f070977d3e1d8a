"""Parameter counts by hand, and laws that hold for every model of the catalogue."""

from __future__ import annotations

from dataclasses import replace

import pytest

from recipegen.catalog import all_models, load_model, model_names
from recipegen.estimate import parameters
from recipegen.spec import ModelSpec

TINY = ModelSpec(
    id="tiny",
    model_type="llama",
    layer_class="LlamaDecoderLayer",
    hidden_size=8,
    intermediate_size=16,
    num_hidden_layers=3,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=2,
    vocab_size=10,
    max_position_embeddings=32,
)


def test_a_layer_by_hand() -> None:
    attention = 8 * 8 + 2 * (8 * 4) + 8 * 8
    mlp = 3 * 8 * 16
    assert parameters.per_layer(TINY) == attention + mlp + 2 * 8
    assert parameters.root(TINY) == 2 * 10 * 8 + 8
    assert parameters.total(TINY) == 3 * parameters.per_layer(TINY) + parameters.root(TINY)
    assert parameters.root(replace(TINY, tie_word_embeddings=True)) == 10 * 8 + 8


def test_lora_by_hand() -> None:
    """r (in + out) per module."""
    assert parameters.lora(TINY, ("q_proj", "v_proj"), 4) == 3 * 4 * ((8 + 8) + (8 + 4))
    assert parameters.lora(TINY, ("lm_head",), 4) == 4 * (8 + 10)
    assert parameters.lora(TINY, (), 4) == 0
    assert parameters.lora(TINY, ("mlp.down_proj",), 1) == 3 * (16 + 8)


@pytest.mark.parametrize(
    ("name", "trainable"),
    [("Llama-3.1-8B", 41_943_040), ("Qwen3-30B-A3B", 13_369_344), ("gemma-3-12b-it", 65_470_464)],
)
def test_default_adapters_of_rank_16(name: str, trainable: int) -> None:
    spec = load_model(name)
    assert parameters.lora(spec, parameters.default_targets(spec), 16) == trainable


def test_default_targets_are_an_explicit_list() -> None:
    assert parameters.default_targets(load_model("Llama-3.1-8B")) == (
        "q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj",
    )  # fmt: skip
    assert parameters.default_targets(load_model("phi-4")) == ("qkv_proj", "o_proj", "gate_up_proj", "down_proj")
    assert parameters.default_targets(load_model("GLM-4-9B-0414"))[-2:] == ("gate_up_proj", "down_proj")


@pytest.mark.parametrize("name", ["Qwen3-30B-A3B", "Mixtral-8x7B-v0.1", "gpt-oss-20b"])
def test_experts_are_not_adapted_unless_named(name: str) -> None:
    assert parameters.default_targets(load_model(name)) == ("q_proj", "k_proj", "v_proj", "o_proj")


def test_all_linear_names_on_an_moe_model_are_seventy_times_as_many() -> None:
    """peft turns gate_proj, up_proj and down_proj into adapters of every expert."""
    spec = load_model("Qwen3-30B-A3B")
    everything = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
    assert parameters.lora(spec, everything, 16) > 70 * parameters.lora(spec, parameters.default_targets(spec), 16)


def test_a_multimodal_model_gets_a_pattern_that_spares_its_tower() -> None:
    spec = load_model("gemma-3-4b-it")
    targets = parameters.default_targets(spec)
    assert parameters.is_pattern(targets)
    assert isinstance(parameters.target_modules_value(targets), str)
    names = tuple(parameters.linear_modules(spec))
    assert parameters.target_modules_value(names) == list(names)
    assert parameters.lora(spec, names, 16) > parameters.lora(spec, targets, 16)
    assert parameters.unknown_targets(spec, targets) == ()


def test_targets_that_name_nothing() -> None:
    spec = load_model("Llama-3.1-8B")
    assert parameters.unknown_targets(spec, ("q_proj", "qkv_proj", "lm_head")) == ("qkv_proj",)
    assert parameters.unknown_targets(spec, (r".*\.nothing",)) == (r".*\.nothing",)
    assert parameters.unknown_targets(load_model("Qwen3-30B-A3B"), ("gate_proj", "w1")) == ("w1",)


@pytest.mark.parametrize(
    ("name", "billions"),
    [("gpt-oss-20b", 3.61), ("gpt-oss-120b", 5.13)],
)
def test_active_parameters_are_those_of_the_model_cards(name: str, billions: float) -> None:
    """arXiv 2508.10925, table 1: active parameters without the look-up of the embedding."""
    assert parameters.active_parameters(load_model(name)) / 1e9 == pytest.approx(billions, abs=0.005)


def test_every_parameter_of_a_dense_model_is_active_but_the_lookup() -> None:
    untied, tied = load_model("Llama-3.1-8B"), load_model("Llama-3.2-1B")
    assert parameters.active_parameters(untied) == parameters.total(untied) - parameters.embedding(untied)
    assert parameters.active_parameters(tied) == parameters.total(tied)


def test_nf4_leaves_head_embedding_norms_and_experts_alone() -> None:
    llama = load_model("Llama-3.1-8B")
    norms = llama.hidden_size * (2 * llama.num_hidden_layers + 1)
    assert parameters.quantised_parameters(llama) == (
        parameters.total(llama) - parameters.embedding(llama) - parameters.head(llama) - norms
    )
    moe = load_model("Qwen3-30B-A3B")
    assert parameters.quantised_parameters(moe) < 0.05 * parameters.total(moe)
    assert parameters.quantised_parameters(moe, experts=True) > 0.95 * parameters.total(moe)


@pytest.mark.parametrize("name", model_names())
def test_parts_add_up(name: str) -> None:
    spec = load_model(name)
    assert parameters.layers(spec) == spec.num_hidden_layers * parameters.per_layer(spec)
    assert parameters.text(spec) == parameters.layers(spec) + parameters.root(spec)
    assert parameters.total(spec) == parameters.text(spec) + spec.extra_parameters
    outside = sum(g.count * g.in_features * g.out_features for g in spec.extra_linear)
    for experts in (False, True):
        assert parameters.quantised_parameters(spec, experts) == outside + (
            spec.num_hidden_layers * parameters.quantised_per_layer(spec, experts)
        )
    targets = parameters.default_targets(spec)
    assert parameters.lora(spec, targets, 8) == spec.num_hidden_layers * parameters.lora_per_layer(spec, targets, 8)
    assert parameters.lora(spec, targets, 32) == 4 * parameters.lora(spec, targets, 8)
    assert parameters.active_parameters(spec) <= parameters.text(spec)


def test_a_count_that_differs_from_the_shape_is_said() -> None:
    spec = load_model("Qwen3-0.6B")
    assert parameters.disagreement(replace(spec, num_parameters=0)) is None
    saved_twice = spec.num_parameters + parameters.embedding(spec)
    assert parameters.disagreement(replace(spec, num_parameters=saved_twice)) is None
    message = parameters.disagreement(replace(spec, num_parameters=spec.num_parameters + 1))
    assert message is not None
    assert str(spec.num_parameters) in message


def test_dense_layers_before_experts_are_counted() -> None:
    moe = load_model("Qwen3-30B-A3B")
    assert moe.moe is not None
    mixed = replace(moe, moe=replace(moe.moe, first_dense_layers=2))
    dense = replace(moe, moe=None)
    assert parameters.layers(mixed) == 2 * parameters.per_layer(dense) + 46 * parameters.per_layer(moe)
    assert parameters.dense_layers(mixed) == 2
    assert sum(1 for _ in all_models()) == len(model_names())


def test_modules_that_train_whole_are_copied_one_by_one() -> None:
    """peft copies a tied head on its own."""
    for name in ("meta-llama/Llama-3.2-1B", "meta-llama/Llama-3.1-8B"):
        model = load_model(name)
        one = model.vocab_size * model.hidden_size
        assert parameters.saved_copies(model, ()) == 0
        assert parameters.saved_copies(model, ("embed_tokens",)) == one
        assert parameters.saved_copies(model, ("model.embed_tokens", "lm_head", "lm_head")) == 2 * one
    assert parameters.unsaved_modules(("lm_head", "score", "model.embed_tokens")) == ("score",)
