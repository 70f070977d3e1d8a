"""Adapters, loss, batch, schedule, data and logs of an axolotl.yaml."""

from __future__ import annotations

from typing import Any

import pytest

from recipegen.spec import (
    Dtype,
    LossKernel,
    Method,
)
from tests.formats.axolotl_texts import BASE, of


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
