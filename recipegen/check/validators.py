"""The trainers' own validation, of whatever is installed in the versions the stack pins.

Axolotl has two routes with equal verdicts: *stubbed* (its real pydantic models beside stubs, half a second, in this
process) and *full* (`validate_config` with plugins prepared, in a child process, some ten seconds for the first file).
Accelerate and DeepSpeed always run in the child. Nothing here looks at a local GPU, at the environment of a launcher,
or at any file but the ones handed in.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from recipegen.catalog.stack import Stack
from recipegen.check.axolotl_lite import Verdict, capabilities, lite_axolotl
from recipegen.check.document import problems
from recipegen.check.keys import known_plugin
from recipegen.check.registry import finding
from recipegen.check.report import ValidationReport, missing
from recipegen.check.schema import MOST
from recipegen.check.trainer_process import TrainerProcess
from recipegen.formats.documents import Document, read_json, read_yaml
from recipegen.spec import Cluster, Finding, RecipegenError, Severity

_QUOTED = re.compile(r"`(\w{1,80})`")
_WORDS = re.compile(r"\w{1,80}")
_TEXT_FILES = (".yaml", ".yml", ".json")


def validate_axolotl(
    content: bytes,
    cluster: Cluster,
    stack: Stack,
    *,
    name: str = "axolotl.yaml",
    files: Mapping[str, bytes] | None = None,
    process: TrainerProcess | None = None,
) -> ValidationReport:
    """Axolotl's pydantic models and cross-field validators, for the target cluster.

    Without `process` the stubbed route; with one the full route. `files` are the project's other files by name.
    """
    document = read_yaml(content, name)
    if document.values is None:
        return ValidationReport("axolotl", False, f"{name} cannot be read", problems(document))
    if problem := missing(stack, "axolotl"):
        return ValidationReport("axolotl", False, problem)
    if process is None:
        verdict = lite_axolotl(stack).validate(document.values, capabilities(cluster), files)
        route = "its pydantic models, in process"
    else:
        verdict = _full_axolotl(process, document.values, cluster, stack, files or {})
        route = "validate_config with plugins, in a child process"
    note = f"axolotl {stack.pins['axolotl']}: {route}, target {cluster.gpu.compute_capability} x {cluster.world_size}"
    return _report("axolotl", "RG711", note, verdict, document)


def _full_axolotl(
    process: TrainerProcess, values: Mapping[str, Any], cluster: Cluster, stack: Stack, files: Mapping[str, bytes]
) -> Verdict:
    keys, listed = stack.axolotl_keys(), values.get("plugins")
    plugins = [p for p in listed if isinstance(p, str) and known_plugin(p, keys)] if isinstance(listed, list) else []
    return _asked(
        process,
        "axolotl",
        values=dict(values),
        plugins=plugins,
        capabilities=capabilities(cluster),
        torch=stack.pins["torch"],
        files=_texts(files),
    )


def validate_accelerate(
    content: bytes,
    stack: Stack,
    process: TrainerProcess,
    *,
    name: str = "accelerate.yaml",
    files: Mapping[str, bytes] | None = None,
) -> ValidationReport:
    """Accelerate's config loader, launch checks, the environment its workers get, and the plugins built from it."""
    document = read_yaml(content, name)
    if document.values is None:
        return ValidationReport("accelerate", False, f"{name} cannot be read", problems(document))
    if problem := missing(stack, "accelerate"):
        return ValidationReport("accelerate", False, problem)
    deepspeed = document.values.get("distributed_type") == "DEEPSPEED"
    if deepspeed and (problem := missing(stack, "deepspeed")):
        return ValidationReport("accelerate", False, f"its DeepSpeed plugin needs DeepSpeed: {problem}")
    files = dict(files or {})
    section = document.values.get("deepspeed_config")
    named = section.get("deepspeed_config_file") if isinstance(section, dict) else None
    if named is not None and str(named).removeprefix("./") not in _texts(files):
        where = document.where(("deepspeed_config", "deepspeed_config_file"))
        lost = finding("RG726", Severity.ERROR, f"{named} is not a file of this project", where=where)
        return ValidationReport("accelerate", False, "the DeepSpeed JSON is not there", (lost,))
    verdict = _asked(process, "accelerate", name=name, files=_texts({**files, name: content}))
    note = f"accelerate {stack.pins['accelerate']}: config loader, launch checks and plugins, in a child process"
    return _report("accelerate", "RG712", note, verdict, document)


