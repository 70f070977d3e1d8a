"""One line of a measurements CSV: its columns as they are, and the numbers in them with their units.

`unknown`, `n/a` and an empty cell mean that the source does not say. Memory is per GPU. Its unit stands
beside the number or in the `unit:` token of `notes`; a bare G, and no unit at all, are read as GiB and flagged.
"""

from __future__ import annotations

import csv
import re
from dataclasses import dataclass, fields
from pathlib import Path

from benchmarks import spelling
from recipegen.spec import RecipegenError
from recipegen.spec.units import GB, GIB

_UNSAID = {"", "unknown", "n/a"}
_UNIT = re.compile(r"\bunits?[:=]\s*\"?(GiB|GB|G|MiB|MB)\b", re.IGNORECASE)
_UNITS = {"GiB": GIB, "GB": GB, "G": GIB, "MiB": GIB / 1024, "MB": GB / 1000}
_SPELLED = {unit.lower(): unit for unit in _UNITS}
_LARGEST_GPU = 1e5 * GB  # no GPU has 100 TB: a slip, not a measurement


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
        found = spelling.number(text) if text is not None else None
        return found[0] if found else None

    @property
    def unit(self) -> str:
        """GiB, GB, MiB, MB, or G (a bare G, or nothing at all): beside the number, else the token of `notes`."""
        beside, noted = spelling.number(self.peak_mem_gb), _UNIT.search(self.notes)
        return _SPELLED[(beside[1] if beside else "") or (noted.group(1).lower() if noted else "g")]

    @property
    def unit_is_assumed(self) -> bool:
        return self.measured_bytes is not None and self.unit == "G"

    @property
    def measured_bytes(self) -> int | None:
        """Peak memory of one GPU; None when the source prints none, or what no GPU can hold."""
        value = self.number("peak_mem_gb")
        size = value * _UNITS[self.unit] if value is not None else 0
        return round(size) or None if size < _LARGEST_GPU else None

    @property
    def metric(self) -> str | None:
        """`allocated`, `reserved`, or `unknown`; None without a measured value."""
        return None if self.measured_bytes is None else spelling.memory_metric(self.says("mem_metric") or "")

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
        with Path(path).open(
            newline="", encoding="utf-8-sig"
        ) as file:  # a spreadsheet's byte order mark is none of ours
            reader = csv.DictReader(file)
            reader.fieldnames = [name.strip() for name in reader.fieldnames or ()]
            missing = [name for name in COLUMNS if name not in (reader.fieldnames or ())]
            if missing:
                raise RecipegenError(
                    f"{path}: no column {', '.join(missing)}; the columns are those of benchmarks/rows.py"
                )
            rows = [{name: row[name] or "" for name in COLUMNS} for row in reader]
            return [Row(**(row | {"outcome": spelling.outcome(row["outcome"])})) for row in rows]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise RecipegenError(f"{path}: cannot be read: {error}") from None
