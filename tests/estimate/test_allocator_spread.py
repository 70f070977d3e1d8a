"""The bands of planning.yaml follow from published pairs of nvidia-smi and allocated bytes, by its stated rule."""

from __future__ import annotations

import csv
import statistics
from pathlib import Path

import pytest

from recipegen.catalog.planning import planning, planning_table
from recipegen.estimate.symbols import ABSMAX_BYTES_PER_PARAMETER

GIB = 2**30
PUBLISHED = Path(__file__).parent.parent / "corpus" / "published" / "allocator-spread.csv"
NEARLY_FULL_GIB = 72.0  # 90% of an A100-80GB
BANDS = {
    ("single", "fused_linear"): "one_gpu_without_logits",
    ("single", "logits"): "one_gpu_with_logits",
    ("fsdp", "fused_linear"): "fsdp_without_logits",
    ("fsdp", "logits"): "fsdp_with_logits",
}


def lasting_bytes(row: dict[str, str]) -> float:
    """Parameters and states of a published row: FSDP1 upcast to fp32 under mixed precision, pure bf16 otherwise."""
    N, Q, gpus = int(row["parameters"]), int(row["quantised_parameters"]), int(row["gpus"])
    if row["method"] == "full":
        return (12 if row["full_dtype"] == "fp32" else 6) * N / gpus
    return (2 * (N - Q) + Q / 2) / gpus + Q * ABSMAX_BYTES_PER_PARAMETER


def spread(row: dict[str, str]) -> float:
    constants = planning()
    fixed = constants.cuda_context_bytes + constants.cublas_workspace_bytes
    if int(row["gpus"]) > 1:
        fixed += constants.nccl_buffer_bytes
    allocated, used = float(row["allocated_gib"]) * GIB, float(row["nvidia_smi_gib"]) * GIB
    return (used - fixed - allocated) / (allocated - lasting_bytes(row))


@pytest.mark.parametrize(("group", "name"), BANDS.items(), ids=BANDS.values())
def test_the_band_is_what_the_published_rows_give(group: tuple[str, str], name: str) -> None:
    with PUBLISHED.open(newline="", encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if (row["strategy"], row["loss"]) == group]
    all_rows = [spread(row) for row in rows]
    tight = [spread(row) for row in rows if float(row["nvidia_smi_gib"]) >= NEARLY_FULL_GIB]
    band = getattr(planning(), name)
    assert len(rows) >= 9
    assert len(tight) >= 3
    assert band.low == pytest.approx(min(all_rows), abs=0.006)
    assert band.central == pytest.approx(statistics.median(all_rows), abs=0.006)
    assert band.high == pytest.approx(max(tight), abs=0.006)


def test_every_constant_has_a_source_a_unit_and_a_mark() -> None:
    for name, row in planning_table().items():
        assert row["mark"] in {"measured", "spec", "code", "derived", "claimed"}, name
        assert row["source"].strip(), name
        assert row["unit"].strip(), name
