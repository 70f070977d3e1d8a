"""Training defaults as data: training_defaults.yaml, read once."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

from recipegen.catalog.reading import load_yaml
from recipegen.spec import Method


@lru_cache(maxsize=1)
def training_defaults() -> dict[str, Any]:
    """The whole table, as in training_defaults.yaml."""
    return dict(load_yaml(Path(__file__).with_name("training_defaults.yaml")))


def learning_rate(method: Method, total_parameters: int) -> float:
    """The default learning rate of a method for a model of that many parameters."""
    rows = training_defaults()["adapter" if method.is_adapter else "full"]["learning_rate"]
    for row in rows:
        limit = row["up_to_parameters"]
        if limit is None or total_parameters <= float(limit):
            return float(row["value"])
    raise AssertionError("the last row covers every model")
