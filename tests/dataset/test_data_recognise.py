"""Rows are recognised by their columns, and the entry says everything that Axolotl would otherwise assume."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from data_samples import chat

from recipegen.dataset import measure, with_path
from recipegen.spec import DataFormat, DatasetSpec, ModelSpec, RecipegenError


def entry(spec: DatasetSpec) -> dict[str, Any]:
    return dict(spec.entry)


@pytest.mark.parametrize(
    ("row", "format", "type_"),
    [
        ({"instruction": "a", "input": "b", "output": "c"}, DataFormat.ALPACA, "alpaca"),
        ({"instruction": "a", "output": "c", "id": 3}, DataFormat.ALPACA, "alpaca"),
        (
            {"system": "s", "instruction": "a", "output": "c"},
            DataFormat.ALPACA,
            "alpaca_w_system.load_instruct",
        ),
        (chat("a", "b"), DataFormat.MESSAGES, "chat_template"),
        (
            {"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]},
            DataFormat.SHAREGPT,
            None,
        ),
        ({"text": "a"}, DataFormat.COMPLETION, "completion"),
        ({"segments": [{"label": True, "text": "a"}]}, DataFormat.INPUT_OUTPUT, "input_output"),
        ({"prompt": "a", "completion": "b"}, DataFormat.INPUT_OUTPUT, None),
        ({"input": "a", "output": "b"}, DataFormat.INPUT_OUTPUT, None),
    ],
)
def test_a_row_is_recognised(
    row: dict[str, Any], format: DataFormat, type_: str | None, model: ModelSpec, write: Callable[..., Path]
) -> None:
    spec = measure(write("d.jsonl", [row] * 3), model=model)
    assert (spec.format, spec.rows, spec.local, spec.split) == (format, 3, True, "train")
    if type_:
        assert entry(spec)["type"] == type_
    assert entry(spec)["ds_type"] == "json"


def test_a_chat_entry_spells_out_roles_and_masking(model: ModelSpec, write: Callable[..., Path]) -> None:
    row = {"conversations": [{"from": "human", "value": "a"}, {"from": "Bot", "value": "b"}]}
    spec = measure(write("d.jsonl", [row]), model=model)
    assert entry(spec) == {
        "path": spec.path,
        "ds_type": "json",
        "split": "train",
        "type": "chat_template",
        "chat_template": "tokenizer_default",
        "field_messages": "conversations",
        "message_property_mappings": {"role": "from", "content": "value"},
        "roles": {
            "user": ["human", "user"],
            "assistant": ["gpt", "assistant", "Bot"],
            "system": ["system"],
            "tool": ["tool"],
        },
        "roles_to_train": ["assistant"],
        "train_on_eos": "turn",
        "train_on_eot": "turn",
    }


def test_a_pair_gets_a_format_that_leaves_an_input_column_out(model: ModelSpec, write: Callable[..., Path]) -> None:
    spec = measure(write("d.jsonl", [{"question": "a", "answer": "b", "input": "not this"}]), model=model)
    assert entry(spec)["type"] == {
        "field_instruction": "question",
        "field_output": "answer",
        "format": "{instruction}\n",
        "no_input_format": "{instruction}\n",
    }


def test_white_space_between_prompt_and_completion_is_not_doubled(model: ModelSpec, write: Callable[..., Path]) -> None:
    spec = measure(write("d.jsonl", [{"prompt": "Q: a\nA:", "completion": " b"}]), model=model)
    assert entry(spec)["type"]["format"] == "{instruction}"


def test_preference_pairs_are_recognised_and_refused(model: ModelSpec, write: Callable[..., Path]) -> None:
    with pytest.raises(RecipegenError, match=r"preference.*not trained on.*messages"):
        measure(write("d.jsonl", [{"prompt": "a", "chosen": "b", "rejected": "c"}]), model=model)
    with pytest.raises(RecipegenError, match="preference"):
        measure("org/name", model=model, format="preference")


def test_system_texts_are_counted(model: ModelSpec, write: Callable[..., Path]) -> None:
    spec = measure(write("d.jsonl", [chat("a", "b", system="s"), chat("a", "b")]), model=model)
    assert spec.system_rows == 1


def test_a_format_can_be_named(model: ModelSpec, write: Callable[..., Path]) -> None:
    both = {"text": "t", "instruction": "a", "output": "b"}
    assert measure(write("d.jsonl", [both]), model=model).format is DataFormat.ALPACA
    assert measure(write("d.jsonl", [both]), model=model, format="completion").format is DataFormat.COMPLETION
    with pytest.raises(RecipegenError, match=r"d\.jsonl:1: the row is not sharegpt but looks like alpaca"):
        measure(write("d.jsonl", [both]), model=model, format="sharegpt")
    with pytest.raises(RecipegenError, match="'parquet' is not known"):
        measure(write("d.jsonl", [both]), model=model, format="parquet")


def test_a_hub_id_is_not_looked_into(model: ModelSpec) -> None:
    spec = measure("org/name", model=model)
    assert (spec.rows, spec.lengths, spec.local, spec.path) == (None, None, False, "org/name")
    assert "ds_type" not in entry(spec)
    assert any("assumed" in note for note in spec.notes)
    named = measure("org/name", model=model, format="alpaca")
    assert entry(named) == {"path": "org/name", "split": "train", "type": "alpaca"}
    assert not any("assumed" in note for note in named.notes)


def test_a_missing_file_names_its_neighbours(model: ModelSpec, write: Callable[..., Path], tmp_path: Path) -> None:
    write("train.jsonl", [chat("a", "b")])
    with pytest.raises(RecipegenError, match=r"'trian\.jsonl' does not exist.*'train\.jsonl'"):
        measure("trian.jsonl", model=model, base_dir=tmp_path)
    with pytest.raises(RecipegenError, match="does not exist"):
        measure("some/where.csv", model=model, base_dir=tmp_path)
    with pytest.raises(RecipegenError, match="directory"):
        measure(tmp_path, model=model)


@pytest.mark.parametrize(
    "url", ["https://x.y/z.jsonl", "HTTP://x.y/z", "s3://b/k.csv", "file:///tmp/a.jsonl", "hf://a/b"]
)
def test_a_url_is_not_read(url: str, model: ModelSpec) -> None:
    with pytest.raises(RecipegenError, match=r"is a URL, and data is not read from URLs\. Download the file") as caught:
        measure(url, model=model)
    assert url in str(caught.value)


@pytest.mark.parametrize(
    "url",
    ["https://huggingface.co/datasets/org/name", "https://hf.co/datasets/org/name/?x=1", "hf://datasets/org/name"],
)
def test_a_page_of_the_hub_gives_its_id(url: str, model: ModelSpec) -> None:
    with pytest.raises(RecipegenError, match=r"Give the Hub id: org/name\."):
        measure(url, model=model)


def test_a_relative_path_is_kept_as_written(model: ModelSpec, write: Callable[..., Path], tmp_path: Path) -> None:
    write("d.jsonl", [chat("a", "b")])
    spec = measure("d.jsonl", model=model, base_dir=tmp_path)
    assert spec.path == entry(spec)["path"] == "d.jsonl"
    moved = with_path(spec, "../d.jsonl")
    assert (moved.path, entry(moved)["path"], list(entry(moved))) == ("../d.jsonl", "../d.jsonl", list(entry(spec)))


def test_a_link_is_followed(model: ModelSpec, write: Callable[..., Path], tmp_path: Path) -> None:
    (tmp_path / "link.jsonl").symlink_to(write("d.jsonl", [chat("a", "b")]))
    assert measure(tmp_path / "link.jsonl", model=model).rows == 1


def test_a_base_model_gets_its_familys_template(base_model: ModelSpec, write: Callable[..., Path]) -> None:
    spec = measure(write("d.jsonl", [chat("a", "b")]), model=base_model)
    assert entry(spec)["chat_template"] == "llama3"
    assert any("no token is added" in note for note in spec.notes)


def test_a_template_that_refuses_a_row_is_told_before_the_run(
    base_model: ModelSpec, write: Callable[..., Path]
) -> None:
    gemma = replace(base_model, chat_template="gemma", end_of_turn=("<end_of_turn>",))
    rows = [chat("a", "b", system="s"), {"messages": [{"role": "user", "content": "a"}, *chat("a", "b")["messages"]]}]
    notes = " ".join(measure(write("d.jsonl", rows), model=gemma).notes)
    assert "1 rows have a system text, which the template gemma refuses" in notes
    assert "1 rows do not alternate user and assistant" in notes


def test_only_text_parts_are_trained(model: ModelSpec, write: Callable[..., Path]) -> None:
    parts = {
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "a"}]},
            {"role": "assistant", "content": "b"},
        ]
    }
    assert measure(write("d.jsonl", [parts]), model=model).rows == 1
    parts["messages"][0]["content"].append({"type": "image", "url": "x"})  # type: ignore[union-attr]
    with pytest.raises(RecipegenError, match="only text is trained"):
        measure(write("d.jsonl", [parts]), model=model)


def test_messages_in_a_csv_column_are_read_as_json(model: ModelSpec, write: Callable[..., Path]) -> None:
    cell = '[{""role"":""user"",""content"":""a""},{""role"":""assistant"",""content"":""b""}]'
    spec = measure(write("d.csv", f'messages\n"{cell}"\n'), model=model)
    assert (spec.format, spec.rows, entry(spec)["ds_type"]) == (DataFormat.MESSAGES, 1, "csv")


def test_measuring_needs_nothing_heavy(write: Callable[..., Path]) -> None:
    """Without a tokenizer at hand only the standard library and PyYAML are loaded."""
    path = write("d.jsonl", [chat("a", "b")])
    code = (
        "import sys\n"
        "from recipegen.spec import ModelSpec\n"
        "from recipegen.dataset import measure\n"
        "m = ModelSpec('x/y', 'llama', 'L', 8, 8, 1, 1, 1, 8, 128256, 8192)\n"
        f"assert measure({str(path)!r}, model=m).rows == 1\n"
        "heavy = {'torch', 'transformers', 'tokenizers', 'pyarrow', 'pydantic', 'huggingface_hub', 'rich', 'numpy',"
        " 'jinja2'}\n"
        "sys.exit(str(sorted(heavy & set(sys.modules))) if heavy & set(sys.modules) else 0)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
