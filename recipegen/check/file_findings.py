"""What the files of one project say wrong: keys, agreement, readings, the trainers' own validators, drift."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from recipegen.catalog import load_cluster
from recipegen.catalog.bounded_yaml import shown
from recipegen.catalog.stack import Stack
from recipegen.check import consistency
from recipegen.check.document import problems
from recipegen.check.gather import Gathered
from recipegen.check.keys import accelerate_keys, axolotl_keys, deepspeed_keys
from recipegen.check.registry import finding
from recipegen.check.report import ValidationReport, missing
from recipegen.check.subject import Subject
from recipegen.check.trainer_process import TrainerProcess
from recipegen.check.validators import validate_accelerate, validate_axolotl, validate_deepspeed
from recipegen.formats.documents import Document
from recipegen.formats.reading import at
from recipegen.formats.secrets import shown as shown_secret
from recipegen.source import Kind, Project
from recipegen.spec import Cluster, Finding, Recipe, Severity

_KEYS: Mapping[Kind, Callable[[Document, Stack], Iterator[Finding]]] = {
    Kind.AXOLOTL: axolotl_keys,
    Kind.ACCELERATE: accelerate_keys,
    Kind.DEEPSPEED: deepspeed_keys,
}
# What Axolotl's validators are told of the machine when none is named: one on which nothing is missing.
_ANY_MACHINE = "{}x-h100"
_MOST_GPUS = 16
_LOST_FILE = "is not a file of this project"  # axolotl_lite.served_files; RG726 says it already
# Recipe fields that depend on how a file is written, not on what it means.
_NOT_DRIFT = frozenset({"stack", "hardware", "network", "datasets", "passthrough"})
# Fields of recipe.yaml that the recipe has under the same meaning.
_INTENT: Mapping[str, str] = {
    "model": "model",
    "model_revision": "model_revision",
    "method": "method",
    "sequence_len": "sequence_len",
    "epochs": "epochs",
    "learning_rate": "schedule.learning_rate",
}


def of(
    gathered: Gathered, child: TrainerProcess, *, full: bool, trainers: bool = True
) -> tuple[list[Finding], list[str]]:
    """The findings, and one line for each validation that ran or did not. `trainers`: the trainers' own, too."""
    project, subject = gathered.project, gathered.subject
    found: list[Finding] = []
    ran: list[str] = []
    for name, document in project.documents.items():
        found += problems(document)
        check = _KEYS.get(project.kinds[name])
        if check is not None and document.values is not None:
            found += check(document, subject.stack)
            ran.append(f"{name}: keys, types and values against the key schema of {subject.stack.name}")
    found += _read(subject)
    found += consistency.check_consistency(_consistency(project, subject))
    ran.append("agreement between the files: batch, processes, mesh, precision, engines")
    if not trainers:
        ran.append("not run: the trainers' own validators (not asked for)")
    for report in _validators(gathered, child, full=full) if trainers else ():
        found += (f for f in report.findings if _LOST_FILE not in f.reason)
        ran.append(report.note if report.ran else f"not run: {report.validator}: {report.note}")
    found += _drift(gathered)
    return found, ran


def _read(subject: Subject) -> Iterator[Finding]:
    """What the readers did not understand, and the old spellings that they did."""
    for name, reading in subject.readings.items():
        document = subject.documents.get(name)
        unread = document is not None and document.values is None
        for problem in () if unread else reading.problems:
            yield finding("RG708", Severity.WARNING, problem.reason, where=problem.where, field=problem.key)
        for old, new in reading.legacy.items():
            where = document.where(tuple(old.split("."))) if document else name
            reason, fix = f"{old} is a deprecated spelling", f"write {new}"
            yield finding("RG715", Severity.NOTE, reason, fix=fix, where=where, field=old)


def _consistency(project: Project, subject: Subject) -> consistency.Project:
    def first(*kinds: Kind) -> Document:
        named = [project.documents[name] for name in project.of_kind(*kinds) if name in project.documents]
        return named[0] if named else Document("", None)

    axolotl, train = Document("", None), Document("", None)
    if project.main:
        main, kind = project.documents.get(project.main, Document("", None)), project.kinds[project.main]
        axolotl = main if kind is Kind.AXOLOTL else axolotl
        train = main if kind is Kind.TRAIN_JSON else train
    return consistency.Project(
        frozenset(project.files),
        axolotl,
        first(Kind.ACCELERATE),
        first(Kind.DEEPSPEED),
        train,
        None,
        subject.cluster,
    )


