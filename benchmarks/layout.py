"""The `strategy` column: which engine splits what over how many GPUs."""

from __future__ import annotations

import re
from dataclasses import dataclass

from benchmarks import spelling
from recipegen.spec import Parallelism, Strategy

_WORDS = re.compile(
    r"(?P<engine>single|ddp|fsdp2|fsdp|zero1|zero2|zero3)(?P<offload>_cpu_offload|_offload)?(?P<rest>.*)"
)
_AXIS = re.compile(r"\+(tp|cp|pp)(\d+)?")


@dataclass(frozen=True)
class Layout:
    """An engine, its axes and what it offloads. `tp` and `cp` are degrees."""

    engine: str
    parallelism: Parallelism
    offload_parameters: bool
    offload_states: bool

    @property
    def text(self) -> str:
        return self.engine + (" with CPU offload" if self.offload_parameters or self.offload_states else "")

    @property
    def is_deepspeed(self) -> bool:
        return self.engine.startswith("zero")


def layout_of(text: str, gpus: int) -> Layout | str:
    """The layout of a strategy text over `gpus` GPUs, or why there is none."""
    found = _WORDS.fullmatch(spelling.strategy(text))
    if found is None:
        return f"strategy {text!r} is none that a recipe can say"
    engine, offload, rest = found["engine"], bool(found["offload"]), found["rest"].strip()
    degrees = {axis: int(degree) if degree else 0 for axis, degree in _AXIS.findall(rest)}
    if rest and _AXIS.sub("", rest).strip():
        return f"strategy {text!r}: {rest!r} is not understood"
    if "pp" in degrees:
        return "pipeline parallelism is priced in explanations only"
    if any(degree == 0 for degree in degrees.values()):
        return f"strategy {text!r} does not say how many ranks share a sequence"
    tp, cp = degrees.get("tp", 1), degrees.get("cp", 1)
    if gpus % (tp * cp):
        return f"{gpus} GPUs do not divide by {tp * cp}"
    ranks = gpus // (tp * cp)
    if engine == "single" or (gpus == 1 and engine in ("ddp", "fsdp", "fsdp2") and not offload):
        layout = Parallelism.of(Strategy.SINGLE, 1, 1) if gpus == 1 else None
        return Layout(engine, layout, False, False) if layout else f"{gpus} GPUs and strategy single"
    strategy = {
        "ddp": Strategy.DDP,
        "fsdp": Strategy.FSDP2_FULL,
        "fsdp2": Strategy.FSDP2_FULL,
        "zero1": Strategy.ZERO2,
        "zero2": Strategy.ZERO2,
        "zero3": Strategy.ZERO3_CPU,
    }[engine]
    if strategy is Strategy.ZERO2 and gpus == 1:
        strategy = Strategy.ZERO3_CPU  # on one GPU there is nothing to split; the engine and its copies remain
    if strategy is Strategy.DDP:
        return Layout(engine, Parallelism(strategy, 1, gpus, dp_replicate=ranks, tp=tp, cp=cp), False, False)
    if strategy is Strategy.FSDP2_FULL and gpus == 1:
        return "FSDP on one GPU with offload"
    layout = Parallelism(strategy, 1, gpus, dp_shard=ranks, tp=tp, cp=cp)
    return Layout(engine, layout, offload and engine != "zero2", offload)
