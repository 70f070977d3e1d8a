"""The estimate of tokens against real tokenizers: never far below, so that a sequence length holds."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from recipegen.dataset.tokens import EstimatedTokens

pytestmark = pytest.mark.stack

Count = Callable[[str], int]


@pytest.fixture(scope="module")
def data_folder() -> Path:
    import mistral_common

    return Path(mistral_common.__file__).parent / "data"


@pytest.fixture(scope="module")
def sentencepiece_32k(data_folder: Path) -> Count:
    """Mistral 7B's first tokenizer (32,000 tokens), as mistral-common ships it."""
    import sentencepiece

    processor = sentencepiece.SentencePieceProcessor(str(data_folder / "tokenizer.model.v1"))
    return lambda text: len(processor.encode(text))


@pytest.fixture(scope="module")
def tekken_131k(data_folder: Path) -> Count:
    """Mistral Nemo's tokenizer (131,072 tokens), as mistral-common ships it."""
    import tiktoken

    source = json.loads((data_folder / "tekken_240911.json").read_text())
    size = source["config"]["default_vocab_size"] - source["config"]["default_num_special_tokens"]
    ranks = {base64.b64decode(entry["token_bytes"]): entry["rank"] for entry in source["vocab"][:size]}
    encoding = tiktoken.Encoding(
        "tekken", pat_str=source["config"]["pattern"], mergeable_ranks=ranks, special_tokens={}
    )
    return lambda text: len(encoding.encode(text))


@pytest.mark.parametrize("vocabulary", ["sentencepiece_32k", "tekken_131k"])
def test_the_estimate_is_on_the_high_side_in_every_script(
    vocabulary: str, corpus: Path, request: pytest.FixtureRequest
) -> None:
    count: Count = request.getfixturevalue(vocabulary)
    estimate = EstimatedTokens(32_000 if vocabulary == "sentencepiece_32k" else 131_072)
    texts: dict[str, str] = yaml.safe_load((corpus / "scripts.yaml").read_text(encoding="utf-8"))
    ratios = {name: estimate.count([text])[0] / count(text) for name, text in texts.items()}
    assert {name: ratio for name, ratio in ratios.items() if ratio < 1} == {}
    assert ratios["english"] < 1.6
    assert ratios["code"] < 1.6
    everything = "\n".join(texts.values())
    assert 1.0 <= estimate.count([everything])[0] / count(everything) < 1.8
