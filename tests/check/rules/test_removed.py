"""Keys that Axolotl stops at: every one of the table is refused by the real models exactly when the rule says so."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from subjects import said

from recipegen.catalog import load_cluster
from recipegen.catalog.stack import load_stack
from recipegen.check.axolotl_lite import capabilities, lite_axolotl
from recipegen.check.checking import check

STACK = load_stack()
REMOVED = STACK.removed_keys("axolotl")
BASE = """\
base_model: meta-llama/Llama-3.1-8B
datasets:
  - {path: data.jsonl, type: alpaca}
micro_batch_size: 1
gradient_accumulation_steps: 1
learning_rate: 0.0001
"""
NUMBERS = {"max_packed_sequence_len": (2048, 0), "rpo_alpha": (0.5, 0), "rope_scaling": ({"factor": 2.0}, {})}


def written(key: str, value: Any) -> str:
    return f"{BASE}{key}: {json.dumps(value)}\n"


def values(key: str) -> tuple[Any, Any]:
    """One that counts as true, one that is set and does not."""
    return NUMBERS.get(key, (True, False))


@pytest.mark.parametrize("key", REMOVED)
def test_it_is_said_at_its_line_with_what_to_write_instead(key: str) -> None:
    true, false = values(key)
    found = said({"axolotl.yaml": written(key, true)})["RG716"]
    assert found.where == "axolotl.yaml:7"
    assert key in found.reason
    assert found.fix == REMOVED[key]["fix"]
    assert ("RG716" in said({"axolotl.yaml": written(key, false)})) == (REMOVED[key]["when"] == "set")
    assert "RG716" not in said({"axolotl.yaml": written(key, None)})


@pytest.mark.stack
@pytest.mark.parametrize("key", REMOVED)
def test_axolotl_refuses_it_exactly_then(key: str) -> None:
    lite = lite_axolotl(STACK)
    true, false = values(key)
    base = {
        "base_model": "meta-llama/Llama-3.1-8B",
        "datasets": [{"path": "data.jsonl", "type": "alpaca"}],
        "micro_batch_size": 1,
        "gradient_accumulation_steps": 1,
        "learning_rate": 1e-4,
    }
    machine = capabilities(load_cluster("1x-h100"))
    assert not lite.validate(base, machine).errors
    assert lite.validate({**base, key: true}, machine).errors
    assert bool(lite.validate({**base, key: false}, machine).errors) == (REMOVED[key]["when"] == "set")


@pytest.mark.stack
def test_the_table_holds_every_key_that_axolotl_knows_and_refuses() -> None:
    from axolotl.utils.schemas.deprecated import DeprecatedParameters

    refused = set()
    for key in DeprecatedParameters.model_fields:
        for value in (True, 1, 0.5, "steps", {"a": 1}):
            try:
                DeprecatedParameters(**{key: value})
            except DeprecationWarning:
                refused.add(key)
            except ValueError:
                continue
    assert refused
    assert refused <= set(REMOVED)


def test_one_cause_is_said_once(tmp_path: Path) -> None:
    file = tmp_path / "axolotl.yaml"
    file.write_text(written("unsloth_rope", True), encoding="utf-8")
    (project,) = check([file]).checked
    about = [f for f in project.findings if "unsloth_rope" in f.reason]
    assert [f.rule for f in about] == ["RG716"]