# --- the trainers' own validators


def _validators(gathered: Gathered, child: TrainerProcess, *, full: bool) -> Iterator[ValidationReport]:
    project, subject = gathered.project, gathered.subject
    cluster = subject.cluster or any_machine(subject)
    files, stack = project.files, subject.stack
    assumed = "" if subject.cluster else "; no machine is named, so one that can everything"
    for name in project.of_kind(Kind.AXOLOTL):
        report = validate_axolotl(files[name], cluster, stack, name=name, files=files)
        yield replace(report, note=report.note + (assumed if report.ran else ""))
        if full and not missing(stack, "axolotl"):
            yield validate_axolotl(files[name], cluster, stack, name=name, files=files, process=child)
    if not full:
        if project.of_kind(Kind.ACCELERATE, Kind.DEEPSPEED):
            yield ValidationReport("accelerate, deepspeed", False, "only with --full")
        return
    for name in project.of_kind(Kind.ACCELERATE):
        yield validate_accelerate(files[name], stack, child, name=name, files=files)
    recipe, model = subject.assembled.recipe, subject.assembled.model
    for name in project.of_kind(Kind.DEEPSPEED):
        yield validate_deepspeed(
            files[name],
            stack,
            child,
            world_size=recipe.parallelism.world_size if recipe else cluster.world_size,
            micro_batch_size=recipe.micro_batch_size if recipe else 1,
            gradient_accumulation=recipe.gradient_accumulation if recipe else 1,
            hidden_size=model.hidden_size if model else 4096,
            learning_rate=recipe.schedule.learning_rate if recipe else 1e-5,
            name=name,
        )


def any_machine(subject: Subject) -> Cluster:
    """As many GPUs as the files say; the rest is a guess that forbids nothing."""
    stated = subject.fact("num_processes")
    count = stated if isinstance(stated, int) and 1 <= stated <= _MOST_GPUS else 8
    return load_cluster(_ANY_MACHINE.format(count))


# --- drift


def _drift(gathered: Gathered) -> Iterator[Finding]:
    """Where the files differ from recipe.yaml, which was wanted, and recipe.lock, which was resolved."""
    assembled = gathered.subject.assembled
    if assembled.recipe is None:
        return
    if gathered.lock is not None:
        for path, where in assembled.provenance.items():
            if path == "launch.environment":
                yield from _environment(assembled.recipe, gathered.lock.recipe, where)
            elif path.split(".")[0] not in _NOT_DRIFT:
                wanted = at(gathered.lock.recipe, path)
                yield from _differs(path, at(assembled.recipe, path), wanted, "recipe.lock", where)
    elif gathered.request is not None:
        for field, path in _INTENT.items():
            wanted, stated = getattr(gathered.request, field), assembled.provenance.get(path)
            if wanted is not None and stated:
                yield from _differs(path, at(assembled.recipe, path), wanted, "recipe.yaml", stated)


def _environment(recipe: Recipe, locked: Recipe, where: str) -> Iterator[Finding]:
    """Variable by variable; those without a value, and the reasons, are comments of the script."""
    here, there = ({one.name: one.value for one in each.launch.environment} for each in (recipe, locked))
    for name in {**here, **there}:
        value, wanted = (shown_secret(name, values.get(name)) for values in (here, there))
        if value == wanted and here.get(name) != there.get(name):
            wanted = "another one"
        yield from _differs(name, value, wanted, "recipe.lock", where)


def _differs(path: str, value: Any, wanted: Any, file: str, where: str) -> Iterator[Finding]:
    if isinstance(value, float) and isinstance(wanted, (int, float)):
        same = abs(value - wanted) <= 1e-9 * max(abs(value), abs(wanted))
    else:
        same = bool(value == wanted)
    if not same:
        reason = f"{path} is {_said(value)} here and {_said(wanted)} in {file}"
        fix = "where it is meant, say it in recipe.yaml, then `recipegen update`, which keeps edits of files"
        yield finding("RG781", Severity.WARNING, reason, fix=fix, where=where, field=path)


def _said(value: Any) -> str:
    return "not set" if value is None else shown(getattr(value, "value", value))
