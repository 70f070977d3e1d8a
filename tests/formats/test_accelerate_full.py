"""The whole accelerate.yaml: only keys that Accelerate 1.13 reads, and what a worker gets is what the Recipe says."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from recipegen.formats import accelerate_full, deepspeed
from recipegen.spec import Dtype, Fsdp, Method, RecipegenError, Strategy
from tests.recipes_for_tests import REASONS, model, recipe, recipes

WRITABLE = [(n, r) for n, r in recipes() if r.fsdp is None or r.fsdp.state_dict_type == "SHARDED_STATE_DICT"]
# `accelerate launch` takes these from its command line only (accelerate/commands/launch.py, 1.13.0).
DEAD = {"same_network", "enable_cpu_affinity", "downcast_bf16", "tpu_use_cluster", "tpu_use_sudo"}
FSDP1 = {"sharding_strategy", "backward_prefetch", "forward_prefetch", "use_orig_params", "sync_module_states"}


def loaded(r: Any, reasons: dict[str, str] | None = None) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(accelerate_full.write(r, model(), reasons or {}))
    return found


@pytest.mark.parametrize(("name", "r"), WRITABLE, ids=[name for name, _ in WRITABLE])
def test_every_recipe_is_written_and_reread(name: str, r: Any) -> None:
    found = loaded(r)
    passed = r.passthrough.get("accelerate", {})
    assert {k: v for k, v in found.items() if k not in passed} == {
        k: v for k, v in accelerate_full.values(r, model()).items() if k not in passed
    }
    assert not DEAD & found.keys()
    assert not FSDP1 & {key.removeprefix("fsdp_") for key in found.get("fsdp_config", {})}
    assert found["num_processes"] == r.parallelism.world_size
    assert found["rdzv_backend"] == "static"


@pytest.mark.parametrize(
    ("strategy", "distributed_type"),
    [
        (Strategy.SINGLE, "NO"),
        (Strategy.DDP, "MULTI_GPU"),
        (Strategy.FSDP2_FULL, "FSDP"),
        (Strategy.FSDP2_HYBRID, "FSDP"),
        (Strategy.ZERO2, "DEEPSPEED"),
        (Strategy.ZERO3_CPU, "DEEPSPEED"),
        (Strategy.ZERO3_NVME, "DEEPSPEED"),
    ],
)
def test_the_engine_of_each_strategy(strategy: Strategy, distributed_type: str) -> None:
    found = loaded(recipe(strategy))
    assert found["distributed_type"] == distributed_type
    assert ("fsdp_config" in found) == strategy.is_fsdp
    assert ("deepspeed_config" in found) == strategy.is_deepspeed
    assert ("parallelism_config" in found) == (strategy is Strategy.FSDP2_HYBRID)


def test_no_precision_is_quoted() -> None:
    precision = dataclasses.replace(recipe().precision, compute=Dtype.FP32)
    text = accelerate_full.write(recipe(precision=precision), model(), {})
    assert 'mixed_precision: "no"' in text
    assert loaded(recipe())["mixed_precision"] == "bf16"


def test_hybrid_shard_uses_full_key_names() -> None:
    found = loaded(recipe(Strategy.FSDP2_HYBRID, nodes=2, gpus=8))["parallelism_config"]
    assert found["parallelism_config_dp_replicate_size"] == 2
    assert found["parallelism_config_dp_shard_size"] == 8
    assert all(key.startswith("parallelism_config_") for key in found)


@pytest.mark.parametrize("strategy", [s for s in Strategy if s.is_deepspeed])
def test_beside_the_deepspeed_file_nothing_that_it_can_state(strategy: Strategy) -> None:
    found = loaded(recipe(strategy))
    assert "mixed_precision" not in found
    assert found["deepspeed_config"] == {
        "deepspeed_config_file": "deepspeed.json",
        "deepspeed_multinode_launcher": "standard",
        "zero3_init_flag": strategy is not Strategy.ZERO2,
    }


def test_a_reason_stands_above_the_key_that_carries_the_decision() -> None:
    text = accelerate_full.write(recipe(), model(), REASONS).splitlines()
    key = next(i for i, line in enumerate(text) if "fsdp_reshard_after_forward" in line)
    assert REASONS["fsdp.reshard_after_forward"][:30] in text[key - 1]


def test_passthrough_reaches_inside_and_says_so() -> None:
    r = recipe(passthrough={"accelerate": {"fsdp_config.fsdp_offload_params": True, "debug": True}})
    text = accelerate_full.write(r, model(), {})
    assert yaml.safe_load(text)["fsdp_config"]["fsdp_offload_params"] is True
    assert yaml.safe_load(text)["fsdp_config"]["fsdp_version"] == 2
    assert "recipegen would have written false" in text


@pytest.mark.parametrize(
    ("method", "fsdp", "field"),
    [
        (Method.LORA, Fsdp(True, True, False, "FULL_STATE_DICT", "LlamaDecoderLayer"), "fsdp.state_dict_type"),
        (Method.QLORA, Fsdp(True, True, False, "SHARDED_STATE_DICT", "LlamaDecoderLayer"), "ram_efficient_loading"),
    ],
)
def test_what_accelerate_would_lose_or_die_of_is_refused(method: Method, fsdp: Fsdp, field: str) -> None:
    with pytest.raises(RecipegenError, match=field):
        accelerate_full.write(recipe(method=method, fsdp=fsdp), model(), {})


def test_torch_compile_is_a_dynamo_backend() -> None:
    assert loaded(recipe(torch_compile=True))["dynamo_config"] == {"dynamo_backend": "INDUCTOR"}
    assert "dynamo_config" not in loaded(recipe())


# ------------------------------------------------------------------------------------------------ Accelerate's own code

READ_BACK = Path(__file__).with_name("read_accelerate_config.py")


@pytest.mark.stack
def test_accelerate_reads_every_file_as_the_recipe_says(tmp_path: Path) -> None:
    """The launcher's own code turns each file into the environment of a worker, and the plugins are built from it."""
    strategies = [(n, r) for n, r in WRITABLE if "passthrough" not in n]
    for name, r in strategies:
        folder = tmp_path / name
        folder.mkdir()
        (folder / "accelerate.yaml").write_text(accelerate_full.write(r, model(), {}))
        if r.deepspeed is not None:
            for_train_py = dataclasses.replace(r, trainer="accelerate")
            (folder / "deepspeed.json").write_text(deepspeed.write(for_train_py))
    names = [str(tmp_path / name) for name, _ in strategies]
    done = subprocess.run([sys.executable, str(READ_BACK), *names], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    answers = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert len(answers) == len(strategies)
    for (name, r), found in zip(strategies, answers, strict=True):
        mesh = r.parallelism
        assert found["unknown"] == [], name
        assert found["nproc_per_node"] == mesh.gpus_per_node or mesh.world_size == 1, name
        if mesh.strategy.is_fsdp:
            assert found["fsdp"]["fsdp_version"] == 2, name
            assert found["fsdp"]["reshard_after_forward"] is r.fsdp.reshard_after_forward, name
            assert found["fsdp"]["state_dict_type"] == r.fsdp.state_dict_type, name
            assert found["fsdp"]["cpu_ram_efficient_loading"] is r.fsdp.cpu_ram_efficient_loading, name
            assert found["fsdp"]["activation_checkpointing"] is False, name
            assert found["fsdp"]["wrap"] == [r.fsdp.layer_class], name
            assert found["fsdp"]["param_dtype"] == "torch.bfloat16", name
        if mesh.strategy is Strategy.FSDP2_HYBRID:
            assert found["mesh"] == {"dp_replicate": mesh.dp_replicate, "dp_shard": mesh.dp_shard}, name
        if mesh.strategy.is_deepspeed:
            assert found["deepspeed"]["stage"] == r.deepspeed.stage, name
            assert found["deepspeed"]["bf16"] is True, name
            assert found["deepspeed"]["micro_batch"] == r.micro_batch_size, name
            assert found["deepspeed"]["nvme_path"] == r.deepspeed.nvme_path, name
