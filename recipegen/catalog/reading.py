"""Catalogue files: YAML mappings that ship with the package."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml


def load_yaml(path: Path) -> Mapping[str, Any]:
    """One YAML file that must be a mapping. The C parser is used where PyYAML has it: ten times faster."""
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    with path.open("rb") as file:
        value = yaml.load(file, Loader=loader)  # noqa: S506  (a safe loader, the C one)
    if not isinstance(value, dict):
        raise ValueError(f"{path} is not a mapping")
    return value
