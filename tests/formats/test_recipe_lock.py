"""recipe.lock brings the resolved Recipe back, exactly."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recipegen.formats import lock
from recipegen.formats.plain import from_plain, to_plain
from recipegen.spec import Decision, Parallelism, Recipe, RecipegenError, Request, Strategy
from tests.recipes_for_tests import cluster, decision, estimate, model, recipe, recipes

SAMPLES = dict(recipes())


@pytest.mark.parametrize("name", SAMPLES)
def test_the_recipe_comes_back(name: str) -> None:
    files = {"a.txt": b"content"}
    text = lock.write(SAMPLES[name], files)
    loaded = lock.read(text.encode())
    assert loaded.recipe == SAMPLES[name]
    assert loaded.files == {"a.txt": lock.digest(b"content")}
    assert lock.read_digests(text.encode()) == loaded.files
    assert lock.write(loaded.recipe, files) == text


@pytest.mark.parametrize("value", [model(), cluster(2), estimate(cluster()), decision(), Request("m", "h", ("a",))])
def test_every_part_of_the_vocabulary_comes_back(value: Any) -> None:
    plain = json.loads(json.dumps(to_plain(value)))
    assert from_plain(type(value), plain) == value


def test_a_field_that_a_newer_version_added_takes_its_default() -> None:
    plain = to_plain(recipe())
    del plain["seed"]
    assert from_plain(Recipe, plain).seed == 42


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"micro_batch_size": "1"}, "recipe.micro_batch_size: '1' is not a whole number"),
        ({"micro_batch_size": True}, "whole number"),
        ({"method": "lorra"}, "none of full, lora, qlora"),
        ({"bogus": 1}, "no field 'bogus'"),
        ({"datasets": {}}, "not a list"),
        ({"schedule": None}, "recipe.schedule"),
        ({"parallelism": {**to_plain(recipe().parallelism), "dp_shard": 3}}, "world_size is 8"),
        ({"model": None}, "recipe.model: None is not a text"),
    ],
)
def test_a_damaged_lock_is_one_clear_line(change: dict[str, Any], message: str) -> None:
    plain = json.loads(lock.write(recipe(), {}))
    plain["recipe"].update(change)
    with pytest.raises(RecipegenError) as caught:
        lock.read(json.dumps(plain).encode())
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b"\xff", b"{", b'{"files": {"a": 1}}', b"[" * 100000])
def test_what_is_no_lock_is_one_clear_line(content: bytes) -> None:
    for read in (lock.read, lock.read_digests):
        with pytest.raises(RecipegenError):
            read(content)


def test_a_newer_format_says_so() -> None:
    plain = json.loads(lock.write(recipe(), {}))
    plain["format_version"] = 2
    plain["recipe"] = "something else"
    with pytest.raises(RecipegenError, match="newer"):
        lock.read(json.dumps(plain).encode())


@given(st.sampled_from(list(Strategy)), st.integers(1, 4), st.integers(2, 8))
def test_layouts_come_back(strategy: Strategy, nodes: int, gpus: int) -> None:
    try:
        layout = Parallelism.of(strategy, nodes, gpus)
    except ValueError:
        return
    assert from_plain(Parallelism, to_plain(layout)) == layout


def test_what_has_no_plain_form_is_refused() -> None:
    with pytest.raises(RecipegenError):
        to_plain({"a": object()})
    broken = dataclasses.replace(recipe(), val_set_size=float("nan"))
    with pytest.raises(RecipegenError, match="JSON"):
        lock.write(broken, {})


def test_a_decision_holds_nothing_that_json_cannot() -> None:
    assert json.loads(json.dumps(to_plain(decision())))["verdict"] == "fits"
    assert isinstance(from_plain(Decision, to_plain(decision())), Decision)
