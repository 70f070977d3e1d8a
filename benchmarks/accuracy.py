"""Predicted against published peak memory: `python -m benchmarks.accuracy FILE.csv [--format json]`.

Each row: the setup as it was understood, predicted allocated and reserved bytes, the measured value, the error, the
verdict beside the outcome. Then the errors by group. Allocated is compared with allocated, reserved with reserved; a
value whose source does not say what it is, with reserved, in groups of their own. Groups, and whether a row can be
expressed, follow from its columns; no error is looked at to decide either. A row with assumed fields is never called
fits, since the band does not cover an assumption: at best it is tight.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable
from pathlib import Path

from benchmarks import spelling
from benchmarks.rows import Row, read_rows
from benchmarks.score import Result, Score, document, gib, group_table, percent, score
from benchmarks.setup import NotExpressible, Setup, understand
from recipegen.estimate.memory import gpu_memory
from recipegen.spec import GpuMemory, LossKernel, RecipegenError, Strategy, Verdict

OFFLOAD, SHARDED = "offload", "multi-GPU sharded"
SINGLE_STOCK, SINGLE_FUSED = "single GPU, stock loss", "fused loss"
DDP = "DDP"


def kind(setup: Setup) -> str:
    """The one group by mechanism."""
    if setup.offloads:
        return OFFLOAD
    strategy = setup.recipe.parallelism.strategy
    if strategy.is_fsdp or (strategy.is_deepspeed and setup.recipe.parallelism.world_size > 1):
        return SHARDED
    if strategy is Strategy.DDP:
        return DDP
    stock = (
        setup.recipe.loss_kernel is LossKernel.STOCK and spelling.loss(setup.row.says("fused_ce") or "none") == "none"
    )
    return SINGLE_STOCK if stock else SINGLE_FUSED


def groups(setup: Setup) -> tuple[str, ...]:
    """Groups of a row, from its columns alone: by mechanism, engine, GPU; apart for assumed and unknown metric."""
    row = setup.row
    if row.measured_bytes is None:
        return ()
    apart = ", assumed fields" if setup.assumed or row.unit_is_assumed else ""
    if row.metric == "unknown":
        return (f"unknown metric: {kind(setup)}{apart}",)
    strategy = setup.recipe.parallelism.strategy
    engine = "FSDP" if strategy.is_fsdp else "ZeRO" if strategy.is_deepspeed else ""
    names = [f"{kind(setup)}{apart}", f"metric {row.metric}{apart}", f"GPU {setup.card.name}{apart}"]
    if engine:
        names.append(f"{engine}{apart}")
    if kind(setup) == SINGLE_STOCK:
        length = "varying" if setup.framework.varying_lengths else "equal"
        names.append(f"{SINGLE_STOCK}, rows of {length} length{apart}")
    return tuple(names)


def training_memory(setup: Setup) -> GpuMemory:
    """The estimate of a row's training; how its framework loads is its own affair."""
    capacity = setup.card.memory_bytes or sys.maxsize
    return gpu_memory(
        setup.symbols,
        capacity,
        habit=setup.habit,
        typical_length=setup.typical_length,
        loading=False,
    )


def result(row: Row) -> Result:
    """One row, predicted and compared."""
    try:
        setup = understand(row)
    except NotExpressible as reason:
        return Result(row.id, why_not=str(reason), outcome=row.outcome, outcome_is_inferred=row.outcome_is_inferred)
    memory = training_memory(setup)
    verdict = memory.verdict if setup.card.memory_bytes else Verdict.UNKNOWN
    if verdict is Verdict.FITS and setup.assumed:
        verdict = Verdict.TIGHT  # the band does not cover what was assumed
    allocated = row.metric == "allocated"
    flags = ("unit: a bare G read as GiB",) if row.unit_is_assumed else ()
    return Result(
        row.id,
        groups=groups(setup),
        setup=setup.text,
        assumed=setup.assumed,
        predicted_allocated_bytes=memory.peak_allocated_bytes,
        predicted_reserved_bytes=memory.peak_reserved_bytes,
        low_bytes=memory.allocated_low_bytes if allocated else memory.reserved_low_bytes,
        high_bytes=memory.allocated_high_bytes if allocated else memory.reserved_high_bytes,
        measured_bytes=row.measured_bytes,
        metric=row.metric,
        verdict=verdict,
        outcome=row.outcome,
        outcome_is_inferred=row.outcome_is_inferred,
        flags=flags,
        phase=memory.phase,
    )


