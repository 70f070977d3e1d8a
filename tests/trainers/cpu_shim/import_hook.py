"""Replace attributes of a module right after its own first import, so that no import order changes."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any


@dataclass(frozen=True)
class Patch:
    """One replaced attribute. `attribute` is `name` or `Class.name`; `replace` makes the new value from the old."""

    module: str
    attribute: str
    replace: Callable[[Any], Any]
    reason: str

    @property
    def target(self) -> str:
        return f"{self.module}.{self.attribute}"

    def apply(self, module: ModuleType) -> None:
        *path, name = self.attribute.split(".")
        owner: Any = module
        for step in path:
            owner = getattr(owner, step)
        # From the owner's own dictionary: a classmethod must be seen as such, not bound.
        setattr(owner, name, self.replace(vars(owner)[name]))


class _Finder(importlib.abc.MetaPathFinder):
    def __init__(self, patches: Sequence[Patch]) -> None:
        self.patches = patches

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        mine = [patch for patch in self.patches if patch.module == fullname]
        if not mine:
            return None
        sys.meta_path.remove(self)  # ask the others
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            sys.meta_path.insert(0, self)
        if spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            for patch in mine:
                patch.apply(module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def install(patches: Sequence[Patch]) -> None:
    """Apply each patch when its module is imported (now, if it already is)."""
    for patch in patches:
        if patch.module in sys.modules:
            patch.apply(sys.modules[patch.module])
    pending = [patch for patch in patches if patch.module not in sys.modules]
    if pending:
        sys.meta_path.insert(0, _Finder(pending))
