"""Trainer keys that recipegen does not model: laid over what it writes, in the open."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from recipegen.formats.scalars import scalar
from recipegen.spec import RecipegenError


def merge(written: Mapping[str, Any], passed: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """`passed` laid over `written`, and for each key that was set a line that says what it replaced.

    Keys may be dotted (`fsdp_config.offload_params`) or mappings; both reach inside, so one nested key never wipes its
    neighbours. Raises RecipegenError for a key inside something that is not a mapping and for values YAML cannot hold.
    """
    merged: dict[str, Any] = copy.deepcopy(dict(written))
    notes: dict[str, str] = {}
    for name, value in passed.items():
        _put(merged, str(name).split("."), value, (), notes)
    return merged, notes


def _put(target: dict[str, Any], path: list[str], value: Any, above: tuple[str, ...], notes: dict[str, str]) -> None:
    name, rest = path[0], path[1:]
    here = (*above, name)
    if not name:
        raise RecipegenError(f"{'.'.join((*above, *path))!r} is not a key")
    if rest or (isinstance(value, Mapping) and isinstance(target.get(name), Mapping)):
        inner = target.setdefault(name, {})
        if not isinstance(inner, dict):
            raise RecipegenError(f"{'.'.join((*above, *path))}: {name!r} is no mapping, nothing can be set in it")
        if rest:
            _put(inner, rest, value, here, notes)
        else:
            for key, item in value.items():
                _put(inner, [str(key)], item, here, notes)
        return
    scalar(value)  # raises for what YAML cannot hold
    note = "set by you, passed through unchecked by the decision"
    if name in target and target[name] != value:
        note += f"; recipegen would have written {scalar(target[name])}"
    notes[".".join(here)] = note
    target[name] = value
