"""README and docs/accuracy.md show what the commands print: `python scripts/update_readme.py` rewrites them."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def update() -> ModuleType:
    spec = importlib.util.spec_from_file_location("update_readme", ROOT / "scripts/update_readme.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(("name", "blocks"), [("README.md", 2), ("docs/accuracy.md", 4)])
def test_the_examples_are_what_the_commands_print(
    update: ModuleType, name: str, blocks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    text = (ROOT / name).read_text(encoding="utf-8")
    assert len(update.BLOCK.findall(text)) >= blocks
    assert update.rewritten(text) == text
