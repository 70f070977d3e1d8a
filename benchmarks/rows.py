"""One line of a measurements CSV: its columns as they are, and the numbers in them with their units.

`unknown`, `n/a` and an empty cell mean that the source does not say. Memory is per GPU. Its unit is the `unit:` token
of `notes`; a bare G, and no token at all, are read as GiB and flagged.
"""

from __future__ import annotations

import csv
import math
import re
from dataclasses import dataclass, fields
from pathlib import Path

from recipegen.spec import RecipegenError
from recipegen.spec.units import GB, GIB

_UNSAID = {"", "unknown", "n/a"}
_UNIT = re.compile(r"unit:\s*\"?(GiB|GB|G)\b")
_UNITS = {"GiB": GIB, "GB": GB, "G": GIB}


@dataclass(frozen=True)
class Row:
    """The columns of one row, as text."""

    id: str
    source: str
    url: str
    model: str
    params_b: str
    method: str
    lora_r: str
    lora_targets: str
    framework: str
    strategy: str
    gpu: str
    gpu_mem_gb: str
    n_gpus: str
    n_nodes: str
    interconnect: str
    seq_len: str
    micro_batch: str
    grad_accum: str
    packing: str
    act_checkpointing: str
    precision: str
    optimizer: str
    fused_ce: str
    attention: str
    peak_mem_gb: str
    mem_metric: str
    tokens_per_s_per_gpu: str
    step_time_s: str
    outcome: str
    notes: str

    def says(self, column: str) -> str | None:
        """The text of a column, None where the source does not say."""
        text = str(getattr(self, column)).strip()
        return None if text.lower() in _UNSAID else text

    def number(self, column: str) -> float | None:
        """A column as a finite number; None where the source does not say or the text is not one number."""
        text = self.says(column)
        try:
            value = float(text) if text is not None else math.nan
        except ValueError:
            return None
        return value if math.isfinite(value) else None

    @property
    def unit(self) -> str:
        """GiB, GB, or G (a bare G)."""
        found = _UNIT.search(self.notes)
        return found.group(1) if found else "G"

    @property
    def unit_is_assumed(self) -> bool:
        return self.measured_bytes is not None and self.unit == "G"

    @property
    def measured_bytes(self) -> int | None:
        """Peak memory of one GPU; None when the source prints none."""
        value = self.number("peak_mem_gb")
        return None if value is None else round(value * _UNITS[self.unit])

    @property
    def metric(self) -> str | None:
        """`allocated`, `reserved`, or `unknown`; None without a measured value."""
        return None if self.measured_bytes is None else (self.says("mem_metric") or "unknown")

    @property
    def ran(self) -> bool:
        return self.outcome == "ran"

    @property
    def outcome_is_inferred(self) -> bool:
        """An out-of-memory that somebody concluded from a blank result, not one that was printed."""
        return self.outcome == "oom" and "inferred" in self.notes.lower()

    def note(self, pattern: str) -> str | None:
        """The first group of a regular expression in `notes`."""
        found = re.search(pattern, self.notes)
        return found.group(1) if found else None


COLUMNS = tuple(field.name for field in fields(Row))


def read_rows(path: Path | str) -> list[Row]:
    """All rows of a CSV with the columns of `Row`; more columns are ignored.

    Raises RecipegenError for a file that cannot be read or lacks a column.
    """
    try:
        with Path(path).open(newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file)
            missing = [name for name in COLUMNS if name not in (reader.fieldnames or ())]
            if missing:
                raise RecipegenError(
                    f"{path}: no column {', '.join(missing)}; the columns are those of benchmarks/rows.py"
                )
            return [Row(**{name: row[name] or "" for name in COLUMNS}) for row in reader]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise RecipegenError(f"{path}: cannot be read: {error}") from None
