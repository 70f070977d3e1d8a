"""accelerate.yaml of either kind comes back as it was written; hand-written ones as Accelerate reads them."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from recipegen.formats import accelerate, accelerate_full, accelerate_read
from recipegen.formats.reading import Reading, restrict
from recipegen.spec import Dtype, Recipe, RecipegenError, Strategy
from tests.recipes_for_tests import mesh, model, recipe, recipes

RECIPES = [(name, r) for name, r in recipes()]
FSDP = {"distributed_type": "FSDP", "num_machines": 1, "num_processes": 8}


def whole_file(r: Recipe) -> str | None:
    try:
        return accelerate_full.write(r, model(), {})
    except RecipegenError:
        return None  # Accelerate cannot run it


WHOLE = [(name, r, text) for name, r in RECIPES if (text := whole_file(r)) is not None]


def read(values: Any) -> Reading:
    return of_text(values if isinstance(values, str) else yaml.safe_dump(values))


def of_text(text: str) -> Reading:
    return accelerate_read.read(text.encode(), "accelerate.yaml")


def fsdp(**section: Any) -> Reading:
    return read({**FSDP, "fsdp_config": section})


@pytest.mark.parametrize(("name", "r"), RECIPES, ids=[name for name, _ in RECIPES])
def test_the_small_file_is_read(name: str, r: Recipe) -> None:
    reading = of_text(accelerate.write(r))
    assert reading.values == restrict(r, accelerate_read.CARRIES)
    assert reading.problems == ()
    assert reading.passthrough == {}
    assert set(reading.provenance) == set(reading.values)


@pytest.mark.parametrize(("name", "r", "text"), WHOLE, ids=[name for name, _, _ in WHOLE])
def test_the_whole_file_is_read(name: str, r: Recipe, text: str) -> None:
    reading = of_text(text)
    assert reading.values == restrict(r, accelerate_read.CARRIES_FULL)
    assert reading.problems == ()
    assert reading.passthrough == {}


@given(
    st.sampled_from([Strategy.DDP, Strategy.FSDP2_FULL, Strategy.FSDP2_HYBRID, Strategy.ZERO2, Strategy.ZERO3_CPU]),
    st.integers(1, 16),
    st.sampled_from([2, 4, 8]),
    st.integers(1, 65535),
    st.booleans(),
    st.booleans(),
    st.booleans(),
    st.sampled_from([Dtype.BF16, Dtype.FP32]),
)
def test_any_mesh_comes_back(
    strategy: Strategy, nodes: int, gpus: int, port: int, one: bool, two: bool, compiled: bool, compute: Dtype
) -> None:
    if strategy is Strategy.FSDP2_HYBRID and nodes == 1:
        gpus *= 2
    r = recipe(strategy, parallelism=mesh(strategy, nodes, gpus), torch_compile=compiled)
    r = dataclasses.replace(
        r,
        launch=dataclasses.replace(r.launch, main_process_port=port),
        precision=dataclasses.replace(r.precision, compute=compute),
        fsdp=r.fsdp and dataclasses.replace(r.fsdp, reshard_after_forward=one, offload_params=two),
    )
    assert of_text(accelerate.write(r)).values == restrict(r, accelerate_read.CARRIES)
    assert of_text(accelerate_full.write(r, model(), {})).values == restrict(r, accelerate_read.CARRIES_FULL)


def test_each_value_has_its_line() -> None:
    reading = of_text("distributed_type: FSDP\n\nnum_machines: 2\nnum_processes: 16\n")
    assert reading.provenance["parallelism.nodes"] == "accelerate.yaml:3"
    assert reading.provenance["parallelism.gpus_per_node"] == "accelerate.yaml:4"


def test_what_accelerate_config_writes() -> None:
    reading = of_text(
        """compute_environment: LOCAL_MACHINE
debug: false
distributed_type: FSDP
downcast_bf16: 'no'
enable_cpu_affinity: false
fsdp_config:
  fsdp_activation_checkpointing: true
  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP
  fsdp_backward_prefetch: BACKWARD_PRE
  fsdp_cpu_ram_efficient_loading: true
  fsdp_forward_prefetch: false
  fsdp_offload_params: false
  fsdp_sharding_strategy: FULL_SHARD
  fsdp_state_dict_type: SHARDED_STATE_DICT
  fsdp_sync_module_states: true
  fsdp_use_orig_params: true
