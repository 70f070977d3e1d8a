"""Predicted against published throughput: `python -m benchmarks.throughput FILE.csv [--format json]`.

Tokens per second and GPU of every row that measured it, beside the estimate of the same setup on the catalogue's rates
for that card; then errors by group, and whether the estimate puts strategies (and methods) in the order in which they
were measured. Rows whose framework is no Hugging Face stack are reported apart. The few constants of a step's time were
fitted on the rows that `fitted` names, by model, GPU, sequence and method alone; the others are reported on their own.
"""

from __future__ import annotations

import argparse
import json
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import combinations
from pathlib import Path
from typing import Any

from benchmarks.rows import Row, read_rows
from benchmarks.score import Group, group_table, percent
from benchmarks.score import percentile as nearest_rank
from benchmarks.setup import NotExpressible, Setup, understand
from recipegen.catalog import load_cluster
from recipegen.catalog.cluster import gpu_names
from recipegen.estimate.kernels import Kernels, kernels_of
from recipegen.estimate.time import step_parts
from recipegen.estimate.traffic import moves
from recipegen.spec import Cluster, RecipegenError

#: two measurements nearer than this are no order: the spread of repeated runs
TIE = 0.02
#: a published rate is of at least this many tokens per second and at most that many; anything else is a slip
PLAUSIBLE = (1e-3, 1e9)
#: rows that agree in these columns fall into the same half
SPLIT = ("model", "gpu", "seq_len", "method")


@dataclass(frozen=True)
class Speed:
    """One row: tokens per second and GPU, predicted and measured. `why_not` is set when nothing can be compared."""

    row: Row
    why_not: str | None = None
    groups: tuple[str, ...] = ()
    predicted: float | None = None
    measured: float | None = None
    bound_by: str = ""
    setup: Setup | None = None
    parts: dict[str, float] = field(default_factory=dict)

    @property
    def error(self) -> float | None:
        if self.predicted is None or not self.measured:
            return None
        return self.predicted / self.measured - 1.0


def fitted(row: Row) -> bool:
    """Whether a row belongs to the half that the constants were fitted on: a hash of the columns of SPLIT."""
    return zlib.crc32("|".join(getattr(row, column) for column in SPLIT).encode()) % 2 == 0


def real_tokens(row: Row) -> bool:
    """Padding was computed but not counted, so the measured rate lies below that of the positions."""
    return "real tokens" in row.notes or "without padding counted" in row.notes


def low_bound(row: Row) -> bool:
    """The source itself says that its throughput is a low bound (a few steps, the first one included)."""
    return "low bound" in row.notes


@cache
def _slugs() -> dict[str, str]:
    return {load_cluster(f"1x-{slug}").gpu.name: slug for slug in gpu_names()}


@cache
def _cluster(slug: str, gpus: int) -> Cluster:
    return load_cluster(f"{gpus}x-{slug}")


def machine(setup: Setup) -> Cluster:
    """The card of a row in the host where the catalogue expects it. Raises NotExpressible."""
    slug = _slugs().get(setup.card.gpu.name) if setup.card.gpu else None
    if slug is None:
        raise NotExpressible(f"no rates are known for {setup.row.gpu}")
    gpus = setup.recipe.parallelism.world_size
    if gpus > 16:
        raise NotExpressible(f"{gpus} GPUs: the row does not say how its nodes are joined")
    return _cluster(slug, gpus)


def kernels(setup: Setup) -> Kernels:
    """Which kernels a row's framework runs."""
    words = (setup.row.says("fused_ce") or "none").lower().split()
    found, x, facts = kernels_of(setup.recipe), setup.symbols, setup.framework
    casts = x.autocast or setup.layout.is_deepspeed or (x.fsdp and "pure" not in setup.row.precision)
    return replace(
        found,
        fused_layers=found.fused_layers or words[0] in facts.fused_layers,
        fused_adapters=facts.fused_adapters,
        fp32_adapters=x.t > x.c and not casts,
    )


def predict(setup: Setup) -> tuple[float, dict[str, float]]:
    """Tokens per second and GPU, and the seconds of one optimizer step by what they are spent on."""
    cluster, recipe, x = machine(setup), setup.recipe, setup.symbols
    tokens = recipe.tokens_per_micro_batch / recipe.parallelism.cp
    parts = step_parts(x, recipe, cluster, moves(x, cluster), tokens, kernels(setup))
    per_gpu = recipe.tokens_per_micro_batch * recipe.gradient_accumulation * recipe.parallelism.data_parallel_ranks
    return per_gpu / recipe.parallelism.world_size / sum(parts.values()), parts


