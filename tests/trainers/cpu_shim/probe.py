"""Observation only: each rank writes what really ran to RECIPEGEN_TEST_REPORT/rank-R.json.

One method of transformers' Trainer is wrapped (`OBSERVED`): `train` adds a callback and then calls the original with
its arguments. The callback reads; it changes no tensor, no argument and no control flag, draws no random numbers and
starts no collective.

The report (dtype names are torch's without the prefix):
  world_size, distributed_type, device, mixed_precision
  fsdp: {version, reshard_after_forward, state_dict_type, offload, activation_checkpointing, ram_efficient_loading}
  fsdp_modules: one {name, class, reshard_after_forward, mesh} for each sharded group, as the group itself says
  mesh: {dimension: size} of the sharded parameters; placements: their kinds; local_shapes: of rank's own shard
  parameters, gradients: [{kind, dtype, trainable, count}]   kind = embed_tokens, lm_head, norm, linear, adapter
  states: [{kind, state, dtype, count}]
  trainable_parameters, total_parameters: of the unsharded model
  optimizer: {class, defaults, groups}
  activation_checkpointing: {flag, reentrant, modules, wrapped}
  engine (DeepSpeed): {stage, offload_optimizer, offload_param, partitioned, and the dtypes of parameters, master
    copies and moments, as the engine holds them}
  steps: [{step, loss, grad_norm, learning_rate}]
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from import_hook import Patch


def active(environment: Mapping[str, str]) -> list[Patch]:
    """The one observed method, when a report is asked for."""
    return [OBSERVED] if "RECIPEGEN_TEST_REPORT" in environment else []


def _observe(original: Any) -> Any:
    def train(self: Any, *args: Any, **kwargs: Any) -> Any:
        self.add_callback(_callback(self))
        return original(self, *args, **kwargs)

    return train


OBSERVED = Patch("transformers.trainer", "Trainer.train", _observe, "reads what really ran; changes nothing")


def _dtype(tensor: Any) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def kind(name: str) -> str:
    """The sort of module a parameter belongs to, from its name."""
    if "lora_" in name:
        return "adapter"
    for word in ("embed_tokens", "lm_head", "norm"):
        if word in name:
            return word
    return "linear"


def _table(items: Any, *fields: str) -> list[dict[str, Any]]:
    return [dict(zip(fields, key, strict=True), count=count) for key, count in sorted(Counter(items).items(), key=str)]


def _global_numel(parameter: Any) -> int:
    """Elements of the whole parameter: a 4-bit one stores two to a byte, a sharded one knows its full shape."""
    state = getattr(parameter, "quant_state", None)
    if state is not None:
        total = 1
        for size in state.shape:
            total *= size
        return total
    if hasattr(parameter, "ds_numel"):
        return int(parameter.ds_numel)
    return int(parameter.numel())


def parameters(model: Any) -> dict[str, Any]:
    """Counts, dtypes, meshes and shards of the model's parameters."""
    named = list(model.named_parameters())
    report: dict[str, Any] = {
        "parameters": _table(((kind(n), _dtype(p), p.requires_grad) for n, p in named), "kind", "dtype", "trainable"),
        "total_parameters": sum(_global_numel(p) for _, p in named),
        "trainable_parameters": sum(_global_numel(p) for _, p in named if p.requires_grad),
        "quantized": sum(1 for _, p in named if getattr(p, "quant_state", None) is not None),
    }
    sharded = [(n, p) for n, p in named if hasattr(p, "placements")]
    if sharded:
        mesh = sharded[0][1].device_mesh
        names = mesh.mesh_dim_names or ("dp_shard",)  # fully_shard's own mesh has one nameless dimension
        report["mesh"] = dict(zip(names, mesh.shape, strict=True))
        report["placements"] = sorted({str(p.placements) for _, p in sharded})
        report["local_share"] = sum(p.to_local().numel() for _, p in sharded) / sum(p.numel() for _, p in sharded)
    report["sharded_parameters"] = len(sharded)
    return report


def fsdp_modules(model: Any) -> list[dict[str, Any]]:
    """What each FSDP group says of itself."""
    from torch.distributed.fsdp import FSDPModule

    found = []
    for name, module in model.named_modules():
        if isinstance(module, FSDPModule):
            group = module._get_fsdp_state()._fsdp_param_group
            if group is None:
                continue  # a wrapper whose parameters all belong to inner groups
            policy = group.mp_policy
            found.append(
                {
                    "name": name,
                    "class": type(module).__name__,
                    # The group keeps where it reshards to; None means that it keeps the full parameters.
                    "reshard_after_forward": group.post_forward_mesh_info is not None,
                    "mesh": list(group.mesh_info.mesh.shape),
                    "mixed_precision": {k: str(getattr(policy, k)) for k in ("param_dtype", "reduce_dtype")},
                }
            )
    return found


