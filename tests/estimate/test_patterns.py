"""Patterns of module names: those that people write run, those that might not end are refused."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recipegen.estimate.patterns import module_pattern
from recipegen.spec import RecipegenError

LONG = "model.language_model.layers.31.self_attn.q_proj" + "a" * 40
PEOPLE = [
    r"model.language_model.layers.[\d]+.(_checkpoint_wrapped_module.)?(mlp|self_attn).(up|down|gate|q|k|v|o)_proj",
    r"^(?!.*visual).*(?:q|k)_proj$",
    r"(.*\.)?q_proj",
    r".*\.(q_proj|v_proj)",
    r"[](*+]+x",
]


@pytest.mark.parametrize("pattern", PEOPLE)
def test_what_people_write_is_a_pattern(pattern: str) -> None:
    assert module_pattern(pattern).pattern == pattern


@pytest.mark.parametrize(
    ("pattern", "reason"),
    [
        ("(a+)+$", "repeats a group"),
        ("(.|.)*x", "repeats a group"),
        ("((a)|(b)){2,}x", "repeats a group"),
        (".*.*.*.*.*x", "more than 4 repetitions"),
        ("x" * 3000, "longer than"),
        ("(", "is not a pattern"),
        ("*", "is not a pattern"),
    ],
)
def test_what_might_not_end_is_refused(pattern: str, reason: str) -> None:
    with pytest.raises(RecipegenError, match=re.escape(reason)):
        module_pattern(pattern)


@given(st.text(alphabet="a.*+?|()[]{}1,\\^$", max_size=24))
def test_any_pattern_is_refused_or_ends(pattern: str) -> None:
    try:
        found = module_pattern(pattern)
    except RecipegenError:
        return
    whole = found.fullmatch(LONG)  # the suite's timeout is what a hang would meet
    assert whole is None or whole.group() == LONG
