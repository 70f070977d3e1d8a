"""Run by test_cpu_shim.py in a fresh interpreter: which attributes of the loaded trainers do the patches change?

Prints a JSON list of dotted names. Every attribute of every loaded module of the trainers, and of every class defined
there, is compared by identity before and after.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from typing import Any

PACKAGES = ("accelerate", "axolotl", "bitsandbytes", "datasets", "deepspeed", "optimi", "peft", "torch", "transformers")


def attributes() -> dict[str, Any]:
    """Dotted name -> object, of modules and of the classes they define."""
    found: dict[str, Any] = {}
    for module_name, module in list(sys.modules.items()):
        if module is None or module_name.split(".")[0] not in PACKAGES:
            continue
        for name, value in list(vars(module).items()):
            found[f"{module_name}.{name}"] = value
            if isinstance(value, type) and value.__module__ == module_name:
                for member, inner in list(vars(value).items()):
                    found[f"{module_name}.{name}.{member}"] = inner
    return found


def main(names: list[str]) -> None:
    import cpu_patches
    import probe

    groups = {"seed": [cpu_patches.SEED], "probe": [probe.OBSERVED]}
    patches = [patch for name in names for patch in (groups.get(name) or cpu_patches.patches(name))]
    for module in ("accelerate", "transformers.trainer", "axolotl.train", *(patch.module for patch in patches)):
        importlib.import_module(module)
    before, environment = attributes(), dict(os.environ)
    for patch in patches:
        patch.apply(sys.modules[patch.module])
    after = attributes()
    assert dict(os.environ) == environment
    changed = [name for name in sorted({*before, *after}) if before.get(name) is not after.get(name)]
    print("CHANGED", json.dumps({"changed": changed, "compared": len(before)}))


if __name__ == "__main__":
    main(sys.argv[1:])