def accelerator_state(trainer: Any) -> dict[str, Any]:
    """What Accelerate thinks it runs."""
    state = trainer.accelerator.state
    report: dict[str, Any] = {
        "world_size": trainer.accelerator.num_processes,
        "rank": trainer.accelerator.process_index,
        "distributed_type": str(state.distributed_type.value),
        "device": str(trainer.accelerator.device),
        "mixed_precision": str(state.mixed_precision),
        "trainer_class": type(trainer).__name__,
        "gradient_accumulation": trainer.args.gradient_accumulation_steps,
        "sync_each_batch": bool(trainer.accelerator.gradient_state.plugin_kwargs.get("sync_each_batch", False)),
        "micro_batch_size": trainer.args.per_device_train_batch_size,
        "wrapper": type(trainer.model_wrapped).__name__,
    }
    plugin = getattr(state, "fsdp_plugin", None)
    if plugin is not None:
        report["fsdp"] = {
            "version": plugin.fsdp_version,
            "reshard_after_forward": plugin.reshard_after_forward,
            "state_dict_type": getattr(plugin.state_dict_type, "name", str(plugin.state_dict_type)),
            "offload": type(plugin.cpu_offload).__name__,
            "activation_checkpointing": plugin.activation_checkpointing,
            "ram_efficient_loading": plugin.cpu_ram_efficient_loading,
        }
    plugin = getattr(state, "deepspeed_plugin", None)
    if plugin is not None:
        report["deepspeed"] = plugin.deepspeed_config
    return report


def checkpointing(trainer: Any) -> dict[str, Any]:
    """Whether activations are recomputed: the flag, and the modules that do it."""
    model = trainer.model
    modules = dict(model.named_modules())
    return {
        "argument": bool(trainer.args.gradient_checkpointing),
        "reentrant": (trainer.args.gradient_checkpointing_kwargs or {}).get("use_reentrant"),
        "modules": sum(1 for m in modules.values() if getattr(m, "gradient_checkpointing", False)),
        "wrapped": sum(1 for name in modules if name.endswith("_checkpoint_wrapped_module")),
    }


def optimizer_report(optimizer: Any) -> dict[str, Any]:
    """The innermost optimizer: its class and what each group was given."""
    inner = optimizer
    while hasattr(inner, "optimizer"):
        inner = inner.optimizer
    plain = (bool, int, float, str, type(None), tuple, list)
    groups = [{k: v for k, v in g.items() if k != "params" and isinstance(v, plain)} for g in inner.param_groups]
    return {"class": f"{type(inner).__module__}.{type(inner).__name__}", "groups": groups}


def states(optimizer: Any, model: Any) -> list[dict[str, Any]]:
    """Dtypes of the optimizer's tensors by the kind of module they serve."""
    inner = optimizer
    while hasattr(inner, "optimizer"):
        inner = inner.optimizer
    names = {id(p): kind(n) for n, p in model.named_parameters()}
    rows = []
    for parameter, values in inner.state.items():
        for key, value in values.items():
            # A step counter of one element is not memory; a scalar buffer of a moment would still be listed.
            if hasattr(value, "dtype") and key != "step":
                rows.append((names.get(id(parameter), "other"), str(key), _dtype(value)))
    return _table(rows, "kind", "state", "dtype")


def engine_report(engine: Any) -> dict[str, Any]:
    """What DeepSpeed's engine holds after a step. Its optimizer keeps the fp32 copies under names of each stage."""
    zero = engine.optimizer
    copies = getattr(zero, "fp32_partitioned_groups_flat", None) or zero.single_partition_of_fp32_groups
    moments: dict[str, set[str]] = {}
    for values in zero.optimizer.state.values():
        for key, value in values.items():
            if hasattr(value, "dtype") and key != "step":
                moments.setdefault(key, set()).add(_dtype(value))
    return {
        "stage": engine.zero_optimization_stage(),
        "offload_optimizer": _offload(engine.zero_offload_optimizer()),
        "offload_param": _offload(engine.zero_offload_param()),
        "partitioned": all(getattr(p, "ds_tensor", None) is not None for p in engine.module.parameters()),
        "parameters": sorted({_dtype(p) for p in engine.module.parameters()}),
        "master": sorted({_dtype(copy) for copy in copies}),
        "states": {key: sorted(dtypes) for key, dtypes in sorted(moments.items())},
        "optimizer": type(zero.optimizer).__name__,
        "gradient_accumulation_dtype": str(getattr(zero, "gradient_accumulation_dtype", None)),
        "communication_dtype": str(engine.communication_data_type),
    }


def _offload(config: Any) -> str:
    return "none" if config is None else str(getattr(config.device, "value", config.device))


def _callback(trainer: Any) -> Any:
    from transformers import TrainerCallback

    report: dict[str, Any] = {"steps": []}

    class Observer(TrainerCallback):  # type: ignore[misc]
        """Reads at the points that Trainer offers."""

        started_at = 0

        def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            self.started_at = state.global_step
            report.update(accelerator_state(trainer))
            report.update(parameters(trainer.model))
            report["fsdp_modules"] = fsdp_modules(trainer.model)
            report["activation_checkpointing"] = checkpointing(trainer)
            report["started_at_step"] = state.global_step

        def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if state.global_step == self.started_at:
                rows = [(kind(n), _dtype(p.grad)) for n, p in trainer.model.named_parameters() if p.grad is not None]
                report["gradients"] = _table(rows, "kind", "dtype")

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if state.global_step == self.started_at + 1:
                report.update(parameters(trainer.model))
                if hasattr(trainer.model_wrapped, "zero_optimization_stage"):
                    report["engine"] = engine_report(trainer.model_wrapped)
                report["optimizer"] = optimizer_report(trainer.optimizer)
                report["states"] = states(trainer.optimizer, trainer.model)

        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
            if logs and "loss" in logs:
                keys = ("loss", "grad_norm", "learning_rate")
                report["steps"].append({"step": state.global_step, **{k: float(logs[k]) for k in keys if k in logs}})

        def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            folder = Path(os.environ["RECIPEGEN_TEST_REPORT"])
            folder.mkdir(parents=True, exist_ok=True)
            text = json.dumps(report, indent=1, default=str)
            (folder / f"rank-{report['rank']}.json").write_text(text, encoding="utf-8")

    return Observer()
