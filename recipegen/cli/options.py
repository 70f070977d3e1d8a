"""The options that say what is wanted; `new` and `plan` share them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import click
import yaml

from recipegen.spec import RecipegenError, Request, Strategy

F = TypeVar("F", bound=Callable[..., Any])

_METHODS = ["full", "lora", "qlora"]
_TRAINERS = ["axolotl", "accelerate"]
_FILES = ("axolotl", "accelerate", "deepspeed")


def _complete(names: Callable[[], list[str]]) -> Callable[[click.Context, click.Parameter, str], list[Any]]:
    def complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[Any]:
        from click.shell_completion import CompletionItem

        items: list[Any] = [CompletionItem(n) for n in names() if n.lower().startswith(incomplete.lower())]
        return [*items, CompletionItem(incomplete, type="file")] if incomplete.startswith((".", "/", "~")) else items

    return complete


def _models() -> list[str]:
    from recipegen.catalog import model_names

    return model_names()


def _hardware() -> list[str]:
    from recipegen.catalog import hardware_names

    return hardware_names()


def _networks() -> list[str]:
    from recipegen.catalog import network_names

    return network_names()


def _fields() -> list[str]:
    from recipegen.decide import field_types

    return [f"{path}=" for path in field_types()]


_OPTIONS = (
    click.option("--model", metavar="ID|DIR", shell_complete=_complete(_models),
                 help="A model of the catalogue (`recipegen models list`), a folder with a config.json, or a Hub id."),
    click.option("--dataset", multiple=True, metavar="FILE|ID",
                 help="JSONL, JSON, CSV or Parquet file, or a Hub id. May be repeated."),
    click.option("--dataset-format", default="auto", show_default=True, metavar="FORMAT",
                 help="auto, alpaca, messages, sharegpt, completion or input_output."),
    click.option("--hardware", metavar="NAME|FILE", shell_complete=_complete(_hardware),
                 help="A profile (`recipegen hardware list`), e.g. kentino-8x-rtx-5090 or 4x-l40s, or your own YAML."),
    click.option("--nodes", type=click.IntRange(1, 64), help="Machines of that profile.  [default: 1]"),
    click.option("--network", metavar="NAME", shell_complete=_complete(_networks),
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
    click.option("--set", "settings", multiple=True, metavar="FIELD=VALUE", shell_complete=_complete(_fields),
                 help="Hold any field of the recipe, e.g. --set strategy=ddp, --set optimizer=adamw_torch_fused; "
                 "axolotl.KEY=VALUE, accelerate.KEY=VALUE and deepspeed.KEY=VALUE pass a trainer's own key on. "
                 "`recipegen explain fields` lists the fields."),
    click.option("--recipe", "recipe_file", type=click.Path(), metavar="FILE",
                 help="Start from a recipe.yaml; the command line wins over it."),
)  # fmt: skip

STRATEGIES = ", ".join(s.value for s in Strategy)


def request_options(function: F) -> F:
    """Add the shared options to a command."""
    wrapped: Any = function
    for option in reversed(_OPTIONS):
        wrapped = option(wrapped)
    functools.update_wrapper(wrapped, function)
    result: F = wrapped
    return result


def make_request(given: Mapping[str, Any], ask: bool) -> Request:
    """The Request of a command line over a recipe.yaml. `ask`: prompt for what is missing when on a terminal."""
    values: dict[str, Any] = {}
    if given.get("recipe_file"):
        from recipegen.formats import recipe_yaml

        base = recipe_yaml.read(_bytes_of(given["recipe_file"]), given["recipe_file"])
        values = {name: getattr(base, name) for name in base.__dataclass_fields__}
    for name in (
        "model", "hardware", "nodes", "network", "method", "sequence_len", "global_batch_size", "epochs",
        "learning_rate", "trainer", "model_revision",
    ):  # fmt: skip
        if given.get(name) is not None:
            values[name] = given[name]
    if given.get("dataset"):
        values["dataset"] = tuple(given["dataset"])
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
    if ask:
        _ask_for_missing(values)
    for name in ("model", "hardware"):
        if not values.get(name):
            raise RecipegenError(
                f"which {'model' if name == 'model' else 'hardware profile'}?",
                fix=f"Give --{name}; `recipegen {'models' if name == 'model' else name} list` shows the known ones",
            )
    _positive("epochs", values.get("epochs"), 10**4)
    _positive("learning-rate", values.get("learning_rate"), 10)
    return Request(**values)


def _bytes_of(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise RecipegenError(f"cannot read it: {error.strerror}", where=path) from None


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


def _settings(pairs: tuple[str, ...]) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """Pins (field paths) and passthrough (FILE.KEY), the latter with values read as YAML."""
    from recipegen.decide import field_types

    pins: dict[str, Any] = {}
    passthrough: dict[str, dict[str, Any]] = {}
    for text in pairs:
        key, value = _pair("--set", text)
        file, dot, rest = key.partition(".")
        if dot and file in _FILES and key not in field_types():
            try:
                passthrough.setdefault(file, {})[rest] = yaml.safe_load(value)
            except yaml.YAMLError:
                raise RecipegenError(f"--set {key}: {value[:80]!r} is not a YAML value") from None
        else:
            pins[key] = value
    return pins, passthrough


def _ask_for_missing(values: dict[str, Any]) -> None:
    """On a terminal: the sensible default first. Elsewhere nothing is asked; the error names the option."""
    import sys

    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return
    if not values.get("model"):
        values["model"] = click.prompt("Model", default="meta-llama/Llama-3.1-8B-Instruct", err=True)
    if not values.get("dataset"):
        values["dataset"] = (click.prompt("Data file or Hub id", default="data.jsonl", err=True),)
    if not values.get("hardware"):
        values["hardware"] = click.prompt("Hardware profile", default="kentino-8x-rtx-5090", err=True)
