"""The strict key check: misspelt and unknown keys, types and enums of axolotl.yaml, accelerate.yaml and deepspeed.json.

Needs nothing but the stack's key schemas, so it always runs. Family `schema` is what the trainer rejects, `silent-key`
what it accepts and drops.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any

from recipegen.catalog.stack import Stack
from recipegen.check import schema as schemas
from recipegen.check.document import problems
from recipegen.check.registry import finding
from recipegen.check.schema import Kind, Problem, Schema
from recipegen.formats.documents import Document, read_json, read_yaml
from recipegen.spec import Finding, Severity

_BETWEEN_MACHINES = ("same_network", "rdzv_backend")
PLUGIN_PACKAGE = "axolotl.integrations."
_DATASET_LISTS = ("datasets", "test_datasets")
# Words that Accelerate takes in any case (FullyShardedDataParallelPlugin.__post_init__, accelerate 1.13.0), and up to
# which number, counted from 1, it takes a number instead.
_FSDP_WORDS: Mapping[str, int] = {
    "sharding_strategy": 5,
    "reshard_after_forward": 5,
    "backward_prefetch": 2,
    "state_dict_type": 3,
    "auto_wrap_policy": 0,
}


def check_axolotl(content: bytes, stack: Stack, name: str = "axolotl.yaml") -> tuple[Finding, ...]:
    """Findings about the keys of an Axolotl file. Never imports what `plugins:` names."""
    document = read_yaml(content, name)
    return (*problems(document), *(axolotl_keys(document, stack) if document.values is not None else ()))


def check_accelerate(content: bytes, stack: Stack, name: str = "accelerate.yaml") -> tuple[Finding, ...]:
    """Findings about the keys of a file for `accelerate launch --config_file`."""
    document = read_yaml(content, name)
    return (*problems(document), *(accelerate_keys(document, stack) if document.values is not None else ()))


def check_deepspeed(content: bytes, stack: Stack, name: str = "deepspeed.json") -> tuple[Finding, ...]:
    """Findings about the keys of a DeepSpeed JSON."""
    document = read_json(content, name)
    return (*problems(document), *(deepspeed_keys(document, stack) if document.values is not None else ()))


# --- Axolotl


def known_plugin(entry: str, keys: Mapping[str, Any]) -> str | None:
    """The argument class of one of Axolotl's own plugins, however the entry spells its module; None for any other."""
    parts = entry.removeprefix(PLUGIN_PACKAGE).split(".")
    found: str | None = keys["plugins"].get(f"{parts[0]}.{parts[-1]}") if len(parts) >= 2 else None
    return found


def axolotl_keys(document: Document, stack: Stack) -> Iterator[Finding]:
    """The key check of an Axolotl file that has been read."""
    values, keys = document.values or {}, stack.axolotl_keys()
    listed = values.get("plugins")
    plugins = [entry for entry in listed if isinstance(entry, str)] if isinstance(listed, list) else []
    arguments = [a for a in (known_plugin(entry, keys) for entry in plugins) if a]
    foreign = [entry for entry in plugins if known_plugin(entry, keys) is None]
    for entry in foreign:
        yield finding(
            "RG707",
            Severity.WARNING,
            f"{schemas.show(entry)} is not one of Axolotl's own plugins: neither it nor its keys are looked at here",
            fix="Axolotl only logs a plugin that fails to import; check that it ran",
            where=document.where(("plugins",)),
            field="plugins",
        )
    schema = Schema(keys, {keys["root"]: tuple(arguments)}, _dataset_objects(values))
    owner = {
        key: plugin
        for plugin, name in keys["plugins"].items()
        if name not in arguments
        for key in keys["objects"][name]
    }
    for problem in schemas.walk(schema, values):
        key = problem.path[-1]
        if problem.kind is Kind.UNKNOWN and len(problem.path) == 1 and key in owner:
            yield finding(
                "RG703",
                Severity.ERROR,
                f"{key} belongs to a plugin that `plugins:` does not list, so it is dropped",
                fix=f"add {_full_name(owner[key])} to `plugins:`",
                where=document.where(problem.path),
                field=key,
            )
            continue
        yield _finding(problem, document, schema, stack.other_names("axolotl"))
    yield from _values_checked_later(document, keys)


def _dataset_objects(values: Mapping[str, Any]) -> dict[tuple[str, ...], str]:
    """Which data set class Axolotl uses for an entry (validate_config): it depends on `rl`."""
    rl = values.get("rl")
    plain = {"dpo": "DPODataset", "ipo": "DPODataset", "simpo": "DPODataset", "kto": "KTODataset"}.get(
        str(rl), "SFTDataset"
    )
    return {(name, "*"): plain for name in _DATASET_LISTS}


