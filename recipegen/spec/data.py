"""A data file, measured."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class DataFormat(str, Enum):
    """The shapes of rows that are recognised."""

    ALPACA = "alpaca"  # instruction, input, output
    MESSAGES = "messages"  # messages: [{role, content}]
    SHAREGPT = "sharegpt"  # conversations: [{from, value}]
    COMPLETION = "completion"  # text
    INPUT_OUTPUT = "input_output"  # segments: [{label, text}], or input + output
    PREFERENCE = "preference"  # prompt, chosen, rejected


@dataclass(frozen=True)
class Lengths:
    """Token counts of the rows. `basis` says what counted them: `tokenizer` or `estimate`.

    `covered(n)` needs `quantiles`: pairs of (sequence length, share of rows not longer), ascending.
    """

    basis: str
    rows_measured: int
    total_tokens: int  # of all rows (scaled up when only a sample was measured)
    mean: float
    p50: int
    p99: int
    longest: int
    histogram: tuple[tuple[int, int, int], ...] = ()  # (upper bound in tokens, rows, tokens), ascending

    def rows_longer_than(self, sequence_len: int) -> int:
        """Rows (of those measured) that do not fit a sequence; an upper bound within one histogram bin."""
        return sum(rows for upper, rows, _ in self.histogram if upper > sequence_len)

    def tokens_beyond(self, sequence_len: int) -> int:
        """Tokens of rows that are longer than the sequence (all of them: such rows are dropped)."""
        return sum(tokens for upper, _, tokens in self.histogram if upper > sequence_len)


@dataclass(frozen=True)
class DatasetSpec:
    """One data set: where it is, what it looks like, how long its rows are.

    `trainer_entry` is the item of Axolotl's `datasets:` list, complete, as plain values (nested tuples of pairs are
    not used; it is a mapping of JSON values).
    """

    path: str  # as written into the recipe
    format: DataFormat
    rows: int | None  # None: not known from here (a Hub id without files)
    lengths: Lengths | None
    entry: tuple[tuple[str, object], ...]  # the `datasets:` item, in order
    local: bool = True
    system_rows: int = 0
    split: str = "train"
    notes: tuple[str, ...] = ()
