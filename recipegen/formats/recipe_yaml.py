"""recipe.yaml: the request, the one file meant to be edited. Written with comments, read with line numbers."""

from __future__ import annotations

import contextlib
import difflib
import unicodedata
from collections.abc import Callable, Mapping
from typing import Any

from recipegen.catalog.bounded_yaml import Document as Located
from recipegen.catalog.bounded_yaml import parse, shown
from recipegen.catalog.hardware_fields import check as check_field
from recipegen.catalog.hardware_fields import override_fields, suggest
from recipegen.formats.rendering import Document, render
from recipegen.spec import RecipegenError, Request

FORMAT_VERSION = 1
NAME = "recipe.yaml"
AUTO = "auto"
TRAINERS = ("axolotl", "accelerate")
METHODS = ("full", "lora", "qlora")
PASSTHROUGH = ("axolotl", "accelerate", "deepspeed")
# What a number may be, ends included; a float must also be above 0. They refuse slips, not unusual runs.
LIMITS: Mapping[str, tuple[int, int]] = {
    "nodes": (1, 64),
    "sequence_len": (16, 2**24),  # tokens
    "global_batch_size": (1, 2**20),  # sequences
    "epochs": (0, 10**4),
    "learning_rate": (0, 10),
}
# Keys in the order of the file.
KEYS = (
    "format_version", "model", "model_revision", "dataset", "hardware", "nodes", "network", "hardware_overrides",
    "trainer", "stack", "method", "sequence_len", "global_batch_size", "epochs", "learning_rate", "pins", "passthrough",
)  # fmt: skip
_COMMENTS = {
    "model": "a name of the catalogue, a Hub id, or a folder",
    "model_revision": "a commit or tag of the Hub; null: the newest",
    "hardware": "a name of the catalogue, or the path of a profile",
    "network": "needed when nodes > 1",
    "hardware_overrides": "what differs on your machine, e.g. host_ram_gib: 512, gpu_fused_linear_loss: true",
    "method": "auto, full, lora or qlora",
    "sequence_len": "tokens; auto covers 99% of the rows",
    "global_batch_size": "sequences per optimizer step",
    "pins": "fields of the recipe held fixed, e.g. optimizer.name: adamw_torch_fused",
    "passthrough": "trainer keys that recipegen does not model",
}


def write(request: Request) -> str:
    """The text of recipe.yaml. `read` of it gives the same Request."""
    document = Document(values(request), _COMMENTS)
    return render("recipe.yaml.j2", doc=document, request=request)


def values(request: Request) -> dict[str, Any]:
    """recipe.yaml as a mapping, in the order of the file."""

    def auto(value: Any) -> Any:
        return AUTO if value is None else value

    return {
        "format_version": FORMAT_VERSION,
        "model": request.model,
        "model_revision": request.model_revision,
        "dataset": [{"path": path, "format": request.dataset_format} for path in request.dataset],
        "hardware": request.hardware,
        "nodes": request.nodes,
        "network": request.network,
        "hardware_overrides": dict(request.hardware_overrides),
        "trainer": request.trainer,
        "stack": request.stack,
        "method": auto(request.method),
        "sequence_len": auto(request.sequence_len),
        "global_batch_size": auto(request.global_batch_size),
        "epochs": auto(request.epochs),
        "learning_rate": auto(request.learning_rate),
        "pins": dict(request.pins),
        "passthrough": {name: dict(request.passthrough.get(name, {})) for name in PASSTHROUGH},
    }


def read(content: bytes, name: str = NAME) -> Request:
    """The Request in `content`; paths come back as they stand. `name` is the file's name for messages.

    Raises RecipegenError with file and line for anything that is not a recipe.yaml: unknown keys (with the nearest
    known one), wrong types, numbers outside LIMITS, texts of several lines, repeated keys, aliases, files larger than
    1 MiB.
    """
    document = parse(content, name, what="recipe.yaml")
    reader = _Reader(document, name)
    reader.known(KEYS)
    version = reader.take("format_version", _whole(1), required=True)
    if version > FORMAT_VERSION:
        raise reader.error("format_version", f"{version} is newer than this recipegen knows ({FORMAT_VERSION})")
    paths, format_ = _datasets(reader)
    return Request(
        model=reader.take("model", _text, required=True),
        hardware=reader.take("hardware", _text, required=True),
        dataset=paths,
        dataset_format=format_,
        model_revision=reader.take("model_revision", _optional(_text)),
        nodes=reader.take("nodes", _whole(*LIMITS["nodes"]), default=1),
        network=reader.take("network", _text, default="none"),
        hardware_overrides=_overrides(reader),
        trainer=reader.take("trainer", _one_of(TRAINERS), default="axolotl"),
        stack=reader.take("stack", _text, default=Request.stack),
        method=reader.take("method", _auto(_one_of(METHODS))),
        sequence_len=reader.take("sequence_len", _auto(_whole(*LIMITS["sequence_len"]))),
        global_batch_size=reader.take("global_batch_size", _auto(_whole(*LIMITS["global_batch_size"]))),
        epochs=reader.take("epochs", _auto(_positive(LIMITS["epochs"][1]))),
        learning_rate=reader.take("learning_rate", _auto(_positive(LIMITS["learning_rate"][1]))),
        pins=reader.take("pins", _mapping, default={}),
        passthrough=_passthrough(reader),
    )


