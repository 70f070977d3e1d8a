"""`recipegen import`: an existing setup as a Decision that `new` can write, with every setting kept as a pin.

The files are read as `recipegen check` reads them. What they say and would not be decided anyway becomes a pin, until
deciding with the pins gives the recipe that was read. Then the new files are read like the old ones, and every
difference that is left is told, with its reason: nothing is dropped in silence.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from recipegen.catalog.stack import Stack
from recipegen.check.checking import ROOM
from recipegen.check.gather import Gathered, Target, gather
from recipegen.check.subject import Subject
from recipegen.dataset.measure import measure
from recipegen.decide import decide
from recipegen.estimate import estimate
from recipegen.formats.modelled import refuse_modelled_keys
from recipegen.project.import_changes import changed, read_again
from recipegen.project.import_keys import passthrough
from recipegen.project.import_pins import described, otherwise_decided, pinned
from recipegen.project.imported import Imported, is_secret, relocated, same
from recipegen.project.paths import localize
from recipegen.rules import evaluate
from recipegen.source import collect
from recipegen.spec import (
    Cluster,
    DatasetSpec,
    Decision,
    EnvVar,
    ModelSpec,
    Recipe,
    RecipegenError,
    Request,
    Severity,
    Verdict,
)


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
    otherwise, why_not = otherwise_decided(request, model, cluster, subject.stack, datasets)
    held, refused = pinned(request, wanted, otherwise, model, cluster, subject.stack, datasets)
    passed, left = passthrough(subject, held)
    held = decide(replace(held.request, passthrough=passed), model, cluster, subject.stack, datasets)
    refuse_modelled_keys(held.recipe)
    held, beyond = _kept_beyond(held, wanted, given, model)
    held = _judged(replace(held, warnings=(*notes, *held.warnings)), subject.stack)
    again = read_again(localize(held, folder), subject.stack, cluster, model, pins)
    differs = [*left, *changed(subject, again, held, refused)]
    return Imported(
        held, subject, tuple(described(held, subject, otherwise)), tuple(differs), beyond, otherwise, why_not
    )


def _judged(held: Decision, stack: Stack) -> Decision:
    """With the verdict and the findings of `recipegen check`: what recipegen would not write itself may well run."""
    cost = estimate(held.model, held.cluster, held.recipe, stack)
    found = evaluate(held.recipe, held.model, held.cluster, cost, stack, generated=False)
    short = any(f.family in ROOM and f.severity is Severity.ERROR and f.required_bytes for f in found)
    verdict = Verdict.DOES_NOT_FIT if short else cost.verdict
    return replace(held, findings=found, verdict=verdict, estimate=replace(held.estimate, verdict=verdict))


def _complete(subject: Subject) -> tuple[Recipe, ModelSpec, Cluster]:
    assembled, cluster = subject.assembled, subject.cluster
    if cluster is None:
        raise RecipegenError(
            "no machine is named, and deciding needs one", fix="Give --hardware NAME (`recipegen hardware list`)"
        )
    if assembled.recipe is None or assembled.model is None:
        unknown = [u for u in assembled.unknown if not (assembled.model and u.path == "model")]  # whose shape was taken
        reasons = [f"{u.where}: {u.reason}" if u.where else u.reason for u in unknown]
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
