"""frameworks.yaml: what a measured framework does. Looked up by the framework's name, never by a row."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import yaml

_TABLE = Path(__file__).with_name("frameworks.yaml")


@dataclass(frozen=True)
class LossBytes:
    """Bytes per token and vocabulary entry while kept logits go through the loss."""

    forward: float
    backward: float


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

    def kernel(self, fused_ce: str) -> LossBytes | None:
        """The loss of a `fused_ce` text, by its first word; None when the table has none."""
        words = fused_ce.lower().split()
        return self.loss.get(words[0]) if words else None


@cache
def _table() -> Mapping[str, Any]:
    data: Mapping[str, Any] = yaml.safe_load(_TABLE.read_text(encoding="utf-8"))
    return data


def _built(entry: Mapping[str, Any], variant: str | None) -> Framework:
    kernels = _table()["kernels"]
    entry = {**entry, **entry.get("variants", {}).get(variant, {})}
    loss = {
        word: LossBytes(float(kernels[name]["forward"]), float(kernels[name]["backward"]))
        for word, name in entry["loss"].items()
    }
    known = {k: v for k, v in entry.items() if k in Framework.__dataclass_fields__}
    return Framework(**(known | {"loss": loss, "when": str(entry["when"]), "unknown": entry.get("unknown", {})}))


def framework(name: str, variant: str | None = None) -> Framework | None:
    """The entry whose name begins `name`, the longest of several; None when nobody wrote down what it does."""
    fitting = [e for e in _table()["frameworks"] if name.lower().startswith(str(e["name"]).lower())]
    if not fitting:
        return None
    found = _built(max(fitting, key=lambda e: len(e["name"])), variant)
    return replace(found, name=name)
