"""What Axolotl, Transformers, TRL, Accelerate and DeepSpeed make of settings: run as a script beside their packages.

    python -m tests.formats.trainer_truth WORK.json ANSWERS.json

WORK is a list of cases, each with a `kind`; ANSWERS has one mapping per case, `error` in it where the trainer refused.
A case with plugins of Axolotl runs in a fork of its own, because what they patch outlives a configuration.
No trainer is built and no weight is made: Axolotl's builder stops at its arguments.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import json
import os
import sys
import traceback
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any

Answer = dict[str, Any]
_EARLY = (
    "axolotl.core.builders",
    "axolotl.core.training_args",
    "axolotl.integrations.liger",
    "axolotl.integrations.cut_cross_entropy",
    "axolotl.loaders.patch_manager",
    "accelerate.commands.launch",
    "deepspeed.runtime.zero.config",
    "trl.trainer.sft_config",
    "trl.trainer.model_config",
)
LAYERS = 2  # of a model on no device
STEPS = 2000  # of the whole run: warm-up and logging follow from them


class Made(Exception):
    """The arguments that Axolotl's builder made, and what it hands to the trainer beside them."""


def axolotl(case: Mapping[str, Any]) -> Answer:
    """validate_config with the plugins of the file, normalize_config, prepare_optim_env and the builder's arguments."""
    from axolotl.core.builders import HFCausalTrainerBuilder
    from axolotl.utils import config, distributed, trainer
    from axolotl.utils.dict import DictDefault

    _device(case["capabilities"])
    values = {key: value for key, value in case["values"].items() if key != "use_ray"}
    cfg = DictDefault(values)
    config.prepare_plugins(cfg)
    cfg = config.validate_config(
        cfg, capabilities=case["capabilities"], env_capabilities={"torch_version": case["torch"]}
    )
    shape = types.SimpleNamespace(model_type=case["model_type"])
    config.load_model_config = lambda _cfg: shape
    config.PatchManager = None
    trainer.check_cuda_p2p_ib_support = lambda: True
    before = dict(os.environ)
    handed_over = cfg.deepspeed
    cfg.deepspeed, cfg.chat_template = None, None  # the first would start its processes
    trainer.prepare_optim_env(cfg)  # in the order of load_cfg
    environment = {key: value for key, value in os.environ.items() if before.get(key) != value}
    os.environ["WORLD_SIZE"] = str(case["capabilities"]["n_gpu"])
    config.normalize_config(cfg)
    del os.environ["WORLD_SIZE"]
    for name in ("wandb", "mlflow", "comet", "trackio"):
        module = importlib.import_module(f"axolotl.utils.{name}_")
        getattr(module, f"setup_{name}_env_vars")(cfg)
    world = case["capabilities"]["n_gpu"]
    uses_fsdp = bool(cfg.fsdp or cfg.fsdp_config)
    mesh = distributed._get_parallel_config_kwargs(
        world,
        cfg.tensor_parallel_size,
        cfg.context_parallel_size,
        cfg.dp_shard_size,
        cfg.dp_replicate_size,
        uses_fsdp,
    )
    cfg.hub_model_id = None
    builder = object.__new__(HFCausalTrainerBuilder)
    builder.__dict__.update(cfg=cfg, model=None, tokenizer=None, processor=None)
    builder._eval_dataset = cfg.test_datasets
    handed: Answer = {}
    real = builder._set_base_training_args

    def base(steps: int) -> tuple[Any, Any]:
        arguments, beside = real(steps)
        handed.update(beside)
        return arguments, beside

    def stop(arguments: Any) -> Any:
        raise Made(arguments)

    builder._set_base_training_args = base
    builder.hook_post_create_training_args = stop
    try:
        builder.build(min(cfg.max_steps or STEPS, STEPS))  # total_num_steps of utils/data/sft.py
        raise RuntimeError("the builder made no arguments")
    except Made as made:
        arguments = made.args[0]
    return {
        "cfg": {key: value for key, value in cfg.to_dict().items() if key != "capabilities"},
        "arguments": _plain(arguments),
        "optimizer": _optimizer(handed.get("optimizer_cls_and_kwargs")),
        "fsdp": _fsdp_plugin(arguments.fsdp_plugin_args) if uses_fsdp else None,
        "mesh": mesh,
        "environment": environment,
        "deepspeed": bool(handed_over),
    }


