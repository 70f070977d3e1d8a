"""What a run really keeps in which dtype. The label is derived; the fields are the facts."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Dtype(str, Enum):
    """Element types; `bytes` is the size of one element."""

    FP32 = "fp32"
    BF16 = "bf16"
    INT8 = "int8"
    NF4 = "nf4"

    @property
    def bytes(self) -> float:
        return {"fp32": 4.0, "bf16": 2.0, "int8": 1.0, "nf4": 0.5}[self.value]


class PrecisionLabel(str, Enum):
    """The short name of a Precision. Derived, never chosen."""

    FP32_MASTER = "fp32 master"
    COMPENSATED_BF16 = "compensated bf16"
    MIXED = "mixed"  # some modules fp32, the rest pure bf16
    PURE_BF16 = "pure bf16"


@dataclass(frozen=True)
class Precision:
    """Dtypes of one run, as the trainer leaves them after the first optimizer step.

    `parameters` is the dtype of what is loaded (of the frozen base for an adapter); `fp32_modules` names the
    modules that are kept in fp32 all the same (`embed_tokens`, `lm_head`, `norm`). `master` is a separate copy
    (DeepSpeed); None when the trainable parameters are their own master. `states` is the dtype of one AdamW
    moment, `compensation` that of a Kahan buffer, `reduction` that of the gradient collective.
    """

    parameters: Dtype
    trainable: Dtype
    gradients: Dtype
    reduction: Dtype
    states: Dtype
    compute: Dtype
    fp32_modules: tuple[str, ...] = ()
    master: Dtype | None = None
    compensation: Dtype | None = None

    @property
    def label(self) -> PrecisionLabel:
        if self.master is Dtype.FP32 or self.trainable is Dtype.FP32:
            return PrecisionLabel.FP32_MASTER
        if self.compensation is not None:
            return PrecisionLabel.COMPENSATED_BF16
        return PrecisionLabel.MIXED if self.fp32_modules else PrecisionLabel.PURE_BF16

    @property
    def updates_survive_rounding(self) -> bool:
        """True when an update much smaller than a weight is not lost (fp32 master or compensated sums)."""
        return self.label in (PrecisionLabel.FP32_MASTER, PrecisionLabel.COMPENSATED_BF16)

    def state_bytes_per_parameter(self, moments: int = 2) -> float:
        """Optimizer bytes per trainable parameter: moments, a separate master and compensation."""
        total = moments * self.states.bytes
        if self.master is not None:
            total += self.master.bytes
        if self.compensation is not None:
            total += self.compensation.bytes
        return total
