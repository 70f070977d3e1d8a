"""Bad keys and values, each with the finding a person should see. No trainer is needed for any of these."""

from __future__ import annotations

import json
import time

import pytest

from recipegen.catalog.stack import load_stack
from recipegen.check.keys import check_accelerate, check_axolotl, check_deepspeed
from recipegen.spec import Finding, Severity

STACK = load_stack()
GOOD = """\
base_model: meta-llama/Llama-3.1-8B
datasets:
  - path: data.jsonl
    type: alpaca
learning_rate: 2.0e-5
micro_batch_size: 1
gradient_accumulation_steps: 4
optimizer: adamw_torch_fused
lr_scheduler: cosine
bf16: true
fsdp_version: 2
fsdp_config:
  reshard_after_forward: true
  state_dict_type: SHARDED_STATE_DICT
accelerator_config:
  gradient_accumulation_kwargs:
    sync_each_batch: true
"""


def axolotl(text: str) -> tuple[Finding, ...]:
    return check_axolotl((GOOD + text).encode(), STACK)


def only(findings: tuple[Finding, ...]) -> Finding:
    assert len(findings) == 1, findings
    return findings[0]


def test_a_good_file_has_no_findings() -> None:
    assert axolotl("") == ()


# --- Axolotl: keys that are accepted and dropped


@pytest.mark.parametrize(
    ("text", "field", "fix"),
    [
        ("lora_rank: 8\n", "lora_rank", "lora_r"),
        ("per_device_train_batch_size: 2\n", "per_device_train_batch_size", "micro_batch_size"),
        ("learnign_rate_scheduler: x\nweight_decy: 0.1\n", "weight_decy", "weight_decay"),
        ("gradient_checkpoint: true\n", "gradient_checkpoint", "gradient_checkpointing"),
        ("mixed_precision: bf16\n", "mixed_precision", "bf16"),
        ("reshard_after_forward: true\n", "reshard_after_forward", "fsdp_config.reshard_after_forward"),
    ],
)
def test_a_key_that_means_a_decision_is_an_error(text: str, field: str, fix: str) -> None:
    found = next(f for f in axolotl(text) if f.field == field)
    assert (found.rule, found.family, found.severity) == ("RG701", "silent-key", Severity.ERROR)
    assert fix in found.fix


def test_any_other_unknown_key_is_a_warning_with_its_line() -> None:
    found = only(axolotl("zzz: 1\n"))
    assert (found.rule, found.severity, found.where) == (
        "RG701",
        Severity.WARNING,
        f"axolotl.yaml:{GOOD.count(chr(10)) + 1}",
    )


@pytest.mark.parametrize(
    ("text", "field", "severity"),
    [
        ("fsdp_config:\n  reshard_after_forwrd: true\n", "fsdp_config.reshard_after_forwrd", Severity.ERROR),
        ("fsdp_config:\n  limit_all_gathers: true\n", "fsdp_config.limit_all_gathers", Severity.WARNING),
        ("datasets:\n  - {path: p, type: alpaca, train_on_split: x}\n", "datasets.0.train_on_split", Severity.ERROR),
        ("datasets:\n  - {path: p, type: alpaca, bogus: 1}\n", "datasets.0.bogus", Severity.WARNING),
        ("rl: dpo\ndatasets:\n  - {path: p, roles_to_train: [x]}\n", "datasets.0.roles_to_train", Severity.WARNING),
    ],
)
def test_nested_keys_are_checked_too(text: str, field: str, severity: Severity) -> None:
    found = only(check_axolotl(f"base_model: m\nlearning_rate: 1.0e-4\n{text}".encode(), STACK))
    assert (found.field, found.family, found.severity) == (field, "silent-key", severity)


def test_prefixed_and_renamed_keys_that_axolotl_reads_are_fine() -> None:
    text = "base_model: m\nmodel_type: x\nmodel_revision: y\nfsdp_config:\n  fsdp_offload_params: true\n  version: 2\n"
    assert check_axolotl(text.encode(), STACK) == ()


# --- Axolotl: plugins


def test_keys_of_a_plugin_need_the_plugin() -> None:
    found = only(axolotl("liger_rope: true\n"))
    assert (found.rule, found.family, found.severity) == ("RG703", "silent-key", Severity.ERROR)
    assert "axolotl.integrations.liger.LigerPlugin" in found.fix


@pytest.mark.parametrize("name", ["axolotl.integrations.liger.LigerPlugin", "liger.LigerPlugin"])
def test_with_the_plugin_its_keys_are_known_and_checked(name: str) -> None:
    assert axolotl(f"plugins: [{name}]\nliger_rope: true\n") == ()
    assert only(axolotl(f"plugins: [{name}]\nliger_rope: maybe\n")).rule == "RG702"
    assert only(axolotl(f"plugins: [{name}]\nliger_rop: true\n")).fix == "did you mean liger_rope?"


