"""What is a secret in a file of a recipe, and what is printed in its place. Scripts export keys of services, and YAML
files hold tokens: no output and no new file repeats them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from recipegen.formats.plain import to_plain

# `pad_token` and its kin are no secrets: a token is one where its name says whose, or is that of a variable.
_SECRET = re.compile(
    r"(?i:(^|_)(secret(_\w+)?|password|passwd|credentials?|(api|access|private)_?key(_id)?)$)"
    r"|(?i:(^|_)(hf|hub|auth|access|api|bearer|github|wandb|comet|swanlab|trackio|mlflow)_token$)|^(?i:token)$|_TOKEN$"
)
HIDDEN = "(not shown)"


def is_secret(key: str, value: Any) -> bool:
    """A text under a key or variable of such a name is written nowhere and shown nowhere."""
    return isinstance(value, str) and bool(value) and _SECRET.search(key.rpartition(".")[2]) is not None


def shown(key: str, value: Any) -> Any:
    """`value` as it may be printed."""
    if isinstance(value, Mapping):
        return {str(name): shown(str(name), item) for name, item in value.items()}
    return HIDDEN if is_secret(key, value) else to_plain(value, for_print=True)


def hidden(value: Any) -> Any:
    """A plain value of a recipe, with every secret in it hidden: under its key, or beside its name."""
    if isinstance(value, Mapping):
        name = value.get("name")
        kept = {
            str(key): shown(str(key), item) if is_secret(str(key), item) else hidden(item)
            for key, item in value.items()
        }
        if isinstance(name, str) and is_secret(name, value.get("value")):
            kept["value"] = HIDDEN
        return kept
    return [hidden(item) for item in value] if isinstance(value, (list, tuple)) else value
