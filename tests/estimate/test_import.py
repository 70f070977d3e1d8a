"""The estimate is formulas: importing it reads no data and loads no parser."""

import subprocess
import sys

NOT_NEEDED = ("yaml", "json", "recipegen.dataset", "recipegen.catalog.stack", "recipegen.catalog.cluster")


def test_importing_the_estimate_loads_no_parser_and_no_other_room() -> None:
    code = "import sys, recipegen.estimate; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert "recipegen.estimate.memory" in loaded
    assert not set(NOT_NEEDED) & set(loaded)
