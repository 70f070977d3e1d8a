"""What happens to the rows."""

from __future__ import annotations

from collections.abc import Iterator

from recipegen.catalog.defaults import training_defaults
from recipegen.rules.registry import Context, rule
from recipegen.spec import Severity


@rule(
    "RG501",
    "data",
    Severity.WARNING,
    source="axolotl 0.19.0: excess_length_strategy drops longer rows with an INFO line",
)
def few_rows_are_lost_to_length(context: Context) -> Iterator[tuple[str, str]]:
    """Rows longer than the sequence are dropped (or cut). Above 1% it is worth knowing, above 5% worth a longer
    sequence."""
    r = context.recipe
    table = training_defaults()["sequence_len"]
    for data in r.datasets:
        lengths = data.lengths
        if lengths is None or not lengths.rows_measured:
            continue
        lost = lengths.rows_longer_than(r.sequence_len)
        share = lost / lengths.rows_measured
        if share > float(table["warn_rows_lost"]):
            verb = "cut" if r.excess_length_strategy == "truncate" else "dropped"
            ask = share > float(table["ask_rows_lost"])
            yield (
                f"{share:.1%} of the rows of {data.path} are longer than {r.sequence_len} tokens and will be {verb} "
                f"({lengths.tokens_beyond(r.sequence_len) / max(lengths.total_tokens, 1):.1%} of the tokens)",
                f"--sequence-len {_next_choice(r.sequence_len)}" if ask else "",
            )


def _next_choice(sequence_len: int) -> int:
    choices = [int(c) for c in training_defaults()["sequence_len"]["choices"]]
    return next((c for c in choices if c > sequence_len), choices[-1])
