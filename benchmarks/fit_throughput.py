"""Fits the few constants of a step's time: `python -m benchmarks.fit_throughput FILE.csv`.

Each constant is fitted where the setup, not the error, says that it matters, on the half of the rows that
`benchmarks.throughput.fitted` names; the loss is the mean over groups of equal model, GPU, sequence and method of the
absolute log error, capped so that a row which measures something else pulls no constant. It prints what belongs into
recipegen/catalog/planning.yaml and changes nothing.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

from benchmarks.rows import read_rows
from benchmarks.setup import NotExpressible, Setup, understand
from benchmarks.throughput import SPLIT, fitted, low_bound, predict
from recipegen.catalog.planning import Planning, planning

Point = tuple[Setup, float]

CAP = 0.4  # of |log(predicted / measured)|: beyond a factor of 1.5 a row is not about these constants
FIRST = {"matmul_share": 0.85, "kernel_launch_s": 1.5e-5, "zero3_fetch_s": 2e-4, "overlap": 0.5}
GRID = {
    "matmul_share": [n / 100 for n in range(60, 101)],
    "kernel_launch_s": [n * 1e-6 for n in range(5, 41)],
    "zero3_fetch_s": [n * 1e-5 for n in range(0, 151, 5)],
    "overlap": [n / 20 for n in range(21)],
}


@contextmanager
def _with(constants: Planning) -> Iterator[None]:
    with (
        patch("recipegen.estimate.compute.planning", lambda: constants),
        patch("recipegen.estimate.time.planning", lambda: constants),
    ):
        yield


def errors(values: dict[str, float], points: list[Point]) -> list[float]:
    """log(predicted / measured) of each point under these constants."""
    with _with(replace(planning(), **values)):
        return [math.log(predict(setup)[0] / measured) for setup, measured in points]


def loss(values: dict[str, float], points: list[Point]) -> float:
    groups: dict[tuple[str, ...], list[float]] = defaultdict(list)
    for (setup, _), error in zip(points, errors(values, points), strict=True):
        groups[tuple(getattr(setup.row, column) for column in SPLIT)].append(min(CAP, abs(error)))
    return statistics.fmean(statistics.fmean(members) for members in groups.values())


def communicates(setup: Setup) -> bool:
    """More than 8% of the step would be communication if nothing were hidden."""
    if setup.recipe.parallelism.world_size == 1:
        return False
    with _with(replace(planning(), overlap=0.0)):
        parts = predict(setup)[1]
    moving = sum(seconds for name, seconds in parts.items() if " over " in name or "copies" in name)
    return moving > 0.08 * sum(parts.values())


def tokens(setup: Setup) -> int:
    return setup.recipe.tokens_per_micro_batch


WHERE: dict[str, Callable[[Setup], bool]] = {
    "matmul_share": lambda s: s.recipe.parallelism.world_size == 1 and tokens(s) >= 4096,
    "kernel_launch_s": lambda s: s.layout.engine == "single" and tokens(s) <= 1024,
    "zero3_fetch_s": lambda s: s.layout.engine == "zero3",
    "overlap": communicates,
}


def fit(points: list[Point]) -> dict[str, float]:
    """Two rounds, one constant after the other; points without a place for a constant leave it as it starts."""
    values = dict(FIRST)
    for _ in range(2):
        for name, where in WHERE.items():
            chosen = [point for point in points if where(point[0])]
            if chosen:
                values[name] = min(GRID[name], key=lambda v: loss({**values, name: v}, chosen))
    return values


def points_of(path: Path) -> list[Point]:
    """Every row of a Hugging Face stack with a throughput that is more than a low bound."""
    found: list[Point] = []
    for row in read_rows(path):
        measured = row.number("tokens_per_s_per_gpu")
        if measured is None or low_bound(row):
            continue
        try:
            setup = understand(row)
            predict(setup)
        except NotExpressible:
            continue
        if setup.framework.hf_stack:
            found.append((setup, measured))
    return found


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fit_throughput", description=__doc__.split("\n\n")[0])
    parser.add_argument("file", type=Path)
    points = points_of(parser.parse_args(argv).file)
    halves = {
        "fitted on": [p for p in points if fitted(p[0].row)],
        "kept back": [p for p in points if not fitted(p[0].row)],
    }
    values = fit(halves["fitted on"])
    for name, value in values.items():
        count = sum(WHERE[name](setup) for setup, _ in halves["fitted on"])
        print(f"{name:16} {value:<10.4g} on {count} rows")
    for part, chosen in halves.items():
        sizes = [abs(math.expm1(error)) for error in errors(values, chosen)]
        print(f"{part}: {len(chosen)} rows, median {statistics.median(sizes):.1%}, loss {loss(values, chosen):.3f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
