"""Rows for the data tests."""

from __future__ import annotations

from typing import Any


def chat(*words: str, system: str | None = None) -> dict[str, Any]:
    """A conversation in OpenAI form: user, assistant, user, ..."""
    turns = [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(words)]
    return {"messages": ([{"role": "system", "content": system}] if system else []) + turns}
