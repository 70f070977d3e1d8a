"""Write the compact key schema of the installed Axolotl: `python scripts/gen_axolotl_schema.py [--check]`.

Every key that Axolotl's own pydantic models read, with its type, as JSON small enough to load in milliseconds:

    {"format_version": 1, "axolotl": "0.19.0", "root": "AxolotlInputConfig",
     "objects": {"AxolotlInputConfig": {"learning_rate": ["str", "float"], "fsdp_config": [{"object": "FSDPConfig"}]}},
     "aliases": {"AxolotlInputConfig": {"model_type": "type_of_model"}},   # what a file may write: the field it fills
     "forbid": ["FP8Config"],                                              # the only objects that reject unknown keys
     "prefixes": {"FSDPConfig": "fsdp_"},                                  # stripped from key names before reading
     "values": {"optimizer": ["adamw_torch", "..."]},                      # what is checked only when training starts
     "plugins": {"liger.LigerPlugin": "LigerArgs"}}                        # relative to axolotl.integrations

A type is a name (`any`, `str`, `int`, `float`, `bool`, `null`), `{"enum": [...]}`, `{"list": T}`, `{"map": T}`,
`{"object": NAME}`, or a list of alternatives. A field with a validator that runs before pydantic's own conversion has
`any` among its alternatives: what it accepts cannot be read off its type, but the keys of its objects can.

Two free-form maps are typed all the same, from the classes that read them after validation: `accelerator_config`
(Transformers' AcceleratorConfig, which rejects unknown keys) and its `gradient_accumulation_kwargs` (Accelerate's).

Argument classes of plugins are loaded by file path, because importing their packages needs Triton.
"""

from __future__ import annotations

import argparse
import ast
import importlib.util
import json
import logging
import os
import sys
from importlib.metadata import version
from pathlib import Path
from types import ModuleType
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
Json = Any


def build() -> dict[str, Json]:
    """The schema of the installed Axolotl. Needs the training stack."""
    os.environ.setdefault("AXOLOTL_DO_NOT_TRACK", "1")
    logging.disable(logging.WARNING)
    from axolotl.utils.schemas.config import AxolotlInputConfig
    from pydantic.json_schema import GenerateJsonSchema

    class Generator(GenerateJsonSchema):
        """JSON schema that survives enums of torch dtypes (`axolotl config-schema` does not)."""

        def enum_schema(self, schema: Json) -> Json:
            try:
                return super().enum_schema(schema)
            except Exception:  # a member's value is a torch dtype: its name is what a file writes
                return {"enum": [member.name for member in schema["members"]]}

        def encode_default(self, dft: Json) -> Json:
            try:
                return super().encode_default(dft)
            except Exception:
                return str(dft)

    import axolotl

    objects: dict[str, Json] = {}
    aliases: dict[str, Json] = {}
    forbid: set[str] = set()
    plugins: dict[str, str] = {}

    def add(model: Json) -> None:
        schema = model.model_json_schema(schema_generator=Generator, by_alias=False)
        definitions = {**schema.get("$defs", {}), model.__name__: schema}
        classes = _classes(model)
        for name, definition in definitions.items():
            if definition.get("type") != "object" or "properties" not in definition:
                continue
            before = _fields_with_own_conversion(classes.get(name))
            objects[name] = {
                key: _open(compact(value, definitions)) if key in before else compact(value, definitions)
                for key, value in sorted(definition["properties"].items())
            }
            if definition.get("additionalProperties") is False:
                forbid.add(name)
            if names := _aliases(classes.get(name)):
                aliases[name] = names

    add(AxolotlInputConfig)
    integrations = Path(axolotl.__path__[0]) / "integrations"
    for plugin, arguments, path in _plugin_arguments(integrations):
        add(getattr(_load(path, f"recipegen_schema_{path.parent.name}"), arguments))
        plugins[plugin] = arguments
    objects.update(_accelerator_objects())
    objects["AxolotlInputConfig"]["accelerator_config"] = [{"object": "AcceleratorConfig"}, "null"]
    forbid.update(("AcceleratorConfig", "GradientAccumulationPlugin"))
    return {
        "format_version": 1,
        "axolotl": version("axolotl"),
        "root": "AxolotlInputConfig",
        "objects": dict(sorted(objects.items())),
        "aliases": dict(sorted(aliases.items())),
        "forbid": sorted(forbid),
        "prefixes": {"FSDPConfig": "fsdp_"},
        "values": _values_checked_later(),
        "plugins": dict(sorted(plugins.items())),
    }


def _classes(model: Json) -> dict[str, Json]:
    """Every pydantic model reachable from `model`, by class name."""
    from pydantic import BaseModel

    found: dict[str, Json] = {}

    def visit(annotation: Json) -> None:
        is_model = isinstance(annotation, type) and issubclass(annotation, BaseModel)
        if is_model and annotation.__name__ not in found:
            found[annotation.__name__] = annotation
            for field in annotation.model_fields.values():
                visit(field.annotation)
        for argument in getattr(annotation, "__args__", ()):
            visit(argument)

    visit(model)
    return found


def _fields_with_own_conversion(model: Json) -> set[str]:
    """Fields of `model` whose validators see the raw value first."""
    if model is None:
        return set()
    validators = model.__pydantic_decorators__.field_validators.values()
    return {name for v in validators if v.info.mode in ("before", "plain", "wrap") for name in v.info.fields}


def _aliases(model: Json) -> dict[str, str]:
    """Other spellings of a field that a file may use."""
    if model is None:
        return {}
    found: dict[str, str] = {}
    for name, field in model.model_fields.items():
        choices = getattr(field.validation_alias, "choices", None) or [field.validation_alias, field.alias]
        found.update({alias: name for alias in choices if isinstance(alias, str) and alias != name})
    return dict(sorted(found.items()))


