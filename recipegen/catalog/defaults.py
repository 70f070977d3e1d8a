"""Training defaults as data: training_defaults.yaml, read once."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

from recipegen.spec import Method


@lru_cache(maxsize=1)
def training_defaults() -> dict[str, Any]:
    """The whole table, as in training_defaults.yaml."""
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    text = Path(__file__).with_name("training_defaults.yaml").read_text(encoding="utf-8")
    data: dict[str, Any] = yaml.load(text, Loader=loader)  # noqa: S506  (a safe loader, in C where there is one)
    return data


def learning_rate(method: Method, total_parameters: int) -> float:
    """The default learning rate of a method for a model of that many parameters."""
    rows = training_defaults()["adapter" if method.is_adapter else "full"]["learning_rate"]
    for row in rows:
        limit = row["up_to_parameters"]
        if limit is None or total_parameters <= float(limit):
            return float(row["value"])
    raise AssertionError("the last row covers every model")