def _order(name: str) -> tuple[bool, bool, int]:
    """Groups in the order in which they are read: mechanisms, engines, metrics, GPUs; then the same with assumed
    fields, then what an unknown metric belongs to."""
    kinds = (SINGLE_STOCK, SINGLE_FUSED, DDP, SHARDED, "FSDP", "ZeRO", OFFLOAD, "metric", "GPU")
    place = next((i for i, start in enumerate(kinds) if name.startswith(start)), len(kinds))
    return name.startswith("unknown metric"), name.endswith("assumed fields"), place


def accuracy(rows: Iterable[Row]) -> Score:
    """All rows of a file, scored."""
    return score((result(row) for row in rows), _order)


def _text(s: Score, *, every_row: bool) -> list[str]:
    lines: list[str] = []
    if every_row:
        lines.append(f"{'row':14} {'metric':9} {'allocated':>9} {'reserved':>9} {'measured':>9} {'error':>7}  verdict")
        for r in s.results:
            if r.why_not is not None:
                lines.append(f"{r.id:14} not expressible: {r.why_not}")
                continue
            mark = "*" if r.assumed else " "
            verdict = f"{r.verdict.value if r.verdict else '-'} ({r.outcome})"
            lines.append(
                f"{r.id:13}{mark} {r.metric or '-':9} {gib(r.predicted_allocated_bytes):>9} "
                f"{gib(r.predicted_reserved_bytes):>9} {gib(r.measured_bytes):>9} "
                f"{percent(r.error, signed=True):>7}  {verdict:22} {r.phase:20} {r.setup}"
            )
        lines.append("GiB per GPU; * marks rows with assumed fields")
        lines.append("")
    lines.extend(group_table(s.groups))
    lines.append("")
    reasons: dict[str, list[str]] = {}
    for r in s.results:
        if r.why_not is not None:
            reasons.setdefault(r.why_not, []).append(r.id)
    lines.append(f"expressible: {s.expressible_share:.1%} of {len(s.results)} rows")
    lines.extend(f"  not: {why}: {', '.join(ids)}" for why, ids in reasons.items())
    ran = s.ran_with_verdict
    lines.append(
        f"ran and called does_not_fit: {len(s.false_does_not_fit)} of {ran}: "
        + (", ".join(r.id for r in s.false_does_not_fit) or "none")
    )
    for inferred, name in ((False, "printed"), (True, "inferred")):
        wrong = s.false_fits(inferred=inferred)
        count = sum(r.outcome == "oom" and r.outcome_is_inferred == inferred and r.why_not is None for r in s.results)
        lines.append(
            f"out of memory ({name}) and called fits: {len(wrong)} of {count}: "
            + (", ".join(r.id for r in wrong) or "none")
        )
    return lines


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.accuracy", description=__doc__.split("\n\n")[0])
    parser.add_argument("file", type=Path, help="CSV with the columns of tests/corpus/published/measurements.csv")
    parser.add_argument("--format", choices=["text", "json"], default="text")
    parser.add_argument("--rows", action="store_true", help="every row, not only the groups (text)")
    options = parser.parse_args(argv)
    try:
        scored = accuracy(read_rows(options.file))
    except RecipegenError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    if options.format == "json":
        print(json.dumps(document("benchmarks.accuracy", scored), indent=1))
    else:
        print("\n".join(_text(scored, every_row=options.rows)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
