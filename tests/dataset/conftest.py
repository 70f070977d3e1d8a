"""Models, files and tokenizers for the data tests."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from recipegen.spec import ModelSpec

DATA = Path(__file__).parent.parent / "corpus" / "data"


@pytest.fixture
def corpus() -> Path:
    return DATA


@pytest.fixture(autouse=True)
def _no_cache(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """No model of this machine's own cache may change a test."""
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path_factory.mktemp("hub")))


@pytest.fixture
def model() -> ModelSpec:
    """An instruct model of the Llama 3 family, without files."""
    return ModelSpec(
        id="example/llama-3-instruct",
        model_type="llama",
        layer_class="LlamaDecoderLayer",
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        vocab_size=128256,
        max_position_embeddings=8192,
        chat_template="llama3",
        end_of_turn=("<|eot_id|>",),
        eos_token="<|eot_id|>",
        instruct=True,
    )


@pytest.fixture
def base_model(model: ModelSpec) -> ModelSpec:
    """The base model of that family."""
    return replace(model, id="example/llama-3-base", instruct=False, eos_token="<|end_of_text|>")


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str, object], Path]:
    """Writes rows as JSONL, or bytes and text as they are."""

    def _write(name: str, content: object) -> Path:
        path = tmp_path / name
        if isinstance(content, bytes):
            path.write_bytes(content)
        elif isinstance(content, str):
            path.write_text(content, encoding="utf-8", newline="")
        else:
            lines = [json.dumps(row, ensure_ascii=False) + "\n" for row in content]  # type: ignore[attr-defined]
            path.write_text("".join(lines), encoding="utf-8", newline="")
        return path

    return _write
