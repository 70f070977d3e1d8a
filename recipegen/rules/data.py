"""What happens to the rows."""

from __future__ import annotations

from collections.abc import Iterator

from recipegen.catalog.defaults import training_defaults
from recipegen.dataset import loss_report
from recipegen.rules.registry import Context, rule
from recipegen.spec import Severity


@rule(
    "RG501",
    "data",
    Severity.WARNING,
    source="axolotl 0.19.0: excess_length_strategy drops with an INFO line",
    field="sequence_len",
)
def few_rows_are_lost_to_length(context: Context) -> Iterator[tuple[str, str]]:
    """Rows longer than the sequence are dropped (completion rows are cut into pieces). Above 1% of the rows or tokens
    it is worth knowing, above 5% worth a longer sequence."""
    r = context.recipe
    for data in r.datasets:
        if data.lengths is None:
            continue
        report = loss_report(data.lengths, r.sequence_len, data.format, data.rows)
        if report.severity is not None:
            longer = _next_choice(r.sequence_len)
            ask = report.severity is Severity.ERROR and longer > r.sequence_len
            yield f"{data.path}: {report.message}", f"--sequence-len {longer}" if ask else ""


@rule("RG502", "data", Severity.WARNING, source="recipegen")
def settings_have_what_they_need(context: Context) -> Iterator[tuple[str, str]]:
    """A setting without what it works on does nothing: evaluation without held-out rows, prefetch without workers."""
    r = context.recipe
    if r.saving.eval_steps and not r.val_set_size:
        yield "eval_steps without held-out rows never evaluates", "--set val_set_size=100"
    if r.loading.prefetch_factor and not r.loading.dataloader_workers:
        yield "prefetch_factor without dataloader workers does nothing", "--set loading.dataloader_workers=2"


def _next_choice(sequence_len: int) -> int:
    choices = [int(c) for c in training_defaults()["sequence_len"]["choices"]]
    return next((c for c in choices if c > sequence_len), choices[-1])
