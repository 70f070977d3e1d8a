"""Read project folders with Accelerate's own launcher code and plugins; one JSON object a folder. Starts nothing.

    python read_accelerate_config.py FOLDER ...

Private names (_validate_launch_command, prepare_*_env) are those of Accelerate 1.13, the version of the tested stack.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import accelerate.utils.launch as launching
import yaml
from accelerate import DeepSpeedPlugin, FullyShardedDataParallelPlugin
from accelerate.commands.launch import _validate_launch_command, launch_command_parser
from accelerate.parallelism_config import ParallelismConfig
from accelerate.utils import patch_environment

launching.is_port_in_use = lambda *_, **__: False  # reading must not depend on this machine's ports
PREFIXES = {"fsdp_config": "fsdp_", "parallelism_config": "", "deepspeed_config": "", "dynamo_config": ""}


def unknown_keys(raw: dict[str, Any], known: set[str]) -> list[str]:
    """Nested keys that the launcher would drop without a word."""
    found = []
    for section, prefix in PREFIXES.items():
        for key in raw.get(section) or {}:
            full = key if key.startswith(prefix) else prefix + key
            found += [f"{section}.{key}"] if full not in known else []
    return found


def read(folder: Path) -> dict[str, Any]:
    os.chdir(folder)
    for name in [n for n in os.environ if n.startswith(("ACCELERATE_", "FSDP_", "PARALLELISM_CONFIG_"))]:
        del os.environ[name]
    parser = launch_command_parser()
    raw = yaml.safe_load(Path("accelerate.yaml").read_text())
    arguments = parser.parse_args(["--config_file", "accelerate.yaml", "train.py"])
    arguments, defaults, precision_given = _validate_launch_command(arguments)
    if arguments.use_deepspeed:
        fields = [*defaults.deepspeed_config, *(["mixed_precision"] if precision_given else [])]
        arguments.deepspeed_fields_from_accelerate_config = ",".join(fields)
        _, environment = launching.prepare_deepspeed_cmd_env(arguments)
    elif arguments.use_fsdp or arguments.multi_gpu:
        environment = launching.prepare_multi_gpu_env(arguments)
    else:
        _, environment = launching.prepare_simple_launcher_cmd_env(arguments)
    changed = {k: v for k, v in environment.items() if os.environ.get(k) != v}
    answer: dict[str, Any] = {
        "unknown": unknown_keys(raw, {action.dest for action in parser._actions}),
        "nproc_per_node": int(getattr(arguments, "nproc_per_node", None) or 1),
    }
    with patch_environment(**changed, WORLD_SIZE=str(arguments.num_processes)):
        if arguments.use_fsdp:
            plugin = FullyShardedDataParallelPlugin()
            plugin.set_mixed_precision(arguments.mixed_precision)
            answer["fsdp"] = {
                "fsdp_version": plugin.fsdp_version,
                "reshard_after_forward": plugin.reshard_after_forward,
                "state_dict_type": plugin.state_dict_type.name,
                "cpu_ram_efficient_loading": plugin.cpu_ram_efficient_loading,
                "activation_checkpointing": plugin.activation_checkpointing,
                "wrap": list(plugin.transformer_cls_names_to_wrap),
                "param_dtype": str(plugin.mixed_precision_policy.param_dtype),
            }
        if arguments.use_parallelism_config:
            mesh = ParallelismConfig()
            answer["mesh"] = {"dp_replicate": mesh.dp_replicate_size, "dp_shard": mesh.dp_shard_size}
        if arguments.use_deepspeed:
            plugin = DeepSpeedPlugin()
            plugin.set_mixed_precision(arguments.mixed_precision)
            config = plugin.deepspeed_config
            answer["deepspeed"] = {
                "stage": config["zero_optimization"]["stage"],
                "bf16": config["bf16"]["enabled"],
                "micro_batch": config["train_micro_batch_size_per_gpu"],
                "nvme_path": config["zero_optimization"].get("offload_optimizer", {}).get("nvme_path"),
            }
    return answer


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        print(json.dumps(read(Path(argument).resolve())), flush=True)
