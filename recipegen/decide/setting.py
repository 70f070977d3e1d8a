"""What is settled before any candidate is built: sequence length, data, steps, rates. Computed once per request."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from recipegen.catalog.defaults import training_defaults
from recipegen.catalog.stack import Stack
from recipegen.dataset import end_of_turn, propose_sequence_len, steps_per_epoch, validation_rows
from recipegen.spec import Cluster, DataFormat, DatasetSpec, Lengths, ModelSpec, RecipegenError, Request


@dataclass(frozen=True)
class Setting:
    """A request with its catalogue entries, its measured data and its typed pins. `notes` become warnings."""

    request: Request
    model: ModelSpec
    cluster: Cluster
    stack: Stack
    datasets: tuple[DatasetSpec, ...]
    pins: Mapping[str, Any]
    total_parameters: int
    sequence_len: int
    sequence_reason: str
    rows: int | None
    lengths: Lengths | None
    validation: int
    chat_template: str | None
    eot_tokens: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def wants_packing(self) -> bool:
        """Packing pays when rows are clearly shorter than the sequence (or not measured yet), unless the packs are so
        few that an epoch would have hardly a step."""
        if self.lengths is None or self.rows is None:
            return True
        d = training_defaults()["batch"]
        if self.lengths.mean > float(d["packing_max_fill"]) * self.sequence_len:
            return False
        packs = self.steps_per_epoch(1, packing=True) or 0
        return packs >= int(d["min_steps_per_epoch"]) * self.cluster.world_size

    def sequences_per_epoch(self) -> int | None:
        """Packs, or rows where they are not packed."""
        return self.steps_per_epoch(1, self.wants_packing)

    def steps_per_epoch(self, global_batch: int, packing: bool) -> int | None:
        """Optimizer steps of one epoch, None when the rows are not known from here."""
        if self.rows is None:
            return None
        rows = max(self.rows - self.validation, 1)
        if self.lengths is None:
            return max(1, -(-rows // global_batch))
        return steps_per_epoch(rows, self.lengths, self.sequence_len, global_batch, packing)


def settle(
    request: Request,
    model: ModelSpec,
    cluster: Cluster,
    stack: Stack,
    datasets: tuple[DatasetSpec, ...],
    pins: Mapping[str, Any],
    total_parameters: int,
) -> Setting:
    """Fix what does not depend on the strategy.

    Raises RecipegenError when the sequence length is longer than the model's positions or the data contradict one
    another.
    """
    known = [d for d in datasets if d.rows is not None]
    rows = sum(d.rows or 0 for d in known) if datasets and len(known) == len(datasets) else None
    lengths = _together([d.lengths for d in datasets]) if rows is not None else None
    sequence_len, reason = _sequence_len(request, model, pins, lengths)
    notes = [note for d in datasets for note in d.notes]
    template: str | None = None
    eot: tuple[str, ...] = ()
    eot_notes: tuple[str, ...] = ()
    if any(d.format in (DataFormat.MESSAGES, DataFormat.SHAREGPT) for d in datasets):
        template, eot, eot_notes = end_of_turn(model, _tokenizer_folder(request.model))
    validation = validation_rows(rows) if rows else 0
    return Setting(
        request, model, cluster, stack, datasets, pins, total_parameters, sequence_len, reason, rows, lengths,
        int(pins.get("val_set_size", validation) if pins.get("val_set_size", 1) >= 1 else validation),
        template, tuple(eot), (*notes, *eot_notes),
    )  # fmt: skip


def _tokenizer_folder(model: str) -> str | None:
    known = ("tokenizer.json", "tokenizer_config.json")
    return model if any(os.path.isfile(os.path.join(model, name)) for name in known) else None


def _sequence_len(
    request: Request, model: ModelSpec, pins: Mapping[str, Any], lengths: Lengths | None
) -> tuple[int, str]:
    asked = request.sequence_len or pins.get("sequence_len")
    longest = model.max_position_embeddings
    if asked is not None:
        if asked > longest:
            raise RecipegenError(
                f"sequence length {asked} is longer than the {longest} positions of {model.id}",
                fix=f"Use --sequence-len {longest} or less",
            )
        return int(asked), "as asked for"
    if lengths is not None:
        proposed, reason = propose_sequence_len(lengths)
    else:
        proposed = int(training_defaults()["sequence_len"]["without_data"])
        reason = "no measured data; the usual choice"
    if proposed > longest:
        return longest, f"{reason}; limited by the {longest} positions of the model"
    return proposed, reason


def _together(parts: list[Lengths | None]) -> Lengths | None:
    """The lengths of several data sets as one; None when one was not measured."""
    known = [p for p in parts if p is not None]
    if not known or len(known) != len(parts):
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
