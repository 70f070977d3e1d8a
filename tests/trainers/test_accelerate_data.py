"""templates/train_data.py with a real tokenizer and model: what is trained, what is masked, what is kept apart."""

from __future__ import annotations

import csv
import gzip
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recipegen.catalog.resources import data_folder
from recipegen.formats import train_json
from recipegen.spec import DatasetSpec, Method, Strategy
from tests.recipes_for_tests import dataset, model, recipe
from tests.trainers import tiny

pytestmark = pytest.mark.stack
IGNORE = -100
END = "<|im_end|>"


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


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Llama with its tokenizer, and the data files."""
    made = tmp_path_factory.mktemp("tiny")
    tiny.write_model("llama", made / "model")
    tiny.write_data(made)
    return made


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(folder / "model")


def chat_item(**keys: Any) -> Any:
    entry = {
        "path": "d",
        "split": "train",
        "type": "chat_template",
        "roles": {"assistant": ["gpt", "assistant"]},
        **keys,
    }
    found = train_json.dataset(dataset(path="d", entry=tuple(entry.items())))
    return parse(found)


def parse(found: dict[str, Any]) -> Any:
    import train_recipe

    return train_recipe.parse(train_recipe.Dataset, found, "dataset")


def read(data: ModuleType, r: Any, where: Path) -> Any:
    import train_recipe

    (where / "train.json").write_text(train_json.write(r, model(), {}))
    return train_recipe.read_recipe(where / "train.json")


def trained_text(tokenizer: Any, ids: Any, targets: Any) -> list[str]:
    """Decoded runs of consecutive trained targets."""
    runs: list[list[int]] = [[]]
    for target in targets:
        if target == IGNORE:
            runs.append([])
        else:
            runs[-1].append(int(target))
    return [tokenizer.decode(run) for run in runs if run]


# ------------------------------------------------------------------------------------------------ masking

CONVERSATION = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "What runs?"},
    {"role": "assistant", "content": "The cat runs."},
    {"role": "user", "content": "And the dog?"},
    {"role": "assistant", "content": "The cat runs."},  # the same words again
]


def test_only_the_assistant_and_the_end_of_its_turn_are_trained(data: ModuleType, tokenizer: Any) -> None:
    pieces = data.segments({"messages": CONVERSATION}, chat_item(), tokenizer, [END])
    ids, targets = data.encode(pieces, tokenizer, apart=False)
    assert trained_text(tokenizer, ids, targets) == [f"The cat runs.{END}"] * 2
    assert tokenizer.decode(ids) == tokenizer.apply_chat_template(CONVERSATION, tokenize=False)


def test_target_i_is_the_token_after_token_i(data: ModuleType, tokenizer: Any) -> None:
    ids, targets = data.encode(
        data.segments({"messages": CONVERSATION}, chat_item(), tokenizer, [END]), tokenizer, apart=False
    )
    places = (targets != IGNORE).nonzero()[0]
    assert len(places) > 4
    assert (targets[places] == ids[places + 1]).all()
    assert targets[-1] == IGNORE


def test_the_ids_are_those_of_apply_chat_template(data: ModuleType, tokenizer: Any) -> None:
    ids, _ = data.encode(
        data.segments({"messages": CONVERSATION}, chat_item(), tokenizer, [END]), tokenizer, apart=False
    )
    assert ids.tolist() == tokenizer.apply_chat_template(CONVERSATION, tokenize=True, return_dict=False)


def test_without_eot_tokens_the_end_of_the_turn_is_not_trained(data: ModuleType, tokenizer: Any) -> None:
    """Why eot_tokens are written out: a model trained like this never stops."""
    ids, targets = data.encode(
        data.segments({"messages": CONVERSATION}, chat_item(), tokenizer, []), tokenizer, apart=False
    )
    assert trained_text(tokenizer, ids, targets) == ["The cat runs."] * 2


def test_sharegpt_names_and_training_flags(data: ModuleType, tokenizer: Any) -> None:
    row = {
        "conversations": [
            {"from": "human", "value": "a"},
            {"from": "gpt", "value": "the first", "train": False},
            {"from": "human", "value": "b"},
            {"from": "gpt", "value": "the second", "train": True},
        ]
    }
    item = chat_item(
        field_messages="conversations",
        message_property_mappings={"role": "from", "content": "value"},
        roles={"user": ["human"], "assistant": ["gpt"]},
        message_field_training="train",
    )
    for conversation in (row, {"conversations": json.dumps(row["conversations"])}):
        ids, targets = data.encode(data.segments(conversation, item, tokenizer, [END]), tokenizer, apart=False)
        assert trained_text(tokenizer, ids, targets) == [f"the second{END}"]


# As Qwen3's: the words of earlier turns are trimmed and lose their reasoning; the last turn gets an empty one.
REWRITING = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n"
    "{% if m['role'] == 'assistant' and loop.last and '</think>' not in m['content'] %}"
    "<think>\n\n</think>\n\n{% endif %}"
    "{{ (m['content'] if loop.last else m['content'].split('</think>')[-1]) | trim }}<|im_end|>\n{% endfor %}"
)


@given(st.text("ab", max_size=12), st.text("ab", max_size=12))
@settings(max_examples=200)
def test_equal_characters(data: ModuleType, first: str, second: str) -> None:
    import os.path

    assert data.equal_characters(first, second) == len(os.path.commonprefix([first, second]))  # noqa: RUF071


def test_a_template_that_rewrites_earlier_turns(data: ModuleType, tokenizer: Any) -> None:
    import copy

    rewriting = copy.deepcopy(tokenizer)
    rewriting.chat_template = REWRITING
    turns = [
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": "<think>hm</think>\n  the cat  "},
        {"role": "user", "content": "two"},
        {"role": "assistant", "content": "the dog"},
    ]
    ids, targets = data.encode(
        data.segments({"messages": turns}, chat_item(), rewriting, [END]), rewriting, apart=False
    )
    assert trained_text(rewriting, ids, targets) == [f"the cat{END}", f"the dog{END}"]


words = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), max_size=30).filter(lambda t: "<|" not in t)


@given(st.lists(st.tuples(words, words), min_size=1, max_size=3))
@settings(max_examples=150, deadline=None)
def test_any_conversation_trains_exactly_the_assistants_words(
    data: ModuleType, tokenizer: Any, turns: list[tuple[str, str]]
) -> None:
    messages = [
        {"role": role, "content": text}
        for question, answer in turns
        for role, text in (("user", question), ("assistant", answer))
    ]
    pieces = data.segments({"messages": messages}, chat_item(), tokenizer, [END])
    assert "".join(text for text, _ in pieces) == tokenizer.apply_chat_template(messages, tokenize=False)
    assert [text for text, trained in pieces if trained] == [answer + END for _, answer in turns]


def test_a_base_model_gets_the_familys_template(data: ModuleType, tokenizer: Any) -> None:
    import copy

    bare = copy.deepcopy(tokenizer)
    for name in ("chatml", "llama3", "llama4", "gemma3", "phi_35", "mistral_v3_tekken"):
        bare.chat_template = train_json.chat_template(name)
        assert bare.chat_template, name
        end = {"chatml": END, "llama3": "<|eot_id|>", "llama4": "<|eot|>", "gemma3": "<end_of_turn>"}
        token = end.get(name, "<|end|>" if name == "phi_35" else "</s>")
        pieces = data.segments({"messages": CONVERSATION}, chat_item(), bare, [token])
        assert [text for text, trained in pieces if trained] == [f"The cat runs.{token}"] * 2, name
        assert "".join(text for text, _ in pieces).count("Be brief.") == 1, name


# ------------------------------------------------------------------------------------------------ other shapes


def item(**keys: Any) -> Any:
    return parse(train_json.dataset(dataset(path="d", entry=(("path", "d"), ("split", "train"), *keys.items()))))


@pytest.mark.parametrize(
    ("kind", "row", "trained", "contains"),
    [
        ("alpaca", {"instruction": "Say", "input": "it", "output": "a cat"}, ["a cat</s>"], "### Input:\nit\n"),
        ("alpaca", {"instruction": "Say", "input": "", "output": "a cat"}, ["a cat</s>"], "### Instruction:\nSay\n"),
        (
            "alpaca_w_system.load_instruct",
            {"system": "Be kind.", "instruction": "Say", "input": None, "output": "a cat"},
            ["a cat</s>"],
            "Be kind.\n\n### Instruction:",
        ),
        (
            {
                "field_instruction": "q",
                "field_output": "a",
                "format": "{instruction}\n",
                "no_input_format": "{instruction}\n",
            },
            {"q": "who {x}?", "a": "a cat"},
            ["a cat</s>"],
            "who {x}?\n",
        ),
        (
            "input_output",
            {"segments": [{"label": False, "text": "ask "}, {"label": True, "text": "answer"}]},
            ["answer"],
            "ask answer",
        ),
    ],
)
def test_other_shapes_mask_the_prompt(
    data: ModuleType, tokenizer: Any, kind: Any, row: dict[str, Any], trained: list[str], contains: str
) -> None:
    ids, targets = data.encode(data.segments(row, item(type=kind), tokenizer, []), tokenizer, apart=True)
    assert trained_text(tokenizer, ids, targets) == trained
    assert contains in tokenizer.decode(ids)


def test_a_long_text_is_cut_into_pieces_and_loses_nothing(data: ModuleType, tokenizer: Any) -> None:
    text = "the cat sees the dog " * 40
    settings_ = type("Data", (), {"sequence_len": 64, "excess_length_strategy": "drop", "eot_tokens": []})
    data._start_worker(tokenizer, settings_)
    documents, lost = data.encode_row((1, {"text": text}, item(type="completion", field="text")))
    assert lost == 0
    assert "".join(tokenizer.decode(ids) for ids, _ in documents) == text + "</s>"
    assert max(len(ids) for ids, _ in documents) == 64


@pytest.mark.parametrize(("strategy", "documents", "lost"), [("drop", 0, None), ("truncate", 1, "excess")])
def test_a_long_row_is_dropped_or_cut_as_asked(
    data: ModuleType, tokenizer: Any, strategy: str, documents: int, lost: str | None
) -> None:
    row = {"instruction": "Say", "input": "", "output": "the cat " * 200}
    settings_ = type("Data", (), {"sequence_len": 128, "excess_length_strategy": strategy, "eot_tokens": []})
    data._start_worker(tokenizer, settings_)
    whole = len(data.encode(data.segments(row, item(type="alpaca"), tokenizer, []), tokenizer, apart=True)[0])
    found, counted = data.encode_row((1, row, item(type="alpaca")))
    assert len(found) == documents
    assert counted == (whole - 128 if lost else whole)


# ------------------------------------------------------------------------------------------------ files

ROWS = [{"text": "the cat"}, {"text": 'a "dog", and\nmore'}, {"text": "日本"}]


def write_rows(path: Path) -> None:
    if ".csv" in path.name:
        with path.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, ["text"])
            writer.writeheader()
            writer.writerows(ROWS)
    elif ".parquet" in path.name:
        import pyarrow
        import pyarrow.parquet

        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(ROWS), path)
    else:
        text = json.dumps(ROWS) if path.name.startswith("array") else "\n\n".join(map(json.dumps, ROWS))
        path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode("utf-8-sig"))


@pytest.mark.parametrize(
    "name", ["a.jsonl", "a.json", "array.json", "a.jsonl.gz", "array.json.gz", "a.csv", "a.parquet"]
)
def test_every_kind_of_file_is_read(data: ModuleType, tmp_path: Path, name: str) -> None:
    write_rows(tmp_path / name)
    read_from = item(type="completion", field="text")
    read_from.path = str(tmp_path / name)
    assert list(data.read_rows(read_from)) == ROWS


@pytest.mark.parametrize(
    ("line", "message"),
    [("{bad", r"d\.jsonl:2: not JSON"), ('{"other": 1}', r"d\.jsonl: row 2 does not look like completion")],
)
def test_a_bad_row_is_one_line_with_its_place(
    data: ModuleType,
    tokenizer: Any,
    folder: Path,
    tmp_path: Path,
    line: str,
    message: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("d.jsonl").write_text(f'{{"text": "x"}}\n{line}\n')
    entry = (("path", "d.jsonl"), ("split", "train"), ("type", "completion"), ("field", "text"))
    r = read(data, recipe(Strategy.SINGLE, datasets=(dataset(path="d.jsonl", entry=entry),)), tmp_path)
    r.data.processes = 1
    with pytest.raises(data.Problem, match=message) as error:
        data.prepare(r, tokenizer)
    assert "\n" not in str(error.value)


# ------------------------------------------------------------------------------------------------ packing and padding


@given(st.lists(st.integers(1, 100), min_size=1, max_size=200))
@settings(max_examples=200)
def test_packing_keeps_every_document_once_and_fits(data: ModuleType, lengths: list[int]) -> None:
    rows = data.pack(list(range(len(lengths))), lengths, 100)
    assert sorted(document for row in rows for document in row) == list(range(len(lengths)))
    assert max(sum(lengths[d] for d in row) for row in rows) <= 100
    # Best fit decreasing never needs more than 11/9 of the fewest rows, plus one (Johnson 1973).
    assert len(rows) <= 11 / 9 * max(-(-sum(lengths) // 100), 1) + sum(n > 50 for n in lengths) + 1


def documents_of(tokenizer: Any, data: ModuleType, count: int = 3) -> list[Any]:
    texts = ["the cat runs", "a dog sees the moon and the river", "tree"]
    found = []
    for text in texts[:count]:
        ids, targets = data.encode([(text, True)], tokenizer, apart=True)
        found.append((ids, targets))
    return found


def collate(data: ModuleType, rows: Any, **keys: Any) -> Any:
    values = {"packing": False, "flatten": False, "pad_to_sequence_len": False, "sequence_len": 64, **keys}
    return data.collate(rows, type("Data", (), values))


def logits(folder: Path, batch: Any) -> Any:
    import torch
    from transformers import AutoModelForCausalLM

    loaded = AutoModelForCausalLM.from_pretrained(folder / "model", dtype=torch.float32, attn_implementation="sdpa")
    inputs = {name: batch[name] for name in ("input_ids", "position_ids") if name in batch}
    with torch.no_grad():
        return loaded(**inputs, use_cache=False).logits


@pytest.mark.parametrize("flatten", [False, True])
def test_packed_documents_do_not_see_each_other(data: ModuleType, tokenizer: Any, folder: Path, flatten: bool) -> None:
    import torch

    documents = documents_of(tokenizer, data)
    packed = logits(folder, collate(data, [documents, documents[::-1]], packing=True, flatten=flatten))
    rows = [documents + documents[::-1]] if flatten else [documents, documents[::-1]]
    for number, row in enumerate(rows):
        at = 0
        for document in row:
            alone = logits(folder, collate(data, [[document]]))[0]
            torch.testing.assert_close(packed[number, at : at + len(alone)], alone, atol=1e-5, rtol=0)
            at += len(alone)


def test_without_position_ids_they_would(data: ModuleType, tokenizer: Any, folder: Path) -> None:
    """The test above can fail: the same row without position ids leaks."""
    documents = documents_of(tokenizer, data)
    batch = collate(data, [documents], packing=True)
    del batch["position_ids"]
    alone = logits(folder, collate(data, [[documents[1]]]))[0]
    start = len(documents[0][0])
    assert (logits(folder, batch)[0, start : start + len(alone)] - alone).abs().max() > 1e-3


def test_padding_changes_nothing_and_is_not_trained(data: ModuleType, tokenizer: Any, folder: Path) -> None:
    import torch

    documents = documents_of(tokenizer, data)
    batch = collate(data, [[document] for document in documents], pad_to_sequence_len=True)
    assert batch["input_ids"].shape == (3, 64)
    padded = logits(folder, batch)
    for number, document in enumerate(documents):
        length = len(document[0])
        torch.testing.assert_close(
            padded[number, :length], logits(folder, collate(data, [[document]]))[0], atol=1e-5, rtol=0
        )
        assert (batch["targets"][number, length - 1 :] == IGNORE).all()
        assert (batch["targets"][number, : length - 1] != IGNORE).all()


def test_the_end_token_is_trained_though_it_is_the_padding_token(data: ModuleType, tokenizer: Any) -> None:
    import copy

    same = copy.deepcopy(tokenizer)
    same.pad_token = END
    pieces = data.segments({"messages": CONVERSATION}, chat_item(), same, [END])
    batch = collate(data, [[data.encode(pieces, same, apart=False)]], pad_to_sequence_len=True, sequence_len=256)
    assert (batch["targets"] == same.pad_token_id).sum() == 2


def test_a_flattened_micro_batch_is_one_row_as_long_as_its_rows(data: ModuleType, tokenizer: Any) -> None:
    documents = documents_of(tokenizer, data)
    batch = collate(data, [documents, documents], packing=True, flatten=True, pad_to_sequence_len=True)
    assert batch["input_ids"].shape == (1, 128)


# ------------------------------------------------------------------------------------------------ order of the data


def stream(
    data: ModuleType, world: int, accumulation: int, micro: int, first: int = 0, last: int = 6
) -> list[list[int]]:
    """The sequences of each optimizer step, over all ranks."""
    batch = type("Batch", (), {"world_size": world, "gradient_accumulation": accumulation, "micro_batch_size": micro})
    shape = type("Recipe", (), {"batch": batch, "seed": 1})
    steps: list[list[int]] = [[] for _ in range(first, last)]
    for rank in range(world):
        for number, indexes in enumerate(data.Stream(shape, 20, rank, first, last)):
            steps[number // accumulation] += indexes
    return [sorted(step) for step in steps]


def test_a_global_batch_is_the_same_on_any_layout(data: ModuleType) -> None:
    assert stream(data, 1, 4, 2) == stream(data, 2, 2, 2) == stream(data, 4, 1, 2) == stream(data, 8, 1, 1)


def test_a_resumed_run_goes_on_where_it_stopped(data: ModuleType) -> None:
    assert stream(data, 2, 2, 2)[3:] == stream(data, 2, 2, 2, first=3)


def test_every_epoch_sees_every_sequence_once_in_another_order(data: ModuleType) -> None:
    batch = type("Batch", (), {"world_size": 1, "gradient_accumulation": 1, "micro_batch_size": 4})
    flat = [i for indexes in data.Stream(type("R", (), {"batch": batch, "seed": 1}), 20, 0, 0, 10) for i in indexes]
    assert sorted(flat[:20]) == sorted(flat[20:]) == list(range(20))
    assert flat[:20] != flat[20:] != sorted(flat[20:])


def test_validation_rows_are_drawn_once_and_never_trained(
    data: ModuleType, tokenizer: Any, folder: Path, tmp_path: Path
) -> None:
    spec: DatasetSpec = dataset(
        path=str(folder / "chat.jsonl"),
        entry=(("path", "x"), ("split", "train"), ("type", "chat_template"), ("roles", {"assistant": ["assistant"]})),
    )
    r = read(data, recipe(Strategy.DDP, Method.LORA, datasets=(spec,), val_set_size=0.1, eot_tokens=(END,)), tmp_path)
    r.data.prepared, r.data.processes = str(tmp_path / "prepared"), 2
    prepared = data.prepare(r, tokenizer)
    training, validation = data.split(prepared, r)
    assert (len(training), len(validation)) == (360, 40)
    assert not {row[0] for row in training.rows} & {row[0] for row in validation.rows}
    counts = json.loads((prepared / "counts.json").read_text())
    assert counts["rows"] == counts["documents"] == 400
    assert data.prepare(r, tokenizer) == prepared
