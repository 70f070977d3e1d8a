"""train.json comes back as the recipe it was written from, and nothing in one makes the reader raise."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recipegen.formats import train_json, train_json_read
from recipegen.formats.reading import Reading, restrict
from recipegen.spec import Dtype, Method, Recipe, Strategy
from tests.recipes_for_tests import model, recipe, recipes

WRITABLE = [(name, r) for name, r in recipes() if not train_json.unsupported(r)]


def text_of(r: Recipe) -> str:
    return train_json.write(r, model(), {})


def read(text: str | bytes) -> Reading:
    return train_json_read.read(text if isinstance(text, bytes) else text.encode(), "train.json")


def changed(path: str, value: Any, r: Recipe | None = None) -> Reading:
    """The reading of a written file with one key set, or removed for `...`."""
    values = json.loads(text_of(r or recipe(Strategy.DDP, Method.LORA)))
    target, names = values, path.split(".")
    for name in names[:-1]:
        target = target[name]
    if value is ...:
        del target[names[-1]]
    else:
        target[names[-1]] = value
    return read(json.dumps(values, indent=2))


@pytest.mark.parametrize(("name", "r"), WRITABLE, ids=[name for name, _ in WRITABLE])
def test_what_was_written_is_read(name: str, r: Recipe) -> None:
    reading = read(text_of(r))
    assert reading.values == restrict(r, train_json_read.CARRIES)
    assert reading.problems == ()
    assert reading.passthrough == {}
    assert set(reading.provenance) == set(reading.values)
    assert reading.facts["global_batch_size"] == r.global_batch_size


@given(
    st.integers(1, 10**6),
    st.integers(1, 512),
    st.floats(0, 1),
    st.text(max_size=30).filter(lambda t: "\0" not in t),
    st.none() | st.integers(1, 10**9),
    st.floats(0.1, 100),
    st.booleans(),
)
def test_any_recipe_comes_back(
    length: int, micro: int, share: float, name: str, steps: int | None, epochs: float, flag: bool
) -> None:
    r = recipe(
        Strategy.DDP,
        Method.LORA,
        model=name,
        sequence_len=length,
        micro_batch_size=micro,
        val_set_size=share,
        max_steps=steps,
        epochs=epochs,
        packing=flag,
        tf32=not flag,
    )
    assert read(text_of(r)).values == restrict(r, train_json_read.CARRIES)


def test_values_have_the_types_of_the_fields() -> None:
    values = read(text_of(recipe(Strategy.DDP, Method.QLORA))).values
    assert values["method"] is Method.QLORA
    assert values["precision.parameters"] is Dtype.NF4
    assert values["parallelism.strategy"] is Strategy.DDP
    assert isinstance(values["adapter.target_modules"], tuple)


def test_a_pattern_of_modules_comes_back_as_one() -> None:
    reading = changed("adapter.target_modules", "model\\.layers\\.[0-9]+\\..*")
    assert reading.values["adapter.target_modules"] == ("model\\.layers\\.[0-9]+\\..*",)


def test_each_value_has_its_line() -> None:
    text = text_of(recipe(Strategy.DDP))
    line = next(number for number, row in enumerate(text.splitlines(), 1) if '"sequence_len"' in row)
    assert read(text).provenance["sequence_len"] == f"train.json:{line}"


@pytest.mark.parametrize(
    ("path", "value", "part"),
    [
        ("data.sequence_len", "4096", "not of type int"),
        ("data.sequence_len", 4096.0, "not of type int"),
        ("data.sequence_len", True, "not of type int"),
        ("data.sequence_len", None, "missing"),
        ("batch.micro_batch_size", 0, "below 1"),
        ("schedule.learning_rate", "2e-4", "not of type float"),
        ("schedule.learning_rate", ..., "missing"),
        ("strategy", "fsdp1", "none of"),
        ("model", ..., "missing"),
        ("model", [], "not a mapping"),
        ("model.quantization", "int8", "none of"),
        ("adapter", ..., "missing"),
        ("adapter.r", ..., "missing"),
        ("batch.global_batch_size", 7, "is not global_batch_size(7)"),
        ("format_version", 2, "reads 1"),
    ],
)
def test_what_train_py_refuses_is_one_problem(path: str, value: Any, part: str) -> None:
    reading = changed(path, value)
    (problem,) = reading.problems
    assert problem.key == path
    assert part in problem.reason
    assert reading.values["seed"] == 42  # the rest is read all the same


def test_nothing_is_said_of_the_method_when_the_quantisation_is_not_known() -> None:
    assert not {"method", "precision.parameters"} & set(changed("model.quantization", "int8").values)


def test_numbers_of_thousands_of_digits_are_a_problem_with_their_line() -> None:
    reading = changed("batch.micro_batch_size", 10**4000)
    (problem,) = reading.problems
    assert "characters" in problem.reason
    assert reading.values == {}


def test_unknown_keys_are_passed_through() -> None:
    assert changed("data.shuffle", {"a": [1]}).passthrough == {"data.shuffle.a": [1]}


@pytest.mark.parametrize("content", [b"", b"[]", b"{", b"\xff", b'{"a": 1, "a": 2}', b"null", b'{"seed": NaN}'])
def test_what_is_no_object_is_a_problem(content: bytes) -> None:
    reading = read(content)
    assert len(reading.problems) == 1
    assert reading.values == reading.passthrough == {}


def leaves(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    if isinstance(value, dict):
        return [path, *(leaf for key, item in value.items() for leaf in leaves(item, (*path, key)))]
    return [path]


FILE = json.loads(text_of(recipe(Strategy.DDP, Method.LORA)))
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@given(st.sampled_from([path for path in leaves(FILE) if path]), JSON)
def test_any_mutation_is_read(path: tuple[Any, ...], value: Any) -> None:
    values = copy.deepcopy(FILE)
    target = values
    for name in path[:-1]:
        target = target[name]
    target[path[-1]] = value
    reading = read(json.dumps(values))
    assert set(reading.provenance) == set(reading.values)


@given(st.binary(max_size=200))
def test_any_bytes_are_read(content: bytes) -> None:
    assert read(content).format == "train_json"
