"""accelerate.yaml as it is found: ours of either kind, the output of `accelerate config`, or one written by hand.

What a key does is what Accelerate 1.13 does with it (accelerate/commands/launch.py: _validate_launch_command;
utils/dataclasses.py: FullyShardedDataParallelPlugin). Keys that it drops stay in passthrough: short names in
`parallelism_config`, FSDP1's keys under `fsdp_version: 2`, sections of another `distributed_type`.

`distributed_type` NO and MULTI_GPU decide no strategy: beside axolotl.yaml the trainer does. Nor does
`mixed_precision: "no"` decide the dtype of the arithmetic.

| fact | type | meaning |
|---|---|---|
| compute_environment, distributed_type | str | as in the file |
| num_machines, num_processes, machine_rank | int | `num_processes` over all machines |
| main_process_ip, main_process_port | str, int | of machine 0 |
| rdzv_backend, same_network, enable_cpu_affinity, downcast_bf16 | str, bool | without effect in a file, flags only |
| gpu_ids | str | `all`, or numbers with commas |
| mixed_precision | str | no, fp16, bf16, fp8 |
| use_cpu, debug | bool | as in the file |
| main_training_function | str | as in the file |
| fsdp_version | int | 1 or 2; 1 when an FSDP file does not say |
| fsdp_sharding_strategy | str | FSDP1's word, numbers resolved |
| fsdp_auto_wrap_policy, fsdp_backward_prefetch, fsdp_ignored_modules | str | as in the file |
| fsdp_min_num_params | int | parameters |
| fsdp_activation_checkpointing, fsdp_forward_prefetch, fsdp_use_orig_params, fsdp_sync_module_states | bool | same |
| dynamo_backend, dynamo_mode | str | torch.compile |
| fp8_backend | str | ao, te, msamp |
| deepspeed_config_file, deepspeed_multinode_launcher | str | as in the file |
| zero_stage | int | of an inline configuration |
| zero3_init_flag | bool | each rank loads its own part only |
| gradient_accumulation_steps, gradient_clipping | number or "auto" | of an inline DeepSpeed configuration |
| auto | tuple of str | dotted keys that say "auto" |
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from recipegen.catalog.bounded_yaml import shown
from recipegen.formats import documents
from recipegen.formats.collector import Collector, Key, number, one_of, text, truth, whole, word
from recipegen.formats.deepspeed_read import device, stage, strategy_of
from recipegen.formats.documents import Document
from recipegen.formats.fsdp_read import VERSION_1, VERSION_2, decide_version_1, sharding, version
from recipegen.formats.reading import Reading
from recipegen.spec import Dtype, Recipe, Strategy

FORMAT = "accelerate"
_MESH = "parallelism_config"
_ENGINES = {"FSDP": "fsdp_config", "DEEPSPEED": "deepspeed_config", "MEGATRON_LM": "megatron_lm_config"}


def _always(_: Recipe) -> bool:
    return True


def _fsdp(recipe: Recipe) -> bool:
    return recipe.parallelism.strategy.is_fsdp


def _hybrid(recipe: Recipe) -> bool:
    return recipe.parallelism.strategy is Strategy.FSDP2_HYBRID


# Recipe field -> whether the file beside Axolotl (formats/accelerate.py) states it.
CARRIES: Mapping[str, Callable[[Recipe], bool]] = {
    "parallelism.nodes": _always,
    "parallelism.gpus_per_node": _always,
    "launch.main_process_port": _always,
}
# The same of the whole file (formats/accelerate_full.py).
CARRIES_FULL: Mapping[str, Callable[[Recipe], bool]] = {
    **CARRIES,
    "parallelism.strategy": _fsdp,
    "parallelism.dp_replicate": _hybrid,
    "parallelism.dp_shard": _hybrid,
    "parallelism.tp": _hybrid,
    "parallelism.cp": _hybrid,
    "precision.compute": lambda r: r.precision.compute is Dtype.BF16 and not r.parallelism.strategy.is_deepspeed,
    "torch_compile": lambda r: r.torch_compile,
    "fsdp.version": _fsdp,
    "fsdp.reshard_after_forward": _fsdp,
    "fsdp.cpu_ram_efficient_loading": _fsdp,
    "fsdp.offload_params": _fsdp,
    "fsdp.state_dict_type": _fsdp,
    "fsdp.layer_class": lambda r: r.fsdp is not None and bool(r.fsdp.layer_class),
}


_TOP = (
    Key("distributed_type", text, fact="distributed_type"),
    Key("num_machines", whole(1), "parallelism.nodes", "num_machines"),
    Key("num_processes", whole(1), fact="num_processes"),
    Key("machine_rank", whole(0), fact="machine_rank"),
    Key("main_process_ip", text, fact="main_process_ip"),
    Key("main_process_port", whole(0), "launch.main_process_port", "main_process_port"),
    Key("rdzv_backend", text, fact="rdzv_backend"),
    Key("same_network", truth, fact="same_network"),
    Key("gpu_ids", word, fact="gpu_ids"),
    Key("mixed_precision", one_of("no", "fp16", "bf16", "fp8"), fact="mixed_precision"),
    Key("use_cpu", truth, fact="use_cpu"),
    Key("debug", truth, fact="debug"),
    Key("main_training_function", text, fact="main_training_function"),
    Key("enable_cpu_affinity", truth, fact="enable_cpu_affinity"),
    Key("downcast_bf16", truth, fact="downcast_bf16"),
    Key("dynamo_config.dynamo_backend", text, fact="dynamo_backend"),
    Key("dynamo_config.dynamo_mode", text, fact="dynamo_mode"),
    Key(f"{_MESH}.parallelism_config_dp_replicate_size", whole(1), "parallelism.dp_replicate"),
    Key(f"{_MESH}.parallelism_config_dp_shard_size", whole(1), "parallelism.dp_shard"),
    Key(f"{_MESH}.parallelism_config_tp_size", whole(1), "parallelism.tp"),
    Key(f"{_MESH}.parallelism_config_cp_size", whole(1), "parallelism.cp"),
)
_FSDP = (
    Key("fsdp_offload_params", truth, "fsdp.offload_params"),
    Key("fsdp_cpu_ram_efficient_loading", truth, "fsdp.cpu_ram_efficient_loading"),
    Key("fsdp_state_dict_type", text, "fsdp.state_dict_type"),
    Key("fsdp_transformer_layer_cls_to_wrap", text, "fsdp.layer_class"),
    Key("fsdp_auto_wrap_policy", text, fact="fsdp_auto_wrap_policy"),
    Key("fsdp_min_num_params", whole(0), fact="fsdp_min_num_params"),
    Key("fsdp_activation_checkpointing", truth, fact="fsdp_activation_checkpointing"),
    Key("fsdp_ignored_modules", text, fact="fsdp_ignored_modules"),
)
_FSDP1 = (
    Key("fsdp_backward_prefetch", text, fact="fsdp_backward_prefetch"),
    Key("fsdp_forward_prefetch", truth, fact="fsdp_forward_prefetch"),
    Key("fsdp_use_orig_params", truth, fact="fsdp_use_orig_params"),
    Key("fsdp_sync_module_states", truth, fact="fsdp_sync_module_states"),
)
_DEEPSPEED = (
    Key("deepspeed_config_file", text, fact="deepspeed_config_file"),
    Key("deepspeed_multinode_launcher", text, fact="deepspeed_multinode_launcher"),
    Key("zero3_init_flag", truth, fact="zero3_init_flag"),
    Key("zero_stage", stage, "deepspeed.stage", "zero_stage"),
    Key("offload_optimizer_device", device, "deepspeed.offload_optimizer"),
    Key("offload_param_device", device, "deepspeed.offload_param"),
    Key("gradient_accumulation_steps", whole(1), "gradient_accumulation", "gradient_accumulation_steps", auto=True),
    Key("gradient_clipping", number(0), "optimizer.max_grad_norm", "gradient_clipping", auto=True),
    Key("zero3_save_16bit_model", truth, "deepspeed.save_16bit_model"),
)


def read(content: bytes, name: str) -> Reading:
    """What a file for `accelerate launch --config_file` states."""
    return interpret(documents.read(content, name))


def interpret(document: Document) -> Reading:
    """The same of a configuration that has been read: a file, or the options of a command line."""
    found = Collector(FORMAT, document)
    place = found.key(Key("compute_environment", text, fact="compute_environment"), ("compute_environment",))
    if place not in (None, "LOCAL_MACHINE"):
        found.problem(("compute_environment",), f"{shown(place)}: only files of LOCAL_MACHINE are read")
        return found.reading()
    for section in ("dynamo_config", _MESH):
        found.section(section)
    found.keys(_TOP)
    _old_spellings(found)
    _processes(found)
    _precision(found)
    kind = found.facts.get("distributed_type")
    for engine, section in _ENGINES.items():
        used = found.section(section)
        if used and found.raw(section) and kind is not None and kind != engine:
            # A problem without taking the keys: they are passed through as they stand.
            found.without_effect((section,), f"without effect: distributed_type is {shown(kind)}")
    if kind == "FSDP":
        _read_fsdp(found)
    elif kind == "DEEPSPEED":
        _read_deepspeed(found)
    if found.section("fp8_config"):
        for spelling in ("backend", "fp8_backend"):
            found.key(Key(spelling, text, fact="fp8_backend"), ("fp8_config", spelling))
    return found.reading()


def _old_spellings(found: Collector) -> None:
    """BaseConfig.process_config: `fp16` and `dynamo_backend` at the top level."""
    fp16 = found.key(Key("fp16", truth), ("fp16",))
    if fp16 is not None:
        found.legacy(("fp16",), "mixed_precision")
        if fp16:
            found.facts.setdefault("mixed_precision", "fp16")
    if found.key(Key("dynamo_backend", text, fact="dynamo_backend"), ("dynamo_backend",)) is not None:
        found.legacy(("dynamo_backend",), "dynamo_config.dynamo_backend")
    backend = found.facts.get("dynamo_backend")
    if backend is not None:
        path = ("dynamo_config", "dynamo_backend") if found.raw("dynamo_backend") is None else ("dynamo_backend",)
        found.value("torch_compile", backend.upper() != "NO", path)


def _processes(found: Collector) -> None:
    """accelerate launch starts num_processes // num_machines on each machine, and 1 machine is its default."""
    processes, machines = found.facts.get("num_processes"), found.facts.get("num_machines", 1)
    if processes is None or "num_machines" in (problem.key for problem in found.problems):
        return
    if processes % machines:
        reason = f"{processes} processes on {machines} machines: each would start {processes // machines}"
        found.problem(("num_processes",), reason)
    if processes >= machines:
        found.value("parallelism.gpus_per_node", processes // machines, ("num_processes",))


def _precision(found: Collector) -> None:
    if found.facts.get("mixed_precision") == "bf16":
        found.value("precision.compute", Dtype.BF16, ("mixed_precision",))


# --- engines


def _read_fsdp(found: Collector) -> None:
    section = found.raw("fsdp_config") if found.section("fsdp_config") else {}
    # Either spelling is read; of two the later one wins, as Accelerate sets one after the other.
    written = {key if key.startswith("fsdp") else f"fsdp_{key}": key for key in section}

    def take(row: Key) -> Any:
        return found.key(row, ("fsdp_config", written.get(row.key, row.key)))

    number_of = take(Key("fsdp_version", version, "fsdp.version", "fsdp_version")) or VERSION_1
    found.facts["fsdp_version"] = number_of
    for row in _FSDP:
        take(row)
    path: tuple[str, ...] = ("distributed_type",)
    if number_of == VERSION_2:
        take(Key("fsdp_reshard_after_forward", truth, "fsdp.reshard_after_forward"))
        replicas, shards = (found.values.get(f"parallelism.dp_{kind}", 1) for kind in ("replicate", "shard"))
        hybrid = replicas > 1 and shards > 1
        strategy = Strategy.FSDP2_HYBRID if hybrid else Strategy.FSDP2_FULL
        found.value("parallelism.strategy", strategy, (_MESH,) if hybrid else ("distributed_type",))
        return
    for row in _FSDP1:
        take(row)
    name = take(Key("fsdp_sharding_strategy", sharding, fact="fsdp_sharding_strategy"))
    if name is not None:
        path = ("fsdp_config", written["fsdp_sharding_strategy"])
    # fsdp_reshard_after_forward with a word of FSDP1 has no effect: the launcher's sharding strategy is never empty,
    # and Accelerate prefers it (commands/launch.py: FULL_SHARD; accelerator.py).
    decide_version_1(found, name, path)


def _read_deepspeed(found: Collector) -> None:
    found.keys(_DEEPSPEED, "deepspeed_config")
    zero_stage = found.values.get("deepspeed.stage")
    if zero_stage is None:
        return
    devices = (found.values.get(f"deepspeed.{part}", "none") for part in ("offload_optimizer", "offload_param"))
    strategy = strategy_of(zero_stage, *devices)
    if strategy is not None:
        found.value("parallelism.strategy", strategy, ("deepspeed_config", "zero_stage"))
