"""The trainers' own validators take every sample recipe, and take all of it: no key is dropped on the way."""

from __future__ import annotations

import copy
import dataclasses
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from recipegen.formats import accelerate, axolotl, deepspeed
from recipegen.spec import Recipe
from tests.recipes_for_tests import model, recipes

pytestmark = pytest.mark.stack

# A plugin stays registered in Axolotl's process-wide manager, so recipes with plugins come last.
SAMPLES = dict(sorted(recipes(), key=lambda named: "plugins" in axolotl.values(named[1])))
ZERO = {name: chosen for name, chosen in SAMPLES.items() if chosen.deepspeed}
# Validators fill these in or normalise them; what we wrote still means the same.
NORMALISED = {"datasets", "deepspeed"}


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AXOLOTL_DO_NOT_TRACK", "DO_NOT_TRACK", "HF_HUB_OFFLINE"):
        monkeypatch.setenv(name, "1")


def validated(chosen: Recipe) -> tuple[dict[str, Any], dict[str, Any]]:
    """What we wrote, and what Axolotl made of it for RTX 5090s."""
    written = yaml.safe_load(axolotl.write(chosen, model(), {}))
    return written, validate(written, chosen.parallelism.world_size)


def validate(written: dict[str, Any], gpus: int) -> dict[str, Any]:
    from axolotl.utils.config import prepare_plugins, validate_config
    from axolotl.utils.dict import DictDefault

    cfg = DictDefault(copy.deepcopy(written))
    prepare_plugins(cfg)
    made: DictDefault = validate_config(
        cfg,
        capabilities={
            "bf16": True,
            "fp8": True,
            "tf32": True,
            "n_gpu": gpus,
            "compute_capability": "sm_120",
        },
        env_capabilities={"torch_version": "2.13.0"},
    )
    result: dict[str, Any] = made.to_dict()
    return result


@pytest.mark.parametrize("name", SAMPLES)
def test_axolotl_takes_every_key(name: str) -> None:
    written, made = validated(SAMPLES[name])
    for key, value in written.items():
        assert key in made, f"{key} was dropped"
        if key in NORMALISED:
            continue
        if isinstance(value, dict):
            assert {inner: made[key].get(inner) for inner in value} == value, key
        else:
            assert made[key] == value, key
    for ours, theirs in zip(written["datasets"], made["datasets"], strict=True):
        assert {key: theirs.get(key) for key in ours} == ours


def test_the_check_notices_a_dropped_key() -> None:
    from axolotl.utils.config import validate_config
    from axolotl.utils.dict import DictDefault

    written = yaml.safe_load(axolotl.write(SAMPLES["ddp-lora"], model(), {})) | {"lora_rank": 8}
    assert "lora_rank" not in validate_config(DictDefault(written)).to_dict()


