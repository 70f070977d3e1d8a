"""The shares of allocator_spread (catalog/planning.yaml), fitted: `python -m benchmarks.fit_reserved FILE.csv`.

Takes the rows that say what was reserved: a reserved peak, or an allocated one with nvidia-smi or the reserved peak in
the notes (nvidia-smi less what lies outside the allocator). Each driver has its two shares fitted on one half of its
rows and scored on the other; the half follows from a row's setup, not from its numbers. Then how far what is allocated
lies from its prediction, as a share of what comes and goes.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.accuracy import training_memory
from benchmarks.rows import Row, read_rows
from benchmarks.score import percentile
from benchmarks.setup import NotExpressible, Setup, understand
from recipegen.catalog.planning import Spread, planning
from recipegen.estimate.lasting import LASTING
from recipegen.estimate.memory import outside_bytes, reserved_bytes, spread_driver
from recipegen.spec import GpuMemory, RecipegenError
from recipegen.spec.units import GIB, MIB

_STEP = 0.05
_LARGEST = 3.0
_NEARLY_FULL = 0.9
_SETUP = ("model", "method", "strategy", "gpu", "n_gpus", "seq_len", "micro_batch", "fused_ce")


@dataclass(frozen=True)
class Pair:
    """A row with the bytes that PyTorch reserved."""

    setup: Setup
    memory: GpuMemory
    reserved_bytes: float

    @property
    def driver(self) -> str:
        """The entry of allocator_spread that this row is one of."""
        return spread_driver(self.setup.symbols, self.setup.habit)

    def logits(self, spread: Spread) -> float:
        """The whole share of the logits."""
        return spread.logits + spread.typical * self.setup.typical_length

    def predicted(self, logits: float, other: float) -> float:
        """Reserved bytes with these shares; no more than the card has."""
        most = max(reserved_bytes(phase, logits, other) for phase in self.memory.phases)
        capacity = self.setup.card.memory_bytes
        return min(most, capacity - self.memory.outside_bytes) if capacity else most

    def error(self, logits: float, other: float) -> float:
        return abs(self.predicted(logits, other) / self.reserved_bytes - 1.0)

    @property
    def fullness(self) -> float:
        """Share of the card that the row used; 0 where the card is not known."""
        capacity = self.setup.card.memory_bytes
        return (self.reserved_bytes + self.memory.outside_bytes) / capacity if capacity else 0.0

    def factor(self, logits: float, other: float) -> float:
        """How many times these shares the row would have needed."""
        low, high = -1.0, 20.0
        for _ in range(40):
            middle = (low + high) / 2
            most = max(reserved_bytes(p, middle * logits, middle * other) for p in self.memory.phases)
            low, high = (low, middle) if most >= self.reserved_bytes else (middle, high)
        return high


def reserved_of(row: Row, setup: Setup) -> float | None:
    """Bytes that PyTorch's allocator reserved, from the row's metric or its notes."""
    if row.metric == "reserved":
        return row.measured_bytes
    smi = row.note(r"nvidia-smi mean per GPU=(\d+) MiB")
    if smi:
        return float(smi) * MIB - outside_bytes(setup.symbols.W)
    stated = row.note(r"peak_reserved=([\d.]+) GiB")
    return float(stated) * GIB if stated else None


def pairs(rows: Sequence[Row]) -> list[Pair]:
    found = []
    for row in rows:
        try:
            setup = understand(row)
        except NotExpressible:
            continue
        reserved = reserved_of(row, setup)
        if reserved is not None:
            found.append(Pair(setup, training_memory(setup), reserved))
    return found


def second_half(row: Row) -> bool:
    """Which half of the split a row is in: a hash of its setup."""
    return bool(zlib.crc32("|".join(getattr(row, column) for column in _SETUP).encode()) & 1)


def _error(pair: Pair, spread: Spread) -> float:
    return pair.error(pair.logits(spread), spread.other)


def fit(members: Sequence[Pair], used: Spread) -> Spread:
    """The shares of least mean error on a grid: of logits and the rest, or of logits and those of a typical batch."""
    grid = [round(_STEP * i, 2) for i in range(round(_LARGEST / _STEP) + 1)]
    second = "typical" if used.typical else "other"
    tried = (replace(used, logits=a, **{second: b}) for a in grid for b in grid)
    return min(tried, key=lambda spread: statistics.fmean(_error(p, spread) for p in members))


def _shares(spread: Spread) -> str:
    typical = f", typical {spread.typical:.2f}" if spread.typical else ""
    return f"logits {spread.logits:.2f}{typical}, other {spread.other:.2f}"


def _driver(name: str, members: Sequence[Pair]) -> str:
    first = [p for p in members if not second_half(p.setup.row)]
    second = [p for p in members if second_half(p.setup.row)]
    if min(len(first), len(second)) < 2:
        return f"{name:16} {len(members)} rows, too few"
    used = getattr(planning(), name)
    errors = [_error(p, used) for p in second]
    factors = [p.factor(p.logits(used), used.other) for p in members]
    covered = statistics.fmean(used.low <= factor <= used.high for factor in factors)
    full = [factor for p, factor in zip(members, factors, strict=True) if p.fullness >= _NEARLY_FULL]
    nearly = f"{min(full):.2f} to {max(full):.2f} x ({len(full)} rows)" if full else "no rows"
    return (
        f"{name:16} fitted on {len(first)}: {_shares(fit(first, used))}; in use {_shares(used)}; "
        f"the other {len(second)}: median error {statistics.median(errors):.1%}, 90th percentile "
        f"{percentile(errors, 0.9):.1%}; {used.low} to {used.high} x the shares hold {covered:.0%} of {len(members)}; "
        f"on cards at least {_NEARLY_FULL:.0%} full {nearly}, in use up to {used.needed_logits}, {used.needed_other}"
    )


def _passing(row: Row) -> float | None:
    """Measured over predicted passing bytes of an allocated row."""
    if row.metric != "allocated" or row.measured_bytes is None:
        return None
    try:
        setup = understand(row)
    except NotExpressible:
        return None
    if setup.assumed:
        return None
    memory = training_memory(setup)
    lasting = sum(term.bytes for term in memory.terms if term.name in LASTING)
    return (row.measured_bytes - lasting) / (memory.peak_allocated_bytes - lasting)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fit_reserved", description=__doc__.split("\n\n")[0])
    parser.add_argument("file", type=Path, help="CSV with the columns of tests/corpus/published/measurements.csv")
    options = parser.parse_args(argv)
    try:
        rows = read_rows(options.file)
    except RecipegenError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    found = pairs(rows)
    for name in dict.fromkeys(p.driver for p in found):
        print(_driver(name, [p for p in found if p.driver == name]))
    ratios = [ratio for row in rows if (ratio := _passing(row)) is not None]
    if ratios:
        low, high = percentile(ratios, 0.05), percentile(ratios, 0.95)
        print(f"allocated, measured over predicted passing bytes, {len(ratios)} rows: 5% {low:.2f}, 95% {high:.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
