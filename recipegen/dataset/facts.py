"""The facts of this room, as data (facts.yaml)."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import yaml


@cache
def facts() -> dict[str, Any]:
    """The whole of facts.yaml; read once."""
    loaded: dict[str, Any] = yaml.safe_load(Path(__file__).with_name("facts.yaml").read_text(encoding="utf-8"))
    return loaded


def limit(name: str) -> int:
    """A bound of the `limits` section."""
    return int(facts()["limits"][name])