def validate_deepspeed(
    content: bytes,
    stack: Stack,
    process: TrainerProcess,
    *,
    world_size: int,
    micro_batch_size: int,
    gradient_accumulation: int,
    hidden_size: int,
    learning_rate: float = 1e-5,
    name: str = "deepspeed.json",
) -> ValidationReport:
    """DeepSpeed's own configuration class, once `auto` is filled in as Transformers does."""
    document = read_json(content, name)
    if document.values is None:
        return ValidationReport("deepspeed", False, f"{name} cannot be read", problems(document))
    if problem := missing(stack, "deepspeed"):
        return ValidationReport("deepspeed", False, problem)
    fill = {
        "train_micro_batch_size_per_gpu": micro_batch_size,
        "gradient_accumulation_steps": gradient_accumulation,
        "train_batch_size": micro_batch_size * gradient_accumulation * world_size,
        "gradient_clipping": 1.0,
        "bf16.enabled": True,
        "fp16.enabled": False,
        "optimizer.params.lr": learning_rate,
        "optimizer.params.betas": [0.9, 0.999],
        "optimizer.params.eps": 1e-8,
        "optimizer.params.weight_decay": 0.0,
        "scheduler.params.warmup_min_lr": 0.0,
        "scheduler.params.warmup_max_lr": learning_rate,
        "scheduler.params.warmup_num_steps": 1,
        "scheduler.params.total_num_steps": 2,
        # transformers/integrations/deepspeed.py trainer_config_finalize
        "zero_optimization.reduce_bucket_size": hidden_size * hidden_size,
        "zero_optimization.stage3_prefetch_bucket_size": int(0.9 * hidden_size * hidden_size),
        "zero_optimization.stage3_param_persistence_threshold": 10 * hidden_size,
    }
    values = _filled(document.values, fill, ())
    verdict = _asked(process, "deepspeed", values=values, world_size=world_size)
    note = f"deepspeed {stack.pins['deepspeed']}: DeepSpeedConfig for {world_size} processes, in a child process"
    return _report("deepspeed", "RG713", note, verdict, document)


def _filled(value: Any, fill: Mapping[str, Any], path: tuple[str, ...]) -> Any:
    if isinstance(value, Mapping):
        return {key: _filled(item, fill, (*path, str(key))) for key, item in value.items()}
    return fill.get(".".join(path), value) if value == "auto" else value


def _asked(process: TrainerProcess, kind: str, **request: Any) -> Verdict:
    try:
        answer = process.ask(kind, **request)
    except RecipegenError as error:
        return Verdict((("", str(error)),))
    errors = tuple((str(place), str(said)) for place, said in answer["errors"])
    return Verdict(errors, tuple(map(str, answer["warnings"])), answer.get("resolved", {}))


def _report(validator: str, rule: str, note: str, verdict: Verdict, document: Document) -> ValidationReport:
    findings: list[Finding] = []
    for place, said in verdict.errors[:MOST]:
        path = tuple(place.split(".")) if place else _named(said, document)
        reason = f"{place}: {said}" if place else said
        findings.append(finding(rule, Severity.ERROR, reason, where=document.where(path), field=place, source=note))
    for said in dict.fromkeys(verdict.warnings):
        findings.append(finding("RG714", Severity.WARNING, said, where=document.name, source=note))
    return ValidationReport(validator, True, note, tuple(findings), verdict.resolved)


def _named(said: str, document: Document) -> tuple[str, ...]:
    """The first key of the file that a message on the whole names: in backticks, else as a word that is no plain one,
    else by its value."""
    keys = document.values if isinstance(document.values, Mapping) else {}
    words = [*_QUOTED.findall(said), *(word for word in _WORDS.findall(said) if "_" in word)]
    values = {value: key for key, value in keys.items() if isinstance(value, str) and value in words}
    named = next((word for word in words if word in keys), None)
    named = named or next((str(values[word]) for word in words if word in values), None)
    return (named,) if named else ()


def _texts(files: Mapping[str, bytes]) -> dict[str, str]:
    """The YAML and JSON files of a project by their bare names; a name with a folder in it is left out."""
    return {
        name: content.decode("utf-8", "replace")
        for name, content in files.items()
        if name.endswith(_TEXT_FILES) and "/" not in name and "\\" not in name and not name.startswith(".")
    }
