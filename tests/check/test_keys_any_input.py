"""Whatever a file holds, the checks answer with findings."""

from __future__ import annotations

import json
from typing import Any

import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from recipegen.catalog import load_cluster
from recipegen.catalog.stack import load_stack
from recipegen.check import validate_project
from recipegen.check.keys import check_accelerate, check_axolotl, check_deepspeed
from recipegen.spec import Finding

STACK = load_stack()
CLUSTER = load_cluster("kentino-8x-rtx-5090")
SCHEMAS = (STACK.axolotl_keys(), STACK.deepspeed_keys())
KNOWN = sorted({key for schema in SCHEMAS for fields in schema["objects"].values() for key in fields})
SCALARS = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=12)
)
KEYS = st.sampled_from([*KNOWN, "num_processes", "fsdp_config", "deepspeed_config"]) | st.text(min_size=1, max_size=8)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3), max_leaves=12
)
FILES = st.dictionaries(KEYS, VALUES, max_size=6)
CHECKS = (check_axolotl, check_accelerate, check_deepspeed)


def well_formed(findings: tuple[Finding, ...]) -> None:
    for found in findings:
        assert found.reason
        assert "\n" not in found.reason + found.fix + found.where


@settings(max_examples=150, deadline=None)
@given(FILES)
def test_any_mapping(values: dict[str, Any]) -> None:
    text = yaml.safe_dump(values, allow_unicode=True).encode("utf-8", "replace")
    well_formed(check_axolotl(text, STACK))
    well_formed(check_accelerate(text, STACK))
    well_formed(check_deepspeed(json.dumps(values).encode(), STACK))
    files = {"axolotl.yaml": text, "accelerate.yaml": text, "deepspeed.json": json.dumps(values).encode()}
    well_formed(validate_project({**files, "train.json": files["deepspeed.json"]}, None, CLUSTER, trainers=False)[0])


@settings(max_examples=150, deadline=None)
@given(st.binary(max_size=200) | st.text(max_size=200).map(lambda text: text.encode("utf-8", "replace")))
def test_any_bytes(content: bytes) -> None:
    for check in CHECKS:
        well_formed(check(content, STACK))
