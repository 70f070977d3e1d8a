"""How much data a recipe trains on: rows, tokens and steps per epoch. None where a data set was not measured."""

from __future__ import annotations

import math
from dataclasses import dataclass

from recipegen.catalog.planning import planning
from recipegen.spec import DatasetSpec, Recipe


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
    scale = rows / lengths.rows_measured
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
    validation = recipe.val_set_size if recipe.val_set_size < 1 else min(recipe.val_set_size / max(rows, 1), 0.5)
    share = 1.0 - validation
    return Training(rows * share, tokens * share, max(part.p99 for part in known))


def tokens_per_micro_batch(recipe: Recipe, data: Training | None) -> float:
    """Tokens per GPU and forward pass that are computed on, padding included."""
    full = float(recipe.tokens_per_micro_batch)
    if recipe.packing or recipe.pad_to_sequence_len or data is None or not data.rows:
        return full
    # the batch is padded to its longest row: the mean for one row, towards the 99th percentile for many
    mean, micro = data.tokens / data.rows, recipe.micro_batch_size
    longest = mean + (max(data.p99, mean) - mean) * (1.0 - 1.0 / micro)
    return min(full, micro * longest)


def steps_per_epoch(recipe: Recipe, data: Training | None) -> int | None:
    """Optimizer steps of one epoch."""
    if data is None:
        return None
    sequences = data.rows
    if recipe.packing:
        sequences = data.tokens / (recipe.sequence_len * planning().packing_efficiency)
    return max(1, math.ceil(sequences / recipe.global_batch_size))
