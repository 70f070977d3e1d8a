"""A person's own hardware profile: a YAML file that works wherever a profile's name does (docs/hardware.md).

The file is checked against the same table as the overrides (fields.yaml), so that a key has one type, one range and
one explanation; unknown keys are refused with their line.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from recipegen.catalog.bounded_yaml import Document, read_mapping, shown
from recipegen.catalog.hardware_facts import STATED, Fact, Machine, gpu_names, host_facts, known_machine, read_table
from recipegen.catalog.hardware_fields import Field, check, check_together, fields, suggest
from recipegen.spec import EnvVar, RecipegenError

FORMAT_VERSION = 1
WHAT = "a hardware profile"
MAX_TEXT = 1000  # characters of a name, a description, or the value of a variable

_TOP_KEYS = ("format_version", "name", "description", "source", "gpu", "gpu_count", "environment")
_GPU_KEYS = ("like", "name", "compute_capability", "source")
_ENVIRONMENT_KEYS = ("name", "value", "reason")
_COMPUTE_CAPABILITY = re.compile(r"sm_[0-9]{2,3}[a-z]?|cpu")
_VARIABLE = re.compile(r"[A-Z][A-Z0-9_]*")


def read_profile(path: str | Path) -> Machine:
    """The machine that the profile at `path` describes.

    Raises RecipegenError with file and line for anything that is not a sound profile; see read_mapping for the bounds
    on the file itself.
    """
    document = read_mapping(path, what=WHAT)
    values = document.values
    node_fields = {name: field for name, field in fields().items() if field.section == "node"}
    _refuse_unknown(document, (), values, [*_TOP_KEYS, *node_fields])
    version = values.get("format_version", FORMAT_VERSION)
    if version != FORMAT_VERSION or isinstance(version, bool):
        raise RecipegenError(
            f"format_version is {shown(version)}; this recipegen reads {FORMAT_VERSION}",
            where=document.where("format_version"),
        )
    gpu_count = _gpu_count(document)
    name = str(path)
    base, gpu_name, gpu = _gpu(document, name, gpu_count)
    stated = _facts(document, (), values, node_fields)
    if base is None:
        _require(document, (), values, _node_required(gpu_count))
        table = read_table("profile")
        node = host_facts(table["host"], gpu_count, gpu["pcie_generation"].value)
    else:
        node = dict(base.node)
        if "bus_bandwidth_gb_s" in stated:  # the stated rate replaces the catalogue's, for every collective
            node = {key: fact for key, fact in node.items() if key not in ("all_gather_gb_s", "reduce_scatter_gb_s")}
    title = _text(document, ("name",), default="")
    machine = Machine(
        name=name,
        gpu_name=gpu_name,
        gpu_count=gpu_count,
        gpu=gpu,
        node={**node, **stated},
        description=_text(document, ("description",), default=title or f"{gpu_count} x {gpu_name}, {document.path}"),
        source=_text(document, ("source",), default=document.path),
        environment=_environment(document),
    )

    def where(section: str, key: str) -> str:
        return document.where(*(("gpu", key) if section == "gpu" else (key,)))

    check_together(machine, where=where)
    return machine


def _gpu_count(document: Document) -> int:
    _require(document, (), document.values, ["gpu", "gpu_count"])
    field = Field("gpu_count", "node", "integer", "GPUs per node", min=1, max=read_table("profile")["max_gpu_count"])
    return int(check(field, "gpu_count", document.values["gpu_count"], where=document.where("gpu_count")))


def _gpu(document: Document, name: str, gpu_count: int) -> tuple[Machine | None, str, dict[str, Fact]]:
    """The catalogue's machine that the profile starts from (if any), the GPU's name, and all facts of the GPU."""
    value = document.values["gpu"]
    if isinstance(value, str):
        base = known_machine(name, _known_gpu(document, ("gpu",), value), gpu_count)
        return base, base.gpu_name, dict(base.gpu)
    if not isinstance(value, dict):
        raise RecipegenError(
            f"gpu is {shown(value)}; it is the name of a known GPU or a mapping of its facts",
            where=document.where("gpu"),
        )
    gpu_fields = {key: field for key, field in fields().items() if field.section == "gpu"}
    _refuse_unknown(document, ("gpu",), value, [*_GPU_KEYS, *gpu_fields])
    stated = _facts(document, ("gpu",), value, gpu_fields)
    if "compute_capability" in value:
        stated["compute_capability"] = Fact(_compute_capability(document), STATED, document.path)
    if "like" in value:
        base = known_machine(name, _known_gpu(document, ("gpu", "like"), value["like"]), gpu_count)
        return base, _text(document, ("gpu", "name"), default=base.gpu_name), {**base.gpu, **stated}
    table = read_table("profile")
    _require(document, ("gpu",), value, table["gpu_required"])
    if not any(key in value for key in table["gpu_required_one_of"]):
        _require(document, ("gpu",), value, table["gpu_required_one_of"][:1])
    defaults = {
        key: Fact(default, "derived", "catalog/hardware/profile.yaml") for key, default in table["gpu_defaults"].items()
    }
    return None, _text(document, ("gpu", "name"), default=""), {**defaults, **stated}


def _known_gpu(document: Document, key_path: tuple[str, ...], value: object) -> str:
    if not isinstance(value, str) or value.lower() not in gpu_names():
        raise RecipegenError(
            f"{'.'.join(key_path)} is {shown(value)}, which is no GPU of the catalogue",
            where=document.where(*key_path),
            fix=suggest(value, gpu_names()),
        )
    return value.lower()


def _compute_capability(document: Document) -> str:
    value = document.values["gpu"]["compute_capability"]
    if not isinstance(value, str) or not _COMPUTE_CAPABILITY.fullmatch(value):
        raise RecipegenError(
            f"compute_capability is {shown(value)}; it is sm_ and digits, such as sm_120, or cpu",
            where=document.where("gpu", "compute_capability"),
        )
    return value


def _node_required(gpu_count: int) -> list[str]:
    table = read_table("profile")
    return [*table["node_required"], *(table["node_required_with_several_gpus"] if gpu_count > 1 else ())]


def _environment(document: Document) -> tuple[EnvVar, ...] | None:
    """The profile's own variables, which replace those of environment.yaml; None when it lists none."""
    if "environment" not in document.values:
        return None
    rows = document.values["environment"]
    if not isinstance(rows, list):
        raise RecipegenError("environment is a list of {name, value, reason}", where=document.where("environment"))
    variables = [_variable(document, index, row) for index, row in enumerate(rows)]
    seen: set[str] = set()
    for index, variable in enumerate(variables):
        if variable.name in seen:
            raise RecipegenError(f"{variable.name} stands twice", where=document.where("environment", index, "name"))
        seen.add(variable.name)
    return tuple(variables)


