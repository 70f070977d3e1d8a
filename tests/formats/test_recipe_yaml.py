"""recipe.yaml: what is written is read, and what is wrong is said with its line."""

from __future__ import annotations

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from recipegen.formats import recipe_yaml
from recipegen.spec import RecipegenError, Request

names = st.text(min_size=1, max_size=20).filter(str.strip) | st.sampled_from(["no", "auto", "1e3", "a: b", "x\ny: z"])
numbers = st.integers(1, 10**6)
positive = st.floats(1e-9, 1e6)
plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**9), 10**9) | st.floats(-1e9, 1e9) | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
requests = st.builds(
    Request,
    model=names,
    hardware=names,
    dataset=st.lists(names, max_size=3).map(tuple),
    model_revision=st.none() | names,
    nodes=numbers,
    network=names,
    hardware_overrides=st.dictionaries(names, st.floats(0, 1e6) | st.integers(0, 10**6), max_size=3),
    trainer=st.sampled_from(recipe_yaml.TRAINERS),
    stack=names,
    method=st.none() | st.sampled_from(recipe_yaml.METHODS),
    sequence_len=st.none() | numbers,
    global_batch_size=st.none() | numbers,
    epochs=st.none() | positive,
    learning_rate=st.none() | positive,
    pins=st.dictionaries(names, plain, max_size=3),
    passthrough=st.dictionaries(
        st.sampled_from(recipe_yaml.PASSTHROUGH), st.dictionaries(names, plain, min_size=1, max_size=3), max_size=3
    ),
)


@given(requests)
@settings(max_examples=80, deadline=None)
def test_what_is_written_is_read(request: Request) -> None:
    assert recipe_yaml.read(recipe_yaml.write(request).encode("utf-8")) == request


def test_the_format_of_the_data_is_kept() -> None:
    request = Request("m", "h", dataset=("a.jsonl", "b.jsonl"), dataset_format="messages")
    assert recipe_yaml.read(recipe_yaml.write(request).encode()) == request


MINIMAL = "format_version: 1\nmodel: m\nhardware: h\n"


def test_a_short_file_takes_the_defaults() -> None:
    request = recipe_yaml.read(MINIMAL.encode())
    assert request == Request(model="m", hardware="h")
    assert recipe_yaml.read((MINIMAL + "dataset: a.jsonl\n").encode()).dataset == ("a.jsonl",)
    assert recipe_yaml.read((MINIMAL + "dataset: [a, {path: b, format: auto}]\n").encode()).dataset == ("a", "b")


def test_numbers_as_people_write_them() -> None:
    text = MINIMAL + "learning_rate: 2e-5\nepochs: 3\n"
    assert yaml.safe_load(text)["learning_rate"] == "2e-5"  # YAML 1.1: a text
    request = recipe_yaml.read(text.encode())
    assert (request.learning_rate, request.epochs) == (2e-5, 3.0)


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("modell: x\n", 4, "Did you mean model?"),
        ("zzz: x\n", 4, "Known keys:"),
        ("nodes: two\n", 4, "whole number"),
        ("nodes: 0\n", 4, "1 or more"),
        ("nodes: true\n", 4, "whole number"),
        ("epochs: -1\n", 4, "above 0"),
        ("epochs: .inf\n", 4, "above 0"),
        ("learning_rate: fast\n", 4, "above 0"),
        ("method: lorra\n", 4, "one of full, lora, qlora"),
        ("trainer: megatron\n", 4, "one of axolotl, accelerate"),
        ("model: y\n", 4, "twice"),
        ("dataset: [{pth: x}]\n", 4, "path"),
        ("dataset: [{path: x, frmat: y}]\n", 4, "unknown key"),
        ("dataset: [{path: a, format: alpaca}, {path: b, format: messages}]\n", 4, "one format"),
        ("dataset: 3\n", 4, "list"),
        ("pins: [a]\n", 4, "mapping"),
        ("pins: {1: a}\n", 4, "plain text"),
        ("hardware_overrides:\n  host_ram_gib: lots\n", 4, "number"),
        ("passthrough:\n  axolotl: {}\n  axoltl: {a: 1}\n", 6, "Did you mean axolotl?"),
        ("passthrough:\n  axolotl: 3\n", 5, "mapping"),
        ("stack: &a x\nnetwork: *a\n", 5, "aliases"),
        ("stack: !!python/object/apply:os.system [ls]\n", 4, "tags"),
        ("stack: [1\n", 5, "YAML"),
        ("network: ''\n", 4, "not empty"),
        ("? [a]\n: b\n", 4, "plain text"),
        ("pins: {a: " + "[" * 30 + "]" * 30 + "}\n", 4, "nested"),
    ],
)
def test_a_mistake_is_told_with_its_line(text: str, line: int, message: str) -> None:
    with pytest.raises(RecipegenError) as caught:
        recipe_yaml.read((MINIMAL + text).encode(), "box/recipe.yaml")
    said = str(caught.value)
    assert said.startswith(f"box/recipe.yaml:{line}: ")
    assert message in said
    assert "\n" not in said


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "mapping"),
        (b"- a\n", "mapping"),
        (b"model: m\nhardware: h\n", "format_version"),
        (b"format_version: 1\nmodel: m\n", "hardware is missing"),
        (b"format_version: 2\nmodel: m\nhardware: h\n", "newer"),
        (b"\xff\xfe", "UTF-8"),
        (b"a: 1\n---\nb: 2\n", "YAML"),
        (b"a: \x00\n", "YAML"),
        (b"x" * (2**20 + 1), "larger than"),
        (b"format_version: 1\nmodel: 2020-99-99\nhardware: h\n", "month"),
    ],
)
def test_what_is_no_recipe_is_one_clear_line(content: bytes, message: str) -> None:
    with pytest.raises(RecipegenError, match=message) as caught:
        recipe_yaml.read(content)
    assert "\n" not in str(caught.value)


@given(st.binary(max_size=200) | st.text(max_size=200).map(lambda text: text.encode("utf-8", "ignore")))
@settings(max_examples=150)
def test_no_content_is_a_traceback(content: bytes) -> None:
    try:
        recipe_yaml.read(MINIMAL.encode() + content)
    except RecipegenError as error:
        assert "\n" not in str(error)