def groups(setup: Setup) -> tuple[str, ...]:
    """Groups of a row, from its columns alone."""
    row, facts = setup.row, setup.framework
    stack = "HF stack" if facts.hf_stack else "other stacks"
    part = "fitted on" if fitted(row) else "kept back"
    names = [stack]
    if facts.hf_stack:
        names.append(f"HF stack, {part}")
        names.extend(
            f"HF stack: {what}"
            for what in (
                f"framework {row.framework.split(' (')[0]}",
                f"method {row.method}",
                f"strategy {row.strategy}",
                f"GPU {setup.card.name}",
                "with assumed fields" if setup.assumed else "without assumed fields",
                *(["measured is a low bound"] if low_bound(row) else []),
                *(["padding not counted"] if real_tokens(row) else []),
            )
        )
    else:
        names.append(f"other stacks: {row.framework.split(' (')[0]}")
    return tuple(names)


def measured_rate(row: Row) -> float | None:
    """Tokens per second and GPU; None when the source prints none, or no rate that can be."""
    value = row.number("tokens_per_s_per_gpu")
    return value if value is not None and PLAUSIBLE[0] <= value <= PLAUSIBLE[1] else None


def speed(row: Row) -> Speed:
    """One row, predicted and compared."""
    measured = measured_rate(row)
    try:
        setup = understand(row)
        predicted, parts = predict(setup)
    except NotExpressible as reason:
        return Speed(row, why_not=str(reason), measured=measured)
    name, longest = max(parts.items(), key=lambda part: part[1])
    bound = f"{name}, {longest / sum(parts.values()):.0%}"
    return Speed(row, None, groups(setup), predicted, measured, bound, setup, parts)


def speeds(rows: Iterable[Row]) -> list[Speed]:
    """Every row that says its tokens per second."""
    return [speed(row) for row in rows if measured_rate(row) is not None]


# --- order


@dataclass(frozen=True)
class Order:
    """How often the estimate orders two rows as they were measured. Ties of the measurement count nowhere."""

    name: str
    pairs: int
    right: int
    ties: int
    wrong: tuple[tuple[str, str], ...]

    @property
    def share(self) -> float | None:
        return self.right / self.pairs if self.pairs else None


def _same(one: Speed, other: Speed, *columns: str) -> bool:
    return all(getattr(one.row, c) == getattr(other.row, c) for c in columns)


_ALIKE = ("model", "gpu", "seq_len", "framework", "packing", "act_checkpointing", "fused_ce")


def strategies(one: Speed, other: Speed) -> bool:
    """Same model, method, GPUs and sequence under different strategies; batches are what each strategy allows."""
    return _same(one, other, *_ALIKE, "method", "n_gpus", "n_nodes") and one.row.strategy != other.row.strategy


def layouts(one: Speed, other: Speed) -> bool:
    """The same over any number of GPUs, compared by tokens per GPU: which layout wastes less."""
    same = _same(one, other, *_ALIKE, "method", "micro_batch", "grad_accum", "precision", "lora_targets", "lora_r")
    return same and (one.row.strategy, one.row.n_gpus) != (other.row.strategy, other.row.n_gpus)


def methods(one: Speed, other: Speed) -> bool:
    """Same model, GPUs, strategy and batch under different methods."""
    same = _same(one, other, *_ALIKE, "n_gpus", "n_nodes", "strategy", "micro_batch", "grad_accum")
    return same and one.row.method != other.row.method


def _alike(results: Iterable[Speed]) -> Iterator[tuple[Speed, Speed]]:
    """Pairs of compared rows that agree in what every comparison asks for, in the order of their first; all pairs of a
    long file are too many."""
    seen: dict[tuple[str, ...], list[tuple[int, Speed]]] = {}
    for place, r in enumerate(r for r in results if r.error is not None):
        seen.setdefault(tuple(getattr(r.row, column) for column in _ALIKE), []).append((place, r))
    pairs = [pair for rows in seen.values() for pair in combinations(rows, 2)]
    pairs.sort(key=lambda pair: (pair[0][0], pair[1][0]))
    return ((one, other) for (_, one), (_, other) in pairs)


def order(name: str, results: Iterable[Speed], comparable: Callable[[Speed, Speed], bool]) -> Order:
    """Counts the comparable pairs that are predicted in the measured order."""
    pairs = right = ties = 0
    wrong: list[tuple[str, str]] = []
    for one, other in _alike(results):
        if not comparable(one, other):
            continue
        assert one.measured is not None
        assert other.measured is not None
        assert one.predicted is not None
        assert other.predicted is not None
        if abs(one.measured / other.measured - 1.0) <= TIE:
            ties += 1
            continue
        pairs += 1
        if (one.measured > other.measured) == (one.predicted > other.predicted):
            right += 1
        else:
            wrong.append((one.row.id, other.row.id))
    return Order(name, pairs, right, ties, tuple(wrong))


