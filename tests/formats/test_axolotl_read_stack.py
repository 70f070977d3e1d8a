"""What is read of a file is what Axolotl's own classes make of it: its cases, deprecated spellings, real examples."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import yaml

from recipegen.catalog import load_cluster
from recipegen.catalog.stack import load_stack
from recipegen.check.axolotl_lite import capabilities, lite_axolotl
from recipegen.formats.axolotl_fields import PLAIN, PLAIN_FSDP
from recipegen.formats.axolotl_read import read
from tests.check.axolotl_cases import BASE, CASES, FSDP1, FSDP2, LORA
from tests.formats.test_axolotl_examples_read import FILES, NEEDED

pytestmark = pytest.mark.stack
TARGET = capabilities(load_cluster("kentino-8x-rtx-5090"))
KEYS = {
    **{field: key for field, key, _ in (*PLAIN, *PLAIN_FSDP)},
    "activation_checkpointing": "gradient_checkpointing",
    "activation_offloading": "activation_offloading",
    "attention": "attn_implementation",
    "fsdp.version": "fsdp_version",
    "gradient_accumulation": "gradient_accumulation_steps",
    "adapter.r": "lora_r",
    "adapter.alpha": "lora_alpha",
    "adapter.dropout": "lora_dropout",
    "tf32": "tf32",
    "torch_compile": "torch_compile",
}
LEGACY: dict[str, dict[str, Any]] = {
    "flags of attention": {"xformers_attention": True, "flash_attention": True, "sdp_attention": False},
    "eager": {"eager_attention": True},
    "offload": {"gradient_checkpointing": "offload"},
    "offload to disk": {"gradient_checkpointing": "offload_disk"},
    "hidden states": {"gradient_checkpointing": True, "activation_offloading": "hidden_states"},
    "unversioned": FSDP1,
    "version inside": {"fsdp_config": {**FSDP2["fsdp_config"], "fsdp_version": 2}},
    "short version": {"fsdp_config": {**FSDP2["fsdp_config"], "version": 2}},
    "version at the top": FSDP2,
    "prefixes": {"fsdp_config": {"fsdp_offload_params": True, "fsdp_transformer_layer_cls_to_wrap": "L"}},
    "numbers as text": {"learning_rate": "2e-4", "sequence_len": "4096", "sample_packing": "yes", "weight_decay": True},
    "dropout of an adapter": LORA,
    "compile": {"torch_compile": "auto"},
    "processes": {"dataset_processes": 3},
    "empty": {"bf16": None, "lora_r": None, "tf32": "auto"},
}


def differences(values: dict[str, Any]) -> list[str]:
    """Fields that we state otherwise than Axolotl; empty for a file that it refuses."""
    resolved = lite_axolotl(load_stack()).validate(values, TARGET).resolved
    reading = read(yaml.safe_dump(values).encode(), "axolotl.yaml")
    if not resolved:
        return []
    found = [f"{problem.key}: {problem.reason}" for problem in reading.problems]
    for field, key in KEYS.items():
        if field not in reading.values or (field, True) in _elsewhere(reading.facts):
            continue
        theirs: Any = resolved
        for part in key.split("."):
            theirs = theirs.get(part) if theirs else None
        if field == "activation_offloading":
            theirs = bool(theirs)
        if theirs != reading.values[field]:
            found.append(f"{key}: {theirs!r} is read as {reading.values[field]!r}")
    return found


def _elsewhere(facts: Mapping[str, Any]) -> tuple[tuple[str, bool], ...]:
    """Fields that Axolotl leaves to Accelerate's wrapper and to Transformers' words of `fsdp:`."""
    return (
        ("activation_checkpointing", bool(facts.get("fsdp_activation_checkpointing"))),
        ("fsdp.reshard_after_forward", "fsdp_sharding_strategy" in facts),
        ("fsdp.offload_params", "fsdp_sharding_strategy" in facts),
    )


@pytest.mark.parametrize("name", CASES)
def test_cases(name: str) -> None:
    changed, _, _ = CASES[name]
    assert differences({**BASE, **changed}) == []


@pytest.mark.parametrize("name", LEGACY)
def test_deprecated_spellings_are_accepted_and_read_alike(name: str) -> None:
    values = {**BASE, **LEGACY[name]}
    assert lite_axolotl(load_stack()).validate(values, TARGET).resolved
    assert differences(values) == []


@NEEDED
def test_real_examples() -> None:
    for path in FILES:
        if path.suffix in (".yml", ".yaml"):
            assert differences(yaml.safe_load(path.read_text(encoding="utf-8"))) == [], path
