"""Names of a package that are imported when first asked for (PEP 562): a room costs only what is used of it."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable


def late_names(package: str, **homes: str) -> Callable[[str], object]:
    """The `__getattr__` of `package`; each keyword is one of its modules, with the names that come from it."""
    home_of = {name: module for module, names in homes.items() for name in names.split()}

    def __getattr__(name: str) -> object:
        if name not in home_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(f"{package}.{home_of[name]}"), name)
        setattr(sys.modules[package], name, value)  # the next look-up does not come here
        return value

    return __getattr__