machine_rank: 0
main_training_function: main
mixed_precision: bf16
num_machines: 1
num_processes: 8
rdzv_backend: static
same_network: true
tpu_env: []
tpu_use_cluster: false
tpu_use_sudo: false
use_cpu: false
"""
    )
    assert reading.problems == ()
    assert reading.values == {
        "parallelism.strategy": Strategy.FSDP2_FULL, "parallelism.nodes": 1, "parallelism.gpus_per_node": 8,
        "precision.compute": Dtype.BF16, "fsdp.reshard_after_forward": True, "fsdp.offload_params": False,
        "fsdp.cpu_ram_efficient_loading": True, "fsdp.state_dict_type": "SHARDED_STATE_DICT",
    }  # fmt: skip
    assert reading.facts["fsdp_version"] == 1
    assert reading.facts["downcast_bf16"] is False
    assert reading.facts["fsdp_activation_checkpointing"] is True
    assert reading.passthrough == {"tpu_env": [], "tpu_use_cluster": False, "tpu_use_sudo": False}


@pytest.mark.parametrize(
    ("written", "name", "strategy", "reshard"),
    [
        (1, "FULL_SHARD", Strategy.FSDP2_FULL, True),
        ("2", "SHARD_GRAD_OP", Strategy.FSDP2_FULL, False),
        ("no_shard", "NO_SHARD", Strategy.DDP, False),
        (4, "HYBRID_SHARD", Strategy.FSDP2_FULL, True),
        ("HYBRID_SHARD_ZERO2", "HYBRID_SHARD_ZERO2", Strategy.FSDP2_FULL, False),
    ],
)
@pytest.mark.parametrize("key", ["fsdp_sharding_strategy", "sharding_strategy"])
def test_sharding_strategies_of_version_1(key: str, written: Any, name: str, strategy: Strategy, reshard: bool) -> None:
    reading = fsdp(fsdp_version=1, **{key: written})
    assert reading.facts["fsdp_sharding_strategy"] == name
    assert reading.values["parallelism.strategy"] is strategy
    assert reading.values["fsdp.reshard_after_forward"] is reshard
    assert reading.values["fsdp.version"] == 1


def test_hybrid_shard_of_version_1_shards_inside_each_node() -> None:
    reading = read({**FSDP, "num_machines": 2, "num_processes": 16, "fsdp_config": {"sharding_strategy": 4}})
    assert reading.values["parallelism.strategy"] is Strategy.FSDP2_HYBRID
    assert (reading.values["parallelism.dp_replicate"], reading.values["parallelism.dp_shard"]) == (2, 8)


def test_a_sharding_strategy_under_the_name_of_version_2_has_no_effect() -> None:
    """The launcher's sharding strategy is never empty, and Accelerate prefers it."""
    reading = fsdp(fsdp_version=1, fsdp_reshard_after_forward="SHARD_GRAD_OP")
    assert "fsdp.reshard_after_forward" not in reading.values
    assert reading.passthrough == {"fsdp_config.fsdp_reshard_after_forward": "SHARD_GRAD_OP"}


def test_keys_of_version_1_mean_nothing_in_version_2() -> None:
    reading = fsdp(fsdp_version="2", fsdp_sharding_strategy="HYBRID_SHARD", reshard_after_forward="yes")
    assert reading.passthrough == {"fsdp_config.fsdp_sharding_strategy": "HYBRID_SHARD"}
    assert reading.values["parallelism.strategy"] is Strategy.FSDP2_FULL
    assert reading.values["fsdp.reshard_after_forward"] is True
    assert reading.problems == ()


def test_short_names_of_the_mesh_are_dropped_by_accelerate() -> None:
    reading = read({**FSDP, "parallelism_config": {"dp_replicate_size": 2, "parallelism_config_dp_shard_size": 8}})
    assert reading.passthrough == {"parallelism_config.dp_replicate_size": 2}
    assert reading.values["parallelism.dp_shard"] == 8
    assert "parallelism.dp_replicate" not in reading.values


def test_deepspeed_inline() -> None:
    section = {
        "zero_stage": 3, "offload_optimizer_device": "cpu", "offload_param_device": "none", "gradient_clipping": "auto",
        "gradient_accumulation_steps": "4", "zero3_save_16bit_model": True, "offload_param_nvme_path": "none",
    }  # fmt: skip
    reading = read({"distributed_type": "DEEPSPEED", "num_processes": 4, "deepspeed_config": section})
    assert reading.values == {
        "parallelism.strategy": Strategy.ZERO3_CPU, "parallelism.gpus_per_node": 4, "deepspeed.stage": 3,
        "deepspeed.offload_optimizer": "cpu", "deepspeed.offload_param": "none", "gradient_accumulation": 4,
        "deepspeed.save_16bit_model": True,
    }  # fmt: skip
    assert reading.facts["gradient_clipping"] == "auto"
    assert reading.passthrough == {"deepspeed_config.offload_param_nvme_path": "none"}


def test_deepspeed_in_a_file_of_its_own() -> None:
    section = {"deepspeed_config_file": "ds.json", "zero3_init_flag": True, "deepspeed_multinode_launcher": "standard"}
    reading = read({"distributed_type": "DEEPSPEED", "num_processes": 4, "deepspeed_config": section})
    assert reading.facts["deepspeed_config_file"] == "ds.json"
    assert "parallelism.strategy" not in reading.values


