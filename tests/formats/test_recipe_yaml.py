"""recipe.yaml: what is written is read, and what is wrong is said with its line."""

from __future__ import annotations

import math

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from recipegen.catalog.hardware_fields import Field, override_fields
from recipegen.formats import recipe_yaml
from recipegen.spec import RecipegenError, Request

one_line = st.characters(exclude_categories=("Cc", "Zl", "Zp", "Cs"))
names = st.text(one_line, min_size=1, max_size=20).filter(str.strip) | st.sampled_from(["no", "auto", "1e3", "a: b"])


def value_of(field: Field) -> st.SearchStrategy[float]:
    if field.type == "boolean":
        return st.booleans()
    whole = st.integers(math.ceil(field.min), math.floor(field.max))
    return whole if field.type == "integer" else whole | st.floats(field.min, field.max)


overrides = st.fixed_dictionaries({}, optional={key: value_of(field) for key, field in override_fields().items()})
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
    nodes=st.integers(1, 64),
    network=names,
    hardware_overrides=overrides,
    trainer=st.sampled_from(recipe_yaml.TRAINERS),
    stack=names,
    method=st.none() | st.sampled_from(recipe_yaml.METHODS),
    sequence_len=st.none() | st.integers(16, 2**24),
    global_batch_size=st.none() | st.integers(1, 2**20),
    epochs=st.none() | st.floats(1e-9, 1e4),
    learning_rate=st.none() | st.floats(1e-9, 10),
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


def test_overrides_keep_their_types() -> None:
    request = Request("m", "h", hardware_overrides={"gpu_fused_linear_loss": True, "sockets": 2, "host_ram_gib": 512.5})
    back = recipe_yaml.read(recipe_yaml.write(request).encode())
    assert back == request
    assert [type(value) for value in back.hardware_overrides.values()] == [bool, int, float]


def test_the_header_names_a_command_that_exists() -> None:
    head = recipe_yaml.write(Request("m", "h")).split("format_version")[0]
    assert "    recipegen update\n" in head
    assert all(line.startswith("# ") for line in head.splitlines())


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
        ("nodes: 0\n", 4, "from 1 to 64"),
        ("nodes: 65\n", 4, "from 1 to 64"),
        ("sequence_len: 15\n", 4, "from 16 to 16777216"),
        ("sequence_len: 16777217\n", 4, "from 16 to 16777216"),
        ("global_batch_size: 1048577\n", 4, "from 1 to 1048576"),
        ("epochs: 10001\n", 4, "at most 10000"),
        ("epochs: 1" + "0" * 400 + "\n", 4, "a number of 401 characters"),
        ("learning_rate: 11\n", 4, "at most 10"),
        ("learning_rate: 0\n", 4, "above 0"),
        ("learning_rate: .nan\n", 4, "above 0"),
        ('model_revision: "main\\nadapter: lora"\n', 4, "one line"),
        ('network: "a\\x1b[2Jb"\n', 4, "one line"),
        ('stack: "a\\u2028b"\n', 4, "one line"),
        ('dataset: ["a\\nb"]\n', 4, "one line"),
        ('dataset: [{path: a, format: "a\\nb"}]\n', 4, "one line"),
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
        ("hardware_overrides:\n  host_ram_gib: lots\n", 5, "number"),
        ("hardware_overrides:\n  sockets: 1\n  gpu_bf16: 1\n", 6, "true or false"),
        ("hardware_overrides:\n  host_ram_gib: true\n", 5, "number"),
        ("hardware_overrides:\n  gpu_memory_gib: 1.0e+9\n", 5, "between"),
        ("hardware_overrides:\n  hostram_gib: 512\n", 5, "Did you mean host_ram_gib?"),
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