def orders(results: list[Speed]) -> list[Order]:
    hf = [r for r in results if r.setup is not None and r.setup.framework.hf_stack]
    return [
        order("strategies, same GPUs", hf, strategies),
        order("strategies and GPU counts, per GPU", hf, layouts),
        order("methods, same strategy and batch", hf, methods),
        order("all stacks: strategies, same GPUs", results, strategies),
    ]


# --- output


def group(name: str, results: Iterable[Speed]) -> Group:
    import statistics

    errors = [r.error for r in results if r.error is not None]
    sizes = [abs(e) for e in errors]
    return Group(
        name,
        len(errors),
        statistics.median(sizes) if sizes else None,
        statistics.fmean(sizes) if sizes else None,
        nearest_rank(sizes, 0.9) if sizes else None,
        max(sizes, default=None),
        statistics.median(errors) if errors else None,
        None,
    )


def grouped(results: list[Speed]) -> list[Group]:
    names = dict.fromkeys(name for r in results for name in r.groups)
    return [group("all", results), *(group(n, (r for r in results if n in r.groups)) for n in sorted(names))]


def _rounded(value: float | None, digits: int = 5) -> float | None:
    return None if value is None else round(value, digits)


def document(results: list[Speed]) -> dict[str, Any]:
    """The JSON document; errors are signed fractions, rates tokens per second and GPU."""
    compared = [r for r in results if r.why_not is None]
    return {
        "format_version": 1,
        "command": "benchmarks.throughput",
        "rows": [
            {
                "id": r.row.id,
                "expressible": r.why_not is None,
                "why_not": r.why_not,
                "setup": r.setup.text if r.setup else "",
                "assumed": list(r.setup.assumed) if r.setup else [],
                "groups": list(r.groups),
                "predicted_tokens_per_s_per_gpu": _rounded(r.predicted, 2),
                "measured_tokens_per_s_per_gpu": r.measured,
                "error": _rounded(r.error),
                "bound_by": r.bound_by,
            }
            for r in results
        ],
        "groups": [
            {
                "name": g.name,
                "n": g.n,
                "median_abs_error": _rounded(g.median_abs_error),
                "mean_abs_error": _rounded(g.mean_abs_error),
                "p90_abs_error": _rounded(g.p90_abs_error),
                "max_abs_error": _rounded(g.max_abs_error),
                "median_error": _rounded(g.median_error),
            }
            for g in grouped(results)
        ],
        "order": [
            {"name": o.name, "pairs": o.pairs, "right": o.right, "share": _rounded(o.share), "ties": o.ties,
             "wrong": [list(pair) for pair in o.wrong]}
            for o in orders(results)
        ],
        "expressible_share": _rounded(len(compared) / len(results)) if results else None,
    }  # fmt: skip


def text(results: list[Speed], *, every_row: bool) -> list[str]:
    """The report for people."""
    lines: list[str] = []
    if every_row:
        lines.append(f"{'row':14} {'predicted':>10} {'measured':>10} {'error':>8}  bound by; setup")
        for r in results:
            if r.setup is None or r.predicted is None or r.measured is None:
                lines.append(f"{r.row.id:14} not expressible: {r.why_not}")
                continue
            mark = "*" if r.setup.assumed else " "
            lines.append(
                f"{r.row.id:13}{mark} {r.predicted:10.1f} {r.measured:10.1f} {percent(r.error, signed=True):>8}  "
                f"{r.bound_by}; {r.setup.text}"
            )
        lines += ["tokens per second and GPU; * marks rows with assumed fields", ""]
    lines += [
        line.removesuffix(f"{'in band':>8}").removesuffix(f"{'-':>8}").rstrip()
        for line in group_table(grouped(results))
    ]
    lines.append("")
    for o in orders(results):
        wrong = "; wrong: " + ", ".join(f"{a} {b}" for a, b in o.wrong) if o.wrong else ""
        lines.append(f"order right, {o.name}: {o.right} of {o.pairs} ({percent(o.share)}), {o.ties} ties{wrong}")
    reasons: dict[str, list[str]] = {}
    for r in results:
        if r.why_not is not None:
            reasons.setdefault(r.why_not, []).append(r.row.id)
    lines += ["", f"expressible: {sum(r.why_not is None for r in results)} of {len(results)} rows with a throughput"]
    lines.extend(f"  not: {why}: {', '.join(ids)}" for why, ids in reasons.items())
    return lines


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.throughput", description=__doc__.split("\n\n")[0])
    parser.add_argument("file", type=Path, help="CSV with the columns of tests/corpus/published/measurements.csv")
    parser.add_argument("--format", choices=["text", "json"], default="text")
    parser.add_argument("--rows", action="store_true", help="every row, not only the groups (text)")
    options = parser.parse_args(argv)
    try:
        results = speeds(read_rows(options.file))
    except RecipegenError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    if options.format == "json":
        print(json.dumps(document(results), indent=1))
    else:
        print("\n".join(text(results, every_row=options.rows)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