def _values_checked_later(document: Document, keys: Mapping[str, Any]) -> Iterator[Finding]:
    for key, known in keys["values"].items():
        value = (document.values or {}).get(key)
        if not isinstance(value, str) or value in known:
            continue
        near = schemas.closest(value, known)
        yield finding(
            "RG702",
            Severity.ERROR,
            f"{key} is {schemas.show(value)}: Axolotl's validation accepts it, and the trainer refuses it at its start",
            fix=f"did you mean {near}?" if near else f"known: {', '.join(known[:8])}, ...",
            where=document.where((key,)),
            field=key,
        )


def _full_name(plugin: str) -> str:
    return f"{PLUGIN_PACKAGE}{plugin}"


# --- Accelerate


def accelerate_keys(document: Document, stack: Stack) -> Iterator[Finding]:
    """The key check of an Accelerate file that has been read."""
    table, values = stack.accelerate_keys(), document.values or {}
    schema = Schema(_accelerate_schema(table), {}, {})
    for problem in schemas.walk(schema, values):
        if not _fsdp_word(problem, values, table):
            yield _accelerate_finding(problem, document, schema, stack.other_names("accelerate"))
    for key in table["required"]:
        if values.get(key) is None:
            yield finding(
                "RG702", Severity.ERROR, f"{key} is missing; accelerate launch needs it", where=document.name, field=key
            )
    for key, default in table["only_as_flags"].items():
        if key in values and values[key] not in (default, None, "no" if default is False else default):
            # `accelerate config` writes same_network into every file; on one machine nobody asks.
            idle = key in _BETWEEN_MACHINES and values.get("num_machines") in (None, 0, 1)
            yield finding(
                "RG704",
                Severity.NOTE if idle else Severity.WARNING,
                f"{key}: {schemas.show(values[key])} has no effect in a file: the command line's default wins",
                fix=f"pass --{key} to accelerate launch",
                where=document.where((key,)),
                field=key,
            )
    for name, section in table["sections"].items():
        inner = values.get(name)
        if isinstance(inner, dict):
            yield from _section_without_effect(name, section, inner, values, document)


def _accelerate_schema(table: Mapping[str, Any]) -> dict[str, Any]:
    sections = table["sections"]
    return {
        "root": "top",
        "objects": {"top": table["top"], **{name: section["keys"] for name, section in sections.items()}},
        "aliases": {
            name: {
                key.removeprefix(section["prefix"]): key for key in section["keys"] if key.startswith(section["prefix"])
            }
            for name, section in sections.items()
            if section["prefix"]
        },
        "forbid": ["top"],
        "prefixes": {},
    }


def _fsdp_word(problem: Problem, values: Mapping[str, Any], table: Mapping[str, Any]) -> bool:
    """Whether Accelerate takes the value all the same: a word in another case, or its number."""
    if problem.kind not in (Kind.ENUM, Kind.TYPE) or len(problem.path) != 2 or problem.path[0] != "fsdp_config":
        return False
    key = problem.path[1].removeprefix("fsdp_")
    raw = values["fsdp_config"].get(problem.path[1])
    if key not in _FSDP_WORDS or isinstance(raw, bool) or not isinstance(raw, (int, str)):
        return False
    kinds = table["sections"]["fsdp_config"]["keys"][f"fsdp_{key}"]
    words = [word for kind in (kinds if isinstance(kinds, list) else [kinds]) if isinstance(kind, dict)
             for word in kind["enum"]]  # fmt: skip
    if isinstance(raw, str) and not raw.isdecimal():
        return raw.upper() in words
    return str(raw) in map(str, range(1, _FSDP_WORDS[key] + 1))


def _accelerate_finding(problem: Problem, document: Document, schema: Schema, other: Mapping[str, str]) -> Finding:
    if problem.path == ("mixed_precision",) and (document.values or {}).get("mixed_precision") is False:
        return finding(
            "RG702",
            Severity.ERROR,
            "mixed_precision: no is false in YAML 1.1, and accelerate launch stops",
            fix='quote it: mixed_precision: "no"',
            where=document.where(problem.path),
            field="mixed_precision",
        )
    return _finding(problem, document, schema, other)


