"""axolotl.yaml is read as Axolotl 0.19 reads it: every field of a recipe, today's and deprecated spellings."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from recipegen.catalog.stack import load_stack
from recipegen.formats import axolotl
from recipegen.formats.axolotl_facts import FACTS, NAMES
from recipegen.formats.axolotl_read import CARRIES, read
from recipegen.formats.reading import Reading, restrict
from recipegen.spec import (
    Adapter,
    Dtype,
    Fsdp,
    Loading,
    LossKernel,
    Method,
    Optimizer,
    Recipe,
    Saving,
    Schedule,
    Strategy,
)
from tests.recipes_for_tests import LINEAR, REASONS, dataset, model, recipe, recipes

SAMPLES = dict(recipes())
BASE = "base_model: NousResearch/Llama-3.2-1B\n"


def of(text: str) -> Reading:
    return read((BASE + text).encode(), "axolotl.yaml")


def written(chosen: Recipe) -> Reading:
    return read(axolotl.write(chosen, model(), REASONS).encode(), "axolotl.yaml")


def same(reading: Reading, chosen: Recipe) -> None:
    """Nothing lost, nothing added, nothing left over."""
    assert reading.values == restrict(chosen, CARRIES)
    assert reading.provenance.keys() == reading.values.keys()
    assert reading.facts.keys() <= NAMES
    assert reading.facts.get("dataset_entries", ()) == tuple(spec.entry for spec in chosen.datasets)
    assert (reading.problems, reading.legacy) == ((), {})
    assert reading.passthrough == chosen.passthrough.get("axolotl", {})


@pytest.mark.parametrize("name", [name for name in SAMPLES if name != "passthrough"])
def test_a_written_recipe_is_read_back(name: str) -> None:
    same(written(SAMPLES[name]), SAMPLES[name])


def test_keys_that_are_passed_through_come_back() -> None:
    passed = {"neftune_noise_alpha": 5.0, "dataloader_drop_last": True, "fsdp_config.mixed_precision_policy": "bf16"}
    chosen = recipe(passthrough={"axolotl": passed})
    same(written(chosen), chosen)


words = st.text(st.characters(codec="utf-8", exclude_categories=["C", "Z"]), min_size=1, max_size=20)
counts = st.integers(1, 10**9)
shares = st.floats(0, 0.99, allow_subnormal=False)
numbers = st.floats(0, 1e12, allow_subnormal=False)


@st.composite
def any_recipe(draw: st.DrawFn) -> Recipe:
    """A recipe of any strategy and method with any numbers and names."""
    strategy, method = draw(st.sampled_from(Strategy)), draw(st.sampled_from(Method))
    flags = iter(draw(st.lists(st.booleans(), min_size=20, max_size=20)))
    targets = draw(st.lists(st.sampled_from(LINEAR), min_size=1, unique=True).map(tuple) | st.just((r".*\.q_proj",)))
    adapter = Adapter(draw(counts), draw(counts), draw(shares), targets, next(flags), next(flags), next(flags))
    fsdp = Fsdp(next(flags), next(flags), next(flags), "FULL_STATE_DICT", draw(words))
    steps = draw(st.none() | counts)
    workers = draw(st.integers(0, 64))
    logger = draw(st.sampled_from(["tensorboard", "wandb", "trackio", "mlflow", "none"]))
    return recipe(
        strategy,
        method,
        model=draw(words),
        model_revision=draw(st.none() | words),
        trust_remote_code=next(flags),
        dequantize="mxfp4" if next(flags) else None,
        freeze_vision=next(flags),
        adapter=adapter if method.is_adapter else None,
        fsdp=fsdp if strategy.is_fsdp else None,
        optimizer=Optimizer(draw(words), draw(shares), draw(shares), draw(numbers), draw(numbers), draw(numbers)),
        schedule=Schedule(draw(numbers), draw(words), steps, None if steps else draw(st.none() | shares)),
        sequence_len=draw(counts),
        micro_batch_size=draw(counts),
        gradient_accumulation=draw(counts),
        packing=next(flags),
        pad_to_sequence_len=next(flags),
        epochs=draw(numbers),
        max_steps=draw(st.none() | counts),
        activation_checkpointing=next(flags),
        activation_offloading=next(flags),
        loss_kernel=draw(st.sampled_from([kernel for kernel in LossKernel if kernel is not LossKernel.CUT])),
        attention=draw(st.sampled_from(["sdpa", "flash_attention_2", "eager", "kernels-community/flash-attn3"])),
        torch_compile=next(flags),
        tf32=next(flags),
        datasets=tuple(dataset(path) for path in draw(st.lists(words, max_size=3))),
        val_set_size=draw(shares | counts.map(float)),
        chat_template=draw(st.none() | words),
        eot_tokens=tuple(draw(st.lists(words, max_size=2))),
        saving=Saving(draw(st.none() | counts), draw(counts), draw(st.none() | counts), 1, logger, next(flags)),
        loading=Loading(workers, draw(st.none() | counts), next(flags), draw(counts)),
        seed=draw(st.integers(0, 2**32)),
    )


@given(any_recipe())
@settings(max_examples=200, deadline=None)
def test_any_written_recipe_is_read_back(chosen: Recipe) -> None:
    same(written(chosen), chosen)


JUNK: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 2, 1.5, float("inf"), 10**400),
    *("", "auto", "no", "2e-4", "1" * 50, "offload", "unsloth", "full", "full_shard offload"),
    *([], [1], ["a"], [None], [[]], {}, {"a": None}, {"fsdp_version": []}, {"version": 9}),
)
junk = st.sampled_from(JUNK).map(copy.deepcopy)  # one object twice would be an alias in YAML
KNOWN = [*load_stack("axolotl-0.19.0").axolotl_keys()["objects"]["AxolotlInputConfig"], "model_type", "use_swanlab"]


@given(
    st.sampled_from(sorted(SAMPLES)),
    st.lists(st.tuples(st.sampled_from(KNOWN) | words, junk), max_size=20),
    st.lists(st.tuples(st.integers(0, 200), junk), max_size=10),
    st.lists(st.integers(0, 200), max_size=10),
)
@settings(max_examples=200, deadline=None)
def test_no_junk_raises_and_none_is_lost(
    name: str, added: list[tuple[str, Any]], swapped: list[tuple[int, Any]], removed: list[int]
) -> None:
    values = copy.deepcopy(axolotl.values(SAMPLES[name]))
    for index, value in swapped:
        values[list(values)[index % len(values)]] = value
    for index in removed:
        values.pop(list(values)[index % len(values)], None)
    values.update(added)
    values.setdefault("base_model", "m")
    reading = read(yaml.safe_dump(values).encode(), "axolotl.yaml")
    if not reading.values:  # e.g. a key that YAML reads as a number
        assert reading.problems
        return
    assert reading.provenance.keys() == reading.values.keys()
    assert set(reading.values) <= set(CARRIES)
    assert set(reading.facts) <= NAMES
    for key, value in values.items():
        if key not in KNOWN and key not in axolotl.FIELDS and not key.startswith(("use_", "liger_")):
            assert reading.passthrough[key] == value or value != value


@given(st.binary(max_size=200) | st.text(max_size=200).map(str.encode), st.text(max_size=20))
@settings(max_examples=200, deadline=None)
def test_no_bytes_raise(content: bytes, name: str) -> None:
    assert read(content, name).format == "axolotl"


def test_every_field_that_can_be_read_is_declared() -> None:
    """CARRIES is the list of what a reading may state; FACTS name keys of this Axolotl."""
    schema = load_stack("axolotl-0.19.0").axolotl_keys()["objects"]
    top = set(schema["AxolotlInputConfig"])
    plugins = {key for name in ("KernelsArgs", "ExpertParallelArgs") for key in schema[name]}
    for fact in FACTS:
        head, _, rest = fact.key.partition(".")
        assert head in top | plugins, fact.key
        if head == "fsdp_config":
            assert rest in schema["FSDPConfig"]
    assert len({fact.name for fact in FACTS}) == len(FACTS)


def test_a_value_knows_its_line() -> None:
    reading = of("sequence_len: 4096\nfsdp_version: 2\nfsdp_config:\n  offload_params: true\n")
    assert reading.provenance["sequence_len"] == "axolotl.yaml:2"
    assert reading.provenance["fsdp.offload_params"] == "axolotl.yaml:5"
    assert of("flash_attention: true").provenance["attention"] == "axolotl.yaml:2"


def test_only_what_stands_there_is_stated() -> None:
    reading = of("")
    assert reading.values == {"model": "NousResearch/Llama-3.2-1B"}
    assert reading.facts == {"engine": "none"}


# --- text where a number is wanted


def test_numbers_are_converted_as_pydantic_does() -> None:
    reading = of("learning_rate: 2e-4\nweight_decay: 1\nsequence_len: '4096'\nmicro_batch_size: 2.0\ntf32: 'yes'\n")
    assert reading.problems == ()
    assert reading.values["schedule.learning_rate"] == 2e-4
    assert reading.values["optimizer.weight_decay"] == 1.0
    assert (reading.values["sequence_len"], reading.values["micro_batch_size"]) == (4096, 2)
    assert reading.values["tf32"] is True


@pytest.mark.parametrize(
    ("line", "field"),
    [
        ("learning_rate: fast", "schedule.learning_rate"),
        ("learning_rate: .nan", "schedule.learning_rate"),
        ("micro_batch_size: 0", "micro_batch_size"),
        ("micro_batch_size: 1.5", "micro_batch_size"),
        ("sample_packing: maybe", "packing"),
        ("optimizer: 8", "optimizer.name"),
        ("attn_implementation: flash", "attention"),
        ("save_steps: 10.5", "saving.save_steps"),
        ("dp_shard_size: 0", "parallelism.dp_shard"),
    ],
)
def test_what_cannot_be_converted_is_a_problem_and_no_value(line: str, field: str) -> None:
    reading = of(f"{line}\nseed: 7")
    assert [(p.key, p.where) for p in reading.problems] == [(line.partition(":")[0], "axolotl.yaml:2")]
    assert field not in reading.values
    assert reading.values["seed"] == 7


def test_a_number_too_long_to_print_is_only_a_problem() -> None:
    huge = "0x" + "f" * 5000
    for key in ("fsdp_version", "learning_rate", "save_steps", "max_steps", "bf16", "micro_batch_size", "fsdp"):
        assert of(f"{key}: {huge}\nfsdp_config: {{fsdp_version: 2, offload_params: {huge}}}").problems


def test_an_unreadable_file_is_one_problem() -> None:
    reading = read(b"a: 1\nb: [\n", "odd: name.yaml")
    assert [p.where.startswith("odd: name.yaml:") for p in reading.problems] == [True]
    assert reading.values == {}


def test_a_file_without_a_model_says_so() -> None:
    assert [p.key for p in read(b"seed: 1", "a.yaml").problems] == ["base_model"]


# --- FSDP


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


# --- DeepSpeed


def test_deepspeed_is_a_path_or_a_mapping() -> None:
    reading = of("deepspeed: deepspeed_configs/zero2.json")
    assert reading.facts == {"engine": "deepspeed", "deepspeed_config_file": "deepspeed_configs/zero2.json"}
    reading = of("deepspeed: {zero_optimization: {stage: 3}}")
    assert reading.facts["deepspeed_config"] == {"zero_optimization": {"stage": 3}}
    assert of("deepspeed:").facts == {"engine": "none"}


def test_fsdp_wins_over_deepspeed_as_in_axolotl() -> None:
    reading = of("deepspeed: zero3.json\nfsdp_version: 2\nfsdp_config: {offload_params: true}")
    assert (reading.facts["engine"], reading.facts["deepspeed_config_file"]) == ("fsdp", "zero3.json")


# --- the working set


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
        ("bf16: false\nbfloat16: true", Dtype.BF16, "bf16", "no"),
        ("bf16: false\nfloat16: true", None, "fp16", "no"),
        ("bf16: true\nfp8: true", Dtype.BF16, "bf16", "fp8"),
    ],
)
def test_precision_as_the_trainer_resolves_it(text: str, compute: Dtype | None, load: str, mixed: str) -> None:
    reading = of(text)
    assert reading.problems == ()
    assert reading.values.get("precision.compute") is compute
    assert (reading.facts["load_dtype"], reading.facts["mixed_precision"]) == (load, mixed)


# --- adapters


@pytest.mark.parametrize(
    ("text", "method", "parameters"),
    [
        ("adapter: lora\nbf16: true", Method.LORA, Dtype.BF16),
        ("adapter: lora\nload_in_8bit: true\nbf16: true", Method.LORA, Dtype.INT8),
        ("adapter: lora\nload_in_4bit: true\nbf16: true", Method.QLORA, Dtype.NF4),
        ("adapter: qlora\nload_in_4bit: true", Method.QLORA, Dtype.NF4),
        ("adapter: qlora", Method.QLORA, Dtype.NF4),
        ("adapter: lora", Method.LORA, None),
    ],
)
def test_methods(text: str, method: Method, parameters: Dtype | None) -> None:
    reading = of(text)
    assert (reading.values["method"], reading.values.get("precision.parameters")) == (method, parameters)


def test_targets_are_names_a_pattern_or_every_linear_layer() -> None:
    def target(value: str) -> Any:
        return of(f"adapter: lora\nlora_target_modules: {value}")

    assert target("[q_proj, v_proj]").values["adapter.target_modules"] == ("q_proj", "v_proj")
    assert target("'.*[qv]_proj'").values["adapter.target_modules"] == (".*[qv]_proj",)
    assert target("all-linear").facts["lora_all_linear"] is True
    assert of("adapter: lora\nlora_target_linear: true").facts["lora_target_linear"] is True
    assert target("[1]").problems[0].key == "lora_target_modules"


def test_more_of_an_adapter() -> None:
    reading = of(
        "adapter: lora\nlora_modules_to_save: [embed_tokens]\nlora_target_parameters: mlp.experts.gate_up_proj\n"
        "peft: {loftq_config: {loftq_bits: 4}}\nlora_qkv_kernel: true\nlora_mlp_kernel: false\nlora_o_kernel:\n"
    )
    assert reading.facts["lora_modules_to_save"] == ("embed_tokens",)
    assert reading.values["adapter.modules_to_save"] == ("embed_tokens",)
    assert reading.facts["lora_target_parameters"] == ("mlp.experts.gate_up_proj",)
    assert reading.facts["loftq_bits"] == 4
    assert reading.facts["lora_kernels"] == ("qkv",)
    assert reading.values["adapter.fused_kernels"] is True
    assert reading.passthrough == {}


def test_keys_of_an_adapter_that_is_not_there_say_nothing() -> None:
    reading = of("adapter:\nlora_r: 16\nlora_alpha:\nload_in_4bit: false")
    assert not [field for field in reading.values if "adapter" in field or field == "method"]
    assert reading.passthrough == {"lora_r": 16}
    assert [p.key for p in of("load_in_8bit: true").problems] == ["load_in_8bit"]


def test_a_foreign_adapter_is_a_problem() -> None:
    reading = of("adapter: llama-adapter")
    assert (reading.facts["foreign_adapter"], [p.key for p in reading.problems]) == ("llama-adapter", ["adapter"])


# --- loss


CCE = "plugins: [axolotl.integrations.cut_cross_entropy.CutCrossEntropyPlugin]\n"
LIGER = "plugins: [axolotl.integrations.liger.LigerPlugin]\n"


@pytest.mark.parametrize(
    ("text", "kernel"),
    [
        (CCE, LossKernel.CUT),
        (f"{CCE}cut_cross_entropy: true", LossKernel.CUT),
        (f"{CCE}cut_cross_entropy: false", None),
        ("cut_cross_entropy: true", None),  # dropped without its plugin
        (f"{LIGER}liger_fused_linear_cross_entropy: true", LossKernel.FUSED_LINEAR),
        ("liger_fused_linear_cross_entropy: true", None),
        ("plugins: [liger.LigerPlugin]\nliger_fused_linear_cross_entropy: true", LossKernel.FUSED_LINEAR),
        ("chunked_cross_entropy: true", LossKernel.CHUNKED_UPCAST),
        ("chunked_cross_entropy: false", LossKernel.STOCK),
    ],
)
def test_the_loss(text: str, kernel: LossKernel | None) -> None:
    assert of(text).values.get("loss_kernel") is kernel


def test_keys_of_a_plugin_count_only_with_their_plugin() -> None:
    assert of("expert_parallel_size: 4").passthrough == {"expert_parallel_size": 4}
    listed = of("plugins: [axolotl.integrations.expert_parallel.ExpertParallelPlugin]\nexpert_parallel_size: 4")
    assert listed.facts["expert_parallel_size"] == 4
    foreign = of("plugins: [mine.LigerPlugin]\nliger_fused_linear_cross_entropy: true")
    assert foreign.facts["plugins"] == ("mine.LigerPlugin",)
    assert "loss_kernel" not in foreign.values


def test_ligers_other_kernels() -> None:
    reading = of(f"{LIGER}liger_rope: true\nliger_swiglu: true\nliger_rms_norm: false")
    assert reading.facts["liger_kernels"] == ("rope", "glu_activation")
    assert reading.legacy == {"liger_swiglu": "liger_glu_activation"}
    assert of("liger_rope: true").passthrough == {"liger_rope": True}


# --- the batch and the schedule


def test_batch_size_divides_only_beside_an_empty_accumulation() -> None:
    assert "gradient_accumulation" not in of("batch_size: 8\nmicro_batch_size: 2").values
    divided = of("batch_size: 8\nmicro_batch_size: 2\ngradient_accumulation_steps:")
    assert divided.values["gradient_accumulation"] == 4
    assert divided.facts["batch_size"] == 8


@pytest.mark.parametrize(
    ("text", "stated", "facts"),
    [
        ("save_steps: 50", 50, {}),
        ("save_strategy: epoch", None, {}),
        ("saves_per_epoch: 1", None, {"saves_per_epoch": 1}),
        ("saves_per_epoch: 4", "nothing", {"saves_per_epoch": 4}),
        ("save_steps: 0.25", "nothing", {"save_steps_share": 0.25}),
        ("save_strategy: 'no'", "nothing", {"save_strategy": "no"}),
        ("save_steps: 0", "nothing", {}),
        ("save_steps: 100\nsave_strategy: steps", 100, {}),
    ],
)
def test_when_a_checkpoint_is_written(text: str, stated: Any, facts: dict[str, Any]) -> None:
    for what in ("save", "eval"):
        reading = of(text.replace("save", what))
        assert reading.values.get(f"saving.{what}_steps", "nothing") == stated
        expected = {name.replace("save", what): value for name, value in facts.items()}
        assert {k: v for k, v in reading.facts.items() if k != "engine"} == expected


def test_other_deprecated_names() -> None:
    reading = of("sequence_parallel_degree: 2\nevaluation_strategy: epoch\ndataset_processes: 4\nmodel_revision: abc")
    assert reading.values["parallelism.cp"] == 2
    assert reading.values["saving.eval_steps"] is None
    assert reading.values["loading.dataset_num_proc"] == 4
    assert reading.values["model_revision"] == "abc"  # a second spelling, not a deprecated one
    assert set(reading.legacy) == {"sequence_parallel_degree", "evaluation_strategy", "dataset_processes"}


def test_limits_that_mean_none() -> None:
    reading = of("max_steps: -1\nsave_total_limit: 0\nwarmup_ratio: 0.1\nwarmup_steps: 5")
    assert "max_steps" not in reading.values
    assert "saving.save_total_limit" not in reading.values
    assert reading.values["schedule.warmup_steps"] == 5
    assert "schedule.warmup_ratio" not in reading.values


# --- data and logs


def test_what_else_a_rule_wants_to_know() -> None:
    reading = of(
        "datasets:\n  - {path: a.jsonl, type: alpaca}\ntest_datasets: [{path: b.jsonl}]\nrl: dpo\nreward_model: true\n"
        "streaming: true\ntokens: [<x>]\nspecial_tokens: {pad_token: <pad>}\nresume_from_checkpoint: out/c-5\n"
        "output_dir: ./out\noptim_args: {beta2: 0.95}\nadam_eps: 1.0e-8\n"
    )
    assert reading.facts == {
        "engine": "none",
        "dataset_entries": ((("path", "a.jsonl"), ("type", "alpaca")),),
        "test_dataset_entries": ((("path", "b.jsonl"),),),
        "rl": "dpo",
        "reward_model": True,
        "streaming": True,
        "added_tokens": ("<x>",),
        "special_tokens": {"pad_token": "<pad>"},
        "resume_from_checkpoint": "out/c-5",
        "output_dir": "./out",
        "optim_args": {"beta2": 0.95},
    }
    assert reading.passthrough == {"adam_eps": 1e-8}


@pytest.mark.parametrize(
    ("text", "logger", "loggers"),
    [
        ("wandb_project: x", "wandb", None),
        ("use_wandb: false\nwandb_project: x", "wandb", None),
        ("wandb_project:", None, None),
        ("use_tensorboard: true\nuse_wandb: true", "wandb", ("wandb", "tensorboard")),
        ("use_comet: true", "none", ("comet",)),
        ("use_wandb: false", "none", None),
    ],
)
def test_loggers(text: str, logger: str | None, loggers: tuple[str, ...] | None) -> None:
    reading = of(text)
    assert (reading.values.get("saving.logger"), reading.facts.get("loggers")) == (logger, loggers)


def test_a_fact_has_the_place_of_the_key_that_states_it() -> None:
    reading = of(
        "rl: dpo\nfp16: true\nbf16: auto\nadapter: lora\nlora_mlp_kernel: true\n"
        "deepspeed: ds.json\nquantize_moe_experts: true\nsaves_per_epoch: 3\n"
    )
    above = BASE.count("\n") - 1
    places = {name: int(place.rpartition(":")[2]) - above for name, place in reading.fact_provenance.items()}
    assert places == {
        "rl": 2,
        "mixed_precision": 4,
        "load_dtype": 4,
        "bf16_auto": 4,
        "lora_kernels": 6,
        "deepspeed_config_file": 7,
        "engine": 7,
        "quantize_moe_experts": 8,
        "saves_per_epoch": 9,
    }
    assert set(reading.facts) == set(places)
    assert reading.values["quantised_experts"] is True


def test_a_fact_of_a_legacy_spelling_has_its_place() -> None:
    reading = of("fsdp: [full_shard, auto_wrap]\nfsdp_config:\n  fsdp_activation_checkpointing: true\n")
    above = BASE.count("\n")
    assert reading.fact_provenance["fsdp_sharding_strategy"] == f"axolotl.yaml:{above + 1}"
    assert reading.fact_provenance["fsdp_activation_checkpointing"] == f"axolotl.yaml:{above + 3}"
