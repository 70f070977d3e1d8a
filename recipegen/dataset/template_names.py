"""The names a person may pin: chat templates that Axolotl knows, and tokens that a tokenizer holds."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from recipegen.catalog.stack import load_stack
from recipegen.dataset.chat_template import find_tokenizer, read_tokenizer_files
from recipegen.dataset.facts import facts
from recipegen.spec import ModelSpec

FROM_TOKENIZER = "tokenizer_default"
FALLBACK = "tokenizer_default_fallback_"  # the tokenizer's own template, else the named one
CUSTOM = "jinja"  # needs chat_template_jinja: the template's text or file


@cache
def chat_templates() -> tuple[str, ...]:
    """Every value of Axolotl's `chat_template` that names a template: `tokenizer_default`, `jinja`, the built-in ones
    and `tokenizer_default_fallback_NAME` of each of these. Axolotl raises an error for any other.
    """
    rule = load_stack().axolotl_keys()["objects"]["SFTDataset"]["chat_template"]
    names = [*_enumerated(rule), *facts()["templates_beside_the_schema"]]
    built_in = sorted({name for name in names if name not in (FROM_TOKENIZER, CUSTOM)})
    return (FROM_TOKENIZER, CUSTOM, *built_in, *(f"{FALLBACK}{name}" for name in built_in))


def _enumerated(rule: list[Any]) -> Iterator[str]:
    for part in rule:
        if isinstance(part, Mapping):
            yield from part.get("enum", ())


def token_exists(model: ModelSpec, tokenizer_dir: str | os.PathLike[str] | None, token: str) -> bool | None:
    """Whether the model's tokenizer writes `token` as one token, which Axolotl demands of `eot_tokens`.

    Looks in `tokenizer_dir`, else in the model's folder, else in the Hugging Face cache. None: not known from here (no
    tokenizer files, or not the ones that tell). Raises RecipegenError when `tokenizer_dir` holds no tokenizer files.
    """
    folder = find_tokenizer(model, tokenizer_dir)
    if folder is None or not token:
        return None
    files = read_tokenizer_files(folder)
    if token in files.added or token in (files.eos, files.bos):
        return True
    vocabulary = folder / "tokenizer.json"
    if not vocabulary.is_file():
        return None
    try:
        from tokenizers import Tokenizer

        return len(Tokenizer.from_file(str(vocabulary)).encode(token, add_special_tokens=False).ids) == 1
    except Exception:  # the library is not installed, or raises bare Exception for a file it cannot read
        return None
