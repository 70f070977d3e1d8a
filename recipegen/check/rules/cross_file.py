"""Do the files agree that no other check compares: the Transformers trainer's arguments against the launcher's file and
DeepSpeed's JSON. Axolotl's and recipegen's own files are compared by check/consistency.py (RG721 to RG727).
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from recipegen.check.rules.registry import Said, rule
from recipegen.check.rules.view import View
from recipegen.formats.reading import Reading
from recipegen.spec import Severity

_DEEPSPEED = "transformers 5.16.1, integrations/deepspeed.py (trainer_config_process)"
# Recipe field -> the words of the arguments; DeepSpeed's JSON must say the same or "auto".
_SHARED = {
    "micro_batch_size": "per_device_train_batch_size",
    "gradient_accumulation": "gradient_accumulation_steps",
    "optimizer.max_grad_norm": "max_grad_norm",
    "schedule.learning_rate": "learning_rate",
    "optimizer.weight_decay": "weight_decay",
    "optimizer.epsilon": "adam_epsilon",
    "optimizer.beta1": "adam_beta1",
    "optimizer.beta2": "adam_beta2",
}
_CHECKPOINTING = "transformers 5.16.1, trainer.py (fsdp_plugin.activation_checkpointing)"
_RECOMPUTES = "fsdp_activation_checkpointing"
# What TrainingArguments 5.16 use where the file is silent.
_DEFAULTS = {"micro_batch_size": 8, "gradient_accumulation": 1}


def _arguments(view: View) -> Reading | None:
    """The trainer's arguments: a file of them, else a command line that gives them to a script."""
    files = view.of("arguments")
    if files or view.subject.main:
        return files[0] if files else None
    return next((reading for reading in view.of("launch") if "micro_batch_size" in reading.values), None)


def _others(view: View) -> Iterator[Reading]:
    """DeepSpeed's JSON and an engine section of Accelerate's file, when that engine is used."""
    if view.engine == "deepspeed":
        yield from view.of("deepspeed")
        yield from (
            reading for reading in view.of("accelerate") if reading.facts.get("distributed_type") == "DEEPSPEED"
        )


@rule("RG731", "cross-file", Severity.ERROR, source=_DEEPSPEED)
def the_engine_repeats_the_arguments(view: View) -> Iterator[Said]:
    """The Transformers trainer, and Axolotl's with it, compares DeepSpeed's configuration with its own arguments and
    stops where they differ. Write "auto" there, so that one file decides. (Axolotl's batch is RG721's.)"""
    axolotl = view.of("axolotl")
    own = axolotl[0] if axolotl else _arguments(view)
    if own is None:
        return
    left_out = _DEFAULTS if own.format == "arguments" else {}
    for other in _others(view):
        for field, word in _SHARED.items():
            if field not in other.values or (field not in own.values and field not in left_out):
                continue
            if axolotl and field in _DEFAULTS:
                continue
            mine, theirs = own.values.get(field, left_out.get(field)), other.values[field]
            if math.isclose(float(mine), float(theirs)):
                continue
            said = "sets it to" if field in own.values else "leaves it at"
            yield Said(
                f"{word} is {theirs:g} here, but {own.name} {said} {mine:g}",
                f'write "auto", or {mine:g}' if other.format == "deepspeed" else f"write {mine:g}",
                other.provenance.get(field, other.name),
                field,
            )


@rule("RG737", "cross-file", Severity.ERROR, source=_CHECKPOINTING)
def activations_are_recomputed_once(view: View) -> Iterator[Said]:
    """gradient_checkpointing of the Transformers trainer beside activation_checkpointing of FSDP stops the run, also
    where the latter stands in Accelerate's file. (Axolotl's file is RG725's.)"""
    own = _arguments(view)
    if view.engine != "fsdp" or own is None or view.of("axolotl"):
        return
    if own.values.get("activation_checkpointing") is not True:
        return
    for reading in (own, *view.of("accelerate")):
        if reading.facts.get(_RECOMPUTES) is True:
            place = view.where(_RECOMPUTES, f"fsdp_config.{_RECOMPUTES}", "fsdp_config.activation_checkpointing")
            reason = f"FSDP's activation checkpointing and gradient_checkpointing of {own.name}: the trainer stops"
            yield Said(reason, "keep one of the two", place, f"fsdp_config.{_RECOMPUTES}")
            return


