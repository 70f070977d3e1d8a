"""The child process that runs the trainers' own code: one JSON request a line on stdin, one JSON answer on stdout.

Started by trainer_process.py with a clean environment, without a GPU and in an empty folder. It imports a trainer when
the first request for it comes, so one child serves any mix of requests. Requests carry values and file contents;
nothing is read from the recipe's folder, and no plugin is imported but Axolotl's own.
"""

from __future__ import annotations

import contextlib
import copy
import datetime
import io
import json
import os
import sys
import types
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from recipegen.check.trainer_process import DATE

Answer = dict[str, Any]


def main() -> int:
    """Serve requests until stdin ends."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # banners and progress of the trainers must not mix with answers
    here = os.path.realpath(os.getcwd())
    sys.path[:] = [entry for entry in sys.path if entry and os.path.realpath(entry) != here]
    for line in sys.stdin:
        request = json.loads(line, object_hook=_dated)
        try:
            answer = HANDLERS[request["kind"]](request)
        except Exception as error:
            answer = {"errors": [["", f"{type(error).__name__}: {error}"]], "warnings": []}
        answers.write(json.dumps(answer, default=str) + "\n")
        answers.flush()
    return 0


def _dated(found: Answer) -> Any:
    """What trainer_process.py wrote for a date of YAML, as that date."""
    if found.keys() != {DATE}:
        return found
    text = found[DATE]
    kind = datetime.datetime if "T" in text else datetime.date
    return kind.fromisoformat(text)


# --- Axolotl


def axolotl(request: Mapping[str, Any]) -> Answer:
    """The whole of `axolotl.utils.config.validate_config`, plugins prepared, for a target that is data."""
    import pydantic
    from axolotl.integrations.base import PluginManager
    from axolotl.utils.config import prepare_plugins, validate_config
    from axolotl.utils.dict import DictDefault
    from axolotl.utils.schemas import validation

    from recipegen.check.axolotl_lite import collected_warnings, served_files

    sys.modules.setdefault("ring_flash_attn", types.ModuleType("ring_flash_attn"))  # "installed on the box"
    manager = PluginManager.get_instance()
    manager.plugins.clear()  # a singleton: plugins of one request must not reach the next
    values = copy.deepcopy(request["values"])
    values["plugins"] = request["plugins"] or None
    files = {name: text.encode() for name, text in request["files"].items()}
    errors: list[list[str]] = []
    resolved: Mapping[str, Any] = {}
    with collected_warnings() as found, served_files(validation, files):
        try:
            config = DictDefault({key: value for key, value in values.items() if value is not None or key != "plugins"})
            prepare_plugins(config)
            resolved = validate_config(
                config, capabilities=request["capabilities"], env_capabilities={"torch_version": request["torch"]}
            ).to_dict()
        except pydantic.ValidationError as error:
            errors = [[".".join(map(str, e["loc"])), e["msg"].removeprefix("Value error, ")] for e in error.errors()]
        except Exception as error:
            errors = [["", str(error) or type(error).__name__]]
    return {"errors": errors, "warnings": found, "resolved": resolved}


# --- Accelerate


def accelerate(request: Mapping[str, Any]) -> Answer:
    """`accelerate launch --config_file` without launching: loader, launch checks, workers' environment, plugins."""
    from accelerate.commands.config.config_args import load_config_from_file
    from accelerate.commands.launch import _validate_launch_command, launch_command_parser
    from accelerate.utils import launch

    launch.is_port_in_use = lambda *_args, **_kwargs: False  # this host's ports do not matter
    folder = _write_files(request)
    path = folder / request["name"]
    stages: list[str] = []
    with _working_in(folder):
        try:
            stages.append("load")
            load_config_from_file(str(path))
            stages.append("launch arguments")
            parser = launch_command_parser()
            arguments = parser.parse_args(["--config_file", str(path), "train.py"])
            arguments, defaults, from_file = _validate_launch_command(arguments)
            stages.append("workers' environment")
            environment = _workers_environment(arguments, defaults, from_file, launch)
            stages.append("plugins")
            made, found = _plugins(arguments, environment)
        except Exception as error:
            text = " ".join(f"{type(error).__name__}: {error}".split())
            return {"errors": [[stages[-1] if stages else "import", text]], "warnings": []}
    return {"errors": [], "warnings": found, "resolved": {"environment": environment, **made}}


def _workers_environment(arguments: Any, defaults: Any, from_file: bool, launch: Any) -> dict[str, str]:
    """What a worker finds in its environment beyond our own."""
    if arguments.use_deepspeed:
        fields = [*defaults.deepspeed_config, *(["mixed_precision"] if from_file else [])]
        arguments.deepspeed_fields_from_accelerate_config = ",".join(fields)
        _, environment = launch.prepare_deepspeed_cmd_env(arguments)
    elif arguments.use_fsdp or arguments.multi_gpu:
        environment = launch.prepare_multi_gpu_env(arguments)
    else:
        _, environment = launch.prepare_simple_launcher_cmd_env(arguments)
    return {key: value for key, value in environment.items() if os.environ.get(key) != value}


