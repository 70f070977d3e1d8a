"""What a person asks for: recipe.yaml and the command line, before anything is decided."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Request:
    """The fields of recipe.yaml. None is `auto`: to be decided.

    `pins` maps Recipe field paths to values held fixed; `passthrough` maps a file (axolotl, accelerate, deepspeed)
    to valid trainer keys that recipegen does not model.
    """

    model: str
    hardware: str
    dataset: tuple[str, ...] = ()
    dataset_format: str = "auto"
    model_revision: str | None = None
    nodes: int = 1
    network: str = "none"
    hardware_overrides: Mapping[str, float] = field(default_factory=dict)
    trainer: str = "axolotl"
    stack: str = "axolotl-0.19.0"
    method: str | None = None
    sequence_len: int | None = None
    global_batch_size: int | None = None
    epochs: float | None = None
    learning_rate: float | None = None
    pins: Mapping[str, Any] = field(default_factory=dict)
    passthrough: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
