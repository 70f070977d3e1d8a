"""Anchors, aliases and merge keys of the trainers' files: as PyYAML reads them, within the same bounds."""

from __future__ import annotations

import copy
import time

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from recipegen.catalog.bounded_yaml import LARGE
from recipegen.formats import axolotl_read
from recipegen.formats.documents import read_yaml

GOOD = [
    "a: &x 1\nb: *x\n",
    "a: &x [1, {c: 2}]\nb: *x\nd: [*x, *x]\n",
    "base: &b\n  x: 1\n  y: 2\nuse:\n  <<: *b\n  y: 3\n",
    "base: &b\n  x: 1\nuse:\n  y: 3\n  x: 4\n  <<: *b\n",
    "p: &p {x: 1, y: 1}\nq: &q {y: 2, z: 2}\nuse:\n  <<: [*p, *q]\n",
    "p: &p {x: 1, y: 1}\nq: &q\n  <<: *p\n  y: 2\nuse:\n  <<: *q\n  z: {<<: *p}\n",
    "p: &p {x: 1}\nq: &q {x: 2}\nuse:\n  <<: *p\n  <<: *q\n",
    "d: &d {type: alpaca}\ndatasets:\n  - {<<: *d, path: a}\n  - {<<: *d, path: b, type: chat_template}\n",
    "<<: {a: 1}\na: 2\n",
]


MERGES = "a%d: &a%d {<<: [%s]}\n"


def _levels(levels: int, width: int, item: str) -> str:
    lines = [f"a0: &a0 {item}"]
    for level in range(1, levels):
        inside = ", ".join([f"*a{level - 1}"] * width)
        lines.append(f"a{level}: &a{level} [{inside}]")
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("text", GOOD)
def test_it_reads_as_pyyaml_does(text: str) -> None:
    document = read_yaml(text.encode(), "a.yaml")
    assert document.problem is None
    assert document.values == yaml.safe_load(text)


def test_every_value_has_a_line_and_merged_ones_that_of_their_anchor() -> None:
    text = "base: &b\n  x: 1\n  y:\n    z: 2\nuse:\n  <<: *b\n  x: 3\nlist:\n- *b\n"
    lines = read_yaml(text.encode(), "a.yaml").lines
    expected = {("use",): 5, ("use", "x"): 7, ("use", "y"): 3, ("use", "y", "z"): 4, ("list", "0", "x"): 2}
    assert {path: lines[path] for path in expected} == expected


def test_no_two_places_are_one_object() -> None:
    values = copy.deepcopy(dict(read_yaml(b"a: &x {b: [1]}\nc: *x\n", "a.yaml").values or {}))
    values["a"]["b"].append(2)
    assert values["c"] == {"b": [1]}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (_levels(9, 10, "lol"), "with what aliases stand for"),
        (_levels(18, 2, "lol"), "with what aliases stand for"),
        ("a0: &a0 {x: 1}\n" + "".join(MERGES % (i + 1, i + 1, f"*a{i}, " * 9) for i in range(9)), "aliases stand for"),
        (_levels(30, 1, "lol"), "nested deeper than 20 levels"),
        ("a: &x [*x]\n", "inside of what it stands for"),
        ("a: &x {<<: *x}\n", "inside of what it stands for"),
        ("a: *nowhere\n", "undefined alias"),
        ("a: &x 1\nb: &x 2\n", "second occurrence"),  # as PyYAML
        ("a: {<<: 1}\n", "merges mappings"),
        ("a: {<<: [1]}\n", "merges mappings"),
        ("a: &x 1\na: *x\n", "twice"),
        ("a: &x 1\n*x : 2\n", "a key is not plain text"),
    ],
)
def test_what_is_refused(text: str, said: str) -> None:
    start = time.process_time()
    document = read_yaml(text.encode(), "a.yaml")
    assert time.process_time() - start < 2
    assert document.values is None
    assert document.problem is not None
    assert said in document.problem.reason


def test_a_file_at_the_bound_is_read_in_time() -> None:
    text = "a: &a [" + ", ".join(["1"] * 1000) + "]\nb: [" + ", ".join(["*a"] * 90) + "]\n"
    assert LARGE.nodes > 90_000
    start = time.process_time()
    values = read_yaml(text.encode(), "a.yaml").values
    assert values is not None
    assert len(values["b"]) == 90
    assert time.process_time() - start < 3


def test_a_reader_understands_a_shared_data_set_entry() -> None:
    text = (
        "base_model: m\ncommon: &c {type: alpaca, split: train}\ndatasets:\n  - {<<: *c, path: a}\n"
        "  - {<<: *c, path: b}\nmicro_batch_size: &n 2\ngradient_accumulation_steps: *n\n"
    )
    reading = axolotl_read.read(text.encode(), "axolotl.yaml")
    assert reading.values["gradient_accumulation"] == reading.values["micro_batch_size"] == 2
    assert [dict(entry)["path"] for entry in reading.facts["dataset_entries"]] == ["a", "b"]


def test_many_merges_are_read_in_time() -> None:
    text = "a: &a {x: 1, y: 2}\nb:\n" + "".join(f"- {{<<: *a, z: {n}}}\n" for n in range(9_000))
    start = time.process_time()
    values = read_yaml(text.encode(), "a.yaml").values
    assert values is not None
    assert values["b"][7] == {"x": 1, "y": 2, "z": 7}
    assert time.process_time() - start < 4


@given(
    st.lists(
        st.sampled_from(["&x", "*x", "<<", ":", " ", "\n", "[", "]", "{", "}", ",", "a", "b", "- ", "&y", "*y", "1"]),
        max_size=30,
    )
)
def test_anything_is_read_or_refused(parts: list[str]) -> None:
    text = "".join(parts)
    document = read_yaml(text.encode(), "a.yaml")
    if document.values is None:
        assert document.problem is not None
    else:
        assert document.values == yaml.safe_load(text)
