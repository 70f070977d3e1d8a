"""Lengths of rows in tokens: a fair sample of them, what a sequence length would lose, and which one to take."""

from __future__ import annotations

import math
import random
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache

from recipegen.catalog.defaults import training_defaults
from recipegen.dataset.facts import facts, limit
from recipegen.spec import DataFormat, DatasetSpec, Lengths, Severity


class Sample:
    """A uniform sample of row lengths in constant memory (Vitter's Algorithm R, fixed seed).

    `slot(row number)` says whether the row is to be measured and where its length goes.
    Source: J. S. Vitter, Random Sampling with a Reservoir, ACM TOMS 11(1), 1985.
    """

    def __init__(self, capacity: int | None = None) -> None:
        self.capacity = capacity or limit("sampled_rows")
        self.seen = 0
        self._random = random.Random(limit("random_seed"))  # noqa: S311 - a sample, not a secret
        self._lengths: list[int] = []

    def slot(self) -> int | None:
        """Counts one more row; the place of its length in the sample, or None when it is not in it."""
        self.seen += 1
        if self.seen <= self.capacity:
            self._lengths.append(0)
            return self.seen - 1
        place = self._random.randrange(self.seen)
        return place if place < self.capacity else None

    def put(self, slot: int, tokens: int) -> None:
        self._lengths[slot] = tokens

    def lengths(self, basis: str, rows: int | None = None) -> Lengths | None:
        """The summary; None when no row was seen. `total_tokens` stands for `rows` (default: the rows seen)."""
        return summarise(self._lengths, basis, rows or self.seen)


