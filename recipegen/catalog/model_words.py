"""A model's name taken apart by rule: family, version, size, and what is said of its weights.

Organisation, letter case and separators do not count, a size (`7B`) is a number, and words such as Instruct, AWQ or a
date are told apart from those that name the model. What each word means is in names.yaml; nothing is looked up here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from recipegen.catalog.reading import load_yaml

NAMES_FILE = Path(__file__).parent / "names.yaml"

_SIZE = re.compile(r"\d+(?:\.\d+)?[bm]")
_ACTIVE = re.compile(r"[ae]\d+(?:\.\d+)?b")  # a3b: active parameters; e2b: effective ones
_LETTERS_THEN_DIGITS = re.compile(r"([a-z]+)(\d.*)")
_DATE = re.compile(r"(?:2[0-9](?:0[1-9]|1[0-2])|(?:0[1-9]|1[0-2])(?:[0-2]\d|3[01])|20\d{6})")  # 2507, 0414, 20240501
_CONTEXT = re.compile(r"\d+k|1m")
VERSION = re.compile(r"v\d+(?:\.\d+)*")


@dataclass(frozen=True)
class Words:
    """A name taken apart: its words in order (all of them; without decoration; without dates too), the size in
    billions, and the format word of quantised weights."""

    full: tuple[str, ...]
    dated: tuple[str, ...]
    core: tuple[str, ...]
    size: float | None = None
    quantised: str | None = None


def words(name: str, *, decimal_underscore: bool = False) -> Words:
    """Take a name apart. `decimal_underscore`: read `1_8B` as 1.8B, as the Hub's older ids write it."""
    text = name.strip().casefold()
    text = re.sub(r"^.*/(?=.)", "", text)
    if decimal_underscore:
        text = re.sub(r"(?<=\d)_(?=\d)", ".", text)
    pieces = [piece.strip(".") for piece in re.split(r"[\s_\-/()\[\],:+]+", text)]
    full: list[str] = []
    dated: list[str] = []
    core: list[str] = []
    size: float | None = None
    quantised: str | None = None
    facts = name_facts()
    for piece in filter(None, pieces):
        for word in _split(piece):
            if size is None and _SIZE.fullmatch(word):
                size = float(word[:-1]) / (1 if word[-1] == "b" else 1000)
                continue
            full.append(word)
            if word in facts["quantisation"]["quantised"]:
                quantised = quantised or word
            elif _DATE.fullmatch(word):
                dated.append(word)
            elif not _is_decoration(word):
                dated.append(word)
                core.append(word)
    return Words(_joined(full), _joined(dated), _joined(core), size, quantised)


def _split(piece: str) -> tuple[str, ...]:
    """`qwen2.5` -> qwen, 2.5; versions (`v0.1`), `a3b`, `8x7b` and words of the table stay whole."""
    whole = _ACTIVE.fullmatch(piece) or VERSION.fullmatch(piece) or _is_decoration(piece)
    match = (
        None if whole or piece in name_facts()["quantisation"]["quantised"] else _LETTERS_THEN_DIGITS.fullmatch(piece)
    )
    return (match[1], match[2]) if match else (piece,)


def _is_decoration(word: str) -> bool:
    facts = name_facts()
    return (
        word in facts["decoration"] or word in facts["quantisation"]["stored"] or _CONTEXT.fullmatch(word) is not None
    )


def _joined(found: Iterable[str]) -> tuple[str, ...]:
    """Neighbouring alphabetic words as one: tiny-llama is TinyLlama."""
    joined: list[str] = []
    for word in found:
        if joined and word.isalpha() and joined[-1].isalpha():
            joined[-1] += word
        else:
            joined.append(word)
    return tuple(joined)


@lru_cache(maxsize=1)
def name_facts() -> Mapping[str, Any]:
    """names.yaml: the words of names, and which names share a shape."""
    return load_yaml(NAMES_FILE)
