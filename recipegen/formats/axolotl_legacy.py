"""Deprecated spellings of Axolotl, moved to today's keys the way Axolotl 0.19 moves them (its schemas/validation.py,
schemas/config.py, and Transformers for the words of the `fsdp:` list).
"""

from __future__ import annotations

from typing import Any

from recipegen.catalog.bounded_yaml import shown
from recipegen.formats.axolotl_keys import Keys, whole

# Second spellings that are not deprecated.
_ALIASES = {"model_revision": "revision_of_model", "model_type": "type_of_model"}
_RENAMED = {
    "sequence_parallel_degree": "context_parallel_size",
    "dataset_processes": "dataset_num_proc",
    "evaluation_strategy": "eval_strategy",
    "fsdp_final_state_dict_type": "fsdp_config.final_state_dict_type",
}
# In the order in which Axolotl prefers them (LEGACY_ATTN_FLAG_TO_IMPL).
_ATTENTION = {
    "xformers_attention": "xformers",
    "sage_attention": "sage",
    "flex_attention": "flex_attention",
    "flash_attention": "flash_attention_2",
    "sdp_attention": "sdpa",
    "eager_attention": "eager",
}
# `unsloth` was the first name of `offload`; 0.19 refuses it, which the key check says.
_CHECKPOINTING: dict[str, Any] = {"offload": True, "unsloth": True, "offload_disk": "disk"}
_PREFIX = "fsdp_"
_SHARDING = ("full_shard", "shard_grad_op", "no_shard", "hybrid_shard", "hybrid_shard_zero2")
_RESHARDS = ("full_shard", "hybrid_shard")
_OF_VERSION_2 = ("full_shard", "shard_grad_op")
# FSDPConfig of schemas/fsdp.py; other prefixed names (fsdp_limit_all_gathers) are dropped by Axolotl.
_FSDP_KEYS = frozenset(
    (
        "version",
        "activation_checkpointing",
        "offload_params",
        "sync_module_states",
        "cpu_ram_efficient_loading",
        "cpu_offload_pin_memory",
        "use_orig_params",
        "state_dict_type",
        "final_state_dict_type",
        "auto_wrap_policy",
        "transformer_layer_cls_to_wrap",
        "min_num_params",
        "reshard_after_forward",
    )
)


def modernise(keys: Keys) -> None:
    """Move every deprecated key; what was moved is in the reading's `legacy`."""
    for alias, name in _ALIASES.items():
        if keys.raw(name) is None and keys.has(alias):
            keys.put(name, keys.raw(alias), alias)
            keys.take(alias)
    _fsdp_prefixes(keys)
    for old, new in _RENAMED.items():
        keys.rename(old, new)
    _fsdp_version(keys)
    _fsdp_words(keys)
    _attention(keys)
    _checkpointing(keys)
    _precision(keys)


def _fsdp_prefixes(keys: Keys) -> None:
    for name in keys.below("fsdp_config"):
        if name.startswith(_PREFIX) and name != "fsdp_version":
            bare = name.removeprefix(_PREFIX)
            if bare in _FSDP_KEYS:
                keys.rename(f"fsdp_config.{name}", f"fsdp_config.{bare}")


def _fsdp_version(keys: Keys) -> None:
    """One version, whichever of the three places has it; none is FSDP1 (check_fsdp_version_in_fsdp_config)."""
    top, inner, short = "fsdp_version", "fsdp_config.fsdp_version", "fsdp_config.version"
    if keys.raw(inner) is None and keys.raw(short) is not None:
        keys.put(inner, keys.raw(short), short)
    keys.take(short)
    if not uses_fsdp(keys):
        return
    stated, nested = keys.raw(top), keys.raw(inner)
    if stated is not None and nested is not None and _number(stated) != _number(nested):
        keys.problem(inner, f"fsdp_version is {shown(stated)} at the top and {shown(nested)} in fsdp_config")
    keys.take(inner)
    if stated is None:
        where = inner if nested is not None else "fsdp_config" if keys.has("fsdp_config") else "fsdp"
        keys.put(top, 1 if nested is None else nested, where)
        if nested is None:
            keys.legacy(where, "fsdp_version: 2")
        else:
            keys.note("fsdp_version_within", True, inner, short)


def _number(version: Any) -> Any:
    """2 for 2, 2.0 and "2"; what is no whole number as it is."""
    try:
        return whole(version)
    except ValueError:
        return version


def uses_fsdp(keys: Keys) -> bool:
    """True when Axolotl sets up FSDP: it looks at `fsdp_config` and the deprecated `fsdp` list."""
    return bool(keys.raw("fsdp_config")) or bool(keys.raw("fsdp"))


def _fsdp_words(keys: Keys) -> None:
    written = keys.raw("fsdp")
    keys.take("fsdp")
    if not written:
        return
    words = written.replace(",", " ").split() if isinstance(written, str) else written
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        keys.problem("fsdp", f"fsdp is {shown(written)}: it must be a list of words")
        return
    keys.legacy("fsdp", "fsdp_config")
    for word in (word.strip().lower() for word in words):
        if word in _SHARDING:
            _sharding(keys, word)
        elif word == "offload":
            keys.put("fsdp_config.offload_params", True, "fsdp")
        elif word == "auto_wrap":
            if keys.raw("fsdp_config.auto_wrap_policy") is None:
                keys.put("fsdp_config.auto_wrap_policy", "TRANSFORMER_BASED_WRAP", "fsdp")
        else:
            keys.problem(
                "fsdp", f"{shown(word)} is not a word of fsdp: {', '.join((*_SHARDING, 'auto_wrap'))}, offload"
            )


def _sharding(keys: Keys, word: str) -> None:
    """The first of the words counts, and fsdp_config before it (_apply_legacy_fsdp_to_config of Transformers)."""
    if _number(keys.raw("fsdp_version")) == 2 and word not in _OF_VERSION_2:
        keys.problem("fsdp", f"{word} is of FSDP1; with fsdp_version 2 the trainer stops at it")
    elif keys.stated_fact("fsdp_sharding_strategy") is None:
        keys.note("fsdp_sharding_strategy", word.upper(), "fsdp_config.sharding_strategy", "fsdp")
        if keys.raw("fsdp_config.reshard_after_forward") is None:
            keys.put("fsdp_config.reshard_after_forward", word in _RESHARDS, "fsdp")


def _attention(keys: Keys) -> None:
    on = [flag for flag in _ATTENTION if keys.raw(flag) not in (None, False, 0)]
    stated = keys.raw("attn_implementation")
    if on and stated is not None:
        keys.problem(on[0], f"{on[0]} stands beside attn_implementation, which Axolotl refuses")
    elif on:
        keys.put("attn_implementation", _ATTENTION[on[0]], on[0])
    for flag in _ATTENTION:
        if keys.raw(flag) is not None:
            keys.legacy(flag, f"attn_implementation: {_ATTENTION[flag]}")
        keys.take(flag)


def _checkpointing(keys: Keys) -> None:
    word = keys.raw("gradient_checkpointing")
    if isinstance(word, str) and word in _CHECKPOINTING:
        kind = _CHECKPOINTING[word]
        keys.legacy("gradient_checkpointing", f"activation_offloading: {'true' if kind is True else kind}")
        keys.put("gradient_checkpointing", True, "gradient_checkpointing")
        keys.put("activation_offloading", kind, "gradient_checkpointing")


def _precision(keys: Keys) -> None:
    if keys.raw("bf16") == "full":  # of 2023: weights and arithmetic in bf16, which `true` is today
        keys.legacy("bf16", "bf16: true")
        keys.put("bf16", True, "bf16")
