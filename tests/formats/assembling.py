"""Readings of files that are written out in a test, put together: what the tests of `assemble` share."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from recipegen.catalog import load_stack
from recipegen.formats import (
    accelerate_read,
    arguments_read,
    axolotl_read,
    deepspeed_read,
    launch_read,
    train_json_read,
)
from recipegen.formats.assemble import assemble
from recipegen.formats.assembled import Assembled
from recipegen.formats.reading import Reading
from recipegen.spec import ModelSpec, Recipe
from tests.recipes_for_tests import cluster, model

STACK = load_stack()
LORA = "adapter: lora\nlora_r: 8\nlora_alpha: 16\nlora_target_linear: true\n"


def readings(files: Mapping[str, bytes]) -> list[Reading]:
    """The readings of a generated project."""
    found = []
    for name, content in files.items():
        if name == "axolotl.yaml":
            found.append(axolotl_read.read(content, name))
        elif name == "train.json":
            found.append(train_json_read.read(content, name))
        elif name == "accelerate.yaml":
            found.append(accelerate_read.read(content, name))
        elif name == "deepspeed.json":
            found.append(deepspeed_read.read(content, name))
        elif name == "launch.sh":
            found.append(launch_read.read(content, name))
    return found


def axolotl(text: str, *more: Reading, world: Any = ..., shape: ModelSpec | None = None) -> Assembled:
    """A hand-written axolotl.yaml on eight cards; what every file needs is there."""
    base = "base_model: m\nlearning_rate: 1e-5\ndatasets: [{path: d.jsonl, type: alpaca}]\n"
    reading = axolotl_read.read((base + text).encode(), "axolotl.yaml")
    world = cluster() if world is ... else world
    return assemble([reading, *more], STACK, cluster=world, model=lambda _: shape or model())


def arguments(text: str, *more: Reading) -> Assembled:
    reading = arguments_read.read(f"model_name_or_path: m\n{text}".encode(), "args.yaml")
    return assemble([reading, *more], STACK, cluster=cluster(), model=lambda _: model())


def zero(values: Mapping[str, Any], name: str = "ds.json") -> Reading:
    return deepspeed_read.read(json.dumps(values).encode(), name)


def made(answer: Assembled) -> Recipe:
    assert answer.recipe is not None, answer.unknown
    return answer.recipe
