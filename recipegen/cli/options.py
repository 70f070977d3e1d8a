"""The options that say what is wanted; `new` and `plan` share them."""

from __future__ import annotations

import functools
import json
import os
import stat
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import click
import yaml

from recipegen.spec import RecipegenError, Request

F = TypeVar("F", bound=Callable[..., Any])

_METHODS = ["full", "lora", "qlora"]
_TRAINERS = ["axolotl", "accelerate"]
_FILES = ("axolotl", "accelerate", "deepspeed")


def _starting(names: list[str], incomplete: str) -> list[str]:
    return [n for n in names if n.lower().startswith(incomplete.lower())]


def complete(names: Callable[[str], list[str]]) -> Callable[[click.Context, click.Parameter, str], list[Any]]:
    def matches(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[Any]:
        from click.shell_completion import CompletionItem

        items: list[Any] = [CompletionItem(n) for n in names(incomplete)]
        return [*items, CompletionItem(incomplete, type="file")] if incomplete.startswith((".", "/", "~")) else items

    return matches


def complete_model(incomplete: str) -> list[str]:
    from recipegen.catalog import complete_models

    return complete_models(incomplete)


def complete_hardware(incomplete: str) -> list[str]:
    from recipegen.catalog import hardware_names

    return _starting(hardware_names(), incomplete)


def _networks(incomplete: str) -> list[str]:
    from recipegen.catalog import network_names

    return _starting(network_names(), incomplete)


def _fields(incomplete: str) -> list[str]:
    from recipegen.decide import field_types

    return _starting([f"{path}=" for path in field_types()], incomplete)


_OPTIONS = (
    click.option("--model", metavar="ID|DIR", shell_complete=complete(complete_model),
                 help="A model of the catalogue (`recipegen models list`), a folder with a config.json, or a Hub id."),
    click.option("--dataset", multiple=True, metavar="FILE|ID",
                 help="JSONL, JSON, CSV or Parquet file, or a Hub id. May be repeated."),
    click.option("--dataset-format", default="auto", show_default=True, metavar="FORMAT",
                 help="auto, alpaca, messages, sharegpt, completion or input_output."),
    click.option("--hardware", metavar="NAME|FILE", shell_complete=complete(complete_hardware),
                 help="A profile (`recipegen hardware list`), e.g. kentino-8x-rtx-5090 or 4x-l40s, or your own YAML."),
    click.option("--nodes", type=click.IntRange(1, 64), help="Machines of that profile.  [default: 1]"),
    click.option("--network", metavar="NAME", shell_complete=complete(_networks),
                 help="Between the machines: tcp-25, roce-25, roce-100, ib-hdr, ib-ndr.  [default: none]"),
    click.option("--hardware-override", "overrides", multiple=True, metavar="KEY=VALUE",
                 help="What differs on your machine: host_ram_gib, nvme_gb, sockets, ... May be repeated."),
    click.option("--method", type=click.Choice(_METHODS), help="What to train.  [default: the fastest that fits]"),
    click.option("--sequence-len", type=click.IntRange(16, 2**24), metavar="TOKENS",
                 help="Tokens per sequence.  [default: covers 99% of the rows]"),
    click.option("--global-batch-size", type=click.IntRange(1, 2**20), metavar="SEQUENCES",
                 help="Sequences per optimizer step over all GPUs."),
    click.option("--epochs", type=float, help="Passes over the data."),
    click.option("--learning-rate", type=float, help="Peak learning rate."),
    click.option("--trainer", type=click.Choice(_TRAINERS), help="Who trains.  [default: axolotl]"),
    click.option("--model-revision", metavar="REV", help="Commit or tag of the model on the Hub."),
    click.option("--set", "settings", multiple=True, metavar="FIELD=VALUE", shell_complete=complete(_fields),
                 help="Hold any field of the recipe, e.g. --set strategy=ddp, --set optimizer=adamw_torch_fused; "
                 "axolotl.KEY=VALUE, accelerate.KEY=VALUE and deepspeed.KEY=VALUE pass a trainer's own key on. "
                 "`recipegen explain fields` lists the fields."),
    click.option("--recipe", "recipe_file", type=click.Path(), metavar="FILE",
                 help="Start from a recipe.yaml; the command line wins over it."),
)  # fmt: skip


def request_options(function: F) -> F:
    """Add the shared options to a command."""
    wrapped: Any = function
    for option in reversed(_OPTIONS):
        wrapped = option(wrapped)
    functools.update_wrapper(wrapped, function)
    result: F = wrapped
    return result


def make_request(given: Mapping[str, Any], ask: Sequence[str] = ()) -> Request:
    """The Request of a command line over a recipe.yaml. `ask` names what is prompted for when missing on a terminal."""
    values: dict[str, Any] = {}
    if given.get("recipe_file"):
        from recipegen.formats import recipe_yaml

        path = given["recipe_file"]
        base = recipe_yaml.read(_bytes_of(path), path)
        values = {name: getattr(base, name) for name in base.__dataclass_fields__}
        values |= _beside(os.path.dirname(path), base)
    for name in (
        "model", "hardware", "nodes", "network", "method", "sequence_len", "global_batch_size", "epochs",
        "learning_rate", "trainer", "model_revision",
    ):  # fmt: skip
        if given.get(name) is not None:
            values[name] = given[name]
    if given.get("dataset"):
        values["dataset"] = tuple(given["dataset"])
        if len(set(given["dataset"])) < len(given["dataset"]):
            raise RecipegenError("a --dataset is given twice: its rows would count twice")
    if any(not c.isprintable() for c in given.get("model_revision") or ""):
        raise RecipegenError("--model-revision has control characters")
    if given.get("dataset_format", "auto") != "auto":
        values["dataset_format"] = given["dataset_format"]
    if given.get("overrides"):
        values["hardware_overrides"] = {**values.get("hardware_overrides", {}), **_overrides(given["overrides"])}
    pins, passthrough = _settings(given.get("settings", ()))
    values["pins"] = {**values.get("pins", {}), **pins}
    merged = {k: dict(v) for k, v in values.get("passthrough", {}).items()}
    for file, keys in passthrough.items():
        merged.setdefault(file, {}).update(keys)
    values["passthrough"] = merged
    _ask_for_missing(values, ask)
    for name in ("model", "hardware"):
        if not values.get(name):
            raise RecipegenError(
                f"no {'model' if name == 'model' else 'hardware profile'} is named",
                fix=f"Give --{name}; `recipegen {'models' if name == 'model' else name} list` shows the known ones",
            )
    _positive("epochs", values.get("epochs"), 10**4)
    _positive("learning-rate", values.get("learning_rate"), 10)
    return Request(**values)


def _bytes_of(path: str) -> bytes:
    """A regular file, no more of it than a recipe.yaml may have."""
    from recipegen.catalog.bounded_yaml import LARGE

    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            raise RecipegenError("not a regular file", where=path)
        with open(path, "rb") as file:
            return file.read(LARGE.size_bytes + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise RecipegenError(f"cannot read it: {reason}", where=path) from None


def _beside(folder: str, base: Request) -> dict[str, Any]:
    """Relative paths of a recipe.yaml as seen from here: they are meant relative to that file."""

    def here(path: str) -> str:
        if not folder or os.path.isabs(path) or path.startswith("~"):
            return path
        beside = os.path.join(folder, path)
        return beside if path.startswith(("./", "../")) or os.path.exists(beside) else path

    return {"model": here(base.model), "hardware": here(base.hardware), "dataset": tuple(map(here, base.dataset))}


def _positive(option: str, value: float | None, limit: float) -> None:
    if value is not None and not (0 < value <= limit):
        raise RecipegenError(f"--{option} is {value:g}; it must be above 0 and at most {limit:g}")


def _pair(option: str, text: str) -> tuple[str, str]:
    key, sep, value = text.partition("=")
    if not sep or not key.strip():
        raise RecipegenError(f"{option} {text[:80]!r} is not KEY=VALUE")
    return key.strip(), value


def _overrides(pairs: tuple[str, ...]) -> dict[str, float]:
    out: dict[str, float] = {}
    for text in pairs:
        key, value = _pair("--hardware-override", text)
        if key in out:
            raise RecipegenError(f"--hardware-override {key} is given twice")
        if value.lower() in ("true", "false"):
            out[key] = value.lower() == "true"
            continue
        try:
            out[key] = float(value)
        except ValueError:
            raise RecipegenError(
                f"--hardware-override {key} is {value[:40]!r}; it must be a number, true or false"
            ) from None
    return out


def _yaml_value(key: str, text: str) -> Any:
    """One plain YAML value: no aliases, no tags, shallow."""
    from recipegen.catalog.bounded_yaml import SMALL, parse

    try:
        if len(text) > SMALL.size_bytes:
            raise RecipegenError("it is too long")
        return parse(b"value: " + json.dumps(yaml.safe_load(text)).encode(), "value", limits=SMALL).values["value"]
    except (yaml.YAMLError, RecipegenError, RecursionError, TypeError, ValueError) as error:
        short = " ".join(str(error).split())[:80]
        raise RecipegenError(f"--set {key}: {text[:40]!r} is not a plain YAML value ({short})") from None


def _settings(pairs: tuple[str, ...]) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """Pins (field paths) and passthrough (FILE.KEY), the latter with values read as YAML."""
    from recipegen.decide import field_types

    pins: dict[str, Any] = {}
    passthrough: dict[str, dict[str, Any]] = {}
    for text in pairs:
        key, value = _pair("--set", text)
        file, dot, rest = key.partition(".")
        if dot and file in _FILES and key not in field_types():
            if not rest or rest in passthrough.get(file, {}):
                raise RecipegenError(f"--set {key} names no key" if not rest else f"--set {key} is given twice")
            passthrough.setdefault(file, {})[rest] = _yaml_value(key, value)
        else:
            if key in pins:
                raise RecipegenError(f"--set {key} is given twice")
            pins[key] = value
    return pins, passthrough


_PROMPTS = {
    "model": ("Model", "meta-llama/Llama-3.1-8B-Instruct"),
    "dataset": ("Data file or Hub id", "data.jsonl"),
    "hardware": ("Hardware profile", "kentino-8x-rtx-5090"),
}


def _ask_for_missing(values: dict[str, Any], names: Sequence[str]) -> None:
    """On a terminal: the sensible default first. Elsewhere nothing is asked; the error names the option."""
    if sys.stdin is None or sys.stderr is None or not (sys.stdin.isatty() and sys.stderr.isatty()):
        return
    for name in names:
        if not values.get(name):
            question, default = _PROMPTS[name]
            answer = click.prompt(question, default=default, err=True)
            values[name] = (answer,) if name == "dataset" else answer
