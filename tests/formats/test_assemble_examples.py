"""Axolotl's own examples, where they are at hand: each ends in an estimate, or in a reason why there is none."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from recipegen.catalog import load_cluster, load_stack
from recipegen.catalog.model import find, read
from recipegen.estimate import estimate
from recipegen.formats import axolotl_read, deepspeed_read
from recipegen.formats.assemble import assemble
from recipegen.formats.assembled import Assembled
from recipegen.formats.reading import Reading
from recipegen.spec import ModelSpec
from tests.recipes_for_tests import model

ROOT = Path(__file__).parents[2]
FOLDER = Path(os.environ.get("RECIPEGEN_AXOLOTL_EXAMPLES", ROOT.parent / "shared" / "data" / "axolotl-examples"))
FILES = sorted(path for path in FOLDER.rglob("*") if path.suffix in (".yml", ".yaml")) if FOLDER.is_dir() else []
NEEDED = pytest.mark.skipif(not FILES, reason=f"no examples in {FOLDER}; RECIPEGEN_AXOLOTL_EXAMPLES names another")
STACK = load_stack()
CLUSTER = load_cluster("kentino-8x-rtx-pro-6000")
# What a Recipe cannot say yet; everything else must be estimated once the model's shape is known.
BEYOND = ("rl", "unfrozen_parameters", "qat", "vision tower", "no model is named", "the pattern matches no module")


def readings(path: Path) -> list[Reading]:
    configs = sorted((FOLDER / "deepspeed_configs").glob("*.json"))
    return [
        axolotl_read.read(path.read_bytes(), path.name),
        *(deepspeed_read.read(config.read_bytes(), config.name) for config in configs),
    ]


def from_catalogue(name: str) -> ModelSpec | None:
    path = find(name)
    return read(path) if path else None


def estimated(answer: Assembled) -> bool:
    """True with an estimate; a reason must stand where there is none."""
    if answer.recipe is None or answer.model is None:
        assert answer.unknown
        return False
    guess = estimate(answer.model, CLUSTER, answer.recipe, STACK)
    return guess.gpu.peak_allocated_bytes > 0


@NEEDED
def test_every_example_has_an_estimate_or_a_reason() -> None:
    for path in FILES:
        answer = assemble(readings(path), STACK, cluster=CLUSTER, model=from_catalogue)
        estimated(answer)
        for item in answer.unknown:
            assert item.reason, path


@NEEDED
def test_a_known_model_is_what_most_examples_lack() -> None:
    """With any shape in the place of those that the catalogue lacks, the rest of each file is enough."""
    for path in FILES:
        answer = assemble(readings(path), STACK, cluster=CLUSTER, model=lambda name: from_catalogue(name) or model())
        if not estimated(answer):
            assert any(word in item.reason for item in answer.unknown for word in BEYOND), (path, answer.unknown)