def _optimizer(found: Any) -> Answer | None:
    """What a class of its own gets, and what it takes where nothing is handed to it."""
    if found is None:
        return None
    made, handed = found
    call = made if inspect.isclass(made) and "lr" in _names(made) else made.__call__  # a class, or a factory of one
    own = {
        n: p.default for n, p in inspect.signature(call).parameters.items() if p.default is not inspect.Parameter.empty
    }
    return {"class": getattr(made, "__name__", str(made)), "handed": handed, "own": own}


def _names(made: Any) -> list[str]:
    return list(inspect.signature(made).parameters)


def _fsdp_plugin(handed: Mapping[str, Any]) -> Answer:
    """Accelerate's plugin, as Transformers makes it."""
    from accelerate.utils import FullyShardedDataParallelPlugin

    os.environ.pop("FSDP_SYNC_MODULE_STATES", None)  # asks for a device
    loading = bool(handed.get("cpu_ram_efficient_loading"))
    plugin = FullyShardedDataParallelPlugin(
        **{**handed, "cpu_ram_efficient_loading": False, "sync_module_states": False}
    )
    return {**_plugin(plugin), "cpu_ram_efficient_loading": loading}


def _plugin(made: Any) -> Answer:
    return {
        "version": made.fsdp_version,
        "reshard_after_forward": str(made.reshard_after_forward),
        "sharding_strategy": str(made.sharding_strategy),
        "offload_params": str(made.cpu_offload),
        "state_dict_type": str(made.state_dict_type).rpartition(".")[2],
        "activation_checkpointing": bool(made.activation_checkpointing),
    }


def arguments(case: Mapping[str, Any]) -> Answer:
    """TrainingArguments, or TRL's SFTConfig and ModelConfig, of a file's keys."""
    from transformers import HfArgumentParser, TrainingArguments

    _device(case["capabilities"])
    classes: list[Any] = [TrainingArguments]
    if case["trl"]:
        from trl import ModelConfig, SFTConfig

        classes = [SFTConfig, ModelConfig]
    values = {"output_dir": "out", **case["values"]}
    made = HfArgumentParser(classes).parse_dict(values, allow_extra_keys=True)
    answer: Answer = {"arguments": _plain(made[0])}
    if case["trl"]:
        answer["model"] = dict(vars(made[1]))
    if made[0].fsdp:
        answer["fsdp"] = _fsdp_plugin(made[0].fsdp_plugin_args)
    return answer


def accelerate(case: Mapping[str, Any]) -> Answer:
    """`accelerate launch --config_file`: the environment of a worker, and what is made from it."""
    from accelerate.utils import FullyShardedDataParallelPlugin

    from recipegen.check.trainer_worker import accelerate as worker

    found = worker({"name": "accelerate.yaml", "files": {"accelerate.yaml": case["text"]}})
    if found["errors"]:
        raise RuntimeError(found["errors"])
    answer: Answer = found["resolved"]
    environment = answer["environment"]
    if environment.get("ACCELERATE_USE_FSDP") == "true":
        loading = environment["FSDP_CPU_RAM_EFFICIENT_LOADING"] == "true"
        os.environ |= {**environment, "FSDP_SYNC_MODULE_STATES": "false", "FSDP_CPU_RAM_EFFICIENT_LOADING": "false"}
        answer["fsdp"] = {**_plugin(FullyShardedDataParallelPlugin()), "cpu_ram_efficient_loading": loading}
    else:
        answer["fsdp"] = None
    return answer


