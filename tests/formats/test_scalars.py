"""Values survive the way into a file and back, and never break out of their place."""

from __future__ import annotations

import json
import math
import subprocess
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from recipegen.formats import scalars
from recipegen.formats.rendering import block
from recipegen.spec import RecipegenError
from recipegen.spec.precision import Dtype

TRICKY = [
    "no", "No", "on", "off", "y", "null", "~", "", " ", "1e3", "2e-5", "0o7", "0x1F", "1_000", "017", ".5", "1.", "-",
    "2001-01-01", "12:30:45", "a: b", "a #b", "#", "- x", "[x]", "{x}", "&a", "*a", "!t", "%d", "@x", "`x`", "|", ">",
    "'", '"', "\\", "a\nb", "a\n---\nb: 1", "\t", "\r", "\x00", "\x85", "\u2028", "\u2029", "\ufeff", "\ufffe", "é",
    "日本", "😀", "\U0010ffff", "=", "<<", ".inf", ".nan", "+1", "x:", "? x", "/a b", "./outputs", "a/b-1.2",
    "C:\\x", "$(touch x)", "${HOME}", "true ", "NaN", "Infinity", "0b11", "1.5e+3", "meta-llama/Llama-3.1-8B",
]  # fmt: skip
texts = st.text() | st.sampled_from(TRICKY) | st.text(st.characters(codec=None), max_size=20)
numbers = st.integers() | st.floats(allow_nan=False)
leaves = st.none() | st.booleans() | numbers | texts
keys = st.text(max_size=20) | st.sampled_from(TRICKY)
values = st.recursive(
    leaves, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(keys, inner, max_size=4), max_leaves=12
)


def same(one: object, other: object) -> bool:
    """Equal, and of equal types all the way down (True is not 1, 1.0 is not 1)."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict) and isinstance(other, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    return one == other


@pytest.mark.parametrize("value", TRICKY)
def test_tricky_texts_come_back_as_texts(value: str) -> None:
    assert yaml.safe_load(scalars.scalar(value)) == value


@given(values)
@settings(max_examples=200)
def test_a_scalar_is_reread_to_the_same_value_and_type(value: object) -> None:
    text = scalars.scalar(value)
    assert "\n" not in text
    assert same(yaml.safe_load(text), value)
    assert same(yaml.safe_load(f"key: {text}\nnext: 1\n"), {"key": value, "next": 1})


@given(st.dictionaries(keys, values, max_size=5), texts)
@settings(max_examples=100)
def test_a_block_with_reasons_is_reread_to_the_same_mapping(mapping: dict[str, object], reason: str) -> None:
    text = block(mapping, dict.fromkeys(mapping, reason))
    assert same(yaml.safe_load(text) or {}, mapping)


@pytest.mark.parametrize("number", [2e-4, 1e-5, 1e-8, 3.0, 1e22, 5e-324, -0.0, 1e16, 0.1])
def test_floats_are_numbers_to_yaml_1_1(number: float) -> None:
    assert same(yaml.safe_load(scalars.scalar(number)), number)


def test_special_floats() -> None:
    assert math.isnan(yaml.safe_load(scalars.scalar(math.nan)))
    assert yaml.safe_load(scalars.scalar(-math.inf)) == -math.inf


def test_an_enum_is_its_value_and_a_tuple_a_list() -> None:
    assert scalars.scalar(Dtype.BF16) == "bf16"
    assert yaml.safe_load(scalars.scalar(("a", 1))) == ["a", 1]


@pytest.mark.parametrize("value", [object(), b"x", {1, 2}, {"a": object()}])
def test_what_yaml_cannot_hold_is_refused(value: object) -> None:
    with pytest.raises(RecipegenError):
        scalars.scalar(value)


@given(texts, st.integers(0, 12))
def test_a_comment_cannot_end(text: str, indent: int) -> None:
    lines = scalars.comment(text, indent).split("\n")
    assert all(line.lstrip(" ").startswith("#") and line.isprintable() for line in lines)
    assert yaml.safe_load("\n".join(lines)) is None


def test_long_comments_wrap() -> None:
    lines = scalars.comment("word " * 60, width=80).split("\n")
    assert len(lines) > 2
    assert max(map(len, lines)) <= 80


CANARY = "canary"
HOSTILE = [
    f"$(touch {CANARY})", f"`touch {CANARY}`", f"'; touch {CANARY}; '", f'"; touch {CANARY}; "', f"\ntouch {CANARY}\n",
    f"x' $(touch {CANARY}) 'y", f"| touch {CANARY}", f"&& touch {CANARY}", "a b", "*", "~", "$HOME", "\\", "-n",
    "é\n\n",
    f"${{x:-$(touch {CANARY})}}", f"!!;touch {CANARY}", "\\\n", "\x01\x7f",
]  # fmt: skip


def shell_says(word: str, folder: Path) -> bytes:
    script = f"printf '%s' {word}"
    done = subprocess.run(["bash", "-c", script], cwd=folder, capture_output=True, check=True)
    return done.stdout


@pytest.mark.parametrize("value", HOSTILE)
def test_a_shell_word_is_one_word_and_runs_nothing(value: str, tmp_path: Path) -> None:
    assert shell_says(scalars.shell(value), tmp_path) == value.encode()
    assert list(tmp_path.iterdir()) == []


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=12), max_size=40))
@settings(max_examples=40, deadline=None)
def test_arbitrary_words_arrive_as_they_are(tmp_path_factory: pytest.TempPathFactory, values: list[str]) -> None:
    script = f"printf '%s\\0' {scalars.words(values)}"
    done = subprocess.run(["bash", "-c", script], capture_output=True, check=True, cwd=tmp_path_factory.getbasetemp())
    assert done.stdout.split(b"\0")[:-1] == [value.encode() for value in values] or not values


@pytest.mark.parametrize("value", ["a\0b", "\ud800"])
def test_what_no_shell_can_carry_is_refused(value: str) -> None:
    with pytest.raises(RecipegenError):
        scalars.shell(value)


@given(values)
def test_json_is_reread_to_the_same_value(value: object) -> None:
    try:
        text = scalars.to_json(value)
    except RecipegenError:
        assert "inf" in repr(value)
        return
    assert same(json.loads(text), value)
    assert text.isascii()


@given(texts)
def test_markdown_text_and_code_stay_on_their_line(value: str) -> None:
    for rendered in (scalars.text(value), scalars.code(value)):
        assert "\n" not in rendered
        assert rendered.isprintable()
    assert "<" not in scalars.text(value).replace("\\<", "")


def test_inline_code_survives_backticks() -> None:
    assert scalars.code("a `b` c") == "``a `b` c``"
    assert scalars.code("`") == "`` ` ``"


def test_a_pin_is_exact() -> None:
    assert scalars.pin("torch==2.13.0") == "torch==2.13.0"
    for bad in ("torch>=2", "torch", "torch==2\n--index-url x", "-e .", "torch == 2"):
        with pytest.raises(RecipegenError):
            scalars.pin(bad)
