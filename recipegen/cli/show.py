"""Printing a Decision: text for people, JSON for programs. Prints, decides nothing."""

from __future__ import annotations

import json
import sys
import textwrap
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import click

from recipegen import __version__
from recipegen.catalog.bounded_yaml import shown_path
from recipegen.formats.plain import to_plain as plain
from recipegen.formats.secrets import hidden
from recipegen.spec import Alternative, Decision, Estimate, ModelSpec, Recipe, Severity, Term, Verdict
from recipegen.spec.units import GIB, gb, gib, seconds

FORMAT_VERSION = 1
COLOUR = {Verdict.FITS: "green", Verdict.TIGHT: "yellow", Verdict.DOES_NOT_FIT: "red", Verdict.UNKNOWN: "magenta"}
_WIDTH = 100
_BAR = 28


def exit_code(decision: Decision) -> int:
    """0 fits or tight, 1 does not fit, 2 could not answer."""
    return {Verdict.FITS: 0, Verdict.TIGHT: 0, Verdict.DOES_NOT_FIT: 1}.get(decision.verdict, 2)


def decision(
    decision: Decision,
    output: str,
    command: str,
    *,
    verbose: bool = False,
    folder: Path | None = None,
    written: list[str] | None = None,
    validation: list[str] | None = None,
    between: Iterable[str] = (),
) -> None:
    """Print it, with the lines `between` before what was written.

    One line on stderr when the exit code is not 0, warnings on stderr for JSON.
    """
    if output == "json":
        document = as_json(decision, command)
        if command == "new":
            document["folder"] = str(folder) if written else None
            document["files"] = list(written or [])
            document["backups"] = dict(getattr(written, "backups", {}))
            document["validation"] = validation or []
        click.echo(json.dumps(document, indent=2))
    else:
        for line in _text(decision, verbose):
            click.echo(line)
        for line in between:
            click.echo(line)
        for line in _written(decision, folder, written, validation):
            click.echo(line)
    complain(decision)


def complain(decision: Decision) -> None:
    """The one line on stderr that every non-zero exit has."""
    if exit_code(decision) == 1:
        reason = next((f.reason for f in decision.findings if f.severity is Severity.ERROR), "nothing fits")
        click.echo(click.style("does not fit: ", fg="red", bold=True) + reason, err=True)


def as_json(decision: Decision, command: str) -> dict[str, Any]:
    """The document of docs/schemas/plan.json."""
    return {
        "format_version": FORMAT_VERSION,
        "tool_version": __version__,
        "command": command,
        "verdict": decision.verdict.value,
        "recommended": decision.recommended,
        "recipe": recipe_json(decision.recipe),
        "estimate": estimate_json(decision.estimate),
        "reasons": dict(decision.reasons),
        "findings": [plain(f) for f in decision.findings],
        "alternatives": [_alternative_json(a) for a in decision.alternatives],
        "ways_out": [
            {"change": w.change, "without": list(w.without), "effect": w.effect, **_alternative_json(w.alternative)}
            for w in decision.ways_out
        ],
        "warnings": list(decision.warnings),
    }


def recipe_json(recipe: Recipe) -> dict[str, Any]:
    """A recipe with what follows from it: the global batch size and the label of its precision."""
    document: dict[str, Any] = hidden(plain(recipe, for_print=True))
    document["global_batch_size"] = recipe.global_batch_size
    document["precision"]["label"] = recipe.precision.label.value
    return document


def _alternative_json(a: Alternative) -> dict[str, Any]:
    return {
        "recipe": recipe_json(a.recipe),
        "verdict": a.verdict.value,
        "reason": a.reason,
        "peak_reserved_bytes": a.estimate.gpu.peak_reserved_bytes,
        "step_s": a.estimate.time.step_s,
    }


