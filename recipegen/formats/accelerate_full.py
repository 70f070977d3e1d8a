"""accelerate.yaml for `--trainer accelerate`: the whole configuration of Accelerate 1.13, engine included.

A file that lies is worse than none, so only keys that this version reads are written. `accelerate launch` never takes
rdzv_backend (but "static"), same_network and enable_cpu_affinity from the file (its command line defaults win), and
drops unknown nested keys without a word (accelerate/commands/launch.py: _validate_launch_command); FSDP1's keys have no
effect under `fsdp_version: 2`. Beside `deepspeed_config_file` Accelerate refuses every key that the JSON could state,
mixed_precision among them (accelerate/utils/dataclasses.py: DeepSpeedPlugin.__post_init__).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from recipegen.formats.passthrough import merge
from recipegen.formats.rendering import Document, render
from recipegen.spec import Dtype, Method, ModelSpec, Recipe, RecipegenError, Strategy

DEEPSPEED_FILE = "deepspeed.json"

# Key of accelerate.yaml (dotted) -> the Recipe field that it carries; a reason for the field stands above the key.
FIELDS: dict[str, tuple[str, ...]] = {
    "distributed_type": ("parallelism.strategy", "parallelism"),
    "num_machines": ("parallelism.nodes",),
    "num_processes": ("parallelism.gpus_per_node",),
    "main_process_port": ("launch.main_process_port",),
    "mixed_precision": ("precision.compute", "precision"),
    "fsdp_config.fsdp_reshard_after_forward": ("fsdp.reshard_after_forward", "fsdp"),
    "fsdp_config.fsdp_transformer_layer_cls_to_wrap": ("fsdp.layer_class",),
    "fsdp_config.fsdp_state_dict_type": ("fsdp.state_dict_type",),
    "fsdp_config.fsdp_cpu_ram_efficient_loading": ("fsdp.cpu_ram_efficient_loading",),
    "fsdp_config.fsdp_offload_params": ("fsdp.offload_params",),
    "parallelism_config.parallelism_config_dp_replicate_size": ("parallelism.dp_replicate",),
    "parallelism_config.parallelism_config_dp_shard_size": ("parallelism.dp_shard",),
    "parallelism_config.parallelism_config_tp_size": ("parallelism.tp",),
    "parallelism_config.parallelism_config_cp_size": ("parallelism.cp",),
    "deepspeed_config.zero3_init_flag": ("deepspeed.stage",),
    "dynamo_config.dynamo_backend": ("torch_compile",),
}

# What is constant for every recipe says why here.
_REASONS = {
    "num_processes": "all GPUs of all nodes; accelerate starts num_processes / num_machines on each",
    "machine_rank": "launch.sh passes --machine_rank; this is the value for one node",
    "rdzv_backend": "the file cannot choose another one: accelerate reads it from the command line only",
    "mixed_precision": "the dtype of the arithmetic; train.json says in which dtype the parameters are kept",
    "fsdp_config.fsdp_activation_checkpointing": (
        "train.py recomputes whole decoder layers as train.json says; this key would wrap their parts a second time"
    ),
    "fsdp_config.fsdp_state_dict_type": "FULL_STATE_DICT loses an adapter on resume (accelerate pull request 4206)",
    "parallelism_config": "full key names: accelerate drops short ones (dp_shard_size) without a word",
    "deepspeed_config": (
        "all else is in the JSON: beside deepspeed_config_file accelerate refuses keys that the JSON can state, "
        "mixed_precision among them"
    ),
    "deepspeed_config.deepspeed_multinode_launcher": "one launcher per node (launch.sh on each), no ssh",
    "deepspeed_config.zero3_init_flag": "true: each rank loads only its part of the parameters",
}


def write(recipe: Recipe, model: ModelSpec, reasons: Mapping[str, str]) -> str:
    """The text of accelerate.yaml. `reasons` maps Recipe field paths to one line why.

    Raises RecipegenError for a recipe that Accelerate 1.13 cannot run or would lose on resume.
    """
    merged, seen = merge(values(recipe, model), recipe.passthrough.get("accelerate", {}))
    return render("accelerate_full.yaml.j2", doc=Document(merged, _comments(reasons) | seen), recipe=recipe)


def values(recipe: Recipe, model: ModelSpec) -> dict[str, Any]:
    """Every key of accelerate.yaml in order, without passthrough."""
    mesh, strategy = recipe.parallelism, recipe.parallelism.strategy
    result: dict[str, Any] = {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": _distributed_type(strategy),
        "num_machines": mesh.nodes,
        "num_processes": mesh.world_size,
        "machine_rank": 0,
        "main_process_port": recipe.launch.main_process_port,
        "rdzv_backend": "static",
        "main_training_function": "main",
        "use_cpu": False,
        "debug": False,
    }
    if not strategy.is_deepspeed:
        result["mixed_precision"] = "bf16" if recipe.precision.compute is Dtype.BF16 else "no"
    if recipe.torch_compile:
        result["dynamo_config"] = {"dynamo_backend": "INDUCTOR"}
    if strategy.is_fsdp:
        result["fsdp_config"] = _fsdp(recipe, model)
    if strategy is Strategy.FSDP2_HYBRID:
        result["parallelism_config"] = {
            "parallelism_config_dp_replicate_size": mesh.dp_replicate,
            "parallelism_config_dp_shard_size": mesh.dp_shard,
            "parallelism_config_tp_size": mesh.tp,
            "parallelism_config_cp_size": mesh.cp,
        }
    if strategy.is_deepspeed:
        if recipe.deepspeed is None:
            raise RecipegenError(f"the strategy is {strategy.label}, but deepspeed is not filled in")
        result["deepspeed_config"] = {
            "deepspeed_config_file": DEEPSPEED_FILE,
            "deepspeed_multinode_launcher": "standard",
            "zero3_init_flag": recipe.deepspeed.stage == 3,
        }
    return result


def _distributed_type(strategy: Strategy) -> str:
    if strategy.is_fsdp:
        return "FSDP"
    if strategy.is_deepspeed:
        return "DEEPSPEED"
    return "MULTI_GPU" if strategy is Strategy.DDP else "NO"


def _fsdp(recipe: Recipe, model: ModelSpec) -> dict[str, Any]:
    fsdp = recipe.fsdp
    if fsdp is None:
        raise RecipegenError(f"the strategy is {recipe.parallelism.strategy.label}, but fsdp is not filled in")
    if recipe.method.is_adapter and fsdp.state_dict_type != "SHARDED_STATE_DICT":
        raise RecipegenError(
            f"an adapter is lost on resume with {fsdp.state_dict_type}",
            where="fsdp.state_dict_type",
            fix="Use SHARDED_STATE_DICT.",
        )
    if recipe.method is Method.QLORA and fsdp.cpu_ram_efficient_loading:
        raise RecipegenError(
            "accelerate 1.13 cannot spread 4-bit weights from rank 0",
            where="fsdp.cpu_ram_efficient_loading",
            fix="Set it to false.",
        )
    return {
        "fsdp_version": 2,
        "fsdp_reshard_after_forward": fsdp.reshard_after_forward,
        "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
        "fsdp_transformer_layer_cls_to_wrap": fsdp.layer_class or model.layer_class,
        "fsdp_state_dict_type": fsdp.state_dict_type,
        "fsdp_cpu_ram_efficient_loading": fsdp.cpu_ram_efficient_loading,
        "fsdp_offload_params": fsdp.offload_params,
        "fsdp_activation_checkpointing": False,
    }


def _comments(reasons: Mapping[str, str]) -> dict[str, str]:
    """Reasons by key: that of the Recipe field it carries, else the constant one."""
    found = dict(_REASONS)
    for key, fields in FIELDS.items():
        reason = next((reasons[field] for field in fields if reasons.get(field)), None)
        if reason:
            found[key] = reason
    return found
