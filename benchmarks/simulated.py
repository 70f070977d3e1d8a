"""The estimate against simulated peaks: `python -m benchmarks.simulated FILE.csv [--format json]`.

Each row: the setup as understood, the peak that the estimate predicts for a step (loading and saving are not
simulated), the simulated peak, the error. Then errors by group: method, strategy, and the mechanisms a row exercises.
Groups follow from the columns; no error is looked at.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from benchmarks.score import Result, Score, document, gib, group_table, percent, score
from benchmarks.setup import NotExpressible
from benchmarks.simulated_rows import DEFAULTS, Point, read_points, row_id, understand_point
from recipegen.estimate.phases import phases
from recipegen.spec import LossKernel, Phase, RecipegenError, Strategy

_NOT_IN_A_STEP = ("load", "save")


def step_peak(point: Point) -> Phase:
    """The estimate's largest phase of a training step."""
    wanted = [p for p in phases(point.symbols) if p.name not in _NOT_IN_A_STEP]
    return max(wanted, key=lambda phase: phase.bytes)


def groups(point: Point) -> tuple[str, ...]:
    """What a row exercises, from its columns alone."""
    r, x = point.recipe, point.symbols
    strategy = r.parallelism.strategy
    found = [f"method {r.method.value}", f"strategy {strategy.value}"]
    accumulates = r.gradient_accumulation > 1
    flags = {
        "split root": point.options.split_root,
        "tied embeddings": point.model.tie_word_embeddings,
        "mixture of experts": point.model.is_moe and not r.method.is_adapter,
        "adapter on a mixture of experts": point.model.is_moe and r.method.is_adapter,
        "uneven experts": bool(point.model.moe and x.fsdp and point.model.moe.num_experts % x.S),
        "accumulation without sync": accumulates and x.fsdp and not r.sync_each_batch,
        "accumulation with sync": accumulates and (not x.fsdp or r.sync_each_batch),
        "hybrid with accumulation": accumulates and strategy is Strategy.FSDP2_HYBRID,
        "no checkpointing": not r.activation_checkpointing,
        "no reshard": x.fsdp and not x.reshard_after_forward,
        "fp32 modules": bool(r.precision.fp32_modules),
        "DoRA": bool(r.adapter and r.adapter.use_dora),
        f"attention {r.attention_memory.value}": True,
        f"loss {r.loss_kernel.value}": True,
        "chunked loss, not compiled": r.loss_kernel is LossKernel.CHUNKED_UPCAST and not point.options.compiled_loss,
    }
    return tuple(found + [name for name, holds in flags.items() if holds])


def result(row: Mapping[str, str], number: int) -> Result:
    """One row, predicted and compared."""
    try:
        point = understand_point(row, number)
    except NotExpressible as reason:
        return Result(row_id(row, number), why_not=str(reason), outcome="ran")
    peak = step_peak(point)
    return Result(
        point.id,
        groups=groups(point),
        setup=point.text,
        predicted_allocated_bytes=peak.bytes,
        measured_bytes=point.peak_bytes,
        metric="allocated",
        outcome="ran",
        phase=peak.name,
    )


def simulated(rows: Iterable[Mapping[str, str]]) -> Score:
    """All rows of a file, scored."""
    return score(result(row, number) for number, row in enumerate(rows, 1))


def _text(s: Score, *, every_row: bool) -> list[str]:
    lines = [f"{'row':44} {'estimate':>9} {'simulated':>9} {'error':>8}  phase"] if every_row else []
    for r in s.results if every_row else ():
        if r.why_not is not None:
            lines.append(f"{r.id:44} not expressible: {r.why_not}")
            continue
        error = "-" if r.error is None else f"{r.error:+.2%}"
        lines.append(
            f"{r.id:44} {gib(r.predicted_allocated_bytes):>9} {gib(r.measured_bytes):>9} {error:>8}  "
            f"{r.phase:20} {r.setup}"
        )
    lines += ["GiB per GPU, allocated", ""] if every_row else []
    lines += [*group_table(s.groups), ""]
    lines.append(f"expressible: {percent(s.expressible_share)} of {len(s.results)} rows")
    lines += [f"  not: {r.why_not}: {r.id}" for r in s.results if r.why_not is not None]
    return lines


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.simulated", description=__doc__.split("\n\n")[0])
    parser.add_argument("file", type=Path, help=f"CSV with peak_bytes and any of: {', '.join(DEFAULTS)}")
    parser.add_argument("--format", choices=["text", "json"], default="text")
    parser.add_argument("--rows", action="store_true", help="every row, not only the groups (text)")
    options = parser.parse_args(argv)
    try:
        scored = simulated(read_points(options.file))
    except RecipegenError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    if options.format == "json":
        overall = scored.groups[0]
        more = {"mean_abs_error": overall.mean_abs_error, "max_abs_error": overall.max_abs_error}
        print(json.dumps(document("benchmarks.simulated", scored, **more), indent=1))
    else:
        print("\n".join(_text(scored, every_row=options.rows)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