def estimate_json(e: Estimate) -> dict[str, Any]:
    """An estimate; units are in the names."""
    return {
        "gpu": {
            "peak_allocated_bytes": e.gpu.peak_allocated_bytes,
            "peak_reserved_bytes": e.gpu.peak_reserved_bytes,
            "reserved_low_bytes": e.gpu.reserved_low_bytes,
            "reserved_high_bytes": e.gpu.reserved_high_bytes,
            "outside_bytes": e.gpu.outside_bytes,
            "needed_bytes": e.gpu.needed_bytes,
            "needed_low_bytes": e.gpu.needed_low_bytes,
            "needed_high_bytes": e.gpu.needed_high_bytes,
            "capacity_bytes": e.gpu.capacity_bytes,
            "phase": e.gpu.phase,
            "terms": [plain(t) for t in e.gpu.terms],
            "phases": [{"name": p.name, "bytes": p.bytes} for p in e.gpu.phases],
        },
        "host": {**plain(e.host), "peak_bytes": e.host.peak_bytes},
        "disk": {**plain(e.disk), "total_bytes": e.disk.total_bytes},
        "traffic": plain(e.traffic),
        "time": {**plain(e.time), "parts_s": dict(e.time.parts_s)},
        "total_parameters": e.total_parameters,
        "trainable_parameters": e.trainable_parameters,
    }


def _text(d: Decision, verbose: bool) -> Iterator[str]:
    r, e = d.recipe, d.estimate
    label = d.verdict.value.replace("_", " ").upper()
    if not d.recommended and d.verdict in (Verdict.FITS, Verdict.TIGHT):
        label += ", NOT RECOMMENDED"
    yield click.style(label, fg=COLOUR[d.verdict], bold=True) + f"  {what(r, e, d.model)}"
    yield f"      {d.cluster.summary()}"
    if d.verdict is Verdict.DOES_NOT_FIT:
        for f in d.findings:
            if f.severity is Severity.ERROR:
                fix = f" ({f.fix})" if f.fix.startswith("--") else ""
                yield from wrap(f"{f.rule} {f.reason}{fix}", "      ")
    yield ""
    yield from costs(r, e, d.model, verbose=verbose)
    if verbose:
        yield ""
        yield click.style("Reasons", bold=True)
        for path, reason in d.reasons.items():
            yield from wrap(f"{path}: {reason}", "  ")
    if d.ways_out:
        yield ""
        yield click.style("Ways out, cheapest first" if d.verdict is Verdict.DOES_NOT_FIT else "Instead", bold=True)
        for way in d.ways_out:
            yield from wrap(f"{way.said}: {way.effect}", "  ")
    elif d.verdict is Verdict.DOES_NOT_FIT:
        yield ""
        yield "No way out was found among the other methods, shorter sequences and the larger boxes of the catalogue."
    if d.alternatives:
        yield ""
        yield click.style("Alternatives, and why not", bold=True)
        shown = d.alternatives if verbose else d.alternatives[:6]
        for a in shown:
            yield from wrap(f"{_short(a.recipe)}: {a.reason}", "  ")
        if len(shown) < len(d.alternatives):
            yield f"  ... and {len(d.alternatives) - len(shown)} more (-v)"
    if d.warnings:
        yield ""
        yield click.style("Warnings", fg="yellow", bold=True)
        for text in d.warnings:
            yield from wrap(text, "  ")


def costs(r: Recipe, e: Estimate, model: ModelSpec, *, verbose: bool = False) -> Iterator[str]:
    """The estimate for people: memory by term, batch and time, host and disk, data."""
    yield click.style(f"GPU memory at the peak, per GPU ({e.gpu.phase.replace('_', ' ')})", bold=True)
    yield from _bars(e.gpu.terms, e.gpu.capacity_bytes)
    yield (
        f"  allocated {gib(e.gpu.peak_allocated_bytes)}; with allocator, context and NCCL "
        f"{gib(e.gpu.needed_low_bytes)} to {gib(e.gpu.needed_high_bytes)} of {gib(e.gpu.capacity_bytes)}"
    )
    if verbose:
        for phase in e.gpu.phases:
            yield f"  phase {phase.name:24} {gib(phase.bytes):>12}"
            for term in phase.terms:
                yield f"    {term.name:32} {gib(term.bytes):>12}  {term.basis}"
    yield ""
    yield click.style("Batch and time", bold=True)
    yield (
        f"  {r.micro_batch_size} x {r.gradient_accumulation} x {r.parallelism.data_parallel_ranks} ranks = "
        f"{r.global_batch_size} sequences of {_tokens(r)} per step"
    )
    t = e.time
    yield (f"  {seconds(t.step_s)} per step, {t.tokens_per_s:,.0f} tokens/s, MFU {t.mfu:.0%}; bound by {t.bound_by}")
    if e.time.epoch_s is not None:
        yield (
            f"  {t.steps_per_epoch} step{'s'[: (t.steps_per_epoch or 0) - 1]} and {seconds(t.epoch_s or 0)} per epoch, "
            f"{f'{r.max_steps} steps' if r.max_steps else f'{r.epochs:g} epochs'}: {seconds(t.total_s or 0)}"
        )
    else:
        yield "  time per epoch: not known without the data"
    yield ""
    yield click.style("Host and disk, per node", bold=True)
    yield (
        f"  host RAM {gb(e.host.load_peak_bytes)} while loading, {gb(e.host.steady_bytes)} while training, "
        f"{gb(e.host.save_peak_bytes)} while saving, of {gb(e.host.capacity_bytes)}"
    )
    yield (
        f"  download {gb(e.disk.download_bytes)}{_licence(model)}; {e.disk.checkpoints_kept} checkpoints of "
        f"{gb(e.disk.checkpoint_bytes)}; {gb(e.disk.total_bytes)} in all of {gb(e.disk.capacity_bytes)}"
    )
    yield from _data(r)


