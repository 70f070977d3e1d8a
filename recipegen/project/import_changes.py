"""What the new files of an imported setup say differently, or not at all, and why: read again as the old ones were."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any

from recipegen.catalog.stack import Stack
from recipegen.check.gather import READERS
from recipegen.check.subject import Subject
from recipegen.formats.assemble import assemble
from recipegen.formats.assembled import Assembled
from recipegen.formats.plain import to_plain
from recipegen.formats.reading import Reading
from recipegen.project.files import render
from recipegen.project.import_keys import IN_OTHER_WORDS
from recipegen.project.imported import Changed, differences, is_secret, leaves, same, shown
from recipegen.source import Kind
from recipegen.spec import Cluster, Decision, ModelSpec, RecipegenError

_READ_AS = {
    "axolotl.yaml": Kind.AXOLOTL, "train.json": Kind.TRAIN_JSON, "accelerate.yaml": Kind.ACCELERATE,
    "deepspeed.json": Kind.DEEPSPEED, "launch.sh": Kind.SCRIPT,
}  # fmt: skip
_FOLLOWS = {
    "precision": "it follows from trainer, strategy, method and optimizer (the tested table of the stack)",
    "attention_memory": "it follows from the attention, the GPU and packing",
    "launch.environment": "the hardware profile sets it",
    "launch.bf16_capable": "it follows from the GPU",
    "fsdp.layer_class": "it follows from the model",
    "fsdp": "it follows from the strategy",
    "deepspeed": "it follows from the strategy",
    "parallelism": "it follows from the machines and the strategy",
    "dequantize": "it follows from the published weights",
    "freeze_vision": "a full fine-tune of a multimodal model trains the text decoder",
    "trust_remote_code": "it follows from the model",
    "hardware": "the profile as it is named here",
    "network": "the network as it is named here",
    "model": "the name in the catalogue, or the path as seen from the new project",
    "datasets": "paths as seen from the new project",
    "sync_each_batch": "it has no effect without accumulation",
    "saving.eval_steps": "it has no effect without validation",
    "loading.prefetch_factor": "it has no effect without workers",
}
_STARTS = "how it starts is up to the new project's launch.sh"
_NO_FIELD = "no field of a recipe holds it"
_FACT_REASONS = {
    "output_dir": "launch.sh knows the folder of the checkpoints by its name",
    "output": "launch.sh knows the folder of the checkpoints by its name",
    "prepared": "launch.sh knows the folder of the tokenized data by its name",
    "saves_per_epoch": "a recipe saves every so many steps, or once per epoch (--set saving.save_steps=N)",
    "evals_per_epoch": "a recipe evaluates every so many steps, or once per epoch (--set saving.eval_steps=N)",
    "wandb_project": "recipegen names the project after the model",
    "dataset_prepared_path": "launch.sh knows the folder of the tokenized data by its name",
    "eval_sample_packing": "a small validation set packs into fewer rows than there are ranks, which Axolotl refuses",
    "train_on_inputs": "recipes train on the answers only",
    "pretraining_entries": "recipes read their data whole; these are listed under datasets",
    "liger_kernels": "recipegen lists Liger's plugin for its loss only, and without the plugin these keys do nothing",
    "plugins": "the plugins are those of the loss kernel",
    "datasets": "data sets are described anew, from the data",
    "chat_template_text": "the template is that of the model, or --set chat_template=NAME",
}


def read_again(
    decision: Decision, stack: Stack, cluster: Cluster, model: ModelSpec, pins: Mapping[str, str] | None
) -> Assembled:
    """The new files, read as the old ones were."""
    files = render(decision, pins=pins)
    readings: list[Reading] = [READERS[kind](files[name], name) for name, kind in _READ_AS.items() if name in files]
    found = assemble(readings, stack, cluster=cluster, model=lambda _: model, hardware=decision.recipe.hardware)
    if found.recipe is None:
        reason = next((u.reason for u in found.unknown), "")
        raise RecipegenError(f"the new files would not say what was decided: {reason}")
    return found


def changed(subject: Subject, new: Assembled, held: Decision, refused: Mapping[str, str]) -> Iterator[Changed]:
    old = subject.assembled
    starting = {name for r in subject.readings.values() if r.format in ("launch", "accelerate") for name in r.facts}
    different = [
        (path, was, now)
        for path, was, now in differences(old, new)
        if not (path == "datasets" and _only_moved(was, now))
    ]
    paths = {path for path, _, _ in different}
    passed = {key.partition(".")[0] for keys in held.recipe.passthrough.values() for key in keys}
    for path, was, now in different:
        if path.startswith("fact:"):
            name = path.removeprefix("fact:")
            if name in passed or (name in IN_OTHER_WORDS and not paths & set(IN_OTHER_WORDS[name])):
                continue
            note = next((u.reason for u in old.unknown if u.where and u.where == old.fact_provenance.get(name)), "")
            reason = _FACT_REASONS.get(name) or note or (_STARTS if name in starting else _NO_FIELD)
            yield Changed(name, shown(name, was), shown(name, now), reason, old.fact_provenance.get(name, ""))
        else:
            where = old.provenance.get(path, "")
            yield Changed(path, shown(path, was), shown(path, now), _why(path, held, refused, was), where)


def _only_moved(was: Any, now: Any) -> bool:
    """The same entries but for where local files lie."""

    def bare(entries: Any) -> list[dict[str, Any]]:
        return [{k: v for k, v in to_plain(e).items() if k not in ("path", "data_files")} for e in entries]

    names = [[os.path.basename(str(e.get("path", ""))) for e in entries] for entries in (was, now)]
    return bool(bare(was) == bare(now) and names[0] == names[1])


def _why(path: str, held: Decision, refused: Mapping[str, str], was: Any) -> str:
    if path in refused:
        return refused[path]
    if path.startswith("launch.environment.") and is_secret(path, was):
        return "a secret is never written into a project"
    if path in leaves(held.recipe) and same(leaves(held.recipe)[path], was):
        return "the new files have no key for it where it makes no difference"
    names = path.split(".")
    prefixes = [".".join(names[:count]) for count in range(len(names), 0, -1)]
    return next((_FOLLOWS[one] for one in prefixes if one in _FOLLOWS), "it follows from the other fields")
