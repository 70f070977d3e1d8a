"""Both trainers see the same tokens and train the same of them: train_data.py against Axolotl's own strategies."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from recipegen.catalog.resources import data_folder
from recipegen.dataset import measure
from recipegen.formats import train_json
from tests.recipes_for_tests import model
from tests.trainers import tiny

pytestmark = pytest.mark.stack
os.environ.setdefault("AXOLOTL_DO_NOT_TRACK", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
END = "<|im_end|>"

TURNS = [("user", "Add 2 and 2."), ("assistant", "Four."), ("user", "And the capital?"), ("assistant", "Oslo.")]
ROWS: dict[str, list[dict[str, Any]]] = {
    "messages": [{"messages": [{"role": r, "content": t} for r, t in [("system", "Be brief."), *TURNS]]}],
    "sharegpt": [{"conversations": [{"from": {"user": "human", "assistant": "gpt"}[r], "value": t} for r, t in TURNS]}],
    "alpaca": [
        {"instruction": "Add.", "input": "2 and 2", "output": "Four."},
        {"instruction": "Name the capital of Norway.", "input": "", "output": "Oslo."},
    ],
    "alpaca with system": [{"system": "Be brief.", "instruction": "Add.", "input": "2 and 2", "output": "Four."}],
    "pairs": [{"question": "What is two plus two?", "answer": "Four."}],
    "pairs with context": [
        {"instruction": "Add.", "context": "2 and 2", "response": "Four."},
        {"instruction": "Go", "context": "", "response": "Oslo."},
    ],
    "segments": [{"segments": [{"label": False, "text": "<s>Q: two?"}, {"label": True, "text": " Four.</s>"}]}],
    "completion": [{"text": "The capital of Norway is Oslo."}],
}


@pytest.fixture(scope="module")
def data() -> Iterator[ModuleType]:
    """templates/train_data.py, imported as train.py imports it."""
    folder = str(data_folder("templates"))
    sys.path.insert(0, folder)
    try:
        import train_data

        yield train_data
    finally:
        sys.path.remove(folder)
        for name in ("train_data", "train_recipe"):
            sys.modules.pop(name, None)


@pytest.fixture(scope="module", params=["plain", "adds <s>"])
def tokenizer_folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tokenizer that leaves a text as it is (Qwen's way), and one that begins it with a token (Llama's)."""
    from tokenizers.processors import TemplateProcessing
    from transformers import AutoTokenizer

    folder = tmp_path_factory.mktemp("tokenizer")
    tiny.write_tokenizer(folder)
    if request.param != "plain":
        tokenizer = AutoTokenizer.from_pretrained(folder)
        begin = TemplateProcessing(single="<s> $A", pair="<s> $A $B", special_tokens=[("<s>", tokenizer.bos_token_id)])
        tokenizer.backend_tokenizer.post_processor = begin
        tokenizer.save_pretrained(folder)
        assert AutoTokenizer.from_pretrained(folder)("a").input_ids[0] == tokenizer.bos_token_id
    return folder


def axolotl_rows(entry: dict[str, Any], tokenizer: Any) -> list[tuple[list[int], list[int]]]:
    """(input_ids, labels) as Axolotl's own loader and prompt strategy make them."""
    from axolotl.utils.config import validate_config
    from axolotl.utils.data.shared import load_dataset_with_config
    from axolotl.utils.data.wrappers import get_dataset_wrapper
    from axolotl.utils.dict import DictDefault

    values = {
        "base_model": "example/model",
        "datasets": [entry],
        "sequence_len": 512,
        "micro_batch_size": 1,
        "gradient_accumulation_steps": 1,
        "num_epochs": 1,
        "learning_rate": 1e-4,
        "train_on_inputs": False,
        "eot_tokens": [END],
        "dataset_num_proc": 1,
    }
    config = validate_config(DictDefault(json.loads(json.dumps(values))))
    kind = config.datasets[0].type
    loaded = load_dataset_with_config(config.datasets[0], use_auth_token=False)
    base_type = kind.split(":")[0] if isinstance(kind, str) else None
    wrapper, _ = get_dataset_wrapper(config.datasets[0], tokenizer, config, base_type, loaded)
    return [(list(row["input_ids"]), list(row["labels"])) for row in wrapper]


@pytest.mark.parametrize("name", ROWS)
def test_the_same_tokens_are_seen_and_trained(
    data: ModuleType, tokenizer_folder: Path, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import datasets
    import train_recipe
    from transformers import AutoTokenizer

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "data.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS[name]))
    spec = measure(str(path), model=dataclasses.replace(model(), id=str(tokenizer_folder)))
    tokenizer = AutoTokenizer.from_pretrained(tokenizer_folder)
    dataset = train_recipe.parse(train_recipe.Dataset, train_json.dataset(spec), "dataset")
    expected = axolotl_rows(dict(spec.entry), tokenizer)
    rows = list(data.read_rows(dataset))
    assert len(rows) == len(expected) == len(ROWS[name])
    for row, (ids, labels) in zip(rows, expected, strict=True):
        pieces = data.segments(row, dataset, tokenizer, [END])
        own_ids, targets = data.encode(pieces, tokenizer, apart=dataset.kind != "chat")
        assert own_ids.tolist() == ids
        assert targets.tolist() == [*labels[1:], -100]
