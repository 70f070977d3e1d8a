"""DECISION.md: the verdict, the memory budget per GPU, what else was weighed, and what cannot be known from here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from recipegen.formats.launcher import hub_model
from recipegen.formats.rendering import render
from recipegen.spec import Decision, Finding, Recipe, Verdict
from recipegen.spec.units import gb, gib, seconds

_VERDICTS = {
    Verdict.FITS: "fits",
    Verdict.TIGHT: "tight: inside the error band of the estimate",
    Verdict.DOES_NOT_FIT: "does not fit",
    Verdict.UNKNOWN: "unknown",
}
# One of the two is None, and then says nothing.
_WARMUP = ("schedule.warmup_steps", "schedule.warmup_ratio")
# Holds for every recipe: no GPU was touched.
_UNVERIFIED = (
    "The step time is an estimate: no GPU was measured. Compare the first logged steps with it.",
    "Peak reserved memory depends on fragmentation and on what else uses the GPU (a desktop, another job).",
    "Driver, IOMMU, ACS and cabling of this machine were not seen; they decide the bandwidth between GPUs.",
)


@dataclass(frozen=True)
class Row:
    """One line of a table; every cell is text."""

    cells: tuple[str, ...]


def write(decision: Decision) -> str:
    """The text of DECISION.md."""
    return render(
        "DECISION.md.j2",
        decision=decision,
        recipe=decision.recipe,
        verdict=_VERDICTS[decision.verdict],
        summary=summary(decision.recipe),
        notes=[warning for warning in decision.warnings if not any(_repeats(warning, f) for f in decision.findings)],
        data=_data(decision),
        budget=_budget(decision),
        phases=_phases(decision),
        host=_host(decision),
        disk=_disk(decision),
        traffic=_traffic(decision),
        time=_time(decision),
        reasons=[Row((path, reason)) for path, reason in decision.reasons.items() if _used(decision.recipe, path)],
        alternatives=[
            Row((summary(other.recipe), other.verdict.value.replace("_", " "), other.reason))
            for other in decision.alternatives
        ],
        unverified=_unverified(decision),
    )


def summary(recipe: Recipe) -> str:
    """`LoRA r=16, FSDP2 full shard, micro-batch 2 x accumulation 4, adamw_torch_fused, pure bf16`."""
    names = {"full": "full fine-tune", "lora": "LoRA", "qlora": "QLoRA"}
    method = names[recipe.method.value] + (f" r={recipe.adapter.r}" if recipe.adapter else "")
    return (
        f"{method}, {recipe.parallelism.strategy.label}, micro-batch {recipe.micro_batch_size} x accumulation "
        f"{recipe.gradient_accumulation}, sequence {recipe.sequence_len}, {recipe.optimizer.name}, "
        f"{recipe.precision.label.value}"
    )


def _repeats(warning: str, finding: Finding) -> bool:
    """True when a warning is a finding in words: `RG501 reason (fix)`."""
    return warning.startswith(f"{finding.rule} ") and finding.reason in warning


def _used(recipe: Recipe, path: str) -> bool:
    """True when the recipe has the field: no `adapter.r` without an adapter, one of the two warm-ups."""
    value: Any = recipe
    for name in path.split("."):
        if not hasattr(value, name):
            return False
        value = getattr(value, name)
    if path == "activation_checkpointing_reentrant":
        return recipe.activation_checkpointing
    return not (value is None and path in _WARMUP)


def _words(name: str) -> str:
    """`optimizer_states` as a person says it."""
    return name.replace("_", " ")


def _data(decision: Decision) -> list[Row]:
    """Rows, lengths, and what is lost to the sequence length: file, rows, basis, median/99%/longest, lost."""
    rows = []
    for spec in decision.recipe.datasets:
        count = "not known" if spec.rows is None else f"{spec.rows:,} ({spec.format.value})"
        if spec.lengths is None:
            rows.append(Row((spec.path, count, "not measured", "", "")))
            continue
        lengths, limit = spec.lengths, decision.recipe.sequence_len
        lost = lengths.rows_longer_than(limit)
        what = {"drop": "dropped", "truncate": "cut"}.get(decision.recipe.excess_length_strategy, "affected")
        loss = f"{lost:,} of {lengths.rows_measured:,} rows, {lengths.tokens_beyond(limit):,} tokens {what}"
        spread = f"{lengths.p50:,} / {lengths.p99:,} / {lengths.longest:,}"
        rows.append(Row((spec.path, count, lengths.basis, spread, loss if lost else "none")))
    return rows


def _budget(decision: Decision) -> list[Row]:
    """The terms of the peak phase, the largest first, then the totals."""
    gpu = decision.estimate.gpu
    rows = [
        Row((_words(term.name), gib(term.bytes), term.basis))
        for term in sorted(gpu.terms, key=lambda term: -term.bytes)
        if term.bytes
    ]
    rows.append(Row(("peak allocated", gib(gpu.peak_allocated_bytes), f"in the phase {_words(gpu.phase)}")))
    band = f"planning value; {gib(gpu.reserved_low_bytes)} to {gib(gpu.reserved_high_bytes)}"
    rows.append(Row(("peak reserved", gib(gpu.peak_reserved_bytes), band)))
    outside = "CUDA context and NCCL, beside PyTorch's allocator"
    rows.append(Row(("outside", gib(gpu.outside_bytes), outside)))
    rows.append(Row(("capacity", gib(gpu.capacity_bytes), f"{decision.cluster.gpu.name}, as PyTorch sees it")))
    return rows


def _phases(decision: Decision) -> list[Row]:
    return [Row((_words(phase.name), gib(phase.bytes))) for phase in decision.estimate.gpu.phases]


def _host(decision: Decision) -> list[Row]:
    host = decision.estimate.host
    return [
        Row(("while loading", gb(host.load_peak_bytes))),
        Row(("while training", gb(host.steady_bytes))),
        Row(("while saving, on the first node", gb(host.save_peak_bytes))),
        Row(("pages of the model's files beside that, dropped when memory is short", gb(host.page_cache_bytes))),
        Row(("capacity", gb(host.capacity_bytes))),
    ]


def _disk(decision: Decision) -> list[Row]:
    disk = decision.estimate.disk
    checkpoints = disk.checkpoint_bytes * disk.checkpoints_kept
    rows = [
        Row(("model download" if hub_model(decision.recipe) else "model, read in place", gb(disk.download_bytes))),
        Row(("tokenized data", gb(disk.prepared_bytes))),
        Row((f"{disk.checkpoints_kept} checkpoints of {gb(disk.checkpoint_bytes)}", gb(checkpoints))),
    ]
    if disk.result_bytes:
        what = "adapter and merged model" if decision.recipe.method.is_adapter else "trained model"
        rows.append(Row((what, gb(disk.result_bytes))))
    if disk.swap_bytes:
        rows.append(Row(("NVMe offload", gb(disk.swap_bytes))))
    rows.append(Row(("together", gb(disk.total_bytes))))
    rows.append(Row(("free, as the profile says", gb(disk.capacity_bytes))))
    return rows


def _traffic(decision: Decision) -> list[Row]:
    return [
        Row(
            (
                f"{_words(item.operation)} of {item.what}",
                item.group,
                f"{item.count_per_step}",
                gb(item.bytes_per_step),
                seconds(item.seconds),
            )
        )
        for item in decision.estimate.traffic.collectives
    ]


def _time(decision: Decision) -> list[Row]:
    time, recipe = decision.estimate.time, decision.recipe
    rows = [
        Row(("one sequence", _sequence(recipe))),
        Row(("one optimizer step", seconds(time.step_s))),
        Row(("bound by", time.bound_by)),
        Row(("throughput, all GPUs", f"{time.tokens_per_s:,.0f} tokens/s")),
    ]
    if time.steps_per_epoch is not None:
        rows.append(Row(("steps per epoch", f"{time.steps_per_epoch:,}")))
    if time.epoch_s is not None:
        rows.append(Row(("one epoch", seconds(time.epoch_s))))
    if time.total_s is not None:
        steps = f"{recipe.max_steps:,} steps" if recipe.max_steps is not None else _count(recipe.epochs, "epoch")
        rows.append(Row((f"the whole run, {steps}", seconds(time.total_s))))
    return rows


def _sequence(recipe: Recipe) -> str:
    """Tokens of one sequence; rows that are neither packed nor padded are shorter."""
    if recipe.packing or recipe.pad_to_sequence_len:
        return f"{recipe.sequence_len:,} tokens"
    known = [(spec.rows, spec.lengths.mean) for spec in recipe.datasets if spec.rows and spec.lengths is not None]
    if not known or len(known) < len(recipe.datasets):
        return f"up to {recipe.sequence_len:,} tokens"
    mean = sum(rows * mean for rows, mean in known) / sum(rows for rows, _ in known)
    return f"up to {recipe.sequence_len:,} tokens, {mean:,.0f} on average"


def _count(number: float, noun: str) -> str:
    """`1 epoch`, `2.5 epochs`."""
    return f"{number:g} {noun}" + ("" if number == 1 else "s")


def _unverified(decision: Decision) -> list[str]:
    lines = list(_UNVERIFIED)
    if decision.model.unconfirmed:
        lines.append("The model's parameter count has no second source.")
    if any(spec.rows is None for spec in decision.recipe.datasets):
        lines.append("The data set was not read, so its rows, lengths and the number of steps are not known.")
    elif any(spec.lengths is None or spec.lengths.basis != "tokenizer" for spec in decision.recipe.datasets):
        lines.append("Row lengths were estimated without the model's tokenizer.")
    if decision.cluster.nodes > 1:
        lines.append("The network's bandwidth is the profile's, not this network's.")
    return lines
