"""Findings about a recipe's files: keys, agreement between files, and the trainers' own validators."""

from __future__ import annotations

from collections.abc import Mapping

from recipegen.catalog.stack import load_stack
from recipegen.check.consistency import Project, check_consistency
from recipegen.check.document import problems
from recipegen.check.keys import accelerate_keys, axolotl_keys, deepspeed_keys
from recipegen.check.registry import CheckRule, check_rules
from recipegen.check.report import ValidationReport, missing
from recipegen.check.trainer_process import TrainerProcess
from recipegen.check.validators import validate_accelerate, validate_axolotl, validate_deepspeed
from recipegen.formats import documents
from recipegen.formats.documents import Document
from recipegen.spec import Cluster, Finding, ModelSpec, Recipe, Severity

AXOLOTL, ACCELERATE, DEEPSPEED, TRAIN = "axolotl.yaml", "accelerate.yaml", "deepspeed.json", "train.json"

__all__ = [
    "CheckRule",
    "TrainerProcess",
    "ValidationReport",
    "check_rules",
    "validate_accelerate",
    "validate_axolotl",
    "validate_deepspeed",
    "validate_project",
]


def validate_project(
    files: Mapping[str, bytes],
    recipe: Recipe | None,
    cluster: Cluster,
    *,
    stack_name: str | None = None,
    model: ModelSpec | None = None,
    process: TrainerProcess | None = None,
    full: bool = False,
    trainers: bool = True,
) -> tuple[tuple[Finding, ...], tuple[str, ...]]:
    """Check the files of a project (names relative to its folder) and say which validations ran and which did not.

    The key check and the cross-file check always run. With `trainers`, Axolotl's models run in process, and
    Accelerate's and DeepSpeed's code in a child process, each where the stack's version is installed; `full` runs
    Axolotl's whole `validate_config` in the child as well. `process` is a child to use again; without one it is started
    when needed.
    """
    stack = load_stack(stack_name or (recipe.stack if recipe else "axolotl-0.19.0"))
    read = {name: _read(files, name) for name in (AXOLOTL, ACCELERATE, DEEPSPEED, TRAIN)}
    findings: list[Finding] = [problem for document in read.values() for problem in problems(document)]
    ran: list[str] = []
    for name, check in ((AXOLOTL, axolotl_keys), (ACCELERATE, accelerate_keys), (DEEPSPEED, deepspeed_keys)):
        if read[name].values is not None:
            findings += check(read[name], stack)
            ran.append(f"{name}: keys, types and values against the key schema of {stack.name}")
    findings += check_consistency(
        Project(
            frozenset(files),
            read[AXOLOTL],
            read[ACCELERATE],
            read[DEEPSPEED],
            read[TRAIN],
            recipe,
            cluster,
        )
    )
    ran.append("agreement between the files: batch, processes, mesh, precision, engines")
    if not trainers:
        ran.append("not run: the trainers' own validators (not asked for)")
        return _sorted(findings), tuple(ran)
    own = None if process else TrainerProcess()
    try:
        child = process or own
        assert child is not None
        reports = []
        if read[AXOLOTL].values is not None:
            reports.append(validate_axolotl(files[AXOLOTL], cluster, stack, files=files))
            if full and not missing(stack, "axolotl"):
                reports.append(validate_axolotl(files[AXOLOTL], cluster, stack, files=files, process=child))
        if read[ACCELERATE].values is not None:
            reports.append(validate_accelerate(files[ACCELERATE], stack, child, files=files))
        if read[DEEPSPEED].values is not None:
            reports.append(_deepspeed(files, recipe, cluster, stack_name=stack.name, model=model, child=child))
    finally:
        if own is not None:
            own.close()
    for report in reports:
        findings += report.findings
        ran.append(report.note if report.ran else f"not run: {report.validator}: {report.note}")
    return _sorted(findings), tuple(ran)


def _deepspeed(
    files: Mapping[str, bytes],
    recipe: Recipe | None,
    cluster: Cluster,
    *,
    stack_name: str,
    model: ModelSpec | None,
    child: TrainerProcess,
) -> ValidationReport:
    return validate_deepspeed(
        files[DEEPSPEED],
        load_stack(stack_name),
        child,
        world_size=recipe.parallelism.world_size if recipe else cluster.world_size,
        micro_batch_size=recipe.micro_batch_size if recipe else 1,
        gradient_accumulation=recipe.gradient_accumulation if recipe else 1,
        hidden_size=model.hidden_size if model else 4096,
        learning_rate=recipe.schedule.learning_rate if recipe else 1e-5,
    )


def _read(files: Mapping[str, bytes], name: str) -> Document:
    if name not in files:
        return Document(name, None)
    return documents.read(files[name], name)


def _sorted(findings: list[Finding]) -> tuple[Finding, ...]:
    """Errors first, then by place; each finding once."""
    order = {Severity.ERROR: 0, Severity.WARNING: 1, Severity.NOTE: 2}

    def place(found: Finding) -> tuple[int, str, int]:
        name, _, line = found.where.rpartition(":")
        return order[found.severity], name or found.where, int(line) if line.isdigit() else 0

    once = {(found.rule, found.where, found.reason): found for found in reversed(findings)}  # two routes, one finding
    return tuple(sorted(once.values(), key=place))
