"""Do the files of one project agree? Cross-file checks on loaded values; no trainers, no disk."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

from recipegen.check.registry import finding
from recipegen.formats.documents import Document
from recipegen.spec import Cluster, Finding, Recipe, Severity

_MESH = ("dp_replicate_size", "dp_shard_size", "tp_size", "cp_size")
_AXOLOTL_MESH = ("dp_replicate_size", "dp_shard_size", "tensor_parallel_size", "context_parallel_size")
# What Axolotl itself sets for its workers (axolotl/utils/trainer.py prepare_optim_env): in the launcher's file it would
# be half overwritten and half left standing.
_ENGINE_SECTIONS = ("fsdp_config", "deepspeed_config", "parallelism_config", "dynamo_config", "fp8_config")
_EMPTY = Document("", None)
_SHIPPED = "deepspeed_configs/"  # Axolotl brings these files, and looks for them in the folder of the run


@dataclass(frozen=True)
class Project:
    """The files of a project that were read; a missing one has no values."""

    names: frozenset[str]
    axolotl: Document = _EMPTY
    accelerate: Document = _EMPTY
    deepspeed: Document = _EMPTY
    train: Document = _EMPTY
    recipe: Recipe | None = None
    cluster: Cluster | None = None


def check_consistency(project: Project) -> tuple[Finding, ...]:
    """Every disagreement between the files, the recipe and the cluster."""
    checks = (_batch, _processes, _mesh, _precision, _engines, _checkpointing, _named_files, _launcher_file)
    return tuple(found for check in checks for found in check(project))


def _get(document: Document, *path: str) -> Any:
    value: Any = document.values
    for key in path:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def _int(value: Any) -> int | None:
    """A whole number a file states; None for "auto", nothing, or anything else."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value
    return int(value) if isinstance(value, str) and value.isdigit() else None


def _error(rule: str, document: Document, path: tuple[str, ...], reason: str, fix: str = "") -> Finding:
    return finding(rule, Severity.ERROR, reason, fix=fix, where=document.where(path), field=".".join(path))


# --- the batch


def _batch(p: Project) -> Iterator[Finding]:
    micro, accumulation = _stated_batch(p)
    world = _world(p)
    stated = {
        "train_micro_batch_size_per_gpu": micro,
        "gradient_accumulation_steps": accumulation,
        "train_batch_size": micro * accumulation * world if micro and accumulation and world else None,
    }
    for key, expected in stated.items():
        value = _int(_get(p.deepspeed, key))
        if value is not None and expected is not None and value != expected:
            numbers = f" = {micro} x {accumulation} x {world} ranks" if key == "train_batch_size" else ""
            reason = f"{key} is {value}, but the other files make it {expected}{numbers}"
            yield _error(
                "RG721", p.deepspeed, (key,), reason, 'write "auto"' if p.axolotl.values else f"write {expected}"
            )
    values = [_int(_get(p.deepspeed, key)) for key in stated]
    if all(value is not None for value in values) and world and not (micro and accumulation):
        own_micro, own_accumulation, own_total = values
        expected = prod((own_micro or 0, own_accumulation or 0, world))
        if own_total != expected:
            reason = (
                f"train_batch_size is {own_total}, but {own_micro} x {own_accumulation} x {world} ranks = {expected}"
            )
            yield _error("RG721", p.deepspeed, ("train_batch_size",), reason)
    yield from _batch_of_train(p, micro, accumulation)
    if p.recipe is not None and micro and accumulation:
        total = micro * accumulation * p.recipe.parallelism.data_parallel_ranks
        if total != p.recipe.global_batch_size:
            document, path = (p.axolotl, ("micro_batch_size",)) if p.axolotl.values else (p.train, ("batch",))
            ranks, wanted = p.recipe.parallelism.data_parallel_ranks, p.recipe.global_batch_size
            reason = f"{micro} x {accumulation} x {ranks} ranks = {total} sequences, but the recipe says {wanted}"
            yield _error("RG721", document, path, reason)


def _batch_of_train(p: Project, micro: int | None, accumulation: int | None) -> Iterator[Finding]:
    batch = _get(p.train, "batch")
    if not isinstance(batch, Mapping) or not micro or not accumulation:
        return
    shards = [_int(batch.get(key)) or 1 for key in ("dp_replicate", "dp_shard")]
    total, expected = _int(batch.get("global_batch_size")), micro * accumulation * prod(shards)
    if total is not None and total != expected:
        reason = f"global_batch_size is {total}, but {micro} x {accumulation} x {prod(shards)} ranks = {expected}"
        yield _error("RG721", p.train, ("batch", "global_batch_size"), reason)
    section = _int(_get(p.accelerate, "deepspeed_config", "gradient_accumulation_steps"))
    if section is not None and section != accumulation:
        path = ("deepspeed_config", "gradient_accumulation_steps")
        yield _error(
            "RG721", p.accelerate, path, f"gradient_accumulation_steps is {section}, train.json says {accumulation}"
        )


