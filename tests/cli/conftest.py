"""A model folder, data and hardware profiles for the command line, without any network."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 377,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": False,
    "rms_norm_eps": 1e-6,
}
ROW = {"instruction": "Say something about the moon.", "input": "", "output": "It is made of rock and light."}
CORPUS = Path(__file__).parents[1] / "corpus"


@pytest.fixture
def model_folder(tmp_path: Path) -> Callable[[str], Path]:
    def make(name: str = "model") -> Path:
        folder = tmp_path / name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text(json.dumps(CONFIG))
        return folder

    return make


@pytest.fixture
def data_file(tmp_path: Path) -> Callable[[str], Path]:
    def make(name: str = "data.jsonl") -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(json.dumps(ROW) + "\n" for _ in range(40)))
        return path

    return make