def test_a_plugin_from_elsewhere_is_named_and_excuses_nothing() -> None:
    findings = axolotl("plugins: [evil.Plugin]\nlora_rank: 8\n")
    assert [(f.rule, f.severity) for f in findings] == [("RG707", Severity.WARNING), ("RG701", Severity.ERROR)]


# --- Axolotl: values that are rejected


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("sequence_len: long\n", "sequence_len"),
        ("num_epochs: [1]\n", "num_epochs"),
        ("sample_packing: maybe\n", "sample_packing"),
        ("fp8_config: {x: 1}\n", "fp8_config.x"),
        ("chat_template: 5\n", "chat_template"),
        ("hub_model_id: 7\n", "hub_model_id"),
        ("optimizer: adamw_torch_fusd\n", "optimizer"),
        ("lr_scheduler: cosin\n", "lr_scheduler"),
        ("accelerator_config: {split_batch: true}\n", "accelerator_config.split_batch"),
    ],
)
def test_what_the_trainer_rejects_is_a_schema_error(text: str, field: str) -> None:
    lines = [line for line in GOOD.splitlines(keepends=True) if not line.startswith(("optimizer", "lr_scheduler"))]
    lines = lines[: lines.index("accelerator_config:\n")]
    found = only(check_axolotl(("".join(lines) + text).encode(), STACK))
    assert (found.family, found.severity, found.field) == ("schema", Severity.ERROR, field)


def test_a_wrong_enum_is_answered_with_the_list() -> None:
    found = only(check_axolotl(b"fsdp_config:\n  state_dict_type: SHARDED\n", STACK))
    assert "FULL_STATE_DICT, LOCAL_STATE_DICT, SHARDED_STATE_DICT" in found.reason
    assert found.where == "axolotl.yaml:2"


@pytest.mark.parametrize(
    "text", ['sequence_len: "4096"\n', "val_set_size: 0\n", "sample_packing: 'yes'\n", "bf16: auto\n"]
)
def test_what_pydantic_converts_is_not_an_error(text: str) -> None:
    lines = [line for line in GOOD.splitlines(keepends=True) if not line.startswith("bf16")]
    assert check_axolotl(("".join(lines) + text).encode(), STACK) == ()


# --- numbers that YAML 1.1 reads as strings


def test_a_number_without_a_point_is_pointed_out() -> None:
    found = only(check_axolotl(b"learning_rate: 2e-4\n", STACK))
    assert (found.rule, found.severity, found.fix) == ("RG705", Severity.NOTE, "write 2.0e-4")


def test_in_a_free_form_map_it_stays_a_string() -> None:
    found = only(axolotl("lr_scheduler_kwargs: {min_lr: 1e-6}\n"))
    assert (found.rule, found.severity) == ("RG705", Severity.WARNING)


# --- files that cannot be read


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"a: 1\na: 2\n", "twice"),
        (b"a: [1\n", "not valid YAML"),
        (b"\xff\xfe\x00", "not UTF-8"),
        (b"- 1\n- 2\n", "a mapping of keys to values"),
        (b"a: &x [*x]\n", "inside of what it stands for"),
        (b"a: !!python/object/apply:os.system ['true']\n", "tags are not allowed"),
    ],
)
def test_an_unreadable_file_is_a_finding(content: bytes, said: str) -> None:
    found = only(check_axolotl(content, STACK))
    assert found.rule == "RG706"
    assert said in found.reason


# --- Accelerate


ACCELERATE = "compute_environment: LOCAL_MACHINE\ndistributed_type: FSDP\nnum_processes: 8\nmixed_precision: bf16\n"


def accelerate(text: str, base: str = ACCELERATE) -> tuple[Finding, ...]:
    return check_accelerate((base + text).encode(), STACK)


@pytest.mark.parametrize(
    "text",
    [
        "fsdp_sharding_strategy: 1",
        "fsdp_sharding_strategy: '5'",
        "sharding_strategy: full_shard",
        "fsdp_state_dict_type: 3",
        "fsdp_backward_prefetch: backward_pre",
        "fsdp_auto_wrap_policy: transformer_based_wrap",
    ],
)
def test_fsdp_words_in_any_case_and_their_numbers_are_accepted(text: str) -> None:
    assert accelerate(f"fsdp_config:\n  fsdp_version: 1\n  {text}\n") == ()


@pytest.mark.parametrize(
    "text",
    ["fsdp_sharding_strategy: 0", "fsdp_sharding_strategy: 6", "fsdp_state_dict_type: 4", "fsdp_backward_prefetch: 3",
     "fsdp_auto_wrap_policy: 1", "fsdp_sharding_strategy: true", "fsdp_sharding_strategy: full"],
)  # fmt: skip
def test_other_numbers_and_words_are_not(text: str) -> None:
    assert only(accelerate(f"fsdp_config:\n  fsdp_version: 1\n  {text}\n")).rule == "RG702"


def test_a_good_accelerate_file_has_no_findings() -> None:
    section = "fsdp_config: {fsdp_version: 2, fsdp_reshard_after_forward: true, offload_params: false}\n"
    assert accelerate(section + "parallelism_config: {parallelism_config_dp_shard_size: 8}\n") == ()