class _Reader:
    """Takes checked values out of a loaded mapping and knows the line of each."""

    def __init__(self, document: Located, name: str) -> None:
        self.document = document
        self.values: dict[Any, Any] = document.values
        self.name = name

    def error(self, key: str, message: str, *, fix: str | None = None) -> RecipegenError:
        return RecipegenError(f"{key}: {message}", where=self.document.where(*key.split(".")), fix=fix)

    def known(self, names: tuple[str, ...], above: str = "") -> None:
        inner = self.values if not above else self.values[above]
        for key in inner:
            if key not in names:
                near = difflib.get_close_matches(str(key), names, n=1)
                fix = f"Did you mean {near[0]}?" if near else f"Known keys: {', '.join(names)}."
                raise self.error(f"{above}.{key}" if above else str(key), "unknown key", fix=fix)

    def take(self, key: str, check: Callable[[Any], Any], *, default: Any = None, required: bool = False) -> Any:
        if key not in self.values:
            if required:
                raise RecipegenError(f"the key {key} is missing", where=self.name)
            return default
        try:
            return check(self.values[key])
        except ValueError as error:
            raise self.error(key, str(error)) from None


def _datasets(reader: _Reader) -> tuple[tuple[str, ...], str]:
    """Paths and the one format of all data sets; an item is a path or {path, format}."""
    items = reader.values.get("dataset", [])
    items = [items] if isinstance(items, (str, dict)) else items
    if not isinstance(items, list):
        raise reader.error("dataset", "must be a list of {path, format}")
    paths, formats = [], []
    for item in items:
        entry = {"path": item} if isinstance(item, str) else item
        if not isinstance(entry, dict) or not isinstance(entry.get("path"), str) or not entry["path"]:
            raise reader.error("dataset", "every item needs a path, a text")
        if _breaks_a_line(entry["path"]):
            raise reader.error("dataset", f"{shown(entry['path'])} must be one line without control characters")
        unknown = [key for key in entry if key not in ("path", "format")]
        if unknown:
            raise reader.error("dataset", f"unknown key {unknown[0]!r} in an item", fix="Known keys: path, format.")
        format_ = entry.get("format", AUTO)
        if not isinstance(format_, str) or _breaks_a_line(format_):
            raise reader.error("dataset", "format must be a text of one line")
        paths.append(entry["path"])
        formats.append(format_)
    if len(set(formats)) > 1:
        raise reader.error("dataset", f"one format for all files, not {' and '.join(sorted(set(formats)))}")
    return tuple(paths), formats[0] if formats else AUTO


def _overrides(reader: _Reader) -> dict[str, float]:
    """The hardware overrides, numbers and booleans, each of a known field and within its limits."""
    checked: dict[str, float] = {}
    for key, value in reader.take("hardware_overrides", _mapping, default={}).items():
        where = reader.document.where("hardware_overrides", key)
        field = override_fields().get(key)
        if field is None:
            raise RecipegenError(
                f"unknown hardware override {shown(key)}", where=where, fix=suggest(key, override_fields())
            )
        checked[key] = check_field(field, key, value, where=where)
    return checked


def _passthrough(reader: _Reader) -> Mapping[str, Mapping[str, Any]]:
    given = reader.take("passthrough", _mapping, default={})
    if given:
        reader.known(PASSTHROUGH, "passthrough")
    for name, keys in given.items():
        if not isinstance(keys, dict) or not all(isinstance(key, str) for key in keys):
            raise reader.error(f"passthrough.{name}", "must be a mapping of trainer keys")
    return {name: keys for name, keys in given.items() if keys}


# --- checks: each returns the value or raises ValueError with what it must be


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"{shown(value)} must be a text that is not empty")
    if _breaks_a_line(value):
        raise ValueError(f"{shown(value)} must be one line without control characters")
    return value


def _breaks_a_line(text: str) -> bool:
    """Control characters, line and paragraph separators, unpaired surrogates."""
    return any(unicodedata.category(character) in ("Cc", "Zl", "Zp", "Cs") for character in text)


def _whole(least: int, most: int | None = None) -> Callable[[Any], int]:
    what = f"a whole number of {least} or more" if most is None else f"a whole number from {least} to {most}"

    def check(value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or value < least or (most and value > most):
            raise ValueError(f"{shown(value)} must be {what}")
        return value

    return check


def _positive(most: float) -> Callable[[Any], float]:
    def check(value: Any) -> float:
        # PyYAML reads 2e-5 as a text: its YAML 1.1 numbers need a dot in the mantissa.
        if isinstance(value, str):
            with contextlib.suppress(ValueError):
                value = float(value)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= most:
            raise ValueError(f"{shown(value)} must be a number above 0 and at most {most}")
        return float(value)

    return check


def _one_of(names: tuple[str, ...]) -> Callable[[Any], str]:
    def check(value: Any) -> str:
        if value not in names:
            raise ValueError(f"{shown(value)} must be one of {', '.join(names)}")
        return str(value)

    return check


def _optional(check: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: None if value is None else check(value)


def _auto(check: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: None if value in (AUTO, None) else check(value)


def _mapping(value: Any) -> dict[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        raise ValueError("must be a mapping with names as keys")
    return value
