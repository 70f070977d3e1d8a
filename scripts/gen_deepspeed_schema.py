"""Write the compact key schema of the installed DeepSpeed: `python scripts/gen_deepspeed_schema.py [--check]`.

Same grammar as scripts/gen_axolotl_schema.py. DeepSpeed reads its JSON in two ways, and so does this script: sections
that are pydantic models (they reject unknown keys) are read off the models; the rest, the top level included, is
recorded by handing DeepSpeedConfig a dictionary that remembers which keys it was asked for. A key that is never asked
for is accepted and dropped.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections import defaultdict
from enum import Enum
from importlib.metadata import version
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

from gen_axolotl_schema import ROOT, dump, union
from pydantic import BaseModel

Json = Any
STACK = "axolotl-0.19.0"
RECORDED = ("optimizer", "scheduler", "aio", "activation_checkpointing", "data_types")
INTEGERS = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "steps_per_print")
NUMBERS = ("gradient_clipping", "gradient_predivide_factor")
SWITCHES = (
    "wall_clock_breakdown",
    "prescale_gradients",
    "zero_allow_untested_optimizer",
    "zero_force_ds_cpu_optimizer",
)


class Recorder(dict):  # type: ignore[type-arg]
    """A dictionary that remembers every key it was asked for, found or not."""

    def __init__(self, seen: dict[str, set[str]], path: str, values: dict[str, Json]) -> None:
        super().__init__(values)
        self.seen, self.path = seen, path

    def _note(self, key: Json) -> None:
        self.seen[self.path].add(str(key))

    def get(self, key: Json, default: Json = None) -> Json:
        self._note(key)
        return super().get(key, default)

    def __getitem__(self, key: Json) -> Json:
        self._note(key)
        return super().__getitem__(key)

    def __contains__(self, key: Json) -> bool:
        self._note(key)
        return super().__contains__(key)

    def keys(self) -> Json:
        """`key in d.keys()` is a question too."""
        recorder = self

        class Keys(list):  # type: ignore[type-arg]
            def __contains__(self, key: Json) -> bool:
                return key in recorder

        return Keys(super().keys())

    def __deepcopy__(self, memo: Json) -> Recorder:
        return Recorder(self.seen, self.path, dict(self.items()))


def build() -> dict[str, Json]:
    """The schema of the installed DeepSpeed. Needs the training stack with DeepSpeed."""
    os.environ["DS_ACCELERATOR"] = "cpu"
    from deepspeed.runtime.config import DeepSpeedConfig

    seen: dict[str, set[str]] = defaultdict(set)
    sections = {name: Recorder(seen, name, {}) for name in RECORDED}
    sections["optimizer"].update(type="AdamW", params={})
    sections["scheduler"].update(type="WarmupLR", params={})
    config = DeepSpeedConfig(Recorder(seen, "DeepSpeedConfig", {"train_batch_size": 1, **sections}))

    objects: dict[str, Json] = {}
    aliases: dict[str, Json] = {}
    forbid: set[str] = set()
    models = {
        "zero_optimization": config.zero_config,
        "bf16": config.bfloat16_config,
        "fp16": config.float16_config,
        "compile": config.compile_config,
        "tensor_parallel": config.tensor_parallel_config,
    }
    for model in models.values():
        add_model(type(model), objects, aliases, forbid)
    for name in RECORDED:
        objects[name] = dict.fromkeys(sorted(seen[name]), "any")
    top: dict[str, Json] = dict.fromkeys(sorted(seen["DeepSpeedConfig"]), "any")
    # "auto" is filled in by Transformers and Accelerate before DeepSpeed sees the file
    top.update({name: ["int", {"enum": ["auto"]}] for name in INTEGERS})
    top.update({name: ["float", {"enum": ["auto"]}] for name in NUMBERS})
    top.update(dict.fromkeys(SWITCHES, "bool"))
    top.update({name: {"object": type(model).__name__} for name, model in models.items()})
    top.update({name: {"object": name} for name in RECORDED})
    objects["DeepSpeedConfig"] = top
    objects["optimizer"]["params"] = objects["scheduler"]["params"] = {"map": "any"}
    return {
        "format_version": 1,
        "deepspeed": version("deepspeed"),
        "root": "DeepSpeedConfig",
        "objects": dict(sorted(objects.items())),
        "aliases": dict(sorted(aliases.items())),
        "forbid": sorted(forbid),
        "prefixes": {},
        "values": {},
        "plugins": {},
    }


def add_model(model: Json, objects: dict[str, Json], aliases: dict[str, Json], forbid: set[str]) -> None:
    """Add a pydantic section and what it contains. Every value may also be "auto" in a file.

    Read off the annotations: these models carry functions in `json_schema_extra`, so pydantic cannot print a schema.
    """
    if model.__name__ in objects:
        return
    nested: list[Json] = []
    objects[model.__name__] = {
        (field.alias or name): _or_auto(_kind(field.annotation, nested))
        for name, field in sorted(model.model_fields.items())
    }
    if by_name := {name: field.alias for name, field in model.model_fields.items() if field.alias not in (None, name)}:
        aliases[model.__name__] = dict(sorted(by_name.items()))  # both spellings are accepted
    if model.model_config.get("extra") == "forbid":
        forbid.add(model.__name__)
    for child in nested:
        add_model(child, objects, aliases, forbid)


def _kind(annotation: Json, nested: list[Json]) -> Json:
    """An annotation in the type grammar; models met on the way are appended to `nested`."""
    simple = {bool: "bool", int: "int", float: "float", str: "str", type(None): "null"}
    if annotation in simple:
        return simple[annotation]
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        nested.append(annotation)
        return {"object": annotation.__name__}
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return {"enum": [member.value for member in annotation]}
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin in (Union, UnionType):
        return union([_kind(argument, nested) for argument in arguments])
    if origin is Literal:
        return {"enum": list(arguments)}
    if origin is list:
        return {"list": _kind(arguments[0], nested) if arguments else "any"}
    return {"map": "any"} if origin is dict or annotation is dict else "any"


def _or_auto(kind: Json) -> Json:
    parts = kind if isinstance(kind, list) else [kind]
    return parts if "any" in parts else [*parts, {"enum": ["auto"]}]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if the file differs")
    arguments = parser.parse_args()
    text = dump(build())
    path = ROOT / "recipegen" / "catalog" / "stacks" / STACK / "deepspeed_keys.json"
    if arguments.check:
        same = path.is_file() and path.read_text(encoding="utf-8") == text
        print(f"{path}: {'as generated' if same else 'differs from the installed DeepSpeed'}", file=sys.stderr)
        return 0 if same else 1
    path.write_text(text, encoding="utf-8")
    print(f"{path}: {len(text)} bytes", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
