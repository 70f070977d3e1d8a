"""The keys we write are keys of the stack that we name."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from recipegen.catalog import load_stack
from recipegen.formats import axolotl, requirements
from recipegen.spec import Strategy
from tests.recipes_for_tests import recipe, recipes

SAMPLES = dict(recipes())
STACK = load_stack("axolotl-0.19.0")
SCHEMA = STACK.axolotl_keys()


def unknown(value: Any, fields: dict[str, Any], above: str = "") -> Iterator[str]:
    """Dotted keys of `value` that the schema's `fields` lack, followed into objects whose fields are known."""
    for key, inner in value.items():
        if key not in fields:
            yield above + key
        elif isinstance(inner, dict):
            kinds = fields[key] if isinstance(fields[key], list) else [fields[key]]
            names = [kind["object"] for kind in kinds if isinstance(kind, dict) and "object" in kind]
            if names:
                yield from unknown(inner, SCHEMA["objects"][names[0]], f"{above}{key}.")


def fields_of(values: dict[str, Any]) -> dict[str, Any]:
    """The root's fields and those that the listed plugins add."""
    fields = dict(SCHEMA["objects"][SCHEMA["root"]])
    for plugin in values.get("plugins", []):
        fields |= SCHEMA["objects"][SCHEMA["plugins"][plugin.removeprefix("axolotl.integrations.")]]
    return fields


@pytest.mark.parametrize("name", SAMPLES)
def test_axolotl_knows_every_key(name: str) -> None:
    values = axolotl.values(SAMPLES[name])
    assert list(unknown(values, fields_of(values))) == []


def test_a_misspelt_key_would_be_noticed() -> None:
    values = axolotl.values(recipe(Strategy.FSDP2_FULL)) | {
        "lora_rank": 8,
        "fsdp_config": {"reshard_after_forwrd": True},
    }
    assert list(unknown(values, fields_of(values))) == ["fsdp_config.reshard_after_forwrd", "lora_rank"]


@pytest.mark.parametrize("name", SAMPLES)
def test_the_stack_pins_what_axolotl_needs(name: str) -> None:
    text = requirements.write(SAMPLES[name], STACK.pins)
    assert f"torch=={STACK.pins['torch']}\n" in text
    assert "any version" not in text
