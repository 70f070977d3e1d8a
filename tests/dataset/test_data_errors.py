"""What is wrong in a file is one clear line with the place; whatever the bytes, nothing else comes out."""

from __future__ import annotations

import gzip
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from data_samples import chat
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from recipegen.dataset import measure
from recipegen.dataset.facts import limit
from recipegen.spec import DatasetSpec, ModelSpec, RecipegenError

GOOD = json.dumps(chat("What is two plus two?", "Four."))
ALPACA = '{"instruction":"a","output":"b"}'


def refusal(path: Path, model: ModelSpec, **more: Any) -> str:
    with pytest.raises(RecipegenError) as caught:
        measure(path, model=model, **more)
    text = str(caught.value)
    assert "\n" not in text
    return text


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('{"messages": [', "not valid JSON"),
        ("[1, 2]", "a JSON object is needed, but this is an array"),
        ("7", "a JSON object is needed, but this is a number"),
        ('{"other": 1}', "'messages' is missing"),
        ('{"messages": null}', "'messages' is null"),
        ('{"messages": []}', "'messages' is an empty list"),
        ('{"messages": "hello"}', "must be a list of messages, but is text"),
        ('{"messages": ["a"]}', "message 1 must be an object, but is text"),
        ('{"messages": [{"content": "a"}]}', "message 1: 'role' is missing"),
        ('{"messages": [{"role": 1, "content": "a"}]}', "message 1: 'role' is a number"),
        ('{"messages": [{"role": "wizard", "content": "a"}]}', "the role 'wizard' is not known"),
        ('{"messages": [{"role": "user"}]}', "message 1: 'content' is missing"),
        ('{"messages": [{"role": "user", "content": 5}]}', "message 1: 'content' is a number"),
        ('{"messages": [{"role": "user", "content": "a"}]}', "no message is the assistant's"),
        ('{"messages": [{"role": "assistant", "content": ""}]}', "every message of the assistant is empty"),
        (ALPACA, "this row looks like alpaca (instruction, output), but the file like messages"),
        ('{"messages": "\\ud800"}', "unpaired surrogate"),
        ("[" * 100_000, "not valid JSON"),
        ('{"n": ' + "9" * 5000 + "}", "not valid JSON"),
    ],
)
def test_a_malformed_chat_row_is_named_by_its_line(
    line: str, said: str, model: ModelSpec, write: Callable[..., Path]
) -> None:
    text = refusal(write("d.jsonl", f"{GOOD}\n\n{line}\n{GOOD}\n"), model)
    assert text.startswith("d.jsonl:3: ") or "/d.jsonl:3: " in text
    assert said in text


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('{"instruction":"a"}', "'output' is missing"),
        ('{"instruction":"a","output":null}', "'output' is null"),
        ('{"instruction":"a","output":["b"]}', "'output' must be text, but is a list"),
        ('{"instruction":"a","output":" "}', "'output' is empty"),
        ('{"instruction":"","output":"b"}', "'instruction' is empty"),
        ('{"instruction":"a","input":3,"output":"b"}', "'input' must be text, but is a number"),
        (GOOD, "looks like messages"),
    ],
)
def test_a_malformed_alpaca_row_is_named_by_its_line(
    line: str, said: str, model: ModelSpec, write: Callable[..., Path]
) -> None:
    row = '{"instruction":"a","input":"","output":"b"}'
    assert "d.jsonl:2: " in (text := refusal(write("d.jsonl", f"{row}\n{line}\n"), model))
    assert said in text


def test_the_first_problems_are_shown_and_the_others_counted(model: ModelSpec, write: Callable[..., Path]) -> None:
    text = refusal(write("d.jsonl", f"{GOOD}\n" + "{bad}\n" * 50), model)
    assert text.count("not valid JSON") == limit("problems_shown")
    assert "and 47 more malformed rows of 51" in text


def test_bytes_that_are_no_text_are_named(model: ModelSpec, write: Callable[..., Path]) -> None:
    latin = f"{GOOD}\n".encode() + b'{"text": "caf\xe9"}\n'
    assert "d.jsonl:2: not valid UTF-8: byte 0xe9" in refusal(write("d.jsonl", latin), model)
    assert "holds NUL bytes" in refusal(write("d.jsonl", f"{GOOD}\n\0\n".encode()), model)
    assert "d.jsonl:101: a NUL byte" in refusal(write("d.jsonl", (f"{GOOD}\n" * 100 + "\0\n").encode()), model)
    assert "UTF-16" in refusal(write("d.jsonl", GOOD.encode("utf-16")), model)