def _section_without_effect(
    name: str, section: Mapping[str, Any], inner: Mapping[str, Any], values: Mapping[str, Any], document: Document
) -> Iterator[Finding]:
    prefix = section["prefix"]
    written = {(key if key.startswith(prefix) else prefix + key): key for key in map(str, inner)}

    def at(key: str, severity: Severity, reason: str, fix: str, rule: str = "RG704") -> Finding:
        return finding(
            rule, severity, reason, fix=fix, where=document.where((name, written[key])), field=f"{name}.{written[key]}"
        )

    version = str(inner.get("fsdp_version", inner.get("version", 1)))
    if name == "fsdp_config" and version == "2":
        for key in section["without_effect_in_version_2"]:
            if key in written:
                yield at(
                    key,
                    Severity.WARNING,
                    f"{written[key]} is of FSDP1 and has no effect with fsdp_version 2",
                    "remove it",
                )
        reshard = inner.get(written.get("fsdp_reshard_after_forward", ""))
        if isinstance(reshard, str) and reshard.isupper():
            reason = f"reshard_after_forward: {reshard} is of FSDP1; with fsdp_version 2 every worker stops at it"
            yield at("fsdp_reshard_after_forward", Severity.ERROR, reason, "write true or false", "RG702")
        state = inner.get(written.get("fsdp_state_dict_type", ""))
        if state == "LOCAL_STATE_DICT":
            reason = "LOCAL_STATE_DICT is refused with fsdp_version 2"
            yield at("fsdp_state_dict_type", Severity.ERROR, reason, "write SHARDED_STATE_DICT", "RG702")
    for key in section.get("dropped", ()):
        if inner.get(written.get(key, "")) not in (None, "none"):
            reason = f"{key} never reaches the workers: the run would use the path 'none'"
            yield at(
                key,
                Severity.ERROR,
                reason,
                "write nvme_path into a DeepSpeed JSON and name it in deepspeed_config_file",
            )
    if inner.get("deepspeed_config_file") and section.get("not_with_config_file"):
        for key in section["not_with_config_file"]:
            if key in written:
                reason = f"{key} beside deepspeed_config_file stops every worker (ValueError)"
                yield at(key, Severity.ERROR, reason, "write it into the DeepSpeed JSON", "RG702")
        if values.get("mixed_precision") is not None:
            yield finding(
                "RG702",
                Severity.ERROR,
                "mixed_precision beside deepspeed_config_file stops every worker (ValueError)",
                fix="write bf16 into the DeepSpeed JSON",
                where=document.where(("mixed_precision",)),
                field="mixed_precision",
            )


# --- DeepSpeed


def deepspeed_keys(document: Document, stack: Stack) -> Iterator[Finding]:
    """The key check of a DeepSpeed JSON that has been read."""
    values = document.values or {}
    schema = Schema(stack.deepspeed_keys(), {}, {})
    for problem in schemas.walk(schema, values):
        if problem.kind is not Kind.NUMBER_AS_STRING:  # JSON has no such trap: a string was meant as a string
            yield _finding(problem, document, schema, stack.other_names("deepspeed"))
    filled = stack.deepspeed_auto()
    for path in islice(_autos(values, ()), schemas.MOST):
        if ".".join(path) not in filled:
            yield finding(
                "RG702",
                Severity.ERROR,
                f'{".".join(path)} is "auto", which nothing fills in: DeepSpeed gets the word',
                fix="write the value, or remove the key",
                where=document.where(path),
                field=".".join(path),
            )
    zero = values.get("zero_optimization")
    for section in ("offload_optimizer", "offload_param"):
        offload = zero.get(section) if isinstance(zero, dict) else None
        if isinstance(offload, dict) and offload.get("device") == "nvme" and not offload.get("nvme_path"):
            yield finding(
                "RG702",
                Severity.ERROR,
                f"{section}: device nvme without nvme_path is accepted and stops the run when it starts",
                fix="write nvme_path",
                where=document.where(("zero_optimization", section)),
                field=f"zero_optimization.{section}.nvme_path",
            )


def _autos(value: Any, path: tuple[str, ...]) -> Iterable[tuple[str, ...]]:
    if value == "auto":
        yield path
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _autos(item, (*path, str(key)))


# --- what all three share


def _finding(problem: Problem, document: Document, schema: Schema, other: Mapping[str, str]) -> Finding:
    key, where, field = problem.path[-1], document.where(problem.path), ".".join(problem.path)
    if problem.kind is Kind.NUMBER_AS_STRING:
        severity = Severity.NOTE if problem.converted else Severity.WARNING
        said = "; the trainer converts it" if problem.converted else "; it stays a string"
        return finding("RG705", severity, problem.message + said, fix=f"write {problem.near}", where=where, field=field)
    if problem.kind is not Kind.UNKNOWN:
        fix = f"did you mean {problem.near}?" if problem.near else ""
        return finding("RG702", Severity.ERROR, problem.message, fix=fix, where=where, field=field)
    meant = other.get(key) or problem.near
    fix = f"did you mean {meant}?" if meant else "remove it"
    if schema.forbids(problem.object):
        reason = f"{problem.message}, and the trainer stops at it"
        return finding("RG702", Severity.ERROR, reason, fix=fix, where=where, field=field)
    severity = Severity.ERROR if meant else Severity.WARNING
    return finding("RG701", severity, f"{problem.message}: accepted and dropped", fix=fix, where=where, field=field)