def deepspeed(case: Mapping[str, Any]) -> Answer:
    """The JSON after Transformers filled in what says "auto", as DeepSpeed's own classes take it."""
    from unittest import mock

    import deepspeed.runtime.config as module
    from accelerate import DeepSpeedPlugin
    from transformers import TrainingArguments
    from transformers.integrations.deepspeed import HfTrainerDeepSpeedConfig

    _device(case["capabilities"])
    made = TrainingArguments(output_dir="out", **case["arguments"])
    world = case["capabilities"]["n_gpu"]
    config = HfTrainerDeepSpeedConfig(case["values"])
    with mock.patch.object(TrainingArguments, "world_size", world):
        config.trainer_config_process(made)
    plugin = DeepSpeedPlugin(hf_ds_config=config)  # TrainingArguments.__post_init__, then Accelerator.__init__
    plugin.set_mixed_precision(made.mixed_precision)
    shape = types.SimpleNamespace(config=types.SimpleNamespace(hidden_size=case["hidden_size"]))
    config.trainer_config_finalize(made, shape, STEPS)
    with (
        mock.patch.object(module.dist, "get_rank", return_value=0),
        mock.patch.object(module.dist, "get_world_size", return_value=world),
    ):
        # without a process group the class would assume one process and check the batch against that
        theirs = module.DeepSpeedConfig(config.config)
    return {
        "zero": json.loads(theirs.zero_config.model_dump_json()),
        "micro_batch_size": theirs.train_micro_batch_size_per_gpu,
        "gradient_accumulation": theirs.gradient_accumulation_steps,
        "max_grad_norm": theirs.gradient_clipping,
        "bf16": theirs.bfloat16_config.enabled,
        "fp16": theirs.float16_config.enabled,
    }


def linear(case: Mapping[str, Any]) -> Answer:
    """The modules that Axolotl's lora_target_linear finds, and those of peft where nothing is named."""
    import torch
    from axolotl.loaders.adapter import find_all_linear_names
    from peft.utils.constants import TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText

    default = TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING.get(case["model_type"])
    config = AutoConfig.for_model(case["model_type"])
    inner = config.get_text_config()
    inner.num_hidden_layers = LAYERS
    if getattr(inner, "layer_types", None):
        inner.layer_types = inner.layer_types[:LAYERS]
    with torch.device("meta"):
        made = (AutoModelForImageTextToText if case["multimodal"] else AutoModelForCausalLM).from_config(config)
    return {"names": sorted(find_all_linear_names(made)), "default": default}


def _plain(arguments: Any) -> Answer:
    found = {key: value for key, value in vars(arguments).items() if not key.startswith("_")}
    return {**found, "accelerator_config": found["accelerator_config"].to_dict()}


def _device(capabilities: Mapping[str, Any]) -> None:
    """The answers of a GPU to the questions that Transformers and Axolotl put to the machine."""
    import transformers.training_args as theirs
    import transformers.utils as utils
    from axolotl.utils import config, trainer

    for name, answer in (
        ("is_torch_bf16_gpu_available", bool(capabilities["bf16"])),
        ("is_torch_tf32_available", bool(capabilities["tf32"])),
    ):
        for module in (theirs, utils, config, trainer):
            if hasattr(module, name):
                setattr(module, name, lambda answer=answer: answer)


def _prepare() -> None:
    """What every fork needs, imported once."""
    sys.modules.setdefault("ring_flash_attn", types.ModuleType("ring_flash_attn"))  # "installed on the box"
    for name in _EARLY:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)


def main() -> int:
    """Answer every case."""
    work, out = (Path(name) for name in sys.argv[1:3])
    cases = json.loads(work.read_text())
    _prepare()
    groups: list[list[Any]] = []
    for case in cases:
        if not groups or _alone(case) or _alone(groups[-1][0]):
            groups.append([])
        groups[-1].append(case)
    out.write_text(json.dumps([answer for group in groups for answer in _forked(group)]))
    return 0


def _alone(case: Mapping[str, Any]) -> bool:
    """What plugins patch outlives a configuration; the rest is the environment, which is put back."""
    return bool(case["kind"] == "axolotl" and case["values"].get("plugins"))


def _forked(cases: list[Any]) -> list[Answer]:
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        answers = []
        for case in cases:
            before = dict(os.environ)
            try:
                answers.append(KINDS[case["kind"]](case))
            except BaseException as error:
                trace = traceback.format_exc()[-1500:]
                answers.append({"error": f"{type(error).__name__}: {error}"[:2000], "trace": trace})
            os.environ.clear()
            os.environ.update(before)
        with os.fdopen(writing, "w") as pipe:
            json.dump(answers, pipe, default=str)
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        text = pipe.read()
    os.waitpid(child, 0)
    found: list[Answer] = json.loads(text) if text else [{"error": "the child died"}] * len(cases)
    return found


KINDS = {"axolotl": axolotl, "arguments": arguments, "accelerate": accelerate, "deepspeed": deepspeed, "linear": linear}

if __name__ == "__main__":
    raise SystemExit(main())
