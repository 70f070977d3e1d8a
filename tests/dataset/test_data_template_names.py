"""Names of chat templates and tokens that a person may pin."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from recipegen.dataset import chat_templates, token_exists
from recipegen.dataset.facts import facts
from recipegen.spec import ModelSpec, RecipegenError


def test_the_names_of_chat_templates() -> None:
    names = chat_templates()
    assert {"tokenizer_default", "jinja", "llama3", "chatml", "tokenizer_default_fallback_chatml"} <= set(names)
    assert {"nope", "", "tokenizer_default_fallback_jinja", "tokenizer_default_fallback_"}.isdisjoint(names)
    assert set(facts()["templates"]) <= set(names)
    assert len(set(names)) == len(names)


@pytest.mark.stack
def test_axolotl_finds_a_template_of_every_name_and_of_no_other() -> None:
    from axolotl.utils.chat_templates.base import _CHAT_TEMPLATES, get_chat_template

    class Tokenizer:
        chat_template = None

    names = chat_templates()
    built_in = {name for name in names if not name.startswith("tokenizer_default") and name != "jinja"}
    assert built_in == set(_CHAT_TEMPLATES)
    for name in names:
        if name.startswith("tokenizer_default_fallback_"):
            assert get_chat_template(name, tokenizer=Tokenizer())
    with pytest.raises(ValueError, match="not found"):
        get_chat_template("nope")


def written(folder: Path, **files: object) -> Path:
    folder.mkdir()
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    return folder


CONFIG = {"eos_token": "</s>", "added_tokens_decoder": {"7": {"content": "<|im_end|>"}}}


def test_a_token_without_files_is_not_known(model: ModelSpec) -> None:
    assert token_exists(model, None, "<|im_end|>") is None


def test_a_config_alone_knows_only_the_tokens_it_lists(model: ModelSpec, tmp_path: Path) -> None:
    folder = written(tmp_path / "m", tokenizer_config=CONFIG)
    assert token_exists(model, folder, "<|im_end|>") is True
    assert token_exists(model, folder, "</s>") is True
    assert token_exists(model, folder, "<|eot|>") is None
    assert token_exists(replace(model, id=str(folder)), None, "<|im_end|>") is True


def test_a_vocabulary_decides(model: ModelSpec, tmp_path: Path) -> None:
    vocabulary = {"version": "1.0", "added_tokens": [], "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2},
                  "merges": ["a b"]}}  # fmt: skip
    folder = written(tmp_path / "m", tokenizer_config=CONFIG, tokenizer=vocabulary)
    assert token_exists(model, folder, "<|im_end|>") is True
    assert token_exists(model, folder, "ab") is True
    assert token_exists(model, folder, "aab") is False
    assert token_exists(model, folder, "<|eot|>") is False
    (folder / "tokenizer.json").write_text("{}")
    assert token_exists(model, folder, "ab") is None


def test_a_folder_without_tokenizer_files_is_told(model: ModelSpec, tmp_path: Path) -> None:
    with pytest.raises(RecipegenError, match=r"neither tokenizer\.json"):
        token_exists(model, tmp_path, "x")