def _plugins(arguments: Any, environment: Mapping[str, str]) -> tuple[Answer, list[str]]:
    """The plugin objects that a worker builds from that environment, as text."""
    from accelerate.utils import patch_environment

    made: Answer = {"num_processes": arguments.num_processes, "num_machines": arguments.num_machines}
    with (
        patch_environment(**{**environment, "WORLD_SIZE": str(arguments.num_processes)}),
        warnings.catch_warnings(record=True) as caught,
        contextlib.redirect_stderr(io.StringIO()),
    ):
        warnings.simplefilter("always")
        if arguments.use_fsdp:
            made["fsdp"] = _fsdp(arguments, environment)
        if arguments.use_parallelism_config:
            from accelerate.parallelism_config import ParallelismConfig

            mesh = ParallelismConfig()
            made["parallelism"] = {"dimensions": mesh.active_mesh_dims, "total_size": mesh.total_size}
            if mesh.total_size not in (1, arguments.num_processes):
                raise ValueError(f"total_size {mesh.total_size} does not match num_processes {arguments.num_processes}")
            if arguments.use_fsdp and mesh.total_size != 1 and not mesh.dp_shard_enabled and not mesh.cp_enabled:
                raise ValueError("FSDP with dp_shard_size 1 and cp_size 1 has nothing to shard across")
        if arguments.use_deepspeed:
            from accelerate import DeepSpeedPlugin

            plugin = DeepSpeedPlugin()
            plugin.set_mixed_precision(arguments.mixed_precision)
            made["deepspeed"] = plugin.deepspeed_config
    return made, sorted({str(w.message)[:300] for w in caught if issubclass(w.category, UserWarning)})


def _fsdp(arguments: Any, environment: Mapping[str, str]) -> Answer:
    from accelerate import FullyShardedDataParallelPlugin

    if environment.get("FSDP_VERSION") == "1" and environment.get("FSDP_SYNC_MODULE_STATES") == "true":
        os.environ["FSDP_SYNC_MODULE_STATES"] = "false"  # FSDP1 would look for a device
        os.environ["FSDP_CPU_RAM_EFFICIENT_LOADING"] = "false"
    plugin = FullyShardedDataParallelPlugin()
    if arguments.mixed_precision not in ("no", None):
        plugin.set_mixed_precision(arguments.mixed_precision)
    names = (
        "fsdp_version",
        "reshard_after_forward",
        "cpu_offload",
        "state_dict_type",
        "auto_wrap_policy",
        "transformer_cls_names_to_wrap",
        "activation_checkpointing",
        "cpu_ram_efficient_loading",
        "mixed_precision_policy",
    )
    return {name: str(getattr(plugin, name)) for name in names}


# --- DeepSpeed


def deepspeed(request: Mapping[str, Any]) -> Answer:
    """DeepSpeedConfig on values whose "auto" has been filled in, as if `world_size` processes ran."""
    from unittest import mock

    import deepspeed.runtime.config as module

    with (
        mock.patch.object(module.dist, "get_rank", return_value=0),
        mock.patch.object(module.dist, "get_world_size", return_value=request["world_size"]),
    ):
        try:
            # without a process group the class would assume one process and check the batch against that
            config = module.DeepSpeedConfig(copy.deepcopy(request["values"]))
        except Exception as error:
            return {"errors": _said(error), "warnings": []}
    resolved = {
        "stage": config.zero_optimization_stage,
        "train_batch_size": config.train_batch_size,
        "train_micro_batch_size_per_gpu": config.train_micro_batch_size_per_gpu,
        "gradient_accumulation_steps": config.gradient_accumulation_steps,
        "bf16": config.bfloat16_config.enabled,
    }
    return {"errors": [], "warnings": [], "resolved": resolved}


def _said(error: Exception) -> list[list[str]]:
    import pydantic

    if isinstance(error, pydantic.ValidationError):
        return [[".".join(map(str, e["loc"])), e["msg"].removeprefix("Value error, ")] for e in error.errors()]
    return [["", " ".join(str(error).split()) or type(error).__name__]]


# --- shared


def _write_files(request: Mapping[str, Any]) -> Path:
    """The project's YAML and JSON files in a folder of ours. Names were made safe by the parent."""
    folder = Path.cwd() / "project"
    folder.mkdir(exist_ok=True)
    for old in folder.iterdir():
        old.unlink()
    for name, text in request["files"].items():
        (folder / Path(name).name).write_text(text, encoding="utf-8")
    return folder


@contextlib.contextmanager
def _working_in(folder: Path) -> Iterator[None]:
    before = os.getcwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


HANDLERS = {"axolotl": axolotl, "accelerate": accelerate, "deepspeed": deepspeed}

if __name__ == "__main__":
    sys.exit(main())
