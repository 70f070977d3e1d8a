"""Axolotl's pydantic schema without torch: its modules imported beside stubs of what they only mention.

Axolotl's schema modules import torch, transformers and accelerate for a handful of names. Here those imports get
stand-ins, and every module imported that way is taken out of sys.modules again, so that nothing else in the process can
meet a stand-in or a half-real Axolotl. Takes about half a second instead of twelve, and 60 MB.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
import threading
import types
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum
from typing import Any

# What the schema modules mention and do not need. ring_flash_attn and mistral_common stand for "installed on the box".
STUBBED = frozenset(
    (
        "PIL",
        "accelerate",
        "addict",
        "colorama",
        "datasets",
        "evaluate",
        "huggingface_hub",
        "mistral_common",
        "numpy",
        "pandas",
        "peft",
        "posthog",
        "psutil",
        "ring_flash_attn",
        "scipy",
        "torch",
        "transformers",
        "trl",
        "wandb",
    )
)
# Kept when the schema imported them first: they are what they are, with or without Axolotl.
_SHARED = frozenset(
    (
        "_yaml",
        "annotated_types",
        "packaging",
        "pydantic",
        "pydantic_core",
        "typing_extensions",
        "typing_inspection",
        "yaml",
    )
)
_OWN = STUBBED | {"axolotl"}
# Variables of a launcher around us that Axolotl would read as its own.
_DIRTY_ENVIRONMENT = (
    "ACCELERATE_",
    "AXOLOTL_",
    "DEEPSPEED_",
    "FSDP_",
    "LOCAL_RANK",
    "MASTER_",
    "PARALLELISM_CONFIG_",
    "RANK",
    "WORLD_SIZE",
)


class Resampling(IntEnum):
    """Pillow's enum: the one stand-in that pydantic has to look into."""

    NEAREST = 0
    LANCZOS = 1
    BILINEAR = 2
    BICUBIC = 3
    BOX = 4
    HAMMING = 5


class _Name:
    """Stands for any name: can be called, indexed, subclassed and or-ed with another."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __call__(self, *_args: Any, **_kwargs: Any) -> _Name:
        return self

    def __getattr__(self, key: str) -> _Name:
        if key.startswith("__"):
            raise AttributeError(key)
        return _Name(f"{self._name}.{key}")

    def __mro_entries__(self, _bases: Any) -> tuple[type, ...]:
        return (object,)

    def __or__(self, _other: Any) -> _Name:
        return self

    __ror__ = __or__

    def __getitem__(self, _key: Any) -> _Name:
        return self

    def __contains__(self, _key: Any) -> bool:  # without it, `in` would ask __getitem__ for ever
        return False

    def __iter__(self) -> Iterator[Any]:
        return iter(())

    def __repr__(self) -> str:
        return f"<{self._name}>"


class _Module(types.ModuleType):
    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__path__ = []  # a package: its submodules are stand-ins too

    def __getattr__(self, key: str) -> Any:
        if key.startswith("__"):
            raise AttributeError(key)
        if key in ("is_available", "is_initialized", "is_torch_npu_available"):  # no device here: the target's is data
            return lambda *_args, **_kwargs: False
        if key == "is_fp8_available":
            return lambda *_args, **_kwargs: True
        if key == "Resampling":
            return Resampling
        return _Name(f"{self.__name__}.{key}")


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def __init__(self, versions: dict[str, str]) -> None:
        self.versions = versions

    def find_spec(self, fullname: str, _path: Any = None, _target: Any = None) -> importlib.machinery.ModuleSpec | None:
        if fullname.split(".")[0] not in STUBBED:
            return None
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return _Module(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        if module.__name__ in self.versions:
            module.__dict__["__version__"] = self.versions[module.__name__]


class StubbedImports:
    """A private set of modules. Inside `with stubs():` imports see the stand-ins; outside nothing has changed."""

    def __init__(self, versions: dict[str, str]) -> None:
        self._finder = _Finder(versions)
        self._private: dict[str, types.ModuleType] = {}
        self._lock = threading.RLock()
        self._entered = False

    @contextmanager
    def __call__(self) -> Iterator[None]:
        with self._lock:
            if self._entered:
                yield
                return
            self._entered = True
            before = set(sys.modules)
            hidden = {n: m for n, m in sys.modules.items() if n.split(".")[0] in _OWN or n in self._private}
            for name in hidden:
                del sys.modules[name]
            sys.modules.update(self._private)
            sys.meta_path.insert(0, self._finder)
            environment = dict(os.environ)
            for key in [k for k in os.environ if k.startswith(_DIRTY_ENVIRONMENT)]:
                del os.environ[key]
            os.environ["AXOLOTL_DO_NOT_TRACK"] = "1"
            try:
                with warnings.catch_warnings():
                    yield
            finally:
                os.environ.clear()
                os.environ.update(environment)
                sys.meta_path.remove(self._finder)
                for name in list(sys.modules):
                    if self._is_private(name, before):
                        self._private[name] = sys.modules.pop(name)
                sys.modules.update(hidden)
                self._entered = False

    def _is_private(self, name: str, before: set[str]) -> bool:
        root = name.split(".")[0]
        if root in _OWN or name in self._private:
            return True
        return name not in before and root not in _SHARED and root not in sys.stdlib_module_names


def load_file(path: str, name: str) -> types.ModuleType:
    """A module from its file, without importing the package it lies in."""
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"cannot load {path}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module
