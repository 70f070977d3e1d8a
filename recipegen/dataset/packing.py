"""How full packed sequences are, and how many optimizer steps an epoch has."""

from __future__ import annotations

import math
from functools import lru_cache

from recipegen.catalog.defaults import training_defaults
from recipegen.dataset.facts import facts
from recipegen.dataset.lengths import longest_completion
from recipegen.spec import Lengths


@lru_cache(maxsize=64)  # a plan asks the same of every candidate
def packed_sequences(lengths: Lengths, sequence_len: int) -> tuple[int, int]:
    """(sequences, tokens) when the measured rows that fit are packed, longest first, each into the fullest sequence.

    Rows of one bin of the histogram count as equally long (the bin's mean). Like first-fit-decreasing this takes
    at most 11/9 of the optimum + 6/9 sequences (D. S. Johnson, Near-optimal bin packing algorithms, MIT, 1973; the
    constant by G. Dosa, 2007). At most 200 rows share a sequence, as in Axolotl.
    """
    most = int(facts()["packing"]["rows_per_sequence"])
    # Open sequences: (room left, rows in it) -> how many of them.
    open_sequences: dict[tuple[int, int], int] = {}
    sequences = tokens = 0
    for _, rows, tokens_in in sorted(_fitting(lengths, sequence_len), reverse=True):
        size = max(math.ceil(tokens_in / rows), 1)
        tokens += tokens_in
        left = rows
        for room, inside in sorted(open_sequences):
            if not left:
                break
            each = min(room // size, most - inside)
            if each < 1:
                continue
            count = open_sequences[room, inside]
            full, rest = divmod(left, each)
            used = min(count, full)
            left -= used * each
            _move(open_sequences, (room, inside), (room - each * size, inside + each), used)
            if used < count and left:
                _move(open_sequences, (room, inside), (room - rest * size, inside + rest), 1)
                left = 0
        if left:
            each = min(max(sequence_len // size, 1), most)
            full, rest = divmod(left, each)
            sequences += full + (rest > 0)
            _add(open_sequences, (sequence_len - each * size, each), full)
            _add(open_sequences, (sequence_len - rest * size, rest), int(rest > 0))
    return sequences, tokens


def _fitting(lengths: Lengths, sequence_len: int) -> list[tuple[int, int, int]]:
    return [(upper, rows, tokens) for upper, rows, tokens in lengths.histogram if rows and upper <= sequence_len]


def _move(table: dict[tuple[int, int], int], old: tuple[int, int], new: tuple[int, int], count: int) -> None:
    if count and old != new:
        table[old] -= count
        if not table[old]:
            del table[old]
        _add(table, new, count)


def _add(table: dict[tuple[int, int], int], key: tuple[int, int], count: int) -> None:
    if count:
        table[key] = table.get(key, 0) + count


def packing_efficiency(lengths: Lengths, sequence_len: int) -> float:
    """Share of the positions of packed sequences that hold a token: tokens / (sequences x sequence_len)."""
    sequences, tokens = packed_sequences(lengths, sequence_len)
    return min(tokens / (sequences * sequence_len), 1.0) if sequences else 1.0


def steps_per_epoch(
    rows: int,
    lengths: Lengths | None,
    sequence_len: int,
    global_batch: int,
    packing: bool,
    *,
    cuts_long_rows: bool = False,
) -> int:
    """Optimizer steps per epoch: sequences / global batch size, rounded up, at least 1.

    `rows` are the rows trained on (without validation rows); `global_batch` is in sequences. Rows longer than the
    sequence are dropped, or cut into pieces where `cuts_long_rows` (completion data; at most 64 pieces of a row, as in
    loss_report). Without lengths every row counts as one sequence. A last step of a packed epoch that is not full is
    counted, though Axolotl may leave it out.
    """
    if lengths is None:
        return max(math.ceil(rows / global_batch), 1)
    measured = max(sum(r for _, r, _ in lengths.histogram), 1)
    scale = rows / measured
    if packing:
        sequences, _ = packed_sequences(lengths, sequence_len)
        whole = sequences * scale
    else:
        whole = (measured - lengths.rows_longer_than(sequence_len)) * scale
    if cuts_long_rows:
        most = longest_completion(sequence_len)
        cut = [(r, min(t, r * most)) for upper, r, t in lengths.histogram if r and upper > sequence_len]
        pieces = (t / sequence_len if packing else r * math.ceil(t / r / sequence_len) for r, t in cut)
        whole += sum(pieces) * scale
    return max(math.ceil(whole / global_batch - 1e-9), 1)


def validation_rows(rows: int | None) -> int:
    """Rows held out: none under 1,000 rows (or when they are not known), else 1%, at least 50 and at most 500."""
    known = training_defaults()["validation"]
    if rows is None or rows < known["minimum_rows"]:
        return 0
    return int(min(max(math.ceil(rows * known["share"]), known["at_least_rows"]), known["at_most_rows"]))
