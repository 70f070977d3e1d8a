"""Simulate the points of simulate_points.yaml: `python -m benchmarks.simulate_points [--out FILE] [--only WORD]`.

Each point isolates a mechanism that formulas get wrong first. Rows have the columns of tests/corpus/simulated-peaks.csv
and the terms at the peak. Points that FILE already has are kept, so an interrupted run goes on. Needs
`pip install 'recipegen[simulate]'`; a point takes seconds.
"""

from __future__ import annotations

import argparse
import csv
import gc
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.setup import stack
from benchmarks.simulated import step_peak
from benchmarks.simulated_rows import DEFAULTS, read_points, understand_point
from recipegen.catalog.reading import load_yaml
from recipegen.simulate import simulate

POINTS = Path(__file__).parent / "simulate_points.yaml"
FILE = Path(__file__).parents[1] / "tests/corpus/simulated-peaks-hard.csv"
COLUMNS = ("mechanism", *DEFAULTS, "n_params", "n_trainable", "peak_bytes", "peak_phase", "terms")


def points() -> Iterator[dict[str, str]]:
    """What is to be simulated, as rows without results."""
    for group in load_yaml(POINTS)["groups"]:
        for point in group["points"]:
            values = {**group.get("shared", {}), **point}
            yield {"mechanism": group["mechanism"], **{name: str(value) for name, value in values.items()}}


def key(row: dict[str, str]) -> tuple[str, ...]:
    """What a row chooses, defaults filled in."""
    return tuple(row.get(name) or default for name, default in DEFAULTS.items())


def simulated(row: dict[str, str]) -> tuple[dict[str, str], float]:
    """The row with its results, and the estimate's error as a fraction."""
    chosen = {name: value for name, value in row.items() if name != "mechanism"}
    point = understand_point(chosen)
    found = simulate(point.model, point.recipe, stack(), options=point.options)
    results = {
        "n_params": str(found.total_parameters),
        "n_trainable": str(found.trainable_parameters),
        "peak_bytes": str(found.peak_bytes),
        "peak_phase": found.phase,
        "terms": " ".join(f"{term.name}={term.bytes}" for term in found.terms),
    }
    return {**row, **results}, step_peak(point).bytes / found.peak_bytes - 1.0


def write(path: Path, rows: list[dict[str, str]]) -> None:
    """The whole file, in the order of the list; points that are no longer in the list go."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS, restval="", lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.simulate_points", description=__doc__.split("\n\n")[0])
    parser.add_argument("--out", type=Path, default=FILE)
    parser.add_argument("--only", default="", metavar="WORD", help="points whose mechanism contains this")
    parser.add_argument("--again", action="store_true", help="also those that the file already has")
    options = parser.parse_args(argv)
    known = {key(row): row for row in read_points(options.out)} if options.out.exists() else {}
    wanted = list(points())
    for row in wanted:
        if options.only not in row["mechanism"] or (key(row) in known and not options.again):
            continue
        began = time.perf_counter()
        try:
            done, error = simulated(row)
        except Exception as reason:  # one point that torch refuses must not cost the others
            print(f"not simulated: {type(reason).__name__}: {str(reason).splitlines()[0]}: {row}", flush=True)
            continue
        known[key(row)] = done
        write(options.out, [known[key(point)] for point in wanted if key(point) in known])
        peak, seconds, phase = int(done["peak_bytes"]) / 1e9, time.perf_counter() - began, done["peak_phase"]
        print(f"{peak:8.3f} GB  estimate {error:+7.2%}  {seconds:5.1f} s  {phase:22} {row}", flush=True)
        gc.collect()
    return 0


if __name__ == "__main__":
    sys.exit(main())
