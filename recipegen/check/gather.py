"""From a project's files to a Subject: read, assembled, estimated. Nothing is downloaded, imported or executed."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from typing import Any

from recipegen.catalog import load_cluster, load_stack
from recipegen.catalog import model as models
from recipegen.catalog.bounded_yaml import shown
from recipegen.catalog.cluster import is_hardware_name
from recipegen.catalog.stack import Stack
from recipegen.check.registry import finding
from recipegen.check.subject import Subject
from recipegen.estimate import estimate
from recipegen.formats import (
    accelerate_read,
    arguments_read,
    axolotl_read,
    deepspeed_read,
    launch_read,
    lock,
    recipe_yaml,
    train_json_read,
)
from recipegen.formats.assemble import assemble
from recipegen.formats.assembled import Assembled, Unknown
from recipegen.formats.plain import to_plain
from recipegen.formats.reading import Reading
from recipegen.source import Kind, Project, Within
from recipegen.spec import Cluster, Estimate, Finding, ModelSpec, RecipegenError, Request, Severity

READERS: Mapping[Kind, Callable[[bytes, str], Reading]] = {
    Kind.AXOLOTL: axolotl_read.read,
    Kind.ACCELERATE: accelerate_read.read,
    Kind.DEEPSPEED: deepspeed_read.read,
    Kind.TRAIN_JSON: train_json_read.read,
    Kind.ARGUMENTS: arguments_read.read,
    Kind.SCRIPT: launch_read.read,
    Kind.SBATCH: launch_read.read,
}
_OPTION = "--hardware"
NO_HARDWARE = "hardware"  # the path of the Unknown that says so


@dataclass(frozen=True)
class Target:
    """What the command line says of the machines; empty fields are left to recipe.yaml and recipe.lock."""

    hardware: str | None = None
    nodes: int | None = None
    network: str | None = None
    stack: str | None = None
    overrides: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Gathered:
    """`problems` are findings about recipe.yaml, recipe.lock and the hardware profile that they name."""

    project: Project
    subject: Subject
    request: Request | None = None
    lock: lock.Lock | None = None
    problems: tuple[Finding, ...] = ()


def gather(project: Project, target: Target) -> Gathered:
    """The Subject of a project. Raises RecipegenError only for what the command line itself names."""
    problems: list[Finding] = []
    request, locked = _intent(project, problems)
    stack = _stack(project, target, request, locked, problems)
    cluster, hardware = _cluster(project, target, request, locked, problems)
    readings = {
        name: project.scripts.get(name) or READERS[project.kinds[name]](content, name)
        for name, content in project.files.items()
        if project.kinds[name] in READERS
    }
    ordered = [readings[name] for name in sorted(readings, key=lambda name: name != project.main)]
    taken: list[str] = []
    find = _local_model(project, taken)
    assembled = assemble(ordered, stack, cluster=cluster, model=find, hardware=hardware)
    place = assembled.provenance.get("model", project.main)
    notes = (Unknown("model", reason, place) for reason in dict.fromkeys(taken))
    assembled = replace(assembled, unknown=(*assembled.unknown, *notes))
    assembled = _measured(assembled, locked)
    cost, unknown = _estimate(assembled, cluster, stack)
    if cluster is None:  # said once, with all that it needs
        assembled = replace(assembled, unknown=tuple(u for u in assembled.unknown if _OPTION not in u.reason))
    if unknown:
        assembled = replace(assembled, unknown=(*assembled.unknown, unknown))
    subject = Subject(
        project.name, project.main, project.files, project.documents, readings, assembled, stack, cluster, cost
    )
    return Gathered(project, subject, request, locked, tuple(problems))


def _intent(project: Project, problems: list[Finding]) -> tuple[Request | None, lock.Lock | None]:
    """recipe.yaml and recipe.lock, each where it is there and can be read."""
    request, locked = None, None
    for name in project.of_kind(Kind.RECIPE):
        try:
            request = recipe_yaml.read(project.files[name], name)
        except RecipegenError as error:
            problems.append(_from_error(error, name, "RG702"))
    for name in project.of_kind(Kind.LOCK):
        try:
            locked = lock.read(project.files[name], name)
        except RecipegenError as error:
            problems.append(_from_error(error, name, "RG706"))
    return request, locked


def _measured(assembled: Assembled, locked: lock.Lock | None) -> Assembled:
    """With the rows and lengths that `new` measured, of the data sets that are still those of recipe.lock."""
    if locked is None or assembled.recipe is None:
        return assembled
    known = {(spec.path, spec.split, spec.format): spec for spec in locked.recipe.datasets}
    datasets = []
    for spec in assembled.recipe.datasets:
        found = known.get((spec.path, spec.split, spec.format))
        if found is not None and spec.rows is None:
            spec = replace(spec, rows=found.rows, lengths=found.lengths, system_rows=found.system_rows)
        datasets.append(spec)
    return replace(assembled, recipe=replace(assembled.recipe, datasets=tuple(datasets)))


def _from_error(error: RecipegenError, name: str, rule: str, severity: Severity = Severity.ERROR) -> Finding:
    """The message of an error begins with its place."""
    where, separator, reason = str(error).partition(": ")
    if not separator or not where.startswith(name):
        where, reason = name, str(error)
    return finding(rule, severity, reason, where=where)


def _stack(
    project: Project, target: Target, request: Request | None, locked: lock.Lock | None, problems: list[Finding]
) -> Stack:
    if target.stack:
        return load_stack(target.stack)
    for name, kind in ((request and request.stack, Kind.RECIPE), (locked and locked.stack, Kind.LOCK)):
        if name:
            try:
                return load_stack(name)
            except RecipegenError as error:
                file = project.of_kind(kind)[0]
                problems.append(finding("RG702", Severity.ERROR, str(error), where=_place(project, file, "stack")))
    return load_stack(Request.stack)


def _cluster(
    project: Project, target: Target, request: Request | None, locked: lock.Lock | None, problems: list[Finding]
) -> tuple[Cluster | None, str]:
    """The machines: of the command line, else of recipe.yaml, else of recipe.lock."""
    overrides = {**(request.hardware_overrides if request else {}), **target.overrides}
    if target.hardware:  # another box; as many, on the same network, unless that is said too
        nodes, network = target.nodes, target.network
        if nodes is None and request is not None:
            nodes, network = request.nodes, network or request.network
        elif nodes is None and locked is not None:
            nodes, network = locked.recipe.parallelism.nodes, network or locked.recipe.network
        cluster = load_cluster(target.hardware, nodes=nodes or 1, network=network or "none", overrides=target.overrides)
        return cluster, target.hardware
    if request is not None:
        name, nodes, network, file = request.hardware, request.nodes, request.network, project.of_kind(Kind.RECIPE)[0]
    elif locked is not None:
        recipe, file = locked.recipe, project.of_kind(Kind.LOCK)[0]
        name, nodes, network = recipe.hardware, recipe.parallelism.nodes, recipe.network
    else:
        return None, ""
    try:
        cluster = load_cluster(
            _profile(project, name), nodes=target.nodes or nodes, network=target.network or network, overrides=overrides
        )
    except RecipegenError as error:
        reason = _from_top(str(error), project.within)
        problems.append(finding("RG702", Severity.ERROR, reason, where=_place(project, file, "hardware")))
        return None, ""
    return _from_top(cluster, project.within), name


def _profile(project: Project, name: str) -> str:
    """The name of a machine, or the path of a person's own profile. Raises RecipegenError for one outside of the tree
    that the project may be read from."""
    is_path = name.endswith((".yaml", ".yml"))
    if project.within is None:
        beside = project.folder / os.path.expanduser(name)
        return str(beside) if is_path and beside.is_file() else name
    if is_hardware_name(name):
        return name
    found = project.within.file(project.folder, name) if is_path else None
    if found is None:
        raise RecipegenError(
            f"the hardware profile {shown(name)} is no name of the catalogue and no YAML file inside of this tree",
            fix="Give --hardware, or a path inside of the tree.",
        )
    return str(found)


def _from_top(value: Any, within: Within | None) -> Any:
    """A text, or a dataclass with texts, whose paths begin at the top of the tree instead of where it lies here."""
    if within is None:
        return value
    if isinstance(value, str):
        for root in (within.root, within.beside):
            value = value.replace(f"{root}{os.sep}", "") if root else value
    elif isinstance(value, tuple):
        return tuple(_from_top(one, within) for one in value)
    elif is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{one.name: _from_top(getattr(value, one.name), within) for one in fields(value)})
    return value


def _place(project: Project, file: str, key: str) -> str:
    document = project.documents.get(file)
    return document.where((key,)) if document else file


def _local_model(project: Project, taken: list[str]) -> Callable[[str], ModelSpec | None]:
    """Folders with a config.json, models of the catalogue, and shapes that are known by name; never the Hub.

    What makes a shape another than that of the file's own name goes to `taken`, a line each.
    """

    def load(name: str) -> ModelSpec | None:
        from recipegen.catalog import hub

        if not name or len(name) > _LONGEST_NAME or not name.isprintable():
            return None
        try:
            for path in _model_folders(project, name):
                if (path / "config.json").is_file():
                    return hub.from_folder(path, name)
            found = models.find(name)
            if found:
                return models.read(found)
        except (RecipegenError, OSError, ValueError, RuntimeError):
            return None
        return _known_name(name, taken)

    return load


def _model_folders(project: Project, name: str) -> list[Path]:
    if project.within is not None:
        found = project.within.folder(project.folder, name)
        return [] if found is None else [found]
    return list(dict.fromkeys((project.folder / os.path.expanduser(name), Path(name).expanduser())))


def _known_name(name: str, taken: list[str]) -> ModelSpec | None:
    """The shape of a model that is known by its name, or by that of the model it has its shape from."""
    from recipegen.check.model_names import UnknownModel, model_of

    try:
        known = model_of(name, exact=True)
    except UnknownModel as error:
        if error.silent:
            return None
        raise RecipegenError(error.reason) from None
    spec = known.spec
    if spec.id.casefold() != name.casefold():
        taken.append(f"shape of {spec.id} taken for {name}" + (f" ({known.derived})" if known.derived else ""))
    taken.extend(f"shape of {spec.id}: {' '.join(note.split())}" for note in known.notes)
    stored = _STORED.get(known.quantised or "", known.quantised)
    return replace(spec, quantization=stored) if stored else spec


# Words of bitsandbytes' formats, which load as they are stored.
_STORED = {"nf4": "nf4", "bnb": "nf4", "4bit": "nf4", "8bit": "int8", "int8": "int8"}
_LONGEST_NAME = 1024  # characters of a model's name


def _estimate(assembled: Assembled, cluster: Cluster | None, stack: Stack) -> tuple[Estimate | None, Unknown | None]:
    """The estimate, or why there is none where nothing else says so."""
    if cluster is None:
        return None, Unknown(NO_HARDWARE, "no machine is named, and an estimate needs one")
    if assembled.recipe is None or assembled.model is None:
        said = bool(assembled.unknown)
        return None, None if said else Unknown(
            "model", "the model's shape is not known here, and nothing is downloaded"
        )
    try:
        cost = estimate(assembled.model, cluster, assembled.recipe, stack)
        if not _is_finite(to_plain(cost)):
            raise ValueError("a number in it is larger than any machine")
        return cost, None
    except (RecipegenError, ValueError, ArithmeticError, LookupError) as error:
        return None, Unknown("", f"no estimate for this combination: {' '.join(str(error).split())}")


_MOST = 1e300  # sums and products of what is printed stay floats


def _is_finite(plain: Any) -> bool:
    if isinstance(plain, (list, dict)):
        return all(map(_is_finite, plain.values() if isinstance(plain, dict) else plain))
    return not isinstance(plain, (int, float)) or -_MOST < plain < _MOST
