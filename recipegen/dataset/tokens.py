"""Counting tokens: with the model's tokenizer when it is at hand, else by characters per token."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from recipegen.dataset.facts import facts
from recipegen.dataset.problems import shown_path
from recipegen.spec import ModelSpec, RecipegenError


class TokenCounter(Protocol):
    """`count` gives the tokens of each text alone; `begin` is how many the tokenizer puts before a text."""

    basis: str
    begin: int
    note: str

    def count(self, texts: Sequence[str]) -> list[int]: ...


# Classes of characters by Unicode block; what none of them takes is `other`.
_BLOCKS = (
    ("latin", "\u00a0-\u036f\u1e00-\u1eff"),
    ("cyrillic", "\u0400-\u052f"),
    ("greek", "\u0370-\u03ff\u1f00-\u1fff"),
    ("han", "\u3000-\u303f\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uff00-\uff60"),
    ("kana", "\u3040-\u30ff\u31f0-\u31ff"),
    ("hangul", "\u1100-\u11ff\u3130-\u318f\uac00-\ud7af"),
    ("arabic", "\u0600-\u06ff\u0750-\u077f\u08a0-\u08ff\ufb50-\ufdff\ufe70-\ufefe"),
    ("hebrew", "\u0590-\u05ff"),
    ("indic", "\u0900-\u0dff"),
    ("thai", "\u0e00-\u0eff"),
    ("emoji", "\u2600-\u27bf\ufe0f\U0001f000-\U0001faff"),
)
_CLASSES = tuple((name, re.compile(f"[{block}]+")) for name, block in _BLOCKS)
_ASCII = re.compile(r"[\x00-\x7f]+")
_DIGITS = b"0123456789"
_PUNCTUATION = b"!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~\n\t"


class EstimatedTokens:
    """Characters divided by characters per token, class by class; on the high side."""

    basis = "estimate"
    begin = 1

    def __init__(self, vocab_size: int) -> None:
        table = facts()["characters_per_token"]
        self.size = "small" if vocab_size < table["small_vocabulary_below"] else "large"
        self._per_character = {name: 1.0 / value for name, value in table[self.size].items()}
        self.note = (
            "lengths are estimated from characters (no tokenizer at hand) and lie on the high side: about "
            f"{table[self.size]['letter']} Latin letters, 1 digit or {table[self.size]['han']} Chinese characters each"
        )

    def count(self, texts: Sequence[str]) -> list[int]:
        return [self._one(text) for text in texts]

    def _one(self, text: str) -> int:
        weight = self._per_character
        rest = "" if text.isascii() else _ASCII.sub("", text)
        ascii_count = len(text) - len(rest)
        encoded = text.encode("utf-8", "replace")
        digits = len(encoded) - len(encoded.translate(None, _DIGITS))
        punctuation = len(encoded) - len(encoded.translate(None, _PUNCTUATION))
        letters = ascii_count - digits - punctuation
        total = digits * weight["digit"] + punctuation * weight["punctuation"] + letters * weight["letter"]
        for name, pattern in _CLASSES:
            if not rest:
                break
            left = pattern.sub("", rest)
            total += (len(rest) - len(left)) * weight[name]
            rest = left
        total += len(rest) * weight["other"]
        return -int(-total // 1)  # rounded up


class CountedTokens:
    """The model's own tokenizer (the `tokenizers` library)."""

    basis = "tokenizer"

    def __init__(self, path: Path) -> None:
        from tokenizers import Tokenizer

        try:
            self._tokenizer = Tokenizer.from_file(str(path))
            self._tokenizer.no_truncation()
            self._tokenizer.no_padding()
            self.begin = len(self._tokenizer.encode("").ids)
        except Exception as error:  # the library raises bare Exception for a file it cannot read
            raise RecipegenError(f"{shown_path(path)} is not a tokenizer that can be read: {error}") from None
        self.note = f"lengths are counted with {path.name} of the model"

    def count(self, texts: Sequence[str]) -> list[int]:
        encoded = self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        return [len(e.ids) for e in encoded]


def counter(model: ModelSpec, folder: Path | None) -> TokenCounter:
    """The best counter that can be had. Its `note` says which one it is."""
    path = folder / "tokenizer.json" if folder is not None else None
    if path is None or not path.is_file():
        return EstimatedTokens(model.vocab_size)
    try:
        return CountedTokens(path)
    except ImportError:
        estimate = EstimatedTokens(model.vocab_size)
        estimate.note += "; the tokenizer is at hand: pip install 'recipegen[data]' counts exactly"
        return estimate
