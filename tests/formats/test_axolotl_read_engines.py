"""FSDP, DeepSpeed and what trains in which memory, in today's and deprecated spellings."""

from __future__ import annotations

import pytest

from recipegen.spec import (
    Dtype,
    Strategy,
)
from tests.formats.axolotl_texts import of


def test_a_prefixed_fsdp1_file() -> None:
    reading = of(
        "fsdp: [full_shard, auto_wrap, offload]\nfsdp_config:\n  fsdp_state_dict_type: FULL_STATE_DICT\n"
        "  fsdp_transformer_layer_cls_to_wrap: LlamaDecoderLayer\n  fsdp_use_orig_params: false\n"
        "  fsdp_limit_all_gathers: true\n  sharding_strategy: FULL_SHARD\n"
    )
    assert reading.problems == ()
    assert reading.values["parallelism.strategy"] is Strategy.FSDP2_FULL
    assert reading.values["fsdp.version"] == 1
    assert reading.values["fsdp.offload_params"] is True
    assert reading.values["fsdp.state_dict_type"] == "FULL_STATE_DICT"
    assert reading.values["fsdp.layer_class"] == "LlamaDecoderLayer"
    assert reading.facts["fsdp_sharding_strategy"] == "FULL_SHARD"
    assert reading.facts["fsdp_auto_wrap_policy"] == "TRANSFORMER_BASED_WRAP"
    assert reading.facts["fsdp_use_orig_params"] is False
    assert reading.legacy["fsdp"] == "fsdp_config"
    assert reading.legacy["fsdp_config.fsdp_state_dict_type"] == "fsdp_config.state_dict_type"
    # dropped by Axolotl, so carried along and nothing else
    assert reading.passthrough == {
        "fsdp_config.fsdp_limit_all_gathers": True,
        "fsdp_config.sharding_strategy": "FULL_SHARD",
    }


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("fsdp_version: 2\nfsdp_config: {offload_params: false}", 2),
        ("fsdp_config: {fsdp_version: 2}", 2),
        ("fsdp_config: {version: 2}", 2),
        ("fsdp_config: {offload_params: false}", 1),
        ("fsdp_version: '2'\nfsdp_config: {offload_params: false}", 2),
        ("fsdp_version: 1\nfsdp: full_shard auto_wrap", 1),
        ("fsdp: full_shard, auto_wrap", 1),
    ],
)
def test_the_version_of_fsdp(text: str, version: int) -> None:
    reading = of(text)
    assert reading.values["fsdp.version"] == version
    assert (reading.facts["engine"], reading.problems) == ("fsdp", ())


def test_contradicting_versions_are_a_problem() -> None:
    assert [p.key for p in of("fsdp_version: 2\nfsdp_config: {fsdp_version: 1}").problems] == [
        "fsdp_config.fsdp_version"
    ]


@pytest.mark.parametrize(
    ("text", "strategy"),
    [
        ("dp_replicate_size: 2\ndp_shard_size: 4", Strategy.FSDP2_HYBRID),
        ("dp_replicate_size: 2", Strategy.FSDP2_HYBRID),  # the rest of the world is sharded
        ("dp_shard_size: 4", None),  # full shard on 4 ranks, hybrid on 8
        ("dp_shard_size: 1", None),
        ("tensor_parallel_size: 2", Strategy.FSDP2_FULL),
    ],
)
def test_the_strategy_is_stated_only_where_the_file_decides_it(text: str, strategy: Strategy | None) -> None:
    assert of(f"fsdp_version: 2\nfsdp_config: {{offload_params: false}}\n{text}").values.get(
        "parallelism.strategy"
    ) is (strategy)


@pytest.mark.parametrize(
    ("words", "strategy", "reshards"),
    [
        ("full_shard auto_wrap", Strategy.FSDP2_FULL, True),
        ("[shard_grad_op, auto_wrap]", Strategy.FSDP2_FULL, False),
        ("[hybrid_shard]", None, True),  # a full shard on one node
        ("[no_shard]", None, False),
        ("[full_shard, no_shard]", Strategy.FSDP2_FULL, True),  # the first one counts
    ],
)
def test_words_of_sharding(words: str, strategy: Strategy | None, reshards: bool) -> None:
    reading = of(f"fsdp: {words}")
    assert reading.values.get("parallelism.strategy") is strategy
    assert reading.values["fsdp.reshard_after_forward"] is reshards
    assert of(f"fsdp: {words}\nfsdp_config: {{reshard_after_forward: true}}").values["fsdp.reshard_after_forward"]


def test_words_of_fsdp1_with_version_2_are_a_problem() -> None:
    reading = of("fsdp: [hybrid_shard]\nfsdp_version: 2\nfsdp_config: {offload_params: true}")
    assert [p.key for p in reading.problems] == ["fsdp"]


