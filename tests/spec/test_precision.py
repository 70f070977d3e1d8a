"""The label of a precision is derived from what is kept."""

import dataclasses

import pytest

from recipegen.spec import Dtype, Precision, PrecisionLabel

PURE = Precision(
    parameters=Dtype.BF16,
    trainable=Dtype.BF16,
    gradients=Dtype.BF16,
    reduction=Dtype.BF16,
    states=Dtype.BF16,
    compute=Dtype.BF16,
)


@pytest.mark.parametrize(
    ("change", "label", "survive"),
    [
        ({}, PrecisionLabel.PURE_BF16, False),
        ({"fp32_modules": ("norm",)}, PrecisionLabel.MIXED, False),
        ({"compensation": Dtype.BF16}, PrecisionLabel.COMPENSATED_BF16, True),
        ({"master": Dtype.FP32}, PrecisionLabel.FP32_MASTER, True),
        ({"trainable": Dtype.FP32}, PrecisionLabel.FP32_MASTER, True),
        ({"compensation": Dtype.BF16, "fp32_modules": ("norm",)}, PrecisionLabel.COMPENSATED_BF16, True),
    ],
)
def test_label_follows_from_the_dtypes(change: dict[str, object], label: PrecisionLabel, survive: bool) -> None:
    p = dataclasses.replace(PURE, **change)  # type: ignore[arg-type]
    assert p.label is label
    assert p.updates_survive_rounding is survive


def test_state_bytes_count_master_and_compensation() -> None:
    assert PURE.state_bytes_per_parameter() == 4
    assert dataclasses.replace(PURE, compensation=Dtype.BF16).state_bytes_per_parameter() == 6
    deepspeed = dataclasses.replace(PURE, master=Dtype.FP32, states=Dtype.FP32)
    assert deepspeed.state_bytes_per_parameter() == 12
