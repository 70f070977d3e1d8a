"""How many ranks there are and what they share: Parallelism, Fsdp and DeepSpeed of assembled files.

Axolotl's mesh is `_get_parallel_config_kwargs` (axolotl 0.19.0, utils/mesh.py): what the file leaves out of
dp_replicate and dp_shard is the rest of the world size. FSDP1's hybrid shard is one node (torch's HYBRID_SHARD).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from recipegen.formats.assemble_draft import Blocked, Draft
from recipegen.spec import DeepSpeed, Fsdp, Parallelism, Strategy

_HYBRID = ("HYBRID_SHARD", "HYBRID_SHARD_ZERO2")
_SHARDS_PARAMETERS = 3  # ZeRO's stage
_RESHARDS = ("FULL_SHARD", "HYBRID_SHARD")
_ONE_PROCESS = ("python", "torchrun")  # launchers that start one process per node unless told otherwise
_ZERO_3, _ZERO_2 = 3, 2
# transformers 5.16.1, integrations/deepspeed.py trainer_config_finalize: what "auto" becomes for hidden size h.
_AUTO: Mapping[str, tuple[str, Callable[[int], int]]] = {
    "reduce_bucket_size": ("zero_optimization.reduce_bucket_size", lambda h: h * h),
    "prefetch_bucket_size": ("zero_optimization.stage3_prefetch_bucket_size", lambda h: int(0.9 * h * h)),
    "param_persistence_threshold": ("zero_optimization.stage3_param_persistence_threshold", lambda h: 10 * h),
}


def engine(draft: Draft) -> str:
    """`fsdp`, `deepspeed` or `none`: what the trainer's file says, else what `accelerate launch` switches on."""
    named = {"FSDP": "fsdp", "DEEPSPEED": "deepspeed"}.get(str(draft.fact("distributed_type")), "none")
    if draft.axolotl:
        stated = draft.fact("engine") or "none"
        return named if stated == "none" else str(stated)
    strategy = draft.values.get("parallelism.strategy")
    if strategy is not None:
        return "fsdp" if strategy.is_fsdp else "deepspeed" if strategy.is_deepspeed else "none"
    if draft.states("deepspeed.stage") or draft.fact("deepspeed_config_file"):
        return "deepspeed"
    return "fsdp" if named == "fsdp" or draft.fact("fsdp_version") else named