def _tokens(r: Recipe) -> str:
    """`2048 tokens`, or how long they really are when rows are neither packed nor padded to it."""
    lengths = [d.lengths for d in r.datasets]
    if r.packing or r.pad_to_sequence_len or not lengths or lengths[0] is None:
        return f"{r.sequence_len} tokens"
    return f"up to {r.sequence_len} tokens ({lengths[0].mean:.0f} on average)"


def what(r: Recipe, e: Estimate, model: ModelSpec) -> str:
    """One line: model, method, strategy, optimizer, precision."""
    trainable = f", {e.trainable_parameters / 1e6:,.0f}M trainable" if r.method.is_adapter else ""
    return (
        f"{shown_path(model.id)} ({e.total_parameters / 1e9:.2f}B{trainable}), {r.method.value}, "
        f"{r.parallelism.strategy.label}, {r.optimizer.name}, {r.precision.label.value}"
    )


def _short(r: Recipe) -> str:
    return f"{r.method.value}, {r.parallelism.strategy.label}, {r.optimizer.name}"


def _bars(terms: tuple[Term, ...], capacity_bytes: int) -> Iterator[str]:
    full, empty = _bar_characters()
    whole = max(capacity_bytes, sum(t.bytes for t in terms), 1)
    for term in sorted(terms, key=lambda t: -t.bytes):
        if term.bytes < GIB / 200:
            continue
        filled = min(_BAR, max(1, round(_BAR * term.bytes / whole)))
        yield f"  {term.name.replace('_', ' '):30} {full * filled}{empty * (_BAR - filled)} {term.bytes / GIB:8.2f} GiB"


def _bar_characters() -> tuple[str, str]:
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    try:
        "█·".encode(encoding)
    except (UnicodeEncodeError, LookupError):
        return "#", "."
    return "█", "·"


def _licence(model: ModelSpec) -> str:
    gated = ", gated: accept the licence on the Hub first" if model.gated else ""
    return f" (licence {model.license}{gated})"


def _data(r: Recipe) -> Iterator[str]:
    for data in r.datasets:
        name = shown_path(data.path)
        if data.lengths is None or data.rows is None:
            yield f"  data {name}: {data.format.value}, not measured from here"
            continue
        n = data.lengths
        how = "counted" if n.basis == "tokenizer" else "estimated"
        yield (
            f"  data {name}: {data.format.value}, {data.rows:,} rows, {n.total_tokens:,} tokens {how}, "
            f"99% up to {n.p99}, longest {n.longest}"
        )


def _written(
    d: Decision, folder: Path | None, written: list[str] | None, validation: list[str] | None
) -> Iterator[str]:
    if not written:
        return
    yield ""
    yield click.style(f"Wrote {folder}/", bold=True) + "  " + ", ".join(written)
    for name, kept in getattr(written, "backups", {}).items():
        yield f"  {name} was edited: your version is kept as {kept}"
    for line in validation or []:
        yield from wrap(line if line.startswith("not run") else f"validated: {line}", "  ")
    if d.verdict is Verdict.DOES_NOT_FIT:
        yield "Next: it does not fit as it is: change recipe.yaml, or leave pins out, then `recipegen new --recipe`"
    else:
        yield f"Next: cd {folder} && ./launch.sh"


def wrap(text: str, indent: str) -> Iterator[str]:
    """A text in lines of the usual width."""
    yield from textwrap.wrap(
        text, _WIDTH, initial_indent=indent, subsequent_indent=indent + "    ", break_long_words=False
    )
