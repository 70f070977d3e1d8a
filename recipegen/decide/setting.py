"""What is settled before any candidate is built: sequence length, data, steps, rates. Computed once per request."""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from recipegen.catalog.defaults import training_defaults
from recipegen.catalog.stack import Stack
from recipegen.dataset import (
    chat_templates,
    end_of_turn,
    loss_report,
    propose_sequence_len,
    steps_per_epoch,
    together,
    token_exists,
    validation_rows,
)
from recipegen.decide.peaks import Peaks
from recipegen.estimate.parameters import linear_modules, unknown_targets
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
    peaks: Peaks = field(default_factory=Peaks, compare=False, repr=False)  # kept by every change of the setting

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
        cut = all(d.format is DataFormat.COMPLETION for d in self.datasets)
        return steps_per_epoch(rows, self.lengths, self.sequence_len, global_batch, packing, cuts_long_rows=cut)


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
    lengths = together(datasets)
    kind = datasets[0].format if len({d.format for d in datasets}) == 1 else None
    sequence_len, reason = _sequence_len(request, model, pins, lengths, kind)
    notes = [note for d in datasets for note in d.notes]
    if request.network != "none" and cluster.nodes == 1:
        notes.append(f"the network {request.network} plays no part with one node")
    template: str | None = None
    eot: tuple[str, ...] = ()
    eot_notes: tuple[str, ...] = ()
    if any(d.format in (DataFormat.MESSAGES, DataFormat.SHAREGPT) for d in datasets):
        template, eot, eot_notes = end_of_turn(model, _tokenizer_folder(request.model))
        _check_chat_pins(model, _tokenizer_folder(request.model), pins)
        if "chat_template" in pins:
            datasets = tuple(_with_template(d, pins["chat_template"]) for d in datasets)
    validation = _validation(rows, pins)
    if rows is not None and validation >= rows:
        raise RecipegenError(f"val_set_size {validation} holds out all {rows} rows", fix="Hold out fewer")
    _refuse_what_loses_every_row(datasets, sequence_len)
    targets = pins.get("adapter.target_modules")
    if targets is not None and (unknown := unknown_targets(model, targets) or not targets):
        raise RecipegenError(
            f"{model.id} has no module {', '.join(unknown) if isinstance(unknown, tuple) else 'of an empty list'}",
            fix=f"It has {', '.join(linear_modules(model))}",
        )
    return Setting(
        request, model, cluster, stack, datasets, pins, total_parameters, sequence_len, reason, rows, lengths,
        validation,
        template, tuple(eot), (*notes, *eot_notes),
    )  # fmt: skip


def _refuse_what_loses_every_row(datasets: tuple[DatasetSpec, ...], sequence_len: int) -> None:
    for data in datasets:
        if data.lengths is None:
            continue
        report = loss_report(data.lengths, sequence_len, data.format, data.rows)
        if report.rows_share >= 1:
            raise RecipegenError(
                f"{data.path}: every row is longer than {sequence_len} tokens, nothing would be trained",
                fix=f"The longest row has {data.lengths.longest} tokens: use a longer --sequence-len",
            )


def _validation(rows: int | None, pins: Mapping[str, Any]) -> int:
    """Rows held out. Axolotl takes a size above 1 for rows and any other for a share."""
    pinned = pins.get("val_set_size")
    if pinned is None:
        return validation_rows(rows) if rows else 0
    return int(pinned) if pinned > 1 else round(pinned * (rows or 0))


def _check_chat_pins(model: ModelSpec, tokenizer: str | None, pins: Mapping[str, Any]) -> None:
    template = pins.get("chat_template")
    if template is not None and template not in chat_templates():
        near = difflib.get_close_matches(template, chat_templates(), n=3)
        raise RecipegenError(
            f"chat_template {template!r} is not one that Axolotl knows",
            fix=f"Did you mean {', '.join(near)}?" if near else "tokenizer_default takes the model's own",
        )
    for token in pins.get("eot_tokens", ()):
        if token_exists(model, tokenizer, token) is False:
            raise RecipegenError(f"eot_tokens: {token!r} is not one token of {model.id}")


def _with_template(data: DatasetSpec, template: str | None) -> DatasetSpec:
    """Axolotl 0.19 reads the template of a data set from its own entry: the top-level key alone has no effect on it."""
    entry = tuple((key, template if key == "chat_template" and template else value) for key, value in data.entry)
    return replace(data, entry=entry)


def _tokenizer_folder(model: str) -> str | None:
    known = ("tokenizer.json", "tokenizer_config.json")
    return model if any(os.path.isfile(os.path.join(model, name)) for name in known) else None


def _sequence_len(
    request: Request, model: ModelSpec, pins: Mapping[str, Any], lengths: Lengths | None, kind: DataFormat | None
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
    if lengths is not None and kind is not DataFormat.COMPLETION:
        return propose_sequence_len(lengths, longest_supported=longest, format=kind)
    usual = int(training_defaults()["sequence_len"]["without_data"])
    why = "rows are cut into pieces of it, so none is lost" if lengths is not None else "no measured data"
    return min(usual, longest), f"{why}; the usual choice, within the model's positions"