def _stated_batch(p: Project) -> tuple[int | None, int | None]:
    """Micro-batch and accumulation as the training file states them."""
    if p.axolotl.values is not None:
        return _int(_get(p.axolotl, "micro_batch_size")), _int(_get(p.axolotl, "gradient_accumulation_steps"))
    return _int(_get(p.train, "batch", "micro_batch_size")), _int(_get(p.train, "batch", "gradient_accumulation"))


def _world(p: Project) -> int | None:
    stated = _int(_get(p.accelerate, "num_processes"))
    if stated is not None:
        return stated
    return p.cluster.world_size if p.cluster else None


# --- processes and mesh


def _processes(p: Project) -> Iterator[Finding]:
    processes, machines = _int(_get(p.accelerate, "num_processes")), _int(_get(p.accelerate, "num_machines"))
    if processes and machines and processes % machines:
        reason = (
            f"num_processes {processes} is the total over all machines and does not divide by num_machines {machines}"
        )
        yield _error("RG722", p.accelerate, ("num_processes",), reason)
    if p.cluster is None:
        return
    have, nodes = p.cluster.world_size, p.cluster.nodes
    wanted = p.recipe.parallelism.world_size if p.recipe else None
    per_machine = -(-processes // (machines or 1)) if processes else 0
    if processes and wanted and processes != wanted:
        reason = f"num_processes is {processes}, but the recipe is for {wanted} GPUs"
        yield _error("RG722", p.accelerate, ("num_processes",), reason, f"write {wanted}")
    elif processes and per_machine <= p.cluster.node.gpu_count and (machines or 1) > nodes:
        pass  # the machines are missing, not GPUs: said below
    elif processes and (processes > have or per_machine > p.cluster.node.gpu_count):
        reason = f"num_processes is {processes}, but the cluster has {have} GPUs ({p.cluster.summary()})"
        yield _error("RG722", p.accelerate, ("num_processes",), reason, f"write {have}")
    elif processes and processes < have:  # the others may be meant for another job
        where = p.accelerate.where(("num_processes",))
        reason = f"{processes} of {have} GPUs are used ({p.cluster.summary()})"
        yield finding("RG722", Severity.NOTE, reason, where=where, field="num_processes")
    if machines and machines > nodes:
        reason = f"num_machines is {machines}, but the cluster has {nodes} node{'s' if nodes > 1 else ''}"
        fix = f"write {nodes}" if nodes > 1 else f"check with --nodes {machines} and --network, or write 1"
        yield _error("RG722", p.accelerate, ("num_machines",), reason, fix)


def _mesh(p: Project) -> Iterator[Finding]:
    world = _world(p)
    section = _get(p.accelerate, "parallelism_config")
    if isinstance(section, Mapping) and world:
        sizes = {key: _int(section.get(f"parallelism_config_{key}")) or 1 for key in _MESH}
        yield from _product(p.accelerate, ("parallelism_config",), sizes, world)
        if prod(sizes.values()) > 1 and sizes["dp_shard_size"] == 1 and sizes["cp_size"] == 1:
            reason = "dp_shard_size is 1 and cp_size is 1: FSDP has nothing to shard across"
            yield _error("RG722", p.accelerate, ("parallelism_config",), reason)
    stated = {key: _int(_get(p.axolotl, key)) for key in _AXOLOTL_MESH}
    if not any(stated.values()) or not world:
        return
    # Axolotl fills the missing data-parallel size from the world size; with both given it checks nothing
    if stated["dp_replicate_size"] and stated["dp_shard_size"]:
        yield from _product(p.axolotl, ("dp_shard_size",), {key: value or 1 for key, value in stated.items()}, world)
    else:
        given = prod(value or 1 for value in stated.values())
        if world % given:
            reason = f"{' x '.join(f'{k}({v})' for k, v in stated.items() if v)} does not divide {world} processes"
            yield _error("RG722", p.axolotl, tuple(k for k, v in stated.items() if v)[:1], reason)


def _product(document: Document, path: tuple[str, ...], sizes: Mapping[str, int], world: int) -> Iterator[Finding]:
    if prod(sizes.values()) not in (1, world):
        terms = " * ".join(f"{key}({value})" for key, value in sizes.items())
        reason = f"{terms} = {prod(sizes.values())}, but num_processes is {world}"
        yield _error("RG722", document, path, reason, "only the workers would notice")


# --- precision and engines


def _precision(p: Project) -> Iterator[Finding]:
    bf16, fp16 = _get(p.deepspeed, "bf16", "enabled"), _get(p.deepspeed, "fp16", "enabled")
    if bf16 is True and fp16 is True:
        yield _error("RG723", p.deepspeed, ("bf16",), "bf16 and fp16 are both enabled; DeepSpeed stops")
    wanted = _get(p.axolotl, "bf16")
    if isinstance(wanted, bool) and isinstance(bf16, bool) and wanted != bf16:
        reason = f"bf16.enabled is {str(bf16).lower()}, but axolotl.yaml says bf16: {str(wanted).lower()}"
        yield _error("RG723", p.deepspeed, ("bf16", "enabled"), reason)
    launcher = _get(p.accelerate, "mixed_precision")
    if p.axolotl.values is None and launcher is not None and isinstance(bf16, bool) and bf16 != (launcher == "bf16"):
        reason = f"mixed_precision is {launcher}, but the DeepSpeed JSON says bf16.enabled: {str(bf16).lower()}"
        yield _error("RG723", p.accelerate, ("mixed_precision",), reason)


def _engines(p: Project) -> Iterator[Finding]:
    if _get(p.axolotl, "deepspeed") and (_get(p.axolotl, "fsdp_config") or _get(p.axolotl, "fsdp")):
        reason = "deepspeed and fsdp_config are both set: Axolotl's validation passes it and FSDP alone is used"
        yield _error("RG724", p.axolotl, ("deepspeed",), reason, "remove one of the two")
    if _get(p.accelerate, "distributed_type") == "FSDP" and _get(p.accelerate, "deepspeed_config"):
        reason = "distributed_type is FSDP, and deepspeed_config has settings that nobody reads"
        yield _error("RG724", p.accelerate, ("deepspeed_config",), reason, "remove one of the two")
    if _get(p.accelerate, "distributed_type") == "DEEPSPEED" and _get(p.accelerate, "fsdp_config"):
        reason = "distributed_type is DEEPSPEED, and fsdp_config has settings that nobody reads"
        yield _error("RG724", p.accelerate, ("fsdp_config",), reason, "remove one of the two")


def _checkpointing(p: Project) -> Iterator[Finding]:
    # With offloaded activations Axolotl leaves the trainer's own checkpointing off (core/builders/base.py 0.19.0);
    # `gradient_checkpointing: offload` is the old spelling of that.
    replaced = _get(p.axolotl, "activation_offloading") not in (None, False, "hidden_states")
    keys = ("activation_checkpointing", "fsdp_activation_checkpointing")
    for key in keys if _get(p.axolotl, "gradient_checkpointing") is True and not replaced else ():
        if _get(p.axolotl, "fsdp_config", key) is True:
            reason = f"gradient_checkpointing and fsdp_config.{key} are both on; the trainer stops at that"
            yield _error("RG725", p.axolotl, ("fsdp_config", key), reason, "keep gradient_checkpointing")
    section = _get(p.accelerate, "fsdp_config")
    if isinstance(section, Mapping) and _get(p.train, "model", "gradient_checkpointing") is True:
        for key in keys:
            if section.get(key) is True:
                reason = f"{key} recomputes what train.json's gradient_checkpointing recomputes already"
                yield _error("RG725", p.accelerate, ("fsdp_config", key), reason, "keep one of the two")


# --- files


def _named_files(p: Project) -> Iterator[Finding]:
    named = (
        (p.axolotl, ("deepspeed",)),
        (p.accelerate, ("deepspeed_config", "deepspeed_config_file")),
    )
    for document, path in named:
        name = _get(document, *path)
        if isinstance(name, str) and name.removeprefix("./") not in p.names:
            reason = f"{'.'.join(path)} names {name}, which is not a file of this project"
            if name.removeprefix("./").startswith(_SHIPPED):
                fix, where = "`axolotl fetch deepspeed_configs` in the folder of the run", document.where(path)
                yield finding("RG726", Severity.WARNING, reason, fix=fix, where=where, field=".".join(path))
            else:
                yield _error("RG726", document, path, reason, "write the file into the project's folder")


def _launcher_file(p: Project) -> Iterator[Finding]:
    if p.axolotl.values is None or p.accelerate.values is None:
        return
    for key in _ENGINE_SECTIONS:
        if _get(p.accelerate, key):
            reason = f"{key} in the launcher's file: Axolotl overwrites part of it and leaves the rest standing"
            yield _error("RG727", p.accelerate, (key,), reason, "write it into axolotl.yaml")
    if _get(p.accelerate, "distributed_type") in ("FSDP", "DEEPSPEED"):
        kind = _get(p.accelerate, "distributed_type")
        reason = f"distributed_type is {kind}: Axolotl sets the engine itself"
        yield _error("RG727", p.accelerate, ("distributed_type",), reason, "write MULTI_GPU")
