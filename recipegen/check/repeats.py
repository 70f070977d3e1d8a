"""One cause, one finding: what several checks say of the same thing is said once, by the one that helps most.

The trainers' own warnings (RG714) are there only where the trainers are installed; what a rule of recipegen's says as
well is left to that rule, so that an answer, and `--strict`, do not depend on what is installed beside it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from recipegen.spec import Finding, Severity

# Words of a trainer's warning -> the rule of recipegen that says so, and where that is RG715 the key begins so.
_WARNINGS: Mapping[str, tuple[str, str]] = {
    "LoRA kernel optimizations": ("RG742", ""),
    "FSDP1 is deprecated": ("RG747", ""),
    "with the `fsdp_` prefix is deprecated": ("RG715", "fsdp_config.fsdp_"),
    "is deprecated for gradient_checkpointing": ("RG715", "gradient_checkpointing"),
    "`offload` now uses a new stream implementation": ("RG715", "gradient_checkpointing"),
}
_DEPRECATED = "is deprecated"


def once(findings: Iterable[Finding]) -> list[Finding]:
    """The findings without those that repeat another; order is kept."""
    said = list({(f.rule, f.where, f.reason): f for f in findings}.values())
    old = {(f.where, f.field): f for f in said if f.rule == "RG715"}
    refused = {(f.where, f.field) for f in said if f.rule == "RG702"}
    merged = [_with_spelling(f, old) for f in said if not (f.rule == "RG715" and (f.where, f.field) in refused)]
    places: dict[str, list[Finding]] = {}
    for found in merged:
        places.setdefault(found.where, []).append(found)
    return [f for f in merged if not _repeats(f, places[f.where], merged)]


def _with_spelling(found: Finding, old: Mapping[tuple[str, str], Finding]) -> Finding:
    """A value that the trainer refuses and that was a spelling once: the error says what to write today."""
    spelling = old.get((found.where, found.field))
    return replace(found, fix=spelling.fix) if found.rule == "RG702" and spelling and not found.fix else found


def _repeats(found: Finding, here: Sequence[Finding], among: Sequence[Finding]) -> bool:
    if found.rule == "RG708":  # not understood, beside an error that says why
        return any(f.severity is Severity.ERROR and f.rule != "RG708" for f in here)
    if found.rule in ("RG701", "RG711") and any(f.rule == "RG716" and f.field in found.reason for f in here):
        return True
    if found.rule == "RG711":  # the schema's words are shorter, and a union refuses once for each of its types
        top = found.field.partition(".")[0]
        return bool(top) and any(f.rule == "RG702" and f.field in (top, found.field) for f in here)
    if found.rule == "RG722":  # fewer GPUs are visible than the machine has
        return any(f.rule == "RG301" and f.field == found.field for f in here)
    return found.rule == "RG714" and _says_a_rule(found, among)


def _says_a_rule(warning: Finding, among: Sequence[Finding]) -> bool:
    for words, (rule, key) in _WARNINGS.items():
        if words in warning.reason:
            return any(f.rule == rule and f.field.startswith(key) for f in among if _one_file(f, warning))
    if _DEPRECATED not in warning.reason:
        return False
    spellings = [f for f in among if f.rule == "RG715" and _one_file(f, warning)]
    return any(warning.reason.startswith((f"`{f.field}`", f"`{f.field}:")) for f in spellings)


def _one_file(one: Finding, other: Finding) -> bool:
    def name(found: Finding) -> str:
        file, _, line = found.where.rpartition(":")
        return file if line.isdigit() else found.where

    return name(one) == name(other)