def compact(schema: Json, definitions: dict[str, Json]) -> Json:
    """One JSON-schema node as the type grammar of this module's docstring."""
    if "$ref" in schema:
        name = schema["$ref"].rsplit("/", 1)[1]
        target = definitions[name]
        return {"object": name} if "properties" in target else compact(target, definitions)
    for alternatives in ("anyOf", "oneOf"):
        if alternatives in schema:
            return union([compact(item, definitions) for item in schema[alternatives]])
    if "enum" in schema:
        return {"enum": list(schema["enum"])}
    if "const" in schema:
        return {"enum": [schema["const"]]}
    kind = schema.get("type")
    if kind == "array":
        return {"list": compact(schema["items"], definitions) if schema.get("items") else "any"}
    if kind == "object":
        values = schema.get("additionalProperties")
        return {"map": compact(values, definitions) if isinstance(values, dict) else "any"}
    names = {"string": "str", "integer": "int", "number": "float", "boolean": "bool", "null": "null"}
    return names.get(str(kind), "any")


def _accelerator_objects() -> dict[str, Json]:
    """The dataclasses behind `accelerator_config`."""
    from dataclasses import fields

    from accelerate.utils import GradientAccumulationPlugin
    from transformers.trainer_pt_utils import AcceleratorConfig

    simple = {"bool": "bool", "int": "int", "bool | None": ["bool", "null"], "int | None": ["int", "null"]}

    def shape(cls: Json) -> dict[str, Json]:
        kinds = {f.name: f.type.__name__ if isinstance(f.type, type) else str(f.type) for f in fields(cls)}
        return {name: simple.get(kind, "any") for name, kind in sorted(kinds.items())}

    accelerator = shape(AcceleratorConfig)
    accelerator["gradient_accumulation_kwargs"] = [{"object": "GradientAccumulationPlugin"}, "null"]
    return {"AcceleratorConfig": accelerator, "GradientAccumulationPlugin": shape(GradientAccumulationPlugin)}


def _values_checked_later() -> dict[str, Json]:
    """Names that Axolotl accepts as any string and Transformers' TrainingArguments checks when training starts."""
    from axolotl.utils.schemas.enums import CustomSupportedOptimizers
    from transformers.trainer_utils import SchedulerType
    from transformers.training_args import OptimizerNames

    return {
        "lr_scheduler": sorted([s.value for s in SchedulerType] + ["one_cycle", "rex"]),
        "optimizer": sorted({o.value for o in OptimizerNames} | {o.value for o in CustomSupportedOptimizers}),
    }


def _open(kind: Json) -> Json:
    """`kind`, or anything else."""
    return "any" if kind == "any" else [*(kind if isinstance(kind, list) else [kind]), "any"]


def union(parts: list[Json]) -> Json:
    flat: list[Json] = []
    for part in parts:
        for item in part if isinstance(part, list) else [part]:
            if item not in flat:
                flat.append(item)
    if "any" in flat:
        return "any"
    return flat[0] if len(flat) == 1 else flat


def _plugin_arguments(integrations: Path) -> list[tuple[str, str, Path]]:
    """(plugin relative to axolotl.integrations, argument class, file that defines it), read from the sources."""
    found = []
    for package in sorted(p for p in integrations.iterdir() if (p / "args.py").is_file()):
        for source in sorted(package.glob("*.py")):
            for node in ast.parse(source.read_text(encoding="utf-8")).body:
                is_plugin = isinstance(node, ast.ClassDef) and any(
                    getattr(b, "id", "") == "BasePlugin" for b in node.bases
                )
                if is_plugin and (arguments := _returned_by_get_input_args(node)):
                    found.append((f"{package.name}.{node.name}", arguments.rsplit(".", 1)[1], package / "args.py"))
    return found


def _returned_by_get_input_args(plugin: ast.ClassDef) -> str:
    for method in plugin.body:
        if isinstance(method, ast.FunctionDef) and method.name == "get_input_args":
            for node in ast.walk(method):
                if isinstance(node, ast.Return) and isinstance(node.value, ast.Constant) and node.value.value:
                    return str(node.value.value)
    return ""


def _load(path: Path, name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def dump(schema: dict[str, Json]) -> str:
    """One line an object, so that a diff between two versions can be read."""
    lines = ["{"]
    scalars = [f'"{key}": {json.dumps(value)}' for key, value in schema.items() if not isinstance(value, dict)]
    lines += [f"{scalar}," for scalar in scalars]
    groups = [(key, value) for key, value in schema.items() if isinstance(value, dict)]
    for index, (key, value) in enumerate(groups):
        lines.append(f'"{key}": {{')
        items = [f'"{name}": {json.dumps(item, separators=(",", ":"))}' for name, item in value.items()]
        lines.append(",\n".join(items))
        lines.append("}" if index == len(groups) - 1 else "},")
    return "\n".join([*lines, "}"]) + "\n"


def target(axolotl_version: str) -> Path:
    return ROOT / "recipegen" / "catalog" / "stacks" / f"axolotl-{axolotl_version}" / "axolotl_keys.json"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if the file differs")
    arguments = parser.parse_args()
    schema = build()
    path, text = target(schema["axolotl"]), dump(schema)
    if arguments.check:
        same = path.is_file() and path.read_text(encoding="utf-8") == text
        print(f"{path}: {'as generated' if same else 'differs from the installed Axolotl'}", file=sys.stderr)
        return 0 if same else 1
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    print(f"{path}: {len(text)} bytes, {len(schema['objects'])} objects", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
