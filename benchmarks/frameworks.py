"""frameworks.yaml: what a measured framework does. Looked up by the framework's name, never by a row."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import yaml

_TABLE = Path(__file__).with_name("frameworks.yaml")


@dataclass(frozen=True)
class LossBytes:
    """Bytes per token and vocabulary entry while kept logits go through the loss, by what the head computes in.

    `forward` and `backward` are for a head under autocast, or one whose loss casts by itself; `plain` for bf16 logits
    without autocast, `fp32` for a head that computes in fp32, both (forward, backward).
    """

    forward: float
    backward: float
    plain: tuple[float, float] | None = None
    fp32: tuple[float, float] | None = None
    #: a shifted copy of the logits is made, so that there are blocks of two sizes
    shifted: bool = False

    def of(self, *, autocast: bool, fp32_head: bool) -> tuple[float, float]:
        """Forward and backward bytes of one run."""
        if not autocast and fp32_head and self.fp32:
            return self.fp32
        if not autocast and self.plain:
            return self.plain
        return (self.forward, self.backward)


def _loss_bytes(kernel: Mapping[str, Any]) -> LossBytes:
    def pair(name: str) -> tuple[float, float] | None:
        return (float(kernel[name][0]), float(kernel[name][1])) if name in kernel else None

    shifted = bool(kernel.get("shifted", False))
    return LossBytes(float(kernel["forward"]), float(kernel["backward"]), pair("plain"), pair("fp32"), shifted)


@dataclass(frozen=True)
class Framework:
    """One entry of the table; the file says what the fields mean."""

    name: str
    when: str
    source: str
    loss: Mapping[str, LossBytes]
    unknown: Mapping[str, str]
    fsdp: int = 2
    adapter: str = "fp32"
    kbit_fp32: bool = False
    plain: str = "pure_bf16"
    foreach: bool = False
    varying_lengths: bool = False
    targets: str = ""
    reentrant: bool = False
    expert_modules: bool = False
    adapter_groups: bool = False
    hf_stack: bool = False
    fused_layers: tuple[str, ...] = ()
    fused_adapters: bool = False
    dropout: bool = False
    repeats_kv: bool = False
    packed_qkv: bool = False
    kept_graphs: int = 0
    untied: bool = False
    head_quantised: bool = False
    quantisation_constants: float | None = None
    eager_softcap: bool = False
    head_chunks: int = 0
    compiled: bool = False
    offloads_boundaries: bool = False
    sequence_parallel: bool = False
    single_engine: str = ""
    reduce_bucket: int = 0
    sync_each_batch: bool = False
    constants_sharded: bool = False
    expandable_segments: bool = False
    empties_cache: bool = False
    loss_compiled: Mapping[str, LossBytes] = field(default_factory=dict)
    cumulative: tuple[str, ...] = ()
    also: tuple[str, ...] = ()
    generic: str = ""

    def kernel(self, fused_ce: str, *, compiled: bool = False) -> LossBytes | None:
        """The loss of a `fused_ce` text, by its first word; None when the table has none."""
        words = fused_ce.lower().split()
        if not words:
            return None
        known = {**self.loss, **self.loss_compiled} if compiled else self.loss
        return known.get(words[0])

    def added(self, notes: str) -> tuple[str, ...] | None:
        """What a row of a cumulative table has switched on: everything up to what its notes say it adds. None where the
        row is of no such table."""
        found = re.search(r"cumulative: \+ ([^;]+)", notes)
        step = found.group(1).strip() if found else ""
        if step in self.cumulative:
            return self.cumulative[: self.cumulative.index(step) + 1]
        found = re.search(r"optimization table, [^;]* row \(([^)]*)\)", notes)  # all but what it lacks
        lacks = found.group(1).replace("-", " ").lower() if found else ""
        return tuple(s for s in self.cumulative if s.replace("-", " ").lower() not in lacks) if found else None


@cache
def _table() -> Mapping[str, Any]:
    data: Mapping[str, Any] = yaml.safe_load(_TABLE.read_text(encoding="utf-8"))
    return data


def _built(entry: Mapping[str, Any], variant: str | None, method: str) -> Framework:
    kernels = _table()["kernels"]
    entry = {**entry, **entry.get("methods", {}).get(method, {}), **entry.get("variants", {}).get(variant, {})}
    loss, compiled = (
        {word: _loss_bytes(kernels[name]) for word, name in entry.get(column, {}).items()}
        for column in ("loss", "loss_compiled")
    )
    more = {"loss": loss, "loss_compiled": compiled, "cumulative": tuple(entry.get("cumulative", ())),
            "also": tuple(entry.get("also", ()))}  # fmt: skip
    known = {k: v for k, v in entry.items() if k in Framework.__dataclass_fields__}
    return Framework(**(known | more | {"when": str(entry["when"]), "unknown": entry.get("unknown", {})}))


def _letters(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


def framework(name: str, variant: str | None = None, method: str = "") -> Framework | None:
    """The entry whose name begins `name`, the longest of several; None when nobody wrote down what it does. Where none
    does, separators do not count.

    `variant`: a configuration that a row's notes name. `method`: full, lora, qlora, for what differs between them.
    """
    known = [(str(n), entry) for entry in _table()["frameworks"] for n in (entry["name"], *entry.get("also", ()))]
    fitting = [(n, entry) for n, entry in known if name.lower().startswith(n.lower())]
    fitting = fitting or [(n, entry) for n, entry in known if _letters(name).startswith(_letters(n))]
    if not fitting:
        return None
    found = _built(max(fitting, key=lambda pair: len(pair[0]))[1], variant, method)
    return replace(found, name=name)
