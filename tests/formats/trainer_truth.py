"""What Axolotl, Transformers, TRL, Accelerate and DeepSpeed make of settings: run as a script beside their packages.

    python -m tests.formats.trainer_truth WORK.json ANSWERS.json

WORK is a list of cases, each with a `kind`; ANSWERS has one mapping per case, `error` in it where the trainer refused.
Every case runs in a fork of its own, because Axolotl's plugins and settings of the environment outlive a configuration.
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
STEPS = 2000  # of the whole run: warm-up and logging follow from them


class Made(Exception):
    """The arguments that Axolotl's builder made, and what it hands to the trainer beside them."""


def axolotl(case: Mapping[str, Any]) -> Answer:
    """validate_config with the plugins of the file, normalize_config, prepare_optim_env and the builder's arguments."""
    from axolotl.core.builders import HFCausalTrainerBuilder
    from axolotl.utils import config, distributed, trainer
    from axolotl.utils.dict import DictDefault

    values = {key: value for key, value in case["values"].items() if key != "use_ray"}
    cfg = DictDefault(values)
    config.prepare_plugins(cfg)
    cfg = config.validate_config(
        cfg, capabilities=case["capabilities"], env_capabilities={"torch_version": case["torch"]}
    )
    shape = types.SimpleNamespace(model_type=case["model_type"])
    config.load_model_config = lambda _cfg: shape
    config.PatchManager = None
    os.environ["WORLD_SIZE"] = str(case["capabilities"]["n_gpu"])
    config.normalize_config(cfg)
    del os.environ["WORLD_SIZE"]
    trainer.check_cuda_p2p_ib_support = lambda: True
    before = dict(os.environ)
    deepspeed, cfg.deepspeed, cfg.chat_template = bool(cfg.deepspeed), None, None  # it would start its processes
    trainer.prepare_optim_env(cfg)
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
    environment = {key: value for key, value in os.environ.items() if before.get(key) != value}
    cfg.hub_model_id = None
    builder = object.__new__(HFCausalTrainerBuilder)
    builder.__dict__.update(cfg=cfg, model=None, tokenizer=None, processor=None, _eval_dataset=None)
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
        builder.build(min(cfg.max_steps or STEPS, STEPS))
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
        "deepspeed": deepspeed,
    }


def _optimizer(found: Any) -> Answer | None:
    """What a class of its own gets, and what it takes where nothing is handed to it."""
    if found is None:
        return None
    made, handed = found
    call = made.__call__ if not inspect.isclass(made) or hasattr(made, "__call__") and "lr" not in _names(made) else made
    own = {n: p.default for n, p in inspect.signature(call).parameters.items() if p.default is not inspect.Parameter.empty}
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
    return {
        "version": plugin.fsdp_version,
        "reshard_after_forward": str(plugin.reshard_after_forward),
        "sharding_strategy": str(plugin.sharding_strategy),
        "offload_params": str(plugin.cpu_offload),
        "state_dict_type": str(plugin.state_dict_type).rpartition(".")[2],
        "cpu_ram_efficient_loading": loading,
        "activation_checkpointing": bool(plugin.activation_checkpointing),
    }


def arguments(case: Mapping[str, Any]) -> Answer:
    """TrainingArguments, or TRL's SFTConfig and ModelConfig, of a file's keys."""
    from transformers import HfArgumentParser, TrainingArguments

    classes: list[Any] = [TrainingArguments]
    if case["trl"]:
        from trl import ModelConfig, SFTConfig

        classes = [SFTConfig, ModelConfig]
    values = {"output_dir": "out", **case["values"]}
    made = HfArgumentParser(classes).parse_dict(values, allow_extra_keys=True)
    answer: Answer = {"arguments": _plain(made[0])}
    if case["trl"]:
        answer["model"] = {key: value for key, value in vars(made[1]).items()}
    if made[0].fsdp:
        answer["fsdp"] = _fsdp_plugin(made[0].fsdp_plugin_args)
    return answer


def accelerate(case: Mapping[str, Any]) -> Answer:
    """`accelerate launch --config_file`: the environment of a worker, and the plugin made from it."""
    from recipegen.check.trainer_worker import accelerate as worker

    return worker({"name": "accelerate.yaml", "files": {"accelerate.yaml": case["text"]}, **case})


def deepspeed(case: Mapping[str, Any]) -> Answer:
    """DeepSpeed's own classes of ZeRO."""
    from deepspeed.runtime.zero.config import DeepSpeedZeroConfig

    return {"zero": json.loads(DeepSpeedZeroConfig(**case["values"]).model_dump_json())}


def _plain(arguments: Any) -> Answer:
    return {key: value for key, value in vars(arguments).items() if not key.startswith("_")}


def _prepare() -> None:
    """A GPU that knows bf16 and tf32, for the questions that Transformers and Axolotl put to the machine."""
    import transformers.training_args as theirs
    import transformers.utils as utils
    from axolotl.utils import config, trainer

    for module in (theirs, utils, config, trainer):
        for name in ("is_torch_bf16_gpu_available", "is_torch_tf32_available"):
            if hasattr(module, name):
                setattr(module, name, lambda: True)
    sys.modules.setdefault("ring_flash_attn", types.ModuleType("ring_flash_attn"))  # "installed on the box"
    for name in _EARLY:  # once, before the forks
        with contextlib.suppress(ImportError):
            importlib.import_module(name)


def main() -> int:
    """Answer every case."""
    work, out = (Path(name) for name in sys.argv[1:3])
    cases = json.loads(work.read_text())
    _prepare()
    answers = []
    for case in cases:
        answers.append(_forked(case))
    out.write_text(json.dumps(answers))
    return 0


def _forked(case: Mapping[str, Any]) -> Answer:
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        try:
            answer = KINDS[case["kind"]](case)
        except BaseException as error:
            answer = {"error": f"{type(error).__name__}: {error}"[:2000], "trace": traceback.format_exc()[-1500:]}
        with os.fdopen(writing, "w") as pipe:
            json.dump(answer, pipe, default=str)
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        text = pipe.read()
    os.waitpid(child, 0)
    found: Answer = json.loads(text) if text else {"error": "the child died"}
    return found


KINDS = {"axolotl": axolotl, "arguments": arguments, "accelerate": accelerate, "deepspeed": deepspeed}

if __name__ == "__main__":
    raise SystemExit(main())
