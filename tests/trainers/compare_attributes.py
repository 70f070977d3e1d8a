"""Run by test_cpu_shim.py in a fresh interpreter: which attributes of the loaded trainers do the patches change?

Takes names of groups (a mode of the shim, `seed`, `probe`) and prints JSON: the dotted names that each group changes.
Every attribute of every loaded module of the trainers, and of every class defined there, is compared by identity.
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


def changes(patches: list[Any]) -> list[str]:
    """Apply, compare, and put the originals back."""
    before, environment = attributes(), dict(os.environ)
    originals = []
    for patch in patches:
        *path, name = patch.attribute.split(".")
        owner: Any = sys.modules[patch.module]
        for step in path:
            owner = getattr(owner, step)
        originals.append((owner, name, vars(owner)[name]))
        patch.apply(sys.modules[patch.module])
    after = attributes()
    assert dict(os.environ) == environment
    for owner, name, original in originals:
        setattr(owner, name, original)
    return [name for name in sorted({*before, *after}) if before.get(name) is not after.get(name)]


def main(names: list[str]) -> None:
    import cpu_patches
    import probe

    own = {"seed": [cpu_patches.SEED], "probe": [probe.OBSERVED]}
    groups = {name: own.get(name) or cpu_patches.patches(name) for name in names}
    patched = {patch.module for patches in groups.values() for patch in patches}
    for module in ("accelerate", "transformers.trainer", "axolotl.train", *sorted(patched)):
        importlib.import_module(module)
    found = {name: changes(patches) for name, patches in groups.items()}
    print("CHANGED", json.dumps({"changed": found, "compared": len(attributes())}))


if __name__ == "__main__":
    main(sys.argv[1:])
