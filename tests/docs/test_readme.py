"""The README shows what the commands print: `python scripts/update_readme.py` rewrites it."""

import importlib.util
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_examples_are_what_the_commands_print() -> None:
    spec = importlib.util.spec_from_file_location("update_readme", ROOT / "scripts/update_readme.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(module.BLOCK.findall(text)) >= 2
    assert module.rewritten(text) == text
