"""accelerate.yaml beside Axolotl, and deepspeed.json."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest
import yaml

from recipegen.formats import accelerate, deepspeed
from recipegen.spec import RecipegenError, Strategy
from tests.recipes_for_tests import recipe, recipes

SAMPLES = dict(recipes())
ZERO = {name: chosen for name, chosen in SAMPLES.items() if chosen.deepspeed}


@pytest.mark.parametrize("name", SAMPLES)
def test_accelerate_yaml_has_machine_and_process_keys_only(name: str) -> None:
    chosen = SAMPLES[name]
    loaded = yaml.safe_load(accelerate.write(chosen))
    passed = chosen.passthrough.get("accelerate", {})
    assert set(loaded) - set(passed) == {
        "compute_environment",
        "distributed_type",
        "num_machines",
        "num_processes",
        "machine_rank",
        "main_process_port",
        "rdzv_backend",
        "mixed_precision",
        "use_cpu",
    }
    assert loaded["num_processes"] == chosen.parallelism.world_size
    assert loaded["num_machines"] == chosen.parallelism.nodes
    assert loaded["distributed_type"] == ("NO" if chosen.parallelism.strategy is Strategy.SINGLE else "MULTI_GPU")
    assert loaded["mixed_precision"] == "no"


def written(chosen: Any) -> dict[str, Any]:
    loaded = json.loads(deepspeed.write(chosen))
    assert isinstance(loaded, dict)
    return loaded


def autos(value: Any, above: str = "") -> set[str]:
    if isinstance(value, dict):
        return set().union(*(autos(item, f"{above}.{key}" if above else key) for key, item in value.items()))
    return {above} if value == "auto" else set()


@pytest.mark.parametrize("name", ZERO)
def test_auto_stands_only_for_what_axolotl_yaml_states(name: str) -> None:
    batch = {"train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "gradient_clipping"}
    optimizer = {f"optimizer.params.{key}" for key in ("lr", "betas", "eps", "weight_decay")}
    found = autos(written(ZERO[name]))
    offloaded = ZERO[name].parallelism.strategy is not Strategy.ZERO2
    assert found == (batch | optimizer if offloaded else batch)
    assert autos(written(dataclasses.replace(ZERO[name], trainer="accelerate"))) == set()


def test_zero_2_uses_axolotls_optimizer() -> None:
    loaded = written(recipe(Strategy.ZERO2))
    assert "optimizer" not in loaded
    assert loaded["zero_optimization"]["stage"] == 2
    assert not [key for key in loaded["zero_optimization"] if key.startswith(("stage3", "offload"))]


def test_zero_3_offloads_to_the_cpu() -> None:
    zero = written(recipe(Strategy.ZERO3_CPU))["zero_optimization"]
    assert zero["offload_optimizer"] == {"device": "cpu", "pin_memory": True}
    assert zero["offload_param"] == {"device": "cpu", "pin_memory": True}
    assert zero["stage3_gather_16bit_weights_on_model_save"] is True


def test_zero_3_offloads_to_nvme_with_buffers_and_aio() -> None:
    loaded = written(recipe(Strategy.ZERO3_NVME))
    zero = loaded["zero_optimization"]
    assert zero["offload_param"]["nvme_path"] == zero["offload_optimizer"]["nvme_path"] == "/nvme/swap"
    assert zero["offload_param"]["buffer_size"] == 600_000_000
    assert "aio" in loaded
    zero_recipe = recipe(Strategy.ZERO3_NVME).deepspeed
    assert zero_recipe is not None
    with pytest.raises(RecipegenError, match="path"):
        written(recipe(Strategy.ZERO3_NVME, deepspeed=dataclasses.replace(zero_recipe, nvme_path=None)))


def test_train_py_gets_numbers_and_pytorchs_adamw() -> None:
    loaded = written(recipe(Strategy.ZERO2, trainer="accelerate"))
    assert loaded["train_batch_size"] == 32
    assert loaded["optimizer"]["params"] == {
        "lr": 1e-5,
        "betas": [0.9, 0.99],
        "eps": 1e-8,
        "weight_decay": 0.0,
        "torch_adam": True,
    }


def test_an_optimizer_that_cannot_be_offloaded_is_refused() -> None:
    with pytest.raises(RecipegenError, match="optimi_adamw"):
        written(recipe(Strategy.ZERO3_CPU, optimizer_name="optimi_adamw"))


def test_parameters_stay_on_the_gpu_under_zero_2() -> None:
    zero = recipe(Strategy.ZERO2).deepspeed
    assert zero is not None
    with pytest.raises(RecipegenError, match="ZeRO-3"):
        written(recipe(Strategy.ZERO2, deepspeed=dataclasses.replace(zero, offload_param="cpu")))


def test_a_strategy_without_its_settings_is_refused() -> None:
    with pytest.raises(RecipegenError):
        deepspeed.write(recipe(Strategy.DDP))


def test_deepspeed_passthrough_reaches_inside() -> None:
    loaded = written(
        recipe(Strategy.ZERO2, passthrough={"deepspeed": {"zero_optimization.round_robin_gradients": True}})
    )
    assert loaded["zero_optimization"]["round_robin_gradients"] is True
    assert loaded["zero_optimization"]["stage"] == 2