def test_an_unknown_word_of_the_list_is_a_problem() -> None:
    assert [p.key for p in of("fsdp: [full_shard, wrap]").problems] == ["fsdp"]


def test_fsdps_own_checkpointing_counts_as_checkpointing() -> None:
    reading = of("fsdp_version: 2\nfsdp_config: {activation_checkpointing: true}")
    assert reading.values["activation_checkpointing"] is True
    assert reading.facts["fsdp_activation_checkpointing"] is True


def test_the_final_state_dict_at_the_top() -> None:
    reading = of("fsdp_final_state_dict_type: FULL_STATE_DICT\nfsdp_version: 2\nfsdp_config: {offload_params: true}")
    assert reading.facts["fsdp_final_state_dict_type"] == "FULL_STATE_DICT"
    assert reading.legacy == {"fsdp_final_state_dict_type": "fsdp_config.final_state_dict_type"}


def test_deepspeed_is_a_path_or_a_mapping() -> None:
    reading = of("deepspeed: deepspeed_configs/zero2.json")
    assert reading.facts == {"engine": "deepspeed", "deepspeed_config_file": "deepspeed_configs/zero2.json"}
    reading = of("deepspeed: {zero_optimization: {stage: 3}}")
    assert reading.facts["deepspeed_config"] == {"zero_optimization": {"stage": 3}}
    assert of("deepspeed:").facts == {"engine": "none"}


def test_fsdp_wins_over_deepspeed_as_in_axolotl() -> None:
    reading = of("deepspeed: zero3.json\nfsdp_version: 2\nfsdp_config: {offload_params: true}")
    assert (reading.facts["engine"], reading.facts["deepspeed_config_file"]) == ("fsdp", "zero3.json")


@pytest.mark.parametrize(
    ("flag", "implementation"),
    [
        ("flash_attention", "flash_attention_2"),
        ("sdp_attention", "sdpa"),
        ("xformers_attention", "xformers"),
        ("flex_attention", "flex_attention"),
        ("sage_attention", "sage"),
        ("eager_attention", "eager"),
    ],
)
def test_flags_of_attention(flag: str, implementation: str) -> None:
    reading = of(f"{flag}: true")
    assert reading.values["attention"] == implementation
    assert reading.legacy == {flag: f"attn_implementation: {implementation}"}
    assert "attention" not in of(f"{flag}: false").values
    assert of(f"{flag}:").legacy == {}


def test_a_flag_beside_attn_implementation_is_a_problem() -> None:
    reading = of("attn_implementation: sdpa\nflash_attention: true")
    assert (reading.values["attention"], [p.key for p in reading.problems]) == ("sdpa", ["flash_attention"])


@pytest.mark.parametrize(
    ("word", "kind"), [("offload", None), ("unsloth", None), ("offload_disk", "disk"), ("'true'", "none at all")]
)
def test_words_of_gradient_checkpointing(word: str, kind: str | None) -> None:
    reading = of(f"gradient_checkpointing: {word}")
    assert reading.values["activation_checkpointing"] is True
    if kind == "none at all":
        assert "activation_offloading" not in reading.values
    else:
        assert reading.values["activation_offloading"] is True
        assert reading.facts.get("activation_offloading_kind") == kind
        assert list(reading.legacy) == ["gradient_checkpointing"]


def test_hidden_states_offloading_is_not_reentrant() -> None:
    reading = of("gradient_checkpointing: true\nactivation_offloading: hidden_states")
    assert reading.values["activation_checkpointing_reentrant"] is False
    assert reading.facts["activation_offloading_kind"] == "hidden_states"


@pytest.mark.parametrize(
    ("text", "compute", "load", "mixed"),
    [
        ("bf16: true", Dtype.BF16, "bf16", "bf16"),
        ("bf16: auto", Dtype.BF16, "bf16", "bf16"),
        ("bf16: full", Dtype.BF16, "bf16", "bf16"),
        ("bf16: true\nfp16: true", Dtype.BF16, "bf16", "bf16"),
        ("bf16: auto\nfp16: true", None, "fp16", "fp16"),
        ("fp16: true", None, "fp16", "fp16"),
        ("bf16: false\nfp16: false", Dtype.FP32, "fp32", "no"),
        ("bf16:\nfp16:", Dtype.FP32, "fp32", "no"),  # empty is not the default
        ("bf16: false\nbfloat16: true", Dtype.BF16, "bf16", "bf16"),  # the builder's `bf16 or bfloat16`
        ("bf16: false\nfloat16: true", None, "fp16", "no"),
        ("bf16: true\nfp8: true", Dtype.BF16, "bf16", "fp8"),
    ],
)
def test_precision_as_the_trainer_resolves_it(text: str, compute: Dtype | None, load: str, mixed: str) -> None:
    reading = of(text)
    assert reading.problems == ()
    assert reading.values.get("precision.compute") is compute
    assert (reading.facts["load_dtype"], reading.facts["mixed_precision"]) == (load, mixed)
