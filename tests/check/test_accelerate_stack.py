"""Accelerate's and DeepSpeed's own code on good and bad files, and our key tables against their classes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from recipegen.catalog.stack import load_stack
from recipegen.check import TrainerProcess, validate_accelerate, validate_deepspeed
from recipegen.check.keys import check_accelerate, check_deepspeed
from recipegen.check.report import ValidationReport
from recipegen.spec import Severity

pytestmark = pytest.mark.stack
STACK = load_stack()
FSDP = {
    "compute_environment": "LOCAL_MACHINE",
    "distributed_type": "FSDP",
    "mixed_precision": "bf16",
    "num_machines": 1,
    "num_processes": 4,
    "machine_rank": 0,
    "use_cpu": False,
    "debug": False,
    "fsdp_config": {
        "fsdp_version": 2,
        "fsdp_reshard_after_forward": True,
        "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
        "fsdp_transformer_layer_cls_to_wrap": "LlamaDecoderLayer",
        "fsdp_state_dict_type": "SHARDED_STATE_DICT",
        "fsdp_cpu_ram_efficient_loading": True,
    },
}
HYBRID = {"parallelism_config_dp_replicate_size": 2, "parallelism_config_dp_shard_size": 2}
ZERO3 = {
    "train_batch_size": "auto",
    "train_micro_batch_size_per_gpu": "auto",
    "gradient_accumulation_steps": "auto",
    "gradient_clipping": "auto",
    "bf16": {"enabled": True},
    "zero_optimization": {
        "stage": 3,
        "offload_optimizer": {"device": "cpu", "pin_memory": True},
        "offload_param": {"device": "cpu", "pin_memory": True},
        "reduce_bucket_size": "auto",
        "stage3_prefetch_bucket_size": "auto",
        "stage3_param_persistence_threshold": "auto",
    },
}


@pytest.fixture(scope="module")
def child() -> Iterator[TrainerProcess]:
    with TrainerProcess() as process:
        yield process


def accelerate(
    child: TrainerProcess, changes: dict[str, Any], files: dict[str, bytes] | None = None
) -> ValidationReport:
    content = yaml.safe_dump({**FSDP, **changes}).encode()
    return validate_accelerate(content, STACK, child, files=files)


# --- Accelerate


def test_the_plugins_are_built_from_the_workers_environment(child: TrainerProcess) -> None:
    report = accelerate(child, {"parallelism_config": HYBRID})
    assert report.accepted, report.findings
    assert report.resolved["fsdp"]["reshard_after_forward"] == "True"
    assert report.resolved["fsdp"]["state_dict_type"] == "StateDictType.SHARDED_STATE_DICT"
    assert "reduce_dtype=torch.bfloat16" in report.resolved["fsdp"]["mixed_precision_policy"]
    assert report.resolved["parallelism"]["total_size"] == 4


def test_what_the_shell_around_us_says_does_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"FSDP_OFFLOAD_PARAMS": "true", "ACCELERATE_MIXED_PRECISION": "fp16", "WORLD_SIZE": "3"}.items():
        monkeypatch.setenv(name, value)
    with TrainerProcess() as fresh:
        report = accelerate(fresh, {})
    assert report.accepted, report.findings
    assert report.resolved["fsdp"]["cpu_offload"] == "OffloadPolicy()"
    assert report.resolved["environment"]["ACCELERATE_MIXED_PRECISION"] == "bf16"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"foo_bar": 1}, "unknown keys"),
        ({"distributed_type": "FSDP2"}, "FSDP2"),
        ({"mixed_precision": False}, "lower"),
        ({"mixed_precision": "bfloat16"}, "bfloat16"),
        ({"num_processes": -1}, "num_processes"),
        ({"fsdp_config": {**FSDP["fsdp_config"], "fsdp_reshard_after_forward": "FULL_SHARD"}}, "full_shard"),
        ({"fsdp_config": {**FSDP["fsdp_config"], "fsdp_state_dict_type": "LOCAL_STATE_DICT"}}, "LOCAL_STATE_DICT"),
        ({"parallelism_config": {"parallelism_config_dp_shard_size": 8}}, "does not match num_processes"),
        ({"parallelism_config": {"parallelism_config_dp_replicate_size": 4}}, "nothing to shard"),
    ],
)
def test_accelerates_own_refusals(changes: dict[str, Any], said: str, child: TrainerProcess) -> None:
    report = accelerate(child, changes)
    assert not report.accepted
    assert said in report.findings[0].reason


def test_a_deepspeed_file_must_be_of_the_project(child: TrainerProcess) -> None:
    changes = {"distributed_type": "DEEPSPEED", "fsdp_config": None, "mixed_precision": None}
    section = {"deepspeed_config": {"deepspeed_config_file": "deepspeed.json", "zero3_init_flag": True}}
    missing = accelerate(child, {**changes, **section})
    assert [f.rule for f in missing.findings] == ["RG726"]
    values = {key: value for key, value in {**FSDP, **changes, **section}.items() if value is not None}
    report = validate_accelerate(
        yaml.safe_dump(values).encode(), STACK, child, files={"deepspeed.json": json.dumps(ZERO3).encode()}
    )
    assert report.accepted, report.findings
    assert report.resolved["deepspeed"]["zero_optimization"]["stage"] == 3


def test_the_table_of_keys_is_accelerates_own() -> None:
    from dataclasses import fields

    from accelerate.commands.config.config_args import ClusterConfig
    from accelerate.commands.launch import launch_command_parser

    table = STACK.accelerate_keys()
    assert set(table["top"]) == {field.name for field in fields(ClusterConfig)}
    actions = {action.dest: action for action in launch_command_parser()._actions}
    read_without_a_flag = {"fsdp_ignored_modules"}  # prepare_multi_gpu_env reads it with getattr
    for name, section in table["sections"].items():
        prefix = name.removesuffix("config") if name != "deepspeed_config" else ""
        known = {dest for dest in actions if prefix and dest.startswith(prefix)}
        assert set(section["keys"]) <= set(actions) | read_without_a_flag, name
        assert known <= set(section["keys"]), name
    for key, default in table["only_as_flags"].items():
        assert actions[key].default == default or key == "tpu_use_cluster"


# --- DeepSpeed


def zero(child: TrainerProcess, changes: dict[str, Any]) -> ValidationReport:
    content = json.dumps({**ZERO3, **changes}).encode()
    return validate_deepspeed(
        content, STACK, child, world_size=8, micro_batch_size=2, gradient_accumulation=4, hidden_size=4096
    )


def test_auto_is_filled_in_and_the_batch_checked_for_the_real_world_size(child: TrainerProcess) -> None:
    report = zero(child, {})
    assert report.accepted, report.findings
    assert report.resolved["train_batch_size"] == 64
    assert report.resolved["stage"] == 3


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"zero_optimization": {"stage": 3, "stage3_bogus": 1}}, "Extra inputs"),
        ({"zero_optimization": {"stage": 5}}, "stage"),
        ({"zero_optimization": {"stage": 3, "offload_param": {"device": "ssd"}}}, "device"),
        ({"zero_optimization": {"stage": 3, "reduce_bucket_size": "5e8"}}, "reduce_bucket_size"),
        ({"train_batch_size": 63}, "train_batch_size"),
        ({"fp16": {"enabled": True}}, "fp16"),
    ],
)
def test_deepspeeds_own_refusals(changes: dict[str, Any], said: str, child: TrainerProcess) -> None:
    report = zero(child, changes)
    assert not report.accepted
    assert said in report.findings[0].reason


@pytest.mark.parametrize(
    "changes",
    [
        {"zero_optimisation": {"stage": 3}},
        {"aio": {"thread_count": 1}},
        {"zero_optimization": {"stage": 3, "offload_param": {"device": "nvme"}}},
    ],
)
def test_what_deepspeed_accepts_in_silence_our_key_check_does_not(
    changes: dict[str, Any], child: TrainerProcess
) -> None:
    assert zero(child, changes).accepted
    findings = check_deepspeed(json.dumps({**ZERO3, **changes}).encode(), STACK)
    assert any(f.severity is Severity.ERROR for f in findings)


def test_what_accelerate_accepts_in_silence_our_key_check_does_not(child: TrainerProcess) -> None:
    for changes in ({"parallelism_config": {"dp_shard_size": 4}}, {"rdzv_backend": "c10d"}):
        assert accelerate(child, changes).accepted
        assert check_accelerate(yaml.safe_dump({**FSDP, **changes}).encode(), STACK)


# --- the child


def test_a_child_that_hangs_is_ended() -> None:
    from recipegen.spec import RecipegenError

    with TrainerProcess(timeout_s=0.01) as impatient, pytest.raises(RecipegenError, match="without an answer"):
        impatient.ask("axolotl", values={}, plugins=[], capabilities={}, torch="2.13.0", files={})


def test_a_question_the_child_does_not_know_is_an_answer_not_a_crash(child: TrainerProcess) -> None:
    assert "KeyError" in child.ask("nonsense")["errors"][0][1]
