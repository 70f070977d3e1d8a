"""`recipegen import`: an existing setup as a Decision that `new` can write, with every setting kept as a pin.

The files are read as `recipegen check` reads them. What they say and would not be decided anyway becomes a pin, until
deciding with the pins gives the recipe that was read. Then the new files are read like the old ones, and every
difference that is left is told, with its reason: nothing is dropped in silence.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from recipegen.catalog.stack import Stack
from recipegen.check.gather import READERS, Gathered, Target, gather
from recipegen.check.subject import Subject
from recipegen.dataset.measure import measure
from recipegen.decide import decide, field_types
from recipegen.decide import pins as pin_fields
from recipegen.formats.assemble import assemble
from recipegen.formats.assembled import Assembled
from recipegen.formats.modelled import refuse_modelled_keys
from recipegen.formats.plain import to_plain
from recipegen.formats.reading import Reading, at
from recipegen.project.files import render
from recipegen.project.import_keys import IN_OTHER_WORDS, passthrough
from recipegen.project.imported import Changed, Imported, Pin, differences, is_secret, leaves, relocated, same, shown
from recipegen.project.paths import localize
from recipegen.source import Kind, collect
from recipegen.spec import (
    Cluster,
    DatasetSpec,
    Decision,
    EnvVar,
    LossKernel,
    ModelSpec,
    Recipe,
    RecipegenError,
    Request,
)

_ROUNDS = 8  # of pinning what the pins of before changed; two are usual
# Settings that the request itself has words for.
_ASKED = frozenset({"method", "sequence_len", "epochs", "schedule.learning_rate"})
_UNPINNABLE = {"fsdp.version": "FSDP1 is read, never written: the new project uses FSDP2"}
_NOT_WRITTEN = {
    ("loss_kernel", LossKernel.CUT.value): "cut cross entropy needs a package that is not on the index: never written"
}
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


@dataclass(frozen=True)
class Data:
    """What the command line says of the data, over what the files say."""

    paths: tuple[str, ...] = ()
    format: str = "auto"


def read(paths: Sequence[str | Path], target: Target) -> Gathered:
    """The one recipe under `paths`. Raises RecipegenError when there is none, or more than one."""
    found = collect(paths)
    certain = [one for one in found.refused if one.certain]
    if certain:
        raise RecipegenError(certain[0].reason, where=certain[0].shown)
    projects = [p for p in found.projects if p.main] or list(found.projects)
    if len(projects) != 1:
        names = ", ".join(p.name for p in projects[:6])
        what = f"{len(projects)} recipes ({names})" if projects else "no file of a recipe"
        raise RecipegenError(f"{what} where one is imported", fix="Name the trainer's file.")
    gathered = gather(projects[0], target)
    recipe, cluster = gathered.subject.assembled.recipe, gathered.subject.cluster
    if (
        recipe is not None
        and cluster is not None
        and target.nodes is None
        and recipe.parallelism.nodes != cluster.nodes
    ):
        gathered = gather(projects[0], replace(target, nodes=recipe.parallelism.nodes))
    return gathered


def import_project(
    gathered: Gathered, folder: Path, target: Target, data: Data | None = None, *, pins: Mapping[str, str] | None = None
) -> Imported:
    """The setup as a project in `folder`, where nothing is written. `pins` are as for `render`.

    Raises RecipegenError, one line, for what no recipe can say (another kind of training, an unknown model or machine).
    """
    subject = gathered.subject
    recipe, model, cluster = _complete(subject)
    given = data or Data()
    datasets, notes = _datasets(gathered, recipe, model, given)
    request = _request(gathered, target, recipe, cluster, datasets, given)
    if not os.path.isdir(request.model):
        model = replace(model, id=recipe.model)  # a mirror of a known model keeps its name
    wanted = replace(recipe, datasets=datasets)
    otherwise, why_not = _otherwise(request, model, cluster, subject.stack, datasets)
    held, refused = _pinned(request, wanted, otherwise, model, cluster, subject.stack, datasets)
    passed, left = passthrough(subject, held)
    held = decide(replace(held.request, passthrough=passed), model, cluster, subject.stack, datasets)
    refuse_modelled_keys(held.recipe)
    held, beyond = _kept_beyond(held, wanted, given, model)
    held = replace(held, warnings=(*notes, *held.warnings))
    again = _again(localize(held, folder), subject.stack, cluster, model, pins)
    changed = [*left, *_changed(subject, again, held, refused)]
    return Imported(held, subject, tuple(_pins(held, subject, otherwise)), tuple(changed), beyond, otherwise, why_not)


def _complete(subject: Subject) -> tuple[Recipe, ModelSpec, Cluster]:
    assembled, cluster = subject.assembled, subject.cluster
    if cluster is None:
        raise RecipegenError(
            "no machine is named, and deciding needs one", fix="Give --hardware NAME (`recipegen hardware list`)"
        )
    if assembled.recipe is None or assembled.model is None:
        reasons = [f"{u.where}: {u.reason}" if u.where else u.reason for u in assembled.unknown]
        # What no recipe describes stands first, what stopped the assembly last; between them is what was only noted.
        said = "; ".join(dict.fromkeys((*reasons[:1], *reasons[-1:])))
        raise RecipegenError(f"this cannot be imported: {said or 'the model is not known'}")
    mesh, node = assembled.recipe.parallelism, cluster.node
    if (mesh.nodes, mesh.gpus_per_node) != (cluster.nodes, node.gpu_count):
        raise RecipegenError(
            f"the files start {mesh.gpus_per_node} processes on each of {mesh.nodes} nodes, and {cluster.name} is "
            f"{cluster.nodes} x {node.gpu_count} GPUs: a recipe uses all of them",
            fix=f"Give --hardware of a machine with {mesh.gpus_per_node} GPUs, and --nodes {mesh.nodes}",
        )
    return assembled.recipe, assembled.model, cluster


# --- the request


def _request(
    gathered: Gathered, target: Target, recipe: Recipe, cluster: Cluster, datasets: tuple[DatasetSpec, ...], data: Data
) -> Request:
    before = gathered.request
    hardware = target.hardware or (before.hardware if before else recipe.hardware)
    beside = gathered.project.folder / os.path.expanduser(hardware)
    if not target.hardware and hardware.endswith((".yaml", ".yml")) and beside.is_file():
        hardware = str(beside)
    kinds = {one.format.value for one in datasets if one.rows is None}
    local = _beside(gathered.project.folder, recipe.model)
    return Request(
        model=local if os.path.isdir(local) else recipe.model,
        hardware=hardware,
        dataset=tuple(dict.fromkeys(one.path for one in datasets)),
        dataset_format=data.format if data.format != "auto" else next(iter(kinds)) if len(kinds) == 1 else "auto",
        model_revision=recipe.model_revision,
        nodes=cluster.nodes,
        network=(cluster.network.name if cluster.network else "none") if cluster.nodes > 1 else "none",
        hardware_overrides={} if target.hardware or before is None else before.hardware_overrides,
        trainer=recipe.trainer,
        stack=recipe.stack,
        method=recipe.method.value,
        sequence_len=recipe.sequence_len,
        global_batch_size=recipe.global_batch_size,
        epochs=recipe.epochs,
        learning_rate=recipe.schedule.learning_rate,
    )


def _beside(folder: Path, path: str) -> str:
    """A relative path of the files: as it lies beside them, else as it is."""
    if path and "\0" not in path and not os.path.isabs(path) and not path.startswith("~"):
        beside = folder / path
        if beside.exists():
            return str(beside)
    return path


def _datasets(
    gathered: Gathered, recipe: Recipe, model: ModelSpec, data: Data
) -> tuple[tuple[DatasetSpec, ...], list[str]]:
    """The data sets, measured where they lie here; entries that Axolotl reads stay as they are written."""
    tokenizer = recipe.model if os.path.isfile(os.path.join(recipe.model, "tokenizer.json")) else None

    def measured(path: str, kind: str) -> DatasetSpec:
        return measure(path, model=model, format=kind, tokenizer_path=tokenizer)

    if data.paths:
        return tuple(measured(path, data.format) for path in data.paths), []
    if not recipe.datasets:
        raise RecipegenError("the files name no data set that is known here", fix="Give --dataset FILE or a Hub id")
    found, notes = [], []
    for one in recipe.datasets:
        if not one.path:
            raise RecipegenError("a data set of the files has no path", fix="Give --dataset FILE or a Hub id")
        place = _beside(gathered.project.folder, one.path)
        kept = relocated(one, one.path, place) if place != one.path else one
        if recipe.trainer != "axolotl":
            found.append(measured(place, data.format))
        elif os.path.isfile(os.path.expanduser(place)):
            try:
                seen = measured(place, data.format)
                found.append(replace(seen, entry=kept.entry, split=kept.split))
            except RecipegenError as error:
                if data.format != "auto":
                    raise
                notes.append(f"{place} is not measured: {error}")
                found.append(replace(kept, local=True))
        else:
            notes.append(f"{place} is not here, so its rows are not counted")
            found.append(kept)
    return tuple(found), notes


# --- pins


def _otherwise(
    request: Request, model: ModelSpec, cluster: Cluster, stack: Stack, datasets: tuple[DatasetSpec, ...]
) -> tuple[Decision | None, str]:
    """The same training as it would be decided: with the same batch where that multiplies out."""
    why = ""
    for asked in (request, replace(request, global_batch_size=None)):
        try:
            return decide(asked, model, cluster, stack, datasets), ""
        except RecipegenError as error:
            why = why or str(error)
    return None, why


def _pinned(
    request: Request,
    wanted: Recipe,
    otherwise: Decision | None,
    model: ModelSpec,
    cluster: Cluster,
    stack: Stack,
    datasets: tuple[DatasetSpec, ...],
) -> tuple[Decision, dict[str, str]]:
    """The decision with the fewest pins that gives `wanted`, and the fields that cannot be pinned, with the reason."""
    refused: dict[str, str] = dict(_UNPINNABLE)
    values: dict[str, Any] = {}
    for path in field_types():
        group = path.rpartition(".")[0]
        if path in _ASKED or path in refused or (group and getattr(wanted, group) is None):
            continue
        if path == "sync_each_batch" and not wanted.parallelism.strategy.is_fsdp:
            continue  # of FSDP alone
        if path == "chat_template" and wanted.trainer != "axolotl" and wanted.chat_template is None:
            continue  # train.json holds the template as text, without its name
        plain = to_plain(at(wanted, path))
        if isinstance(plain, str) and (path, plain) in _NOT_WRITTEN:
            refused[path] = _NOT_WRITTEN[path, plain]
            continue
        try:
            if not same(pin_fields.parse(path, plain), plain):
                raise RecipegenError(f"{path} cannot be {plain!r:.80}")
            values[path] = plain
        except RecipegenError as error:
            refused[path] = str(error)

    def differing(recipe: Recipe) -> dict[str, Any]:
        return {path: value for path, value in values.items() if not same(at(recipe, path), value)}

    def decided(pins: Mapping[str, Any]) -> Decision:
        return decide(replace(request, pins=dict(pins)), model, cluster, stack, datasets)

    def settled(pins: dict[str, Any]) -> Decision:
        for _ in range(_ROUNDS):
            held = decided(pins)
            more = {path: value for path, value in differing(held.recipe).items() if path not in pins}
            if not more:
                break
            pins |= more
        return held

    start = differing(otherwise.recipe) if otherwise else dict(values)
    try:
        return settled(start), refused
    except RecipegenError:
        # Some pins contradict what is decided beside them; all together they are one recipe.
        try:
            return settled(dict(values)), refused
        except RecipegenError as error:
            raise RecipegenError(f"no recipe holds these settings together: {error}") from None


def _pins(held: Decision, subject: Subject, otherwise: Decision | None) -> Iterator[Pin]:
    places = subject.assembled.provenance
    for path, value in held.request.pins.items():
        other = to_plain(at(otherwise.recipe, path)) if otherwise else None
        why = otherwise.reasons.get(path, "") if otherwise else ""
        yield Pin(path, value, other, places.get(path, ""), why)


# --- what the files carry and recipe.yaml does not


def _kept_beyond(held: Decision, wanted: Recipe, data: Data, model: ModelSpec) -> tuple[Decision, dict[str, str]]:
    beyond: dict[str, str] = {}
    recipe = held.recipe
    if not data.paths and recipe.trainer == "axolotl":
        recipe = replace(recipe, datasets=wanted.datasets)
        for one in wanted.datasets:
            if not same(_entry_of_new(one, held.request, model), one.entry):
                beyond["datasets"] = "recipe.yaml names path and format; the entries in axolotl.yaml are the original's"
    known = {variable.name for variable in wanted.launch.environment}
    own = tuple(v for v in wanted.launch.environment if v.value is not None and not is_secret(v.name, v.value))
    if own:
        kept = tuple(EnvVar(v.name, v.value, v.reason or "as in the imported script") for v in own)
        others = tuple(v for v in recipe.launch.environment if v.name not in known)
        differs = any(v.value != _variable(recipe, v.name) for v in own)
        recipe = replace(recipe, launch=replace(recipe.launch, environment=(*others, *kept)))
        if differs:
            beyond["launch.environment"] = "variables of the imported script: recipe.yaml has no words for them"
    return replace(held, recipe=recipe), beyond


def _entry_of_new(data: DatasetSpec, request: Request, model: ModelSpec) -> object:
    try:
        return measure(data.path, model=model, format=request.dataset_format).entry
    except RecipegenError:
        return None


def _variable(recipe: Recipe, name: str) -> str | None:
    return next((v.value for v in recipe.launch.environment if v.name == name), None)


# --- what came out


def _again(
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


def _changed(subject: Subject, new: Assembled, held: Decision, refused: Mapping[str, str]) -> Iterator[Changed]:
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
