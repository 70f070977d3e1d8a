"""Files of one project that contradict each other."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml

from recipegen.catalog import load_cluster
from recipegen.check import validate_project
from recipegen.spec import Finding, Severity

CLUSTER = load_cluster("kentino-8x-rtx-5090")
AXOLOTL: dict[str, Any] = {
    "base_model": "meta-llama/Llama-3.1-8B",
    "datasets": [{"path": "data.jsonl", "type": "alpaca"}],
    "learning_rate": 2.0e-5,
    "micro_batch_size": 2,
    "gradient_accumulation_steps": 4,
    "bf16": True,
}
LAUNCH: dict[str, Any] = {"distributed_type": "MULTI_GPU", "num_processes": 8, "num_machines": 1}
FSDP: dict[str, Any] = {"fsdp_version": 2, "fsdp_config": {"reshard_after_forward": True}}
ZERO: dict[str, Any] = {"bf16": {"enabled": True}, "zero_optimization": {"stage": 2}, "train_batch_size": "auto"}


def check(
    axolotl: dict[str, Any] | None = None,
    accelerate: dict[str, Any] | None = None,
    deepspeed: dict[str, Any] | None = None,
    train: dict[str, Any] | None = None,
) -> tuple[Finding, ...]:
    files = {}
    if axolotl is not None:
        files["axolotl.yaml"] = yaml.safe_dump(axolotl).encode()
    if accelerate is not None:
        files["accelerate.yaml"] = yaml.safe_dump(accelerate).encode()
    if deepspeed is not None:
        files["deepspeed.json"] = json.dumps(deepspeed).encode()
    if train is not None:
        files["train.json"] = json.dumps(train).encode()
    findings, ran = validate_project(files, None, CLUSTER, trainers=False)
    assert "not run: the trainers' own validators (not asked for)" in ran
    return findings


def errors(findings: tuple[Finding, ...]) -> list[tuple[str, str]]:
    assert all(f.reason and f.where for f in findings)
    return [(f.rule, f.where.split(":")[0]) for f in findings if f.severity is Severity.ERROR]


def test_projects_that_agree() -> None:
    assert check(AXOLOTL, LAUNCH) == ()
    assert check({**AXOLOTL, **FSDP, "dp_shard_size": 4, "dp_replicate_size": 2}, LAUNCH) == ()
    assert check({**AXOLOTL, "deepspeed": "deepspeed.json"}, LAUNCH, ZERO) == ()


@pytest.mark.parametrize(
    ("deepspeed", "rule"),
    [
        ({"train_micro_batch_size_per_gpu": 1}, "RG721"),
        ({"gradient_accumulation_steps": 1}, "RG721"),
        ({"train_batch_size": 63}, "RG721"),
        ({"bf16": {"enabled": False}}, "RG723"),
        ({"fp16": {"enabled": True}}, "RG723"),
    ],
)
def test_the_deepspeed_file_against_axolotls(deepspeed: dict[str, Any], rule: str) -> None:
    found = check({**AXOLOTL, "deepspeed": "deepspeed.json"}, LAUNCH, {**ZERO, **deepspeed})
    assert errors(found) == [(rule, "deepspeed.json")]


def test_the_right_total_is_no_contradiction() -> None:
    numbers = {"train_batch_size": 64, "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 4}
    assert check({**AXOLOTL, "deepspeed": "deepspeed.json"}, LAUNCH, {**ZERO, **numbers}) == ()


@pytest.mark.parametrize(
    ("accelerate", "said"),
    [
        ({"num_processes": 16}, "the cluster has 8 GPUs"),
        ({"num_processes": 8, "num_machines": 2}, "the cluster has 1 node"),
    ],
)
def test_process_counts_against_the_cluster(accelerate: dict[str, Any], said: str) -> None:
    found = check(AXOLOTL, {**LAUNCH, **accelerate})
    assert errors(found) == [("RG722", "accelerate.yaml")]
    assert said in found[0].reason


def test_machines_that_were_not_named_are_said_once() -> None:
    found = check(AXOLOTL, {**LAUNCH, "num_processes": 16, "num_machines": 2})
    assert errors(found) == [("RG722", "accelerate.yaml")]
    assert "--nodes 2" in found[0].fix
    assert len(errors(check(AXOLOTL, {**LAUNCH, "num_processes": 32, "num_machines": 2}))) == 2  # 16 on each


def test_a_job_may_use_some_of_the_gpus() -> None:
    found = check(AXOLOTL, {**LAUNCH, "num_processes": 4})
    assert [(f.rule, f.severity) for f in found] == [("RG722", Severity.NOTE)]
    assert "4 of 8 GPUs" in found[0].reason


def test_processes_must_divide_by_machines() -> None:
    found = check(AXOLOTL, {**LAUNCH, "num_machines": 3})
    assert ("RG722", "accelerate.yaml") in errors(found)
    assert any("does not divide by num_machines 3" in f.reason for f in found)


@pytest.mark.parametrize(
    ("mesh", "numbers"),
    [
        ({"dp_shard_size": 4, "dp_replicate_size": 4}, "= 16, but num_processes is 8"),
        ({"tensor_parallel_size": 3}, "does not divide 8"),
    ],
)
def test_the_mesh_that_axolotl_does_not_check(mesh: dict[str, Any], numbers: str) -> None:
    found = check({**AXOLOTL, **FSDP, **mesh}, LAUNCH)
    assert errors(found) == [("RG722", "axolotl.yaml")]
    assert numbers in found[0].reason


def test_the_mesh_of_accelerates_own_file() -> None:
    base = {"distributed_type": "FSDP", "num_processes": 8, "fsdp_config": {"fsdp_version": 2}}
    wrong = {"parallelism_config_dp_shard_size": 4, "parallelism_config_dp_replicate_size": 4}
    assert errors(check(None, {**base, "parallelism_config": wrong})) == [("RG722", "accelerate.yaml")]
    nothing_to_shard = {"parallelism_config_dp_replicate_size": 8}
    found = check(None, {**base, "parallelism_config": nothing_to_shard})
    assert "nothing to shard" in found[0].reason


def test_two_engines_in_one_file() -> None:
    found = check({**AXOLOTL, **FSDP, "deepspeed": "deepspeed.json"}, LAUNCH, ZERO)
    assert errors(found) == [("RG724", "axolotl.yaml")]


def test_activation_checkpointing_twice() -> None:
    config = {**AXOLOTL, **FSDP, "gradient_checkpointing": True}
    config["fsdp_config"] = {"activation_checkpointing": True}
    assert errors(check(config, LAUNCH)) == [("RG725", "axolotl.yaml")]
    assert errors(check({**config, "activation_offloading": True}, LAUNCH)) == []  # the trainer's own is off
    assert errors(check({**config, "activation_offloading": "hidden_states"}, LAUNCH)) == [("RG725", "axolotl.yaml")]
    assert (
        errors(check({**config, "gradient_checkpointing": "offload"}, LAUNCH)) == []
    )  # the old spelling of offloading
    config["fsdp_config"] = {"fsdp_activation_checkpointing": True}
    assert errors(check(config, LAUNCH)) == [("RG725", "axolotl.yaml")]


def test_a_file_that_is_named_and_not_there() -> None:
    assert errors(check({**AXOLOTL, "deepspeed": "configs/zero3.json"}, LAUNCH)) == [("RG726", "axolotl.yaml")]


def test_a_file_that_axolotl_ships_may_lie_where_the_run_starts() -> None:
    found = check({**AXOLOTL, "deepspeed": "deepspeed_configs/zero3_bf16.json"}, LAUNCH)
    assert [(f.rule, f.severity) for f in found] == [("RG726", Severity.WARNING)]
    assert "axolotl fetch" in found[0].fix


def test_the_launchers_file_carries_no_engine_beside_axolotl() -> None:
    found = check(AXOLOTL, {**LAUNCH, "distributed_type": "FSDP", "fsdp_config": {"fsdp_version": 2}})
    assert errors(found) == [("RG727", "accelerate.yaml")] * 2


def test_train_json_against_its_own_numbers_and_the_launchers() -> None:
    batch = {
        "micro_batch_size": 1,
        "gradient_accumulation": 2,
        "dp_replicate": 1,
        "dp_shard": 8,
        "global_batch_size": 8,
    }
    launch = {
        "distributed_type": "DEEPSPEED",
        "num_processes": 8,
        "deepspeed_config": {"gradient_accumulation_steps": 4},
    }
    found = check(None, launch, None, {"batch": batch})
    assert errors(found) == [("RG721", "accelerate.yaml"), ("RG721", "train.json")]
    assert "1 x 2 x 8 ranks = 16" in found[1].reason


def test_values_of_the_wrong_shape_do_not_break_the_check() -> None:
    odd: dict[str, Any] = {"fsdp_config": "x", "deepspeed": 3, "micro_batch_size": "two", "dp_shard_size": None}
    check({**AXOLOTL, **odd}, {"num_processes": "eight", "parallelism_config": [1]}, {"bf16": 1}, {"batch": "x"})