def _variable(document: Document, index: int, row: object) -> EnvVar:
    here = ("environment", index)
    if not isinstance(row, dict):
        raise RecipegenError(f"{shown(row)} is no mapping of name, value, reason", where=document.where(*here))
    _refuse_unknown(document, here, row, _ENVIRONMENT_KEYS)
    _require(document, here, row, ["name", "value"])
    name = row["name"]
    if not isinstance(name, str) or not _VARIABLE.fullmatch(name) or len(name) > MAX_TEXT:
        raise RecipegenError(
            f"{shown(name)} is no variable name: capital letters, digits and _", where=document.where(*here, "name")
        )
    reason = _refusal(name)
    if reason:
        raise RecipegenError(f"a profile cannot set {name}: {reason}", where=document.where(*here, "name"))
    value = row["value"]
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 10**18:
        value = str(value)
    if value is not None and not isinstance(value, str):
        raise RecipegenError(
            f"the value of {name} is {shown(value)}; put it in quotes", where=document.where(*here, "value")
        )
    if value is not None:
        _one_line(value, f"the value of {name}", document.where(*here, "value"))
    return EnvVar(name, value, _text(document, (*here, "reason"), default=f"stated in {document.path}"))


def _refusal(name: str) -> str:
    """Why a profile may not set that variable; empty where it may."""
    for group in read_table("environment")["refused"]:
        if name in group.get("names", ()) or name.startswith(tuple(group.get("prefixes", ()))):
            return str(group["reason"])
    return ""


def _text(document: Document, key_path: tuple[str | int, ...], *, default: str) -> str:
    """The text at `key_path`, on one line; `default` where the key is missing."""
    value: Any = document.values
    for key in key_path:
        if isinstance(value, dict) and key not in value:
            return default
        value = value[key]
    what = ".".join(str(key) for key in key_path)
    if not isinstance(value, str):
        raise RecipegenError(f"{what} is {shown(value)}; it is text", where=document.where(*key_path))
    _one_line(value, what, document.where(*key_path))
    if not value.strip():
        raise RecipegenError(f"{what} is empty", where=document.where(*key_path))
    return value


def _one_line(value: str, what: str, where: str) -> None:
    if not value.isprintable():
        raise RecipegenError(f"{what} has a line break or a control character", where=where)
    if len(value) > MAX_TEXT:
        raise RecipegenError(f"{what} is longer than {MAX_TEXT} characters", where=where)


def _facts(
    document: Document, key_path: tuple[str | int, ...], values: Mapping[str, Any], known: Mapping[str, Field]
) -> dict[str, Fact]:
    return {
        key: Fact(check(field, key, values[key], where=document.where(*key_path, key)), STATED, document.path)
        for key, field in known.items()
        if key in values
    }


def _require(
    document: Document, key_path: tuple[str | int, ...], values: Mapping[str, Any], keys: Iterable[str]
) -> None:
    missing = [key for key in keys if key not in values]
    if missing:
        inside = "".join(f"{key}." for key in key_path if isinstance(key, str))
        names = ", ".join(f"{inside}{key}" for key in missing)
        raise RecipegenError(f"{WHAT} needs {names}", where=document.where(*key_path), fix=_explain(missing))


def _explain(keys: list[str]) -> str:
    known = [f"{key}: {fields()[key].about}" for key in keys if key in fields()]
    return "; ".join(known) if known else "docs/hardware.md shows a whole profile"


def _refuse_unknown(
    document: Document, key_path: tuple[str | int, ...], values: Mapping[str, Any], known: Iterable[str]
) -> None:
    names = list(known)
    for key in values:
        if key not in names:
            raise RecipegenError(
                f"unknown key {shown(key)} in {WHAT}", where=document.where(*key_path, key), fix=suggest(key, names)
            )
