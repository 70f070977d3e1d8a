"""The words for FSDP that Accelerate's files and the Transformers trainer's arguments share, and what they decide."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from recipegen.catalog.bounded_yaml import shown
from recipegen.formats.collector import Collector, Key, Refused, names, text, truth, whole
from recipegen.formats.documents import KeyPath
from recipegen.spec import Strategy

VERSION_1, VERSION_2 = 1, 2
# accelerate.utils.constants.FSDP_SHARDING_STRATEGY; a file may hold the number, counted from 1.
STRATEGIES = ("FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD", "HYBRID_SHARD", "HYBRID_SHARD_ZERO2")
_HYBRID = ("HYBRID_SHARD", "HYBRID_SHARD_ZERO2")
_RESHARDS = ("FULL_SHARD", "HYBRID_SHARD")
_OF_VERSION_2 = ("FULL_SHARD", "SHARD_GRAD_OP")


def sharding(raw: Any) -> str:
    """FSDP1's sharding strategy by its name or its number, as FullyShardedDataParallelPlugin takes it."""
    if isinstance(raw, str) and raw.upper() in STRATEGIES:
        return raw.upper()
    try:
        position: int = whole(1)(raw)
    except Refused:
        position = 0
    if not 1 <= position <= len(STRATEGIES):
        raise Refused(f"{shown(raw)} is none of {', '.join(STRATEGIES)} (1 to {len(STRATEGIES)})")
    return STRATEGIES[position - 1]


def version(raw: Any) -> int:
    """FSDP's version, 1 or 2."""
    value: int = whole()(raw)
    if value not in (VERSION_1, VERSION_2):
        raise Refused(f"{shown(raw)} is neither 1 nor 2")
    return value


def decide_version_1(found: Collector, name: str | None, path: KeyPath) -> None:
    """The strategy of FSDP1's sharding strategy `name`, which stands at `path`; None is its default, a full shard.

    Hybrid sharding shards inside a node and replicates across, so on one node it is a full shard.
    """
    if name is not None:
        found.value("fsdp.reshard_after_forward", name in _RESHARDS, path)
    nodes = found.values.get("parallelism.nodes", 1)
    if name == "NO_SHARD":
        found.value("parallelism.strategy", Strategy.DDP, path)
    elif name in _HYBRID and nodes > 1:
        found.value("parallelism.strategy", Strategy.FSDP2_HYBRID, path)
        if "parallelism.gpus_per_node" in found.values:
            found.value("parallelism.dp_replicate", nodes, path)
            found.value("parallelism.dp_shard", found.values["parallelism.gpus_per_node"], path)
    else:
        found.value("parallelism.strategy", Strategy.FSDP2_FULL, path)


def training_arguments(found: Collector) -> None:
    """`fsdp` and `fsdp_config` of TrainingArguments 5.16 (_process_fsdp_args): the first turns it on."""
    stated = found.raw("fsdp")
    if not stated or (isinstance(stated, str) and stated.lower() in ("false", "none")):
        found.take("fsdp")
        return
    if stated is not True and not isinstance(stated, (str, list)):
        found.problem(("fsdp",), f"{shown(stated)} is neither true nor a list of words")
        return
    config, written = found.raw("fsdp_config"), dict[str, str]()
    if isinstance(config, str):
        found.key(Key("", text, fact="fsdp_config_file"), ("fsdp_config",))
    elif found.section("fsdp_config"):
        written = {key.removeprefix("fsdp_"): key for key in config}

    def take(key: str, convert: Callable[[Any], Any], path: str = "", fact: str = "") -> Any:
        return found.key(Key(key, convert, path, fact), ("fsdp_config", written[key])) if key in written else None

    number = take("version", version, "fsdp.version") or VERSION_2
    found.facts["fsdp_version"] = number
    take("cpu_offload", truth, "fsdp.offload_params")
    take("cpu_ram_efficient_loading", truth, "fsdp.cpu_ram_efficient_loading")
    take("state_dict_type", text, "fsdp.state_dict_type")
    take("auto_wrap_policy", text, fact="fsdp_auto_wrap_policy")
    take("activation_checkpointing", truth, fact="fsdp_activation_checkpointing")
    layers = take("transformer_layer_cls_to_wrap", names)
    if layers:
        found.value("fsdp.layer_class", ",".join(layers), ("fsdp_config", written["transformer_layer_cls_to_wrap"]))
    words = _words(found, stated, number)
    if number == VERSION_2:
        take("reshard_after_forward", truth, "fsdp.reshard_after_forward")
        found.value("parallelism.strategy", Strategy.FSDP2_FULL, ("fsdp",))
        if words and "fsdp.reshard_after_forward" not in found.values:
            found.value("fsdp.reshard_after_forward", words in _RESHARDS, ("fsdp",))
        return
    configured = take("reshard_after_forward", sharding, fact="fsdp_sharding_strategy")
    path: KeyPath = ("fsdp",)
    if configured is not None:
        path = ("fsdp_config", written["reshard_after_forward"])
    elif words is not None:
        found.facts["fsdp_sharding_strategy"] = words
    decide_version_1(found, configured or words, path)


def _words(found: Collector, stated: Any, number: int) -> str | None:
    """The sharding strategy of `fsdp: full_shard auto_wrap offload`; the configuration wins over each of its words."""
    words = stated.split() if isinstance(stated, str) else stated if isinstance(stated, list) else []
    found.take("fsdp")
    strategy: str | None = None
    for word in words:
        name = word.upper() if isinstance(word, str) else ""
        if name in STRATEGIES:
            if number == VERSION_2 and name not in _OF_VERSION_2:
                found.problem(("fsdp",), f"{shown(word)} is of FSDP1, and the trainer stops at it without version: 1")
            strategy = strategy or name
        elif name == "OFFLOAD":
            if "fsdp.offload_params" not in found.values:
                found.value("fsdp.offload_params", True, ("fsdp",))
        elif name not in ("AUTO_WRAP", "TRUE"):
            found.problem(("fsdp",), f"{shown(word)} is not a word of fsdp")
    return strategy
