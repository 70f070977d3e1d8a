"""How much data a recipe trains on: rows, tokens and steps per epoch. None where a data set was not measured."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from recipegen.spec import DatasetSpec, Lengths, Recipe


@dataclass(frozen=True)
class Training:
    """Rows and tokens of one epoch after validation rows and overlong rows are taken out."""

    rows: float
    tokens: float
    p99: float


def _kept(data: DatasetSpec, recipe: Recipe) -> Training | None:
    rows, lengths = data.rows, data.lengths
    if rows is None or lengths is None or not lengths.rows_measured:
        return None
    from recipegen.dataset.lengths import longest_completion  # here: without data the dataset room is not needed
    from recipegen.spec import DataFormat

    scale = rows / lengths.rows_measured
    if data.format is DataFormat.COMPLETION:  # long rows are cut into pieces
        longest = longest_completion(recipe.sequence_len)
        kept = sum(min(t, r * longest) for _, r, t in lengths.histogram)
        return Training(rows, kept * scale, min(lengths.p99, recipe.sequence_len))
    long_rows = lengths.rows_longer_than(recipe.sequence_len) * scale
    tokens = lengths.mean * rows
    beyond = lengths.tokens_beyond(recipe.sequence_len) * scale
    if recipe.excess_length_strategy == "truncate":
        return Training(rows, tokens - beyond + long_rows * recipe.sequence_len, min(lengths.p99, recipe.sequence_len))
    return Training(rows - long_rows, max(tokens - beyond, 0.0), min(lengths.p99, recipe.sequence_len))


def training_data(recipe: Recipe) -> Training | None:
    """All data sets of a recipe together, None when one of them was not measured."""
    parts = [_kept(data, recipe) for data in recipe.datasets]
    known = [part for part in parts if part is not None]
    if not known or len(known) < len(parts):
        return None
    rows = sum(part.rows for part in known)
    tokens = sum(part.tokens for part in known)
    share = 1.0 - _validation_share(recipe, rows)
    return Training(rows * share, tokens * share, max(part.p99 for part in known))


def _validation_share(recipe: Recipe, rows: float) -> float:
    size = recipe.val_set_size
    return size if size < 1 else min(size / max(rows, 1), 0.5)


def tokens_per_micro_batch(recipe: Recipe, data: Training | None) -> float:
    """Tokens per GPU and forward pass that are computed on, padding included."""
    full = float(recipe.tokens_per_micro_batch)
    if recipe.packing or recipe.pad_to_sequence_len or data is None or not data.rows:
        return full
    # the batch is padded to its longest row: the mean for one row, towards the 99th percentile for many
    mean, micro = data.tokens / data.rows, recipe.micro_batch_size
    longest = mean + (max(data.p99, mean) - mean) * (1.0 - 1.0 / micro)
    return min(full, micro * longest)


def steps_per_epoch(recipe: Recipe) -> int | None:
    """Optimizer steps of one epoch; None when a data set was not measured."""
    if not recipe.datasets:
        return None
    from recipegen.dataset import steps_per_epoch as dataset_steps  # here: see _kept
    from recipegen.dataset import together
    from recipegen.spec import DataFormat

    lengths = together(recipe.datasets)
    if lengths is None:
        return None
    if recipe.excess_length_strategy == "truncate":
        lengths = _cut(lengths, recipe.sequence_len)
    rows = sum(d.rows or 0 for d in recipe.datasets)
    return dataset_steps(
        max(1, round(rows * (1.0 - _validation_share(recipe, rows)))),
        lengths,
        recipe.sequence_len,
        recipe.global_batch_size,
        recipe.packing,
        cuts_long_rows=all(d.format is DataFormat.COMPLETION for d in recipe.datasets),
    )


def _cut(lengths: Lengths, sequence_len: int) -> Lengths:
    """The lengths when longer rows are cut to the sequence instead of dropped."""
    short = tuple(b for b in lengths.histogram if b[0] <= sequence_len)
    rows = sum(r for upper, r, _ in lengths.histogram if upper > sequence_len)
    longest = ((sequence_len, rows, rows * sequence_len),) if rows else ()
    return replace(lengths, histogram=short + longest)
