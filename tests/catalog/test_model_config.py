"""A config.json as a ModelSpec: what is read, what is refused, and that nothing hostile gets through."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recipegen.catalog.model_config import from_config, known_model_types, parse_json
from recipegen.estimate import parameters
from recipegen.spec import QkNorm, RecipegenError

LLAMA = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 256,
    "max_position_embeddings": 512,
}
SIZES = [key for key, value in LLAMA.items() if isinstance(value, int)]


def test_a_plain_llama() -> None:
    spec = from_config(LLAMA, "me/tiny")
    assert (spec.id, spec.model_type, spec.layer_class) == ("me/tiny", "llama", "LlamaDecoderLayer")
    assert (spec.head_dim, spec.q_size, spec.kv_size) == (16, 64, 32)
    assert not spec.tie_word_embeddings
    assert spec.moe is None


def test_keys_that_switch_modules() -> None:
    spec = from_config(
        {**LLAMA, "attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True, "head_dim": 32}, "x"
    )
    assert spec.qkv_bias
    assert spec.o_bias
    assert spec.mlp_bias
    assert spec.tie_word_embeddings
    assert spec.q_size == 128


def test_null_means_absent() -> None:
    assert from_config({**LLAMA, "head_dim": None, "num_key_value_heads": None}, "x").num_key_value_heads == 4


def test_architectures_differ_where_their_classes_do() -> None:
    assert from_config({**LLAMA, "model_type": "qwen3"}, "x").qk_norm is QkNorm.PER_HEAD
    assert from_config({**LLAMA, "model_type": "olmo2"}, "x").qk_norm is QkNorm.FULL
    assert from_config({**LLAMA, "model_type": "qwen2"}, "x").qkv_bias
    assert from_config({**LLAMA, "model_type": "phi3"}, "x").fused_qkv
    assert from_config({**LLAMA, "model_type": "gemma2"}, "x").logit_softcap
    assert from_config({**LLAMA, "model_type": "gemma2"}, "x").norms_per_layer == 4


def test_a_window_that_is_switched_off_is_no_window() -> None:
    qwen = {**LLAMA, "model_type": "qwen2", "sliding_window": 4096, "use_sliding_window": False}
    assert from_config(qwen, "x").sliding_window is None
    assert from_config({**qwen, "use_sliding_window": True}, "x").sliding_window == 4096


def test_mixture_of_experts() -> None:
    spec = from_config({**LLAMA, "model_type": "mixtral", "num_local_experts": 8, "num_experts_per_tok": 2}, "x")
    assert spec.moe is not None
    assert (spec.moe.num_experts, spec.moe.experts_per_token, spec.moe.intermediate_size) == (8, 2, 128)
    first_dense = {**LLAMA, "model_type": "qwen3_moe", "mlp_only_layers": [0]}
    assert from_config(first_dense, "x").moe.first_dense_layers == 1  # type: ignore[union-attr]


def test_the_text_part_of_a_multimodal_model() -> None:
    vision = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "image_size": 28, "patch_size": 14}
    spec = from_config(
        {
            "model_type": "gemma3",
            "text_config": {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2},
            "vision_config": {**vision, "model_type": "siglip_vision_model", "vision_use_head": False},
        },
        "x",
    )
    assert spec.model_type == "gemma3"
    assert spec.layer_class == "Gemma3DecoderLayer"
    assert spec.layers_path == "model.language_model.layers"
    assert spec.extra_parameters > 0
    assert spec.vocab_size == 262208  # a nested text_config leaves out what equals the class's default


@pytest.mark.parametrize("model_type", ["mamba2", "deepseek_v3", "qwen3_next", "gpt2", "", "LLAMA"])
def test_an_unknown_architecture_is_told_which_ones_are_known(model_type: str) -> None:
    with pytest.raises(RecipegenError) as caught:
        from_config({**LLAMA, "model_type": model_type}, "x", where="there/config.json")
    assert "there/config.json" in str(caught.value)
    assert all(known in str(caught.value) for known in known_model_types())


@pytest.mark.parametrize("model_type", [None, 3, ["llama"], {}])
def test_a_config_without_a_model_type(model_type: object) -> None:
    with pytest.raises(RecipegenError, match="model_type"):
        from_config({**LLAMA, "model_type": model_type}, "x")


@pytest.mark.parametrize("key", SIZES)
@pytest.mark.parametrize("value", [0, -1, 2**70, 10**400, "64", 3.5, True, [], {}, float("nan"), float("inf")])
def test_an_impossible_size_names_its_key(key: str, value: object) -> None:
    with pytest.raises(RecipegenError) as caught:
        from_config({**LLAMA, key: value}, "x")
    assert key in str(caught.value)
    assert len(str(caught.value)) < 300


def test_missing_sizes_that_no_class_can_know() -> None:
    for key in ("hidden_size", "intermediate_size", "num_hidden_layers"):
        with pytest.raises(RecipegenError, match=key):
            from_config({k: v for k, v in LLAMA.items() if k != key}, "x")


def test_heads_must_divide() -> None:
    with pytest.raises(RecipegenError, match="not a multiple"):
        from_config({**LLAMA, "num_key_value_heads": 3}, "x")
    with pytest.raises(RecipegenError, match="hidden_size 66 is not a multiple of num_attention_heads 4"):
        from_config({**LLAMA, "hidden_size": 66}, "x")


@pytest.mark.parametrize("flag", ["tie_word_embeddings", "attention_bias", "mlp_bias"])
def test_a_flag_must_be_true_or_false(flag: str) -> None:
    with pytest.raises(RecipegenError, match=f"{flag}.*true or false"):
        from_config({**LLAMA, flag: "yes"}, "x")


@pytest.mark.parametrize("method", ["awq", "gptq", "bitsandbytes", "fp8", 7, None])
def test_quantised_weights_are_refused(method: object) -> None:
    with pytest.raises(RecipegenError, match=r"already quantised.*original model"):
        from_config({**LLAMA, "quantization_config": {"quant_method": method}}, "x")


def test_experts_that_are_not_in_every_layer_are_refused() -> None:
    moe: dict[str, Any] = {**LLAMA, "model_type": "qwen3_moe"}
    for change in ({"decoder_sparse_step": 2}, {"mlp_only_layers": [1]}, {"mlp_only_layers": 5},
                   {"mlp_only_layers": [0, 1]}):  # fmt: skip
        with pytest.raises(RecipegenError, match="dense layers come first"):
            from_config({**moe, **change}, "x")
    with pytest.raises(RecipegenError, match="9 experts per token of 8"):
        from_config({**moe, "num_experts": 8, "num_experts_per_tok": 9}, "x")


@pytest.mark.parametrize("section", ["text_config", "vision_config"])
@pytest.mark.parametrize("value", [None, [], "x"])
def test_a_multimodal_config_needs_both_parts(section: str, value: object) -> None:
    config: dict[str, Any] = {
        "model_type": "gemma3",
        "text_config": {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2},
        "vision_config": {"vision_use_head": False},
    }
    with pytest.raises(RecipegenError, match=section):
        from_config({**config, section: value}, "x")


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        (b'{"a": 1,\n "b": }', 2, "not valid JSON"),
        (b"", 1, "not valid JSON"),
        (b'{\n\n"a": "\xff"}', 3, "not UTF-8"),
    ],
)
def test_bad_json_says_file_and_line(text: bytes, line: int, message: str) -> None:
    with pytest.raises(RecipegenError, match=rf"^folder/config\.json:{line}: {message}"):
        parse_json(text, "folder/config.json")


@pytest.mark.parametrize("text", [b"[1]", b'"x"', b"null", b"3"])
def test_json_that_is_no_mapping(text: bytes) -> None:
    with pytest.raises(RecipegenError, match="not a mapping"):
        parse_json(text, "config.json")


@pytest.mark.parametrize("text", [b"[" * 100_000, b'{"a": ' + b"9" * 10_000 + b"}", b'{"a": "' + b"x" * 2**25 + b'"}'])
def test_json_made_to_hurt_is_refused(text: bytes) -> None:
    with pytest.raises(RecipegenError):
        parse_json(text, "config.json")


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@given(
    model_type=st.sampled_from(known_model_types()),
    changes=st.dictionaries(
        st.sampled_from(
            [*LLAMA, "head_dim", "text_config", "vision_config", "num_experts", "num_local_experts", "sliding_window",
             "num_experts_per_tok", "moe_intermediate_size", "mlp_only_layers", "decoder_sparse_step",
             "tie_word_embeddings", "attention_bias", "quantization_config", "final_logit_softcapping",
             "use_sliding_window", "spatial_merge_size", "multimodal_projector_bias"]
        ),
        ANYTHING,
        max_size=5,
    ),
)  # fmt: skip
def test_any_config_gives_a_model_or_one_clear_line(model_type: str, changes: dict[str, Any]) -> None:
    config = {**LLAMA, "model_type": model_type, "text_config": LLAMA, "vision_config": {"vision_use_head": False}}
    try:
        spec = from_config({**config, **changes}, "x")
    except RecipegenError as error:
        outcome: object = str(error)
    else:
        outcome = parameters.total(spec)
    assert outcome
    assert "\n" not in str(outcome)


@given(st.binary(max_size=200) | ANYTHING.map(lambda value: json.dumps(value).encode()))
def test_any_bytes_give_a_mapping_or_one_clear_line(data: bytes) -> None:
    try:
        outcome: object = parse_json(data, "config.json")
    except RecipegenError as error:
        outcome = error
    assert isinstance(outcome, dict | RecipegenError)
    assert isinstance(outcome, dict) or "\n" not in str(outcome)