def layout(draft: Draft, kind: str) -> Parallelism:
    """The mesh. Raises Blocked, with the numbers in the reason, when it does not multiply to the world size."""
    nodes, gpus = _machines(draft)
    tp, cp, ep = (draft.take(f"parallelism.{name}", 1) for name in ("tp", "cp", "ep"))
    if ep > 1:
        gpus = _expert_parallel(draft, kind, nodes, gpus, ep)
    world = nodes * gpus
    rest = max(world // (tp * cp), 1)
    sharding = draft.fact("fsdp_sharding_strategy")
    if kind == "fsdp" and sharding != "NO_SHARD":
        strategy, replicate, shard = _fsdp_mesh(draft, rest, nodes, gpus, sharding)
    elif kind == "deepspeed":
        strategy = zero_strategy(draft)
        replicate, shard = (
            draft.values.get("parallelism.dp_replicate", 1),
            draft.values.get("parallelism.dp_shard", rest),
        )
    else:
        strategy = Strategy.SINGLE if world == 1 else Strategy.DDP
        replicate = draft.values.get("parallelism.dp_replicate", rest)
        shard = draft.values.get("parallelism.dp_shard", 1)
    try:
        mesh = Parallelism(strategy, nodes, gpus, replicate, shard, tp, cp, ep)
    except ValueError as error:
        draft.block("parallelism", str(error), "parallelism.dp_shard", "parallelism.gpus_per_node")
        raise Blocked from None
    _settle(draft, strategy, replicate, shard)
    return mesh


def _expert_parallel(draft: Draft, kind: str, nodes: int, gpus: int, ep: int) -> int:
    """GPUs per node. Axolotl stops unless the processes are ep x dp_shard x tp x cp (ExpertParallelPlugin), so without
    a count of processes they are as many. Raises Blocked for what is not counted: experts split beside other axes."""
    path = "parallelism.ep"
    if kind != "none" or any(draft.take(f"parallelism.{name}", 1) > 1 for name in ("tp", "cp", "dp_shard")):
        draft.block(path, f"expert_parallel_size {ep} beside another way of sharding: what a rank holds is not counted")
        raise Blocked
    if nodes * gpus != ep:
        if draft.states("parallelism.gpus_per_node") or ep % nodes or ep > nodes * gpus:
            draft.block(path, f"expert_parallel_size {ep} on {nodes * gpus} processes, which Axolotl refuses")
            raise Blocked
        gpus = ep // nodes
        draft.note(path, f"{ep} processes: with expert_parallel_size {ep} Axolotl refuses any other count")
    draft.note(path, f"expert_parallel_size {ep}: sending tokens to the experts of other ranks is not in the traffic")
    return gpus


def _settle(draft: Draft, strategy: Strategy, replicate: int, shard: int) -> None:
    """A field whose stated value does not hold is the trainer's doing, so no file's line stands for it."""
    for name, value in (("strategy", strategy), ("dp_replicate", replicate), ("dp_shard", shard)):
        path = f"parallelism.{name}"
        if draft.values.get(path) != value:
            draft.trainers(path)


def _machines(draft: Draft) -> tuple[int, int]:
    cluster = draft.cluster
    nodes: int = draft.take("parallelism.nodes", cluster.nodes if cluster else 1)
    if draft.states("parallelism.gpus_per_node"):
        return nodes, draft.values["parallelism.gpus_per_node"]
    visible = (draft.fact("environment") or {}).get("CUDA_VISIBLE_DEVICES")
    if draft.fact("launcher") in _ONE_PROCESS:
        return nodes, draft.take("parallelism.gpus_per_node", 1)
    if isinstance(visible, str) and visible:
        return nodes, draft.take("parallelism.gpus_per_node", len(visible.split(",")))
    if cluster is None:
        reason = "no file says how many processes start, and no hardware was named: --hardware, or num_processes"
        draft.block("parallelism.gpus_per_node", reason)
        raise Blocked
    return nodes, draft.take("parallelism.gpus_per_node", cluster.node.gpu_count)


def _fsdp_mesh(draft: Draft, rest: int, nodes: int, gpus: int, sharding: object) -> tuple[Strategy, int, int]:
    shard, replicate = draft.values.get("parallelism.dp_shard"), draft.values.get("parallelism.dp_replicate")
    if shard is None and replicate is None and sharding in _HYBRID and nodes > 1:
        shard, replicate = gpus, nodes
    elif shard is None and replicate is None:
        shard, replicate = rest, 1
    elif shard is None and replicate is not None:
        shard = max(rest // replicate, 1)
    elif replicate is None and shard is not None:
        replicate = max(rest // shard, 1)
    if shard is None or replicate is None:
        raise Blocked  # not reached: both are numbers by now
    if shard == 1 and replicate > 1:
        return Strategy.DDP, replicate, shard
    return (Strategy.FSDP2_HYBRID if replicate > 1 else Strategy.FSDP2_FULL), replicate, shard


def fsdp(draft: Draft) -> Fsdp:
    """FSDP's settings. Accelerate's plugin takes its own defaults where the trainer's file does not switch it on."""
    table = dict(draft.table if draft.own_fsdp else draft.stack.trainer_defaults("accelerate"))
    version = draft.take("fsdp.version", draft.fact("fsdp_version") or table["fsdp.version"])
    if not draft.own_fsdp:
        table["fsdp.state_dict_type"] = draft.stack.trainer_rules("accelerate")["state_dict_types"][version]
    word = draft.fact("fsdp_sharding_strategy")
    reshard = table["fsdp.reshard_after_forward"] if word is None else word in _RESHARDS
    if draft.fact("fsdp_auto_wrap_policy") == "SIZE_BASED_WRAP":
        draft.block("fsdp.layer_class", "SIZE_BASED_WRAP: which modules are gathered together depends on their sizes")
    return Fsdp(
        reshard_after_forward=draft.take("fsdp.reshard_after_forward", reshard),
        cpu_ram_efficient_loading=draft.take("fsdp.cpu_ram_efficient_loading", table["fsdp.cpu_ram_efficient_loading"]),
        offload_params=draft.take("fsdp.offload_params", table["fsdp.offload_params"]),
        state_dict_type=draft.take("fsdp.state_dict_type", table["fsdp.state_dict_type"]),
        layer_class=draft.take("fsdp.layer_class", draft.model.layer_class),
        version=version,
    )


def zero_strategy(draft: Draft) -> Strategy:
    """The strategy of a ZeRO configuration. Raises Blocked for one that Recipe has no word for."""
    stage = draft.values.get("deepspeed.stage")
    named = draft.fact("deepspeed_config_file")
    if stage is None:
        if named and not draft.fact("deepspeed_read"):
            reason = f"DeepSpeed's settings are in {named}, which is not among the files"
        else:
            reason = (
                "DeepSpeed's settings say no zero_optimization.stage, so nothing is sharded and no recipe says that"
            )
        draft.block("deepspeed.stage", reason, "deepspeed_config_file")
        raise Blocked
    if stage == _ZERO_3:
        devices = {draft.values.get(f"deepspeed.offload_{part}", "none") for part in ("optimizer", "param")}
        if devices == {"none"}:
            reason = (
                "ZeRO-3 without offload has no name of its own: it is shown as ZeRO-3 + CPU offload, counted without"
            )
            draft.note("parallelism.strategy", reason, "deepspeed.stage")
        return Strategy.ZERO3_NVME if "nvme" in devices else Strategy.ZERO3_CPU
    if stage == _ZERO_2:
        return Strategy.ZERO2
    draft.block("deepspeed.stage", f"ZeRO-{stage} has no strategy in a recipe: its gradients are not sharded")
    raise Blocked


def deepspeed(draft: Draft) -> DeepSpeed:
    """ZeRO's settings; "auto" as Transformers fills it in."""
    table, hidden = draft.stack.trainer_defaults("deepspeed"), draft.model.hidden_size
    filled = {
        name: table[f"deepspeed.{name}"] if key not in draft.deepspeed_auto else of(hidden)
        for name, (key, of) in _AUTO.items()
    }

    def take(name: str) -> Any:
        path = f"deepspeed.{name}"
        return draft.take(path, filled.get(name, table.get(path)))

    values: dict[str, Any] = {field.name: take(field.name) for field in dataclasses.fields(DeepSpeed)}
    if values["stage"] < _SHARDS_PARAMETERS:  # DeepSpeed looks at offload_param in stage 3 alone
        values["offload_param"] = "none"
    return DeepSpeed(**values)