def test_files_without_rows(model: ModelSpec, write: Callable[..., Path]) -> None:
    for name, content in (
        ("d.jsonl", b""),
        ("d.jsonl", b" \n\n"),
        ("d.json", b"[]"),
        ("d.csv", b"a,b\n"),
        ("d.jsonl.gz", gzip.compress(b"")),
        ("d.csv", b""),
    ):
        assert "empty" in (text := refusal(write(name, content), model)) or "no rows" in text


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (f"[\n{GOOD},\n{GOOD[:-5]}\n]", "d.json:3: not valid JSON"),
        (f"[\n{GOOD},\n{GOOD}\n", "the file is cut off"),
        (f"[\n{GOOD}\n{GOOD}\n]", "a comma or ] is needed"),
        (f"[\n{GOOD},\n]", "cannot end with a comma"),
        (f"[{GOOD}] x", "text after the end"),
        (f"[{GOOD}, 5]", "must be an object"),
        ('["a", "b"]', "must be an object"),
        (f'{{"data": [{GOOD}]}}', "under the key 'data'"),
        ('{\n"data": []\n}', "one JSON object over several lines"),
    ],
)
def test_a_broken_array_is_told_with_its_line(
    content: str, said: str, model: ModelSpec, write: Callable[..., Path]
) -> None:
    assert said in refusal(write("d.json", content), model)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("question,answer\na,b\nc\n", "d.csv:3: 1 fields, but the header has 2"),
        ('question,answer\na,b\n"c,d\n', "not valid CSV"),
        ('question,answer\na,"b" c\n', "d.csv:2: not valid CSV"),
        ("question,question\na,b\n", "d.csv:1: the header names 'question' twice"),
        ("question;answer\na;b\n", "separated by commas"),
        ("question, answer\na,b\n", "' answer' starts or ends with a space"),
        ("question,\na,b\n", "a column without a name"),
        ("question,answer\na,b\nc,N/A\n", "d.csv:3: the field 'answer' is 'N/A', which the trainer's CSV reader takes"),
        ("question,answer\na,1\nc,2.5\n", "every value of the column 'answer' is a number"),
        ('question,answer\n"a\nb",x\nc,\n', "d.csv:4: the field 'answer' is empty"),
    ],
)
def test_a_broken_csv_is_told_with_its_line(
    content: str, said: str, model: ModelSpec, write: Callable[..., Path]
) -> None:
    assert said in refusal(write("d.csv", content), model)


def test_a_row_without_end_is_bounded(model: ModelSpec, write: Callable[..., Path]) -> None:
    huge = b'{"text": "' + b"a" * (limit("row_bytes") + 10) + b'"}\n'
    for name, content in (("d.jsonl", huge), ("d.json", b"[" + huge + b"]"), ("d.csv", b"a,b\n" + huge)):
        assert "longer than 16 MiB" in refusal(write(name, content), model)
    small = gzip.compress(huge)
    assert len(small) < 100_000
    assert "longer than 16 MiB" in refusal(write("d.jsonl.gz", small), model)


def test_a_broken_archive(model: ModelSpec, write: Callable[..., Path]) -> None:
    whole = gzip.compress((GOOD + "\n").encode() * 1000)
    for cut in (whole[:-20], whole[:30], whole[:12] + b"\xff" * 50 + whole[62:]):
        text = refusal(write("d.jsonl.gz", cut), model)
        assert "gz" in text