@pytest.mark.parametrize("name", SAMPLES)
def test_accelerate_reads_the_file_as_launch_sh_passes_it(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from accelerate.commands.launch import _validate_launch_command, launch_command_parser
    from accelerate.utils.launch import prepare_multi_gpu_env, prepare_simple_launcher_cmd_env

    # Whether this machine's port is free says nothing about the file.
    monkeypatch.setattr("accelerate.utils.launch.is_port_in_use", lambda _: False)
    chosen = SAMPLES[name]
    (tmp_path / "accelerate.yaml").write_text(accelerate.write(chosen))
    options = ["--config_file", str(tmp_path / "accelerate.yaml"), "--machine_rank", "0", "--main_process_ip"]
    options += ["10.0.0.1", "--main_process_port", "29500", "-m", "axolotl.cli.train", "axolotl.yaml"]
    arguments, _, _ = _validate_launch_command(launch_command_parser().parse_args(options))
    mesh = chosen.parallelism
    assert (arguments.num_processes, arguments.num_machines) == (mesh.world_size, mesh.nodes)
    assert arguments.multi_gpu is (mesh.world_size > 1)
    assert (arguments.use_fsdp, arguments.use_deepspeed, arguments.cpu) == (False, False, False)
    assert arguments.mixed_precision == "no"
    if mesh.world_size > 1:
        environment = prepare_multi_gpu_env(arguments)
        assert int(arguments.nproc_per_node) == mesh.gpus_per_node
        if mesh.nodes > 1:
            assert int(arguments.nnodes) == mesh.nodes
            assert (arguments.rdzv_backend, arguments.rdzv_endpoint) == ("static", "10.0.0.1:29500")
    else:
        command, environment = prepare_simple_launcher_cmd_env(arguments)
        assert command[-3:] == ["-m", "axolotl.cli.train", "axolotl.yaml"]
    named = [key for key in environment if key.startswith(("FSDP_", "ACCELERATE_USE_FSDP", "ACCELERATE_USE_DEEPSPEED"))]
    assert named == []


@pytest.mark.parametrize("name", ZERO)
@pytest.mark.parametrize("trainer", ["axolotl", "accelerate"])
def test_deepspeed_takes_the_file_once_the_trainer_filled_it(
    name: str, trainer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    import deepspeed.runtime.config as runtime
    from transformers.integrations.deepspeed import HfTrainerDeepSpeedConfig

    chosen = dataclasses.replace(ZERO[name], trainer=trainer)
    loaded = json.loads(deepspeed.write(chosen))
    filled = HfTrainerDeepSpeedConfig(loaded)
    filled.trainer_config_process(_training_arguments(chosen))
    filled.trainer_config_finalize(_training_arguments(chosen), model=None, num_training_steps=100)
    assert '"auto"' not in json.dumps(filled.config)
    # Without a process group DeepSpeedConfig assumes one process and its batch equation is wrong.
    monkeypatch.setattr(runtime.dist, "get_world_size", lambda *_: chosen.parallelism.world_size)
    monkeypatch.setattr(runtime.dist, "get_rank", lambda *_: 0)
    config = runtime.DeepSpeedConfig(filled.config)
    zero = chosen.deepspeed
    assert zero is not None
    assert config.train_batch_size == chosen.global_batch_size
    assert config.train_micro_batch_size_per_gpu == chosen.micro_batch_size
    assert config.gradient_accumulation_steps == chosen.gradient_accumulation
    assert config.gradient_clipping == chosen.optimizer.max_grad_norm
    assert config.zero_optimization_stage == zero.stage
    assert config.bfloat16_config.enabled
    assert config.zero_config.reduce_bucket_size == zero.reduce_bucket_size
    for kind in ("optimizer", "param"):
        made = getattr(config.zero_config, f"offload_{kind}")
        assert (made.device if made else "none") == getattr(zero, f"offload_{kind}")
        if made and made.device == "nvme":
            assert str(made.nvme_path) == zero.nvme_path
    if config.optimizer_name:
        params = config.optimizer_params
        assert (params["lr"], params["eps"]) == (chosen.schedule.learning_rate, chosen.optimizer.epsilon)
        assert list(params["betas"]) == [chosen.optimizer.beta1, chosen.optimizer.beta2]
    # DeepSpeed takes unknown top-level keys in silence: name them ourselves.
    known = {"train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "gradient_clipping"}
    assert set(loaded) <= known | {"bf16", "zero_optimization", "optimizer", "aio"}


def _training_arguments(chosen: Recipe) -> Any:
    """The part of transformers.TrainingArguments that fills deepspeed.json; the real one asks for GPUs."""
    return SimpleNamespace(
        world_size=chosen.parallelism.world_size,
        per_device_train_batch_size=chosen.micro_batch_size,
        gradient_accumulation_steps=chosen.gradient_accumulation,
        max_grad_norm=chosen.optimizer.max_grad_norm,
        learning_rate=chosen.schedule.learning_rate,
        adam_beta1=chosen.optimizer.beta1,
        adam_beta2=chosen.optimizer.beta2,
        adam_epsilon=chosen.optimizer.epsilon,
        weight_decay=chosen.optimizer.weight_decay,
        save_on_each_node=False,
        bf16=True,
        bf16_full_eval=False,
        fp16=False,
        fp16_full_eval=False,
        get_warmup_steps=lambda _: 10,
    )
