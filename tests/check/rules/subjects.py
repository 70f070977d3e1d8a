"""Subjects of small file texts, through the readers; no recipe is assembled: the rules must do without."""

from __future__ import annotations

from collections.abc import Mapping

from recipegen.catalog.cluster import load_cluster
from recipegen.catalog.model import load_model
from recipegen.catalog.stack import load_stack
from recipegen.check.rules import findings
from recipegen.check.subject import Subject
from recipegen.formats import (
    accelerate_read,
    arguments_read,
    axolotl_read,
    deepspeed_read,
    documents,
    launch_read,
    train_json_read,
)
from recipegen.formats.assembled import Assembled
from recipegen.formats.reading import Reading
from recipegen.spec import Cluster, Finding, Recipe

_MAIN = ("axolotl.yaml", "train.json", "args.yaml", "args.json")


def subject(
    files: Mapping[str, str | bytes],
    *,
    hardware: str | Cluster | None = None,
    model: str = "",
    recipe: Recipe | None = None,
) -> Subject:
    """`axolotl.yaml`, `accelerate.yaml`, `train.json`, `args.yaml`, other JSON as DeepSpeed's, `*.sh`, `*.slurm`."""
    stack = load_stack()
    content = {name: text.encode() if isinstance(text, str) else text for name, text in files.items()}
    readings = {name: found for name, text in content.items() if (found := _read(name, text)) is not None}
    main = next((name for name in _MAIN if name in readings), "")
    facts: dict[str, object] = {}
    for name in sorted(readings, key=lambda name: name == main):
        facts |= readings[name].facts
    return Subject(
        name=".",
        main=main,
        files=content,
        documents={name: documents.read(content[name], name) for name in readings if name.endswith(("yaml", "json"))},
        readings=readings,
        assembled=Assembled(recipe, load_model(model) if model else None, facts=facts),
        stack=stack,
        cluster=load_cluster(hardware) if isinstance(hardware, str) else hardware,
    )


def said(files: Mapping[str, str | bytes], **keywords: object) -> dict[str, Finding]:
    """The findings by rule id."""
    return {found.rule: found for found in findings(subject(files, **keywords))}  # type: ignore[arg-type]


def _read(name: str, content: bytes) -> Reading | None:
    base = name.rpartition("/")[2]
    if base == "axolotl.yaml":
        return axolotl_read.read(content, name)
    if base == "train.json":
        return train_json_read.read(content, name)
    if base.startswith("accelerate"):
        return accelerate_read.read(content, name)
    if base.startswith("args."):
        return arguments_read.read(content, name)
    if base.endswith((".sh", ".slurm")):
        return launch_read.read(content, name)
    if base.endswith(".json") and base not in ("config.json", "model.safetensors.index.json"):
        return deepspeed_read.read(content, name)
    return None
