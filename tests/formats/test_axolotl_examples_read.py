"""Files of real projects: Axolotl's own examples, where they are at hand. They are not part of this repository."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from recipegen.formats.axolotl_facts import NAMES
from recipegen.formats.axolotl_read import CARRIES, read

ROOT = Path(__file__).parents[2]
FOLDER = Path(os.environ.get("RECIPEGEN_AXOLOTL_EXAMPLES", ROOT.parent / "shared" / "data" / "axolotl-examples"))
FILES = sorted(path for path in FOLDER.rglob("*") if path.is_file()) if FOLDER.is_dir() else []
NEEDED = pytest.mark.skipif(not FILES, reason=f"no examples in {FOLDER}; RECIPEGEN_AXOLOTL_EXAMPLES names another")


@NEEDED
def test_every_file_is_read_without_an_exception() -> None:
    for path in FILES:
        reading = read(path.read_bytes(), path.name)
        assert set(reading.values) <= set(CARRIES), path
        assert set(reading.facts) <= NAMES, path


@NEEDED
def test_every_example_says_its_model_and_batch() -> None:
    configs = [path for path in FILES if path.suffix in (".yml", ".yaml") and "base_model:" in path.read_text()]
    assert configs
    for path in configs:
        reading = read(path.read_bytes(), path.name)
        for field in ("model", "micro_batch_size", "gradient_accumulation", "optimizer.name", "sequence_len"):
            assert field in reading.values, (path, field)
        assert all(problem.where.startswith(f"{path.name}:") for problem in reading.problems), path
