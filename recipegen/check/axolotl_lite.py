"""Axolotl's own validation, fast: its real pydantic models and validators, imported beside stubs.

One `LiteAxolotl` validates any number of configurations: half a second to make, some milliseconds each. Plugin
arguments are merged by subclassing, as Axolotl does, so nothing of one configuration is left for the next.
"""

from __future__ import annotations

import copy
import io
import json
import logging
import types
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from recipegen.catalog.stack import Stack
from recipegen.check.axolotl_stubs import StubbedImports, load_file
from recipegen.check.keys import known_plugin
from recipegen.check.report import missing
from recipegen.spec import Cluster, RecipegenError

FP8_FROM = 90  # axolotl/cli/config.py compute_supports_fp8: compute capability 9.0


@dataclass(frozen=True)
class Verdict:
    """`errors` are (dotted place, message); `resolved` is empty when there is one."""

    errors: tuple[tuple[str, str], ...] = ()
    warnings: tuple[str, ...] = ()
    resolved: Mapping[str, Any] = field(default_factory=dict)


def capabilities(cluster: Cluster) -> dict[str, Any]:
    """The target as Axolotl's validators want it. `n_gpu` is the world size, as in a real run."""
    gpu = cluster.gpu
    number = gpu.compute_capability.removeprefix("sm_")
    return {
        "bf16": gpu.bf16,
        "fp8": number.isdigit() and int(number) >= FP8_FROM,
        "tf32": gpu.tf32,
        "n_gpu": cluster.world_size,
        "n_node": cluster.nodes,
        "compute_capability": gpu.compute_capability if number.isdigit() else None,
    }


class LiteAxolotl:
    """Axolotl's validators of the installed version. Raises RecipegenError when the pinned one is not installed."""

    def __init__(self, stack: Stack) -> None:
        problem = missing(stack, "axolotl")
        if problem:
            raise RecipegenError(problem)
        self._keys = stack.axolotl_keys()
        self._torch = stack.pins["torch"]
        self._stubs = StubbedImports(
            {name: stack.pins[name] for name in ("torch", "transformers", "accelerate", "peft")}
        )
        with self._stubs():
            import axolotl
            from axolotl.utils.schemas import config, datasets, validation

            self._integrations = Path(next(iter(axolotl.__path__))) / "integrations"
            self._base, self._datasets, self._validation = config.AxolotlConfigWCapabilities, datasets, validation
        self._classes: dict[tuple[str, ...], Any] = {}

    def validate(
        self, values: Mapping[str, Any], capabilities: Mapping[str, Any], files: Mapping[str, bytes] | None = None
    ) -> Verdict:
        """What Axolotl says of a configuration (the loaded YAML) on a target.

        `files` are the only files that validators may open (a DeepSpeed JSON). Plugins that are not Axolotl's own are
        never imported: their keys count as unknown.
        """
        import pydantic

        config: dict[str, Any] = copy.deepcopy(dict(values))  # validators change nested mappings in place
        errors: list[tuple[str, str]] = []
        resolved: dict[str, Any] = {}
        with self._stubs(), served_files(self._validation, files or {}), collected_warnings() as warnings:
            try:
                model = self._class(config.get("plugins"))
                self._convert_datasets(config)
                made = model(**config, capabilities=dict(capabilities), env_capabilities={"torch_version": self._torch})
                resolved = made.model_dump(exclude_none=True)
            except pydantic.ValidationError as error:
                errors = [
                    (".".join(map(str, e["loc"])), e["msg"].removeprefix("Value error, ")) for e in error.errors()
                ]
            except Exception as error:  # validators raise what they like (DeprecationWarning, ImportError, ...)
                errors = [("", f"{type(error).__name__}: {error}" if not str(error) else str(error))]
        return Verdict(tuple(errors), tuple(warnings), resolved)

    def _class(self, plugins: Any) -> Any:
        """The configuration class with the arguments of the listed plugins."""
        entries = [entry for entry in plugins if isinstance(entry, str)] if isinstance(plugins, list) else []
        found = {entry: arguments for entry in entries if (arguments := known_plugin(entry, self._keys))}
        key = tuple(found.values())
        if key not in self._classes:
            bases = tuple(self._arguments(entry, arguments) for entry, arguments in found.items())
            self._classes[key] = type(self._base.__name__, (self._base, *bases), {}) if bases else self._base
        return self._classes[key]

    def _arguments(self, entry: str, name: str) -> Any:
        package = entry.removeprefix("axolotl.integrations.").split(".")[0]
        module = load_file(str(self._integrations / package / "args.py"), f"axolotl.integrations.{package}.args")
        return getattr(module, name)

    def _convert_datasets(self, values: dict[str, Any]) -> None:
        """axolotl/utils/config/__init__.py validate_config: the class of an entry depends on `rl` and its type."""
        entries, rl = values.get("datasets"), values.get("rl")
        if not isinstance(entries, list):
            return
        classes = self._datasets
        for index, entry in enumerate(entries):
            if not isinstance(entry, dict):
                continue
            if rl in ("dpo", "ipo", "simpo"):
                entries[index] = classes.DPODataset(**entry)
            elif rl == "kto":
                entries[index] = classes.KTODataset(**entry)
            elif entry.get("type") == "_synthetic":
                entries[index] = classes.SyntheticDataset(**entry)
            else:
                entries[index] = classes.SFTDataset(**entry)


@cache
def lite_axolotl(stack: Stack) -> LiteAxolotl:
    """The one LiteAxolotl of a process and stack."""
    return LiteAxolotl(stack)


@contextmanager
def served_files(validation: types.ModuleType, files: Mapping[str, bytes]) -> Iterator[None]:
    """Two validators open the DeepSpeed file that a recipe names and write a changed copy. Give them the project's own
    files, nothing of the disk, and a place in memory to write to."""

    def opened(path: Any, mode: str = "r", **_kwargs: Any) -> io.StringIO:
        if "w" in mode:
            return io.StringIO()
        name = str(path).removeprefix("./")
        if name not in files:
            raise FileNotFoundError(f"{name} is not a file of this project")
        return io.StringIO(files[name].decode("utf-8", "replace"))

    module = validation.__dict__
    module["open"] = opened
    real, module["tempfile"] = module["tempfile"], types.SimpleNamespace(mkdtemp=lambda: "in-memory")
    try:
        yield
    finally:
        del module["open"]
        module["tempfile"] = real


@contextmanager
def collected_warnings() -> Iterator[list[str]]:
    """Axolotl's log lines of level WARNING and above, kept from the terminal."""
    found: list[str] = []

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if record.levelno >= logging.WARNING:
                found.append(" ".join(record.getMessage().split()))

    logger, handler = logging.getLogger("axolotl"), Handler()
    before, disabled = logger.propagate, logging.root.manager.disable
    logger.addHandler(handler)
    logger.propagate = False
    logging.disable(logging.NOTSET)
    try:
        yield found
    finally:
        logging.disable(disabled)
        logger.propagate = before
        logger.removeHandler(handler)


def plain(value: Any) -> Any:
    """A resolved configuration as JSON values (enums and models become text)."""
    return json.loads(json.dumps(value, default=str))
