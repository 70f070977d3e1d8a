"""What ends an assistant's turn: read off the tokenizer's files, else from the catalogue."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from data_samples import chat

from recipegen.dataset import end_of_turn, measure
from recipegen.spec import ModelSpec, RecipegenError


def folder(path: Path, template: str | None, *, eos: str, added: list[str], generation_eos: object = None) -> Path:
    """Tokenizer files without a vocabulary: enough for the end of a turn."""
    path.mkdir()
    config: dict[str, object] = {
        "eos_token": {"content": eos},
        "bos_token": "<s>",
        "added_tokens_decoder": {str(i): {"content": token} for i, token in enumerate(added)},
    }
    if template is not None:
        config["chat_template"] = template
    (path / "tokenizer_config.json").write_text(json.dumps(config))
    if generation_eos is not None:
        (path / "generation_config.json").write_text(json.dumps({"eos_token_id": generation_eos}))
    return path


CHATML = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
HARMONY = (
    "{% for m in messages %}<|start|>{{ m.role }}<|message|>{{ m.content }}"
    "{% if m.role == 'assistant' and loop.last %}<|return|>{% else %}<|end|>{% endif %}{% endfor %}"
)
EOS_VARIABLE = "{{ bos_token }}{% for m in messages %}[{{ m.role }}] {{ m.content }}{{ eos_token }}{% endfor %}"
NO_END = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"


def test_the_token_behind_an_answer_is_read_off_the_template(model: ModelSpec, tmp_path: Path) -> None:
    made = folder(tmp_path / "a", CHATML, eos="<|endoftext|>", added=["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
    ending = end_of_turn(model, made)
    assert ending[:2] == ("tokenizer_default", ("<|im_end|>",))
    assert any("<|endoftext|>" in note and "stop token" in note for note in ending.notes)


def test_a_middle_turn_and_the_last_may_end_differently(model: ModelSpec, tmp_path: Path) -> None:
    made = folder(tmp_path / "a", HARMONY, eos="<|return|>", added=["<|end|>", "<|return|>", "<|start|>"])
    assert set(end_of_turn(model, made).eot_tokens) == {"<|end|>", "<|return|>"}


def test_an_end_of_sequence_variable_counts(model: ModelSpec, tmp_path: Path) -> None:
    made = folder(tmp_path / "a", EOS_VARIABLE, eos="</s>", added=["<s>", "</s>"])
    assert end_of_turn(model, made) == ("tokenizer_default", ("</s>",), ())


def test_a_template_without_an_end_is_told(model: ModelSpec, tmp_path: Path) -> None:
    ending = end_of_turn(model, folder(tmp_path / "a", NO_END, eos="</s>", added=["</s>"]))
    assert ending.eot_tokens == ()
    assert any("will not learn to stop" in note for note in ending.notes)


def test_the_template_file_goes_before_the_config(model: ModelSpec, tmp_path: Path) -> None:
    made = folder(tmp_path / "a", NO_END, eos="</s>", added=["<|im_end|>"])
    (made / "chat_template.jinja").write_text(CHATML)
    assert end_of_turn(model, made).eot_tokens == ("<|im_end|>",)


def test_a_base_model_gets_a_template_whose_tokens_exist(base_model: ModelSpec, tmp_path: Path) -> None:
    llama = ["<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]
    made = folder(tmp_path / "a", None, eos="<|end_of_text|>", added=llama)
    assert end_of_turn(base_model, made)[:2] == ("llama3", ("<|eot_id|>",))
    made = folder(tmp_path / "b", None, eos="<|end_of_text|>", added=["<|im_start|>", "<|im_end|>"])
    ending = end_of_turn(base_model, made)
    assert ending[:2] == ("chatml", ("<|im_end|>",))
    assert any("llama3 needs tokens that this tokenizer does not have" in note for note in ending.notes)
    made = folder(tmp_path / "c", None, eos="</s>", added=["</s>"])
    assert end_of_turn(base_model, made)[:2] == ("alpaca", ("</s>",))


def test_without_files_the_catalogue_answers_and_says_so(model: ModelSpec, base_model: ModelSpec) -> None:
    ending = end_of_turn(model)
    assert ending[:2] == ("tokenizer_default", ("<|eot_id|>",))
    assert "not at hand to verify" in ending.notes[0]
    assert end_of_turn(base_model)[:2] == ("llama3", ("<|eot_id|>",))
    unknown = replace(model, end_of_turn=(), eos_token=None)
    assert end_of_turn(unknown).eot_tokens == ()
    assert "not known" in end_of_turn(unknown).notes[0]


@pytest.mark.parametrize(
    "template",
    [
        "{{ raise_exception('no') }}",
        "{% for",
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{% for i in range(10 ** 9) %}{% endfor %}",
        "{{ undefined.attribute.x }}",
    ],
)
def test_a_template_that_cannot_be_rendered_harms_nobody(template: str, model: ModelSpec, tmp_path: Path) -> None:
    made = folder(tmp_path / "a", template, eos="</s>", added=["</s>"])
    ending = end_of_turn(model, made)
    assert ending[:2] == ("tokenizer_default", ("<|eot_id|>",))
    assert "cannot be rendered" in ending.notes[0]


def test_broken_files_say_nothing(model: ModelSpec, tmp_path: Path) -> None:
    made = tmp_path / "a"
    made.mkdir()
    for name in ("tokenizer_config.json", "generation_config.json", "special_tokens_map.json"):
        (made / name).write_bytes(b"\xff{")
    assert end_of_turn(replace(model, instruct=False), made).chat_template in ("llama3", "alpaca")
    with pytest.raises(RecipegenError, match=r"neither tokenizer\.json"):
        end_of_turn(model, tmp_path / "nowhere")


def test_a_row_that_the_models_template_refuses_is_named(
    model: ModelSpec, write: Callable[..., Path], tmp_path: Path
) -> None:
    strict = (
        "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
        "{{ raise_exception('roles must alternate') }}{% endif %}{{ m.content }}</s>{% endfor %}"
    )
    made = folder(tmp_path / "a", strict, eos="</s>", added=["</s>"])
    path = write("d.jsonl", [chat("a", "b"), chat("a", "b", system="s")])
    with pytest.raises(RecipegenError, match=r"d\.jsonl:2: the model's chat template refuses.*roles must alternate"):
        measure(path, model=model, tokenizer_path=made)
