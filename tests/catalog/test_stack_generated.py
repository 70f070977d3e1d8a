"""The key schemas are what the installed trainers say: generated again and compared."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.stack
SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"


@pytest.mark.parametrize("script", ["gen_axolotl_schema.py", "gen_deepspeed_schema.py"])
def test_the_schema_is_as_generated(script: str) -> None:
    done = subprocess.run(
        [sys.executable, str(SCRIPTS / script), "--check"], capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr[-2000:]