def test_a_section_of_another_engine_has_no_effect() -> None:
    reading = read({"distributed_type": "MULTI_GPU", "num_processes": 8, "fsdp_config": {"fsdp_offload_params": True}})
    assert [problem.key for problem in reading.problems] == ["fsdp_config"]
    assert reading.passthrough == {"fsdp_config.fsdp_offload_params": True}
    assert read({"distributed_type": "MULTI_GPU", "fsdp_config": {}, "deepspeed_config": {}}).problems == ()


def test_megatron_and_tpu_are_passed_through() -> None:
    reading = read({"distributed_type": "MEGATRON_LM", "megatron_lm_config": {"tp": 2}, "tpu_name": "a"})
    assert reading.passthrough == {"megatron_lm_config.tp": 2, "tpu_name": "a"}
    assert reading.problems == ()


def test_old_top_level_keys() -> None:
    reading = read({"distributed_type": "NO", "fp16": True, "dynamo_backend": "INDUCTOR"})
    assert reading.legacy == {"fp16": "mixed_precision", "dynamo_backend": "dynamo_config.dynamo_backend"}
    assert reading.facts["mixed_precision"] == "fp16"
    assert reading.values == {"torch_compile": True}


@pytest.mark.parametrize(
    ("values", "key", "part"),
    [
        ({"mixed_precision": False}, "mixed_precision", "none of no, fp16"),
        ({"num_machines": 0}, "num_machines", "below 1"),
        ({"num_machines": 2, "num_processes": 7}, "num_processes", "each would start 3"),
        ({"num_processes": "all"}, "num_processes", "not a number"),
        ({"compute_environment": "AMAZON_SAGEMAKER"}, "compute_environment", "LOCAL_MACHINE"),
        ({"fsdp_config": "x"}, "fsdp_config", "not a mapping"),
        ({"distributed_type": "FSDP", "fsdp_config": {"version": 3}}, "fsdp_config.version", "neither 1 nor 2"),
        (
            {"distributed_type": "FSDP", "fsdp_config": {"sharding_strategy": 6}},
            "fsdp_config.sharding_strategy",
            "none of",
        ),
        (
            {"distributed_type": "DEEPSPEED", "deepspeed_config": {"zero_stage": 4}},
            "deepspeed_config.zero_stage",
            "ZeRO",
        ),
    ],
)
def test_what_cannot_be_taken_is_a_problem(values: dict[str, Any], key: str, part: str) -> None:
    reading = read(values)
    (problem,) = reading.problems
    assert problem.key == key
    assert part in problem.reason


def test_a_configuration_in_json() -> None:
    reading = accelerate_read.read(b'{"distributed_type": "NO",\n"num_processes": 1}', "default_config.json")
    assert reading.provenance == {"parallelism.gpus_per_node": "default_config.json:2"}


@pytest.mark.parametrize(
    ("content", "where", "part"),
    [
        (b"a: 1\na: 2\n", "x.yaml:2", "twice"),
        (b"a: &x [1]\nb: *y\n", "x.yaml:2", "undefined alias"),
        (b"- 1\n", "x.yaml", "mapping"),
        (b"", "x.yaml", "mapping"),
        (b'a: "\\uD800"\n', "x.yaml", ""),
        (b"#" * (2**20 + 1), "x.yaml", "larger than 1024 KiB"),
        (b"a: " + b"[" * 10_000, "x.yaml:1", "nested deeper"),
    ],
)
def test_yaml_that_is_refused(content: bytes, where: str, part: str) -> None:
    (problem,) = accelerate_read.read(content, "x.yaml").problems
    assert problem.where.startswith(where)
    assert part in problem.reason


# --- anything at all

YAML = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
    | st.sampled_from(["FSDP", "DEEPSPEED", "auto", "no", "yes", "FULL_SHARD", 10**400]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)  # fmt: skip
KEYS = st.sampled_from(
    [("distributed_type",), ("num_processes",), ("num_machines",), ("fsdp_config",), ("deepspeed_config",),
     ("fsdp_config", "fsdp_version"), ("fsdp_config", "sharding_strategy"), ("fsdp_config", "fsdp_sharding_strategy"),
     ("fsdp_config", "reshard_after_forward"), ("deepspeed_config", "zero_stage"), ("parallelism_config",),
     ("dynamo_config", "dynamo_backend"), ("dynamo_backend",), ("fp16",), ("fp8_config", "backend")]
)  # fmt: skip


@given(st.dictionaries(KEYS, YAML, max_size=8), st.sampled_from(["FSDP", "DEEPSPEED", "NO"]))
def test_any_values_are_read(changes: dict[tuple[str, ...], Any], kind: str) -> None:
    values: dict[str, Any] = {**FSDP, "distributed_type": kind}
    for path, value in changes.items():
        target = values
        if len(path) > 1:
            target = values.setdefault(path[0], {})
        if isinstance(target, dict):
            target[path[-1]] = value
    reading = read(values)
    assert set(reading.provenance) == set(reading.values)


@given(st.binary(max_size=200) | st.text(max_size=200).map(str.encode))
def test_any_bytes_are_read(content: bytes) -> None:
    assert accelerate_read.read(content, "accelerate.yaml").format == "accelerate"