@pytest.mark.parametrize(
    ("text", "rule", "severity"),
    [
        ("foo_bar: 1\n", "RG702", Severity.ERROR),
        ("fsdp_config: {fsdp_bogus: 1}\n", "RG701", Severity.WARNING),
        ("parallelism_config: {dp_shard_size: 8}\n", "RG701", Severity.ERROR),
        ("rdzv_backend: c10d\n", "RG704", Severity.NOTE),  # on one machine it makes no difference
        ("same_network: true\n", "RG704", Severity.NOTE),
        ("rdzv_backend: c10d\nnum_machines: 2\n", "RG704", Severity.WARNING),
        ("same_network: true\nnum_machines: 2\n", "RG704", Severity.WARNING),
        ("enable_cpu_affinity: true\n", "RG704", Severity.WARNING),
        ("fsdp_config: {fsdp_version: 2, fsdp_use_orig_params: true}\n", "RG704", Severity.WARNING),
        ("fsdp_config: {fsdp_version: 2, fsdp_reshard_after_forward: FULL_SHARD}\n", "RG702", Severity.ERROR),
        ("fsdp_config: {fsdp_version: 3}\n", "RG702", Severity.ERROR),
        ("deepspeed_config: {offload_param_nvme_path: /nvme}\n", "RG704", Severity.ERROR),
        ("deepspeed_config: {zero_stage: 5}\n", "RG702", Severity.ERROR),
    ],
)
def test_accelerate_traps(text: str, rule: str, severity: Severity) -> None:
    found = only(accelerate(text))
    assert (found.rule, found.severity) == (rule, severity)


def test_an_unquoted_no_is_explained() -> None:
    found = only(accelerate("", "distributed_type: MULTI_GPU\nnum_processes: 2\nmixed_precision: no\n"))
    assert found.fix == 'quote it: mixed_precision: "no"'


def test_what_accelerate_cannot_do_without() -> None:
    assert {f.field for f in check_accelerate(b"mixed_precision: bf16\n", STACK)} == {
        "distributed_type",
        "num_processes",
    }


def test_a_deepspeed_file_excludes_what_it_states() -> None:
    findings = accelerate("deepspeed_config: {deepspeed_config_file: ds.json, zero_stage: 3}\n")
    assert {f.field for f in findings} == {"deepspeed_config.zero_stage", "mixed_precision"}


# --- DeepSpeed


def deepspeed(**changes: object) -> tuple[Finding, ...]:
    values: dict[str, object] = {
        "train_batch_size": "auto",
        "train_micro_batch_size_per_gpu": "auto",
        "bf16": {"enabled": True},
        "zero_optimization": {"stage": 3, "reduce_bucket_size": 5e8, "offload_param": {"device": "cpu"}},
    }
    values.update(changes)
    return check_deepspeed(json.dumps(values, indent=2).encode(), STACK)


def test_a_good_deepspeed_file_has_no_findings() -> None:
    assert deepspeed() == ()


@pytest.mark.parametrize(
    ("changes", "rule", "severity", "field"),
    [
        ({"zero_optimisation": {}}, "RG701", Severity.ERROR, "zero_optimisation"),
        ({"aio": {"thread_count": 1}}, "RG701", Severity.ERROR, "aio.thread_count"),
        ({"zero_optimization": {"stage3_bogus": 1}}, "RG702", Severity.ERROR, "zero_optimization.stage3_bogus"),
        ({"zero_optimization": {"stage": 5}}, "RG702", Severity.ERROR, "zero_optimization.stage"),
        (
            {"zero_optimization": {"reduce_bucket_size": "5e8"}},
            "RG702",
            Severity.ERROR,
            "zero_optimization.reduce_bucket_size",
        ),
        (
            {"zero_optimization": {"sub_group_size": "auto"}},
            "RG702",
            Severity.ERROR,
            "zero_optimization.sub_group_size",
        ),
        (
            {"zero_optimization": {"offload_param": {"device": "nvme"}}},
            "RG702",
            Severity.ERROR,
            "zero_optimization.offload_param.nvme_path",
        ),
    ],
)
def test_deepspeed_traps(changes: dict[str, object], rule: str, severity: Severity, field: str) -> None:
    found = only(deepspeed(**changes))
    assert (found.rule, found.severity, found.field) == (rule, severity, field)
    assert found.where.startswith("deepspeed.json:")


@pytest.mark.parametrize("content", [b'{"a": 1, "a": 2}', b'{"a": NaN}', b'{"a": 1e999}', b"[1]", b"{", b"\xff"])
def test_json_that_cannot_be_read(content: bytes) -> None:
    assert only(check_deepspeed(content, STACK)).rule == "RG706"


# --- cost


def test_a_check_takes_milliseconds() -> None:
    axolotl("")
    start = time.process_time()
    for _ in range(10):
        axolotl("lora_rank: 8\n")
    assert (time.process_time() - start) / 10 < 0.05