@rule("RG732", "cross-file", Severity.ERROR, source=_DEEPSPEED)
def one_precision_is_meant(view: View) -> Iterator[Said]:
    """fp16 or bf16 of a DeepSpeed JSON must be what the trainer was told: the trainer stops where they differ. A
    mixed_precision of Accelerate's file counts only where the trainer's own arguments say nothing."""
    if view.trainer not in ("arguments", "axolotl"):
        return
    wanted = _wanted(view)
    for other in view.of("deepspeed") if view.engine == "deepspeed" else ():
        for kind in ("fp16", "bf16"):
            stated = other.facts.get(f"{kind}_enabled")
            # bf16 beside axolotl.yaml is RG723's.
            if not isinstance(stated, bool) or (kind == "bf16" and view.trainer == "axolotl"):
                continue
            if (stated and wanted != kind) or (not stated and wanted == kind and kind == "bf16"):
                place = other.fact_provenance.get(f"{kind}_enabled") or _line(view, other, kind)
                reason = f"{kind}.enabled is {str(stated).lower()}, but the trainer computes in {wanted}"
                yield Said(reason, 'write "auto", or remove the block', place, "precision.compute")
    launcher, own = view.fact("mixed_precision", "accelerate"), _arguments(view)
    if own is None or launcher in (None, "fp8") or view.trainer != "arguments":
        return
    stated_own = [kind for kind in ("bf16", "fp16") if own.facts.get(kind) is True]
    if stated_own and launcher != stated_own[0]:
        place = _line(view, view.of("accelerate")[0], "mixed_precision")
        reason = f"mixed_precision is {launcher}, but {own.name} says {stated_own[0]}, which wins"
        yield Said(reason, f"write {stated_own[0]}", place, "precision.compute", Severity.WARNING)
    elif not stated_own and launcher in ("bf16", "fp16"):
        place = _line(view, view.of("accelerate")[0], "mixed_precision")
        reason = f"mixed_precision {launcher} decides alone: {own.name} names no precision"
        yield Said(reason, f"{launcher}: true in {own.name}", place, "precision.compute", Severity.WARNING)


def _wanted(view: View) -> str:
    if view.trainer == "axolotl":
        stated = view.fact("mixed_precision", "axolotl")
        return str(stated) if stated is not None else "bf16"
    own = _arguments(view)
    if own is not None:
        for kind in ("bf16", "fp16"):
            if own.facts.get(kind) is True:
                return kind
    launcher = view.fact("mixed_precision", "accelerate")
    return str(launcher) if launcher in ("bf16", "fp16") else "fp32"


def _line(view: View, reading: Reading, key: str) -> str:
    document = view.subject.documents.get(reading.name)
    return document.where((key,)) if document else reading.name


@rule("RG734", "cross-file", Severity.ERROR, source="deepspeed 0.18.9, runtime/config.py (_batch_assertion)")
def the_batch_is_whole(view: View) -> Iterator[Said]:
    """DeepSpeed needs train_batch_size = micro x accumulation x ranks. Where accumulation is left to it, the total must
    divide by micro x ranks."""
    ranks = view.processes or view.world
    if view.engine != "deepspeed" or ranks is None or view.is_plain_python:
        return
    for reading in view.of("deepspeed"):
        total, micro, steps = (
            reading.facts.get(name)
            for name in ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
        )
        if micro in (None, "auto"):
            micro = view.value("micro_batch_size")
        if not isinstance(total, int) or not isinstance(micro, int):
            continue
        place = _line(view, reading, "train_batch_size")
        each = micro * ranks
        if not isinstance(steps, int):
            if total % each:
                low = total // each * each
                near = f"{low} or {low + each}" if low else str(each)
                reason = f"train_batch_size {total} does not divide by {micro} x {ranks} ranks"
                yield Said(reason, f"train_batch_size {near}, or another number of GPUs", place, "train_batch_size")
        elif total != each * steps and view.fact("num_processes", "launch") is not None:
            # Against Accelerate's file or the profile it is RG721's.
            reason = f"train_batch_size {total} is not {micro} x {steps} x {ranks} ranks = {each * steps}"
            yield Said(reason, f"write {each * steps}", place, "train_batch_size")


@rule("RG735", "cross-file", Severity.WARNING, source=_DEEPSPEED)
def the_json_builds_the_optimizer(view: View) -> Iterator[Said]:
    """An `optimizer` section in the DeepSpeed JSON is what is built; the trainer's own choice is then not used."""
    name, built = view.value("optimizer.name"), view.fact("optimizer_type")
    if view.engine != "deepspeed" or not isinstance(name, str) or not isinstance(built, str):
        return
    if not view.states("optimizer.name") or view.trainer not in ("arguments", "axolotl"):
        return
    plain = name in ("adamw_torch", "adamw_torch_fused", "adamw_hf", "adamw_apex_fused")
    if not (plain and built.lower() in ("adam", "adamw")):
        reason = f"the DeepSpeed JSON builds {built}, so {name} is not used"
        yield Said(reason, "remove the JSON's optimizer section, or name the same", view.where("optimizer.name"))


@rule("RG736", "schema", Severity.ERROR, source="https://github.com/zjukg/KoPA/issues/63")
def the_optimizer_has_a_known_name(view: View) -> Iterator[Said]:
    """The names of the Transformers trainer's optimizers change with its version; adamw_hf was removed. Axolotl's file
    is checked by RG702."""
    name = view.value("optimizer.name")
    known = view.subject.stack.axolotl_keys()["values"]["optimizer"]
    if view.trainer == "arguments" and isinstance(name, str) and name not in known:
        fix = "adamw_torch_fused" if name.startswith("adamw") else f"one of {', '.join(known[:6])}, ..."
        version = view.subject.stack.pins.get("transformers", "")
        yield Said(f"{name[:60]} is no optimizer of transformers {version}", fix, view.where("optimizer.name"))