def test_parquet_errors(model: ModelSpec, write: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    assert "does not start with PAR1" in refusal(write("d.parquet", b"hello"), model)
    path = write("d.parquet", b"PAR1" + b"x" * 100)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    assert "pip install 'recipegen[data]'" in refusal(path, model)


def test_a_broken_parquet_file_and_a_bad_row(model: ModelSpec, write: Callable[..., Path], tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    assert "not a readable Parquet file" in refusal(write("d.parquet", b"PAR1" + b"x" * 100), model)
    pq.write_table(pa.Table.from_pylist([{"text": "a"}, {"text": None}]), tmp_path / "e.parquet")
    assert "e.parquet, row 2: the field 'text' is null" in refusal(tmp_path / "e.parquet", model)


def test_names_from_a_file_cannot_break_the_line(model: ModelSpec, write: Callable[..., Path]) -> None:
    text = refusal(write("d.jsonl", json.dumps({"a\nb" * 500: 1}) + "\n"), model)
    assert len(text) < 500
    refusal(write("odd\nname.jsonl", "{\n"), model)


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("bytes")


def answer(path: Path, model: ModelSpec) -> DatasetSpec | None:
    try:
        return measure(path, model=model)
    except RecipegenError as error:
        assert str(error).count("\n") == 0
        return None


SLOW = settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
PIECES = st.sampled_from(
    [
        b"{",
        b"}",
        b"[",
        b"]",
        b",",
        b":",
        b'"',
        b"\n",
        b"\r\n",
        b"\\",
        b"\\ud800",
        b"null",
        b"true",
        b"1e999",
        b"\0",
        b"\xff",
        b"\xef\xbb\xbf",
        b"PAR1",
        b"\x1f\x8b\x08",
        b'"messages"',
        b'"role"',
        b'"content"',
        b'"user"',
        b'"assistant"',
        b"instruction",
        b"output",
        b"text",
        GOOD.encode(),
        ALPACA.encode(),
        b" ",
    ]
)


@SLOW
@given(
    data=st.one_of(st.binary(max_size=300), st.lists(PIECES, max_size=40).map(b"".join)),
    name=st.sampled_from(["d.jsonl", "d.json", "d.csv", "d.parquet", "d.jsonl.gz", "d", "d.txt"]),
    packed=st.booleans(),
)
def test_any_bytes_give_a_data_set_or_one_clear_line(
    data: bytes, name: str, packed: bool, model: ModelSpec, scratch: Path
) -> None:
    (scratch / name).write_bytes(gzip.compress(data) if packed else data)
    answer(scratch / name, model)


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=True) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
KEYS = st.sampled_from(
    [
        "messages",
        "conversations",
        "role",
        "content",
        "from",
        "value",
        "text",
        "instruction",
        "input",
        "output",
        "prompt",
        "completion",
        "segments",
        "label",
        "chosen",
        "rejected",
        "system",
        "tools",
        "weight",
        "tool_calls",
    ]
)
NEAR_ROWS = st.recursive(
    JSON_VALUES | st.sampled_from(["user", "assistant", "gpt", "system"]),
    lambda inner: st.dictionaries(KEYS, inner, max_size=4) | st.lists(inner, max_size=3),
    max_leaves=12,
)


@SLOW
@given(rows=st.lists(st.dictionaries(KEYS, NEAR_ROWS, max_size=5), min_size=1, max_size=4), array=st.booleans())
def test_any_rows_give_a_data_set_or_one_clear_line(
    rows: list[dict[str, Any]], array: bool, model: ModelSpec, scratch: Path
) -> None:
    path = scratch / ("rows.json" if array else "rows.jsonl")
    text = json.dumps(rows) if array else "".join(json.dumps(row) + "\n" for row in rows)
    path.write_text(text)
    spec = answer(path, model)
    assert spec is None or spec.rows == len(rows)


WORDS = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=40).filter(str.strip)
VALID = {
    "alpaca": st.fixed_dictionaries({"instruction": WORDS, "input": st.text("ab", max_size=3), "output": WORDS}),
    "messages": st.lists(WORDS, min_size=1, max_size=3).map(lambda words: chat(*(w for x in words for w in (x, x)))),
    "completion": st.fixed_dictionaries({"text": WORDS}),
    "input_output": st.fixed_dictionaries({"prompt": WORDS, "completion": WORDS}),
}


@SLOW
@given(data=st.data(), format=st.sampled_from(sorted(VALID)), ending=st.sampled_from(["\n", "\r\n", "\n\n"]))
def test_valid_rows_are_all_counted_in_every_kind_of_file(
    data: st.DataObject, format: str, ending: str, model: ModelSpec, scratch: Path
) -> None:
    rows = data.draw(st.lists(VALID[format], min_size=1, max_size=30))
    made = {
        "v.jsonl": "".join(json.dumps(r, ensure_ascii=False) + ending for r in rows).encode(),
        "v.json": json.dumps(rows, ensure_ascii=False, indent=1).encode(),
        "v.jsonl.gz": gzip.compress("".join(json.dumps(r) + ending for r in rows).encode()),
    }
    totals = set()
    for name, content in made.items():
        (scratch / name).write_bytes(content)
        spec = measure(scratch / name, model=model)
        assert (spec.format.value, spec.rows) == (format, len(rows))
        assert spec.lengths is not None
        assert spec.lengths.rows_measured == len(rows)
        totals.add(spec.lengths.total_tokens)
    assert len(totals) == 1
