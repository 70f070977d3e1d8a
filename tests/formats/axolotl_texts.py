"""What the tests of the reader of axolotl.yaml write into a file."""

from __future__ import annotations

from recipegen.formats.axolotl_read import read
from recipegen.formats.reading import Reading

BASE = "base_model: NousResearch/Llama-3.2-1B\n"


def of(text: str) -> Reading:
    """A file with a model and these lines."""
    return read((BASE + text).encode(), "axolotl.yaml")