def summarise(lengths: list[int], basis: str, rows: int | None = None) -> Lengths | None:
    """`Lengths` of measured rows; `rows` is the number of rows they stand for."""
    if not lengths:
        return None
    ordered = sorted(lengths)
    count, tokens = len(ordered), sum(ordered)
    edges = bin_edges(ordered[-1])
    rows_in, tokens_in = [0] * len(edges), [0] * len(edges)
    for value in ordered:
        place = bisect_left(edges, value)
        rows_in[place] += 1
        tokens_in[place] += value
    return Lengths(
        basis=basis,
        rows_measured=count,
        total_tokens=round(tokens * (rows or count) / count),
        mean=tokens / count,
        p50=ordered[(count - 1) // 2],
        p99=ordered[math.ceil(0.99 * count) - 1],
        longest=ordered[-1],
        histogram=tuple((e, r, t) for e, r, t in zip(edges, rows_in, tokens_in, strict=True) if r),
    )


@cache
def _edges(doublings: int) -> tuple[int, ...]:
    exact, per = int(facts()["length"]["exact_up_to"]), int(facts()["length"]["bins_per_doubling"])
    start = round(math.log2(exact)) * per
    return (*range(exact + 1), *(math.ceil(2 ** (k / per)) for k in range(start + 1, doublings * per + 1)))


def bin_edges(longest: int) -> tuple[int, ...]:
    """Upper bounds of the bins, at least up to `longest`; every power of two is one of them."""
    return _edges(max(longest, 1).bit_length() + 1)


@dataclass(frozen=True)
class LossReport:
    """What a sequence length loses of the rows measured. Shares are of all rows and of all tokens."""

    sequence_len: int
    rows_lost: int
    rows_share: float
    tokens_lost: int
    tokens_share: float
    severity: Severity | None  # None: nothing worth saying
    message: str


def longest_completion(sequence_len: int) -> int:
    """Tokens of one completion row that Axolotl trains on: it cuts the row into pieces and takes 64 at most."""
    return sequence_len * int(facts()["length"]["completion_pieces"])


def loss_report(
    lengths: Lengths, sequence_len: int, format: DataFormat | None = None, rows: int | None = None
) -> LossReport:
    """Rows and tokens that are dropped because they are longer than the sequence (`excess_length_strategy: drop`).

    Completion rows are cut into pieces instead and lose only what lies beyond Axolotl's bound of pieces. `rows` (all
    rows of the data set) scales the counts up from the sample. Over 1% of rows or tokens is a warning; over 5% an
    error, which asks for a longer sequence.
    """
    known = training_defaults()["sequence_len"]
    measured = sum(r for _, r, _ in lengths.histogram)
    tokens = sum(t for _, _, t in lengths.histogram)
    if format is DataFormat.COMPLETION:
        bound = longest_completion(sequence_len)
        rows_lost = 0
        tokens_lost = sum(max(t - r * bound, 0) for upper, r, t in lengths.histogram if upper > bound)
    else:
        rows_lost, tokens_lost = lengths.rows_longer_than(sequence_len), lengths.tokens_beyond(sequence_len)
    rows_share, tokens_share = rows_lost / max(measured, 1), tokens_lost / max(tokens, 1)
    worst = max(rows_share, tokens_share)
    severity = None
    if worst > known["ask_rows_lost"]:
        severity = Severity.ERROR
    elif worst > known["warn_rows_lost"]:
        severity = Severity.WARNING
    scale = (rows or measured) / max(measured, 1)
    rows_lost, tokens_lost = round(rows_lost * scale), round(tokens_lost * scale)
    if format is DataFormat.COMPLETION:
        bound = longest_completion(sequence_len)
        pieces = f"{bound // sequence_len} pieces of {sequence_len} tokens"
        message = (
            f"{tokens_lost} tokens ({tokens_share:.2%}) are not trained on: the trainer cuts a long row into pieces "
            f"and keeps the first {pieces} ({bound} tokens) of each row"
            if tokens_lost
            else f"no tokens are lost: rows longer than {sequence_len} tokens are cut into pieces"
        )
    elif not tokens_lost:
        message = f"no row is longer than {sequence_len} tokens"
    else:
        message = (
            f"{rows_lost} rows ({rows_share:.2%}) with {tokens_lost} tokens ({tokens_share:.2%}) are longer than "
            f"{sequence_len} tokens and are dropped"
        )
    return LossReport(sequence_len, rows_lost, rows_share, tokens_lost, tokens_share, severity, message)


def propose_sequence_len(
    lengths: Lengths | None, *, longest_supported: int | None = None, format: DataFormat | None = None
) -> tuple[int, str]:
    """The smallest of 2048 to 32768 tokens that covers 99% of the rows, and the reason in one line.

    `longest_supported` is the model's own limit (max_position_embeddings). Without lengths: the smallest.
    """
    known = training_defaults()["sequence_len"]
    supported = [c for c in known["choices"] if longest_supported is None or c <= longest_supported]
    candidates: list[int] = supported or [longest_supported or known["choices"][0]]
    if lengths is None:
        return candidates[0], f"lengths are not known from here: {candidates[0]} is the smallest usual length"
    measured = sum(r for _, r, _ in lengths.histogram)
    what = "tokens by estimate" if lengths.basis == "estimate" else "tokens"
    allowed = (1 - known["coverage"]) * measured
    for candidate in candidates:
        if lengths.rows_longer_than(candidate) <= allowed:
            share = 1 - lengths.rows_longer_than(candidate) / max(measured, 1)
            reason = f"covers {share:.1%} of rows (99% have at most {lengths.p99} {what}, longest {lengths.longest})"
            return candidate, reason
    last = candidates[-1]
    share = 1 - lengths.rows_longer_than(last) / max(measured, 1)
    end = "rows are cut into pieces of it" if format is DataFormat.COMPLETION else "longer rows are dropped"
    return (
        last,
        f"the longest usual length{' the model supports' if longest_supported else ''}: covers only "
        f"{share:.1%} of rows (99% have at most {lengths.p99} {what}); {end}",
    )


def together(datasets: Sequence[DatasetSpec]) -> Lengths | None:
    """The lengths of several data sets as one, each with the weight of its rows; None when one was not measured."""
    known = [_whole(d) for d in datasets if d.lengths is not None and d.rows is not None]
    if not known or len(known) != len(datasets):
        return None
    if len(known) == 1:
        return known[0]
    bins: dict[int, tuple[int, int]] = {}
    for part in known:
        for upper, rows, tokens in part.histogram:
            old = bins.get(upper, (0, 0))
            bins[upper] = (old[0] + rows, old[1] + tokens)
    histogram = tuple((upper, *bins[upper]) for upper in sorted(bins))
    measured = sum(p.rows_measured for p in known)
    return Lengths(
        basis="estimate" if any(p.basis == "estimate" for p in known) else known[0].basis,
        rows_measured=measured,
        total_tokens=sum(p.total_tokens for p in known),
        mean=sum(p.mean * p.rows_measured for p in known) / max(measured, 1),
        p50=_quantile(histogram, measured, 0.50),
        p99=_quantile(histogram, measured, 0.99),
        longest=max(p.longest for p in known),
        histogram=histogram,
    )


def _quantile(histogram: tuple[tuple[int, int, int], ...], rows: int, share: float) -> int:
    seen = 0
    for upper, count, _ in histogram:
        seen += count
        if seen >= share * rows:
            return upper
    return histogram[-1][0] if histogram else 0


def _whole(data: DatasetSpec) -> Lengths:
    """The lengths of all rows of a data set, scaled up from its sample."""
    assert data.lengths is not None
    lengths, rows = data.lengths, data.rows or 0
    if rows == lengths.rows_measured:
        return lengths
    scale = rows / max(lengths.rows_measured, 1)
    histogram = tuple((u, max(1, round(r * scale)), max(1, round(t * scale))) for u, r, t in lengths.histogram if r)
    return replace(lengths, rows_measured=rows, histogram=histogram)
