"""What a review prints: as agreed on (golden files), by each format's rules, and harmless whatever a recipe says.

After a wanted change: `python -m tests.review.test_review_printers` rewrites tests/review/golden; read its diff.
"""

from __future__ import annotations

import json
import math
import re
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt  # of rich
from markdown_it.token import Token
from referencing import Registry, Resource

from recipegen.cli.answer import wrap
from recipegen.review import Change, Effect, Review, Status
from recipegen.review.effects import NUMBERS
from recipegen.review.poster import LONGEST, tag_of
from recipegen.review.printers import github, markdown, plain_json, text
from recipegen.review.printers.markdown import SCREEN
from recipegen.review.printers.numbers import numbers
from recipegen.review.printers.shared import MEMORY, RUN, SPEED
from tests.review.examples import CHANGED, RENAMED, REVIEWS, TOO_BIG, UNREADABLE, hostile, many, review

GOLDEN = Path(__file__).parent / "golden"
SCHEMAS = Path(__file__).parents[2] / "docs/schemas"
TAG = "recipegen-review"


def as_json(of: Review) -> str:
    return json.dumps({**plain_json(of), "tool_version": "any"}, indent=2, allow_nan=False) + "\n"


def as_text(of: Review, *, verbose: bool = False) -> str:
    return "".join(f"{line}\n" for line in text(of, wrap=wrap, verbose=verbose))


FORMATS: dict[str, Callable[[Review], str]] = {
    "comment.md": lambda of: markdown(of, tag=TAG),
    "github.txt": lambda of: "".join(f"{line}\n" for line in github(of)),
    "text.txt": as_text,
    "verbose.txt": lambda of: as_text(of, verbose=True),
    "diff.json": as_json,
}
SMALL = ("changed", "different", "nothing")  # with all formats
LARGE = ("sixty",)  # with what has a limit


def shown(name: str) -> dict[str, str]:
    formats = set(FORMATS) if name in SMALL else set(FORMATS) - {"verbose.txt"}
    if name in LARGE:
        formats = {"comment.md", "github.txt"}
    return {file: FORMATS[file](REVIEWS[name]) for file in FORMATS if file in formats}


@pytest.mark.parametrize("name", REVIEWS)
def test_a_review_is_printed_as_agreed(name: str) -> None:
    expected = {path.name: path.read_bytes().decode() for path in (GOLDEN / name).iterdir()}
    assert shown(name) == expected


def test_no_golden_file_is_forgotten() -> None:
    assert {path.name for path in GOLDEN.iterdir()} == set(REVIEWS)


# --- numbers


@pytest.mark.parametrize(
    ("effect", "said"),
    [
        (Effect("peak", "bytes", 21.8 * 2**30, 25.3 * 2**30), "21.8 -> 25.3 GiB (+3.5)"),
        (Effect("peak", "bytes", 21.81 * 2**30, 21.84 * 2**30), "21.81 -> 21.84 GiB (+0.03)"),
        (Effect("peak", "bytes", 5 * 2**20, 7 * 2**20), "5.0 -> 7.0 MiB (+2.0)"),
        (Effect("disk", "bytes", 120e9, 60e9), "120.0 -> 60.0 GB (-60.0)"),
        (Effect("run", "s", 3600.0, 36_000.0), "1.0 -> 10.0 h (x10)"),
        (Effect("step", "s", 0.42, 0.5), "0.4 -> 0.5 s (+19%)"),
        (Effect("batch", "sequences", 16, 128), "16 -> 128 sequences (+700%)"),
        (Effect("link", "bytes per step", 1.1e9, 15e9), "1.1 -> 15.0 GB per step (x13.6)"),
        (Effect("trainable", "parameters", 41_943_040, 8_000_000_000), "0.04 -> 8.00 billion (x191)"),
        (Effect("same", "steps", 1200, 1200), "1,200 steps ()"),
        (Effect("lost", "s", 60.0, None), "60.0 s -> not known ()"),
        (Effect("broken", "s", math.inf, math.nan), "not known ()"),
    ],
)
def test_numbers_of_both_sides(effect: Effect, said: str) -> None:
    told = numbers(effect)
    assert f"{told.arrow()} ({told.change})" == said


@given(st.floats(0, 1e15), st.floats(0, 1e15), st.sampled_from(["bytes", "s", "parameters", "steps", "bytes per step"]))
def test_numbers_that_differ_by_a_hundredth_look_different(old: float, new: float, unit: str) -> None:
    if unit in ("steps", "parameters"):
        old, new = float(round(old)), float(round(new))
    told = numbers(Effect("any", unit, old, new))
    assert told.before == told.after or old != new
    if abs(old - new) > 0.01 * max(old, new) > 10:
        assert told.before != told.after


def test_the_numbers_that_printers_look_for_exist() -> None:
    assert {MEMORY, RUN, SPEED} <= {number.name for number in NUMBERS}


# --- text


def test_colours_come_only_from_paint_and_change_no_word() -> None:
    of = REVIEWS["several"]
    painted: list[str] = []

    def paint(said: str, colour: str) -> str:
        painted.append(colour)
        return f"\x1b[{said}\x1b]"

    lines = "".join(f"{line}\n" for line in text(of, paint=paint, wrap=wrap, verbose=True))
    assert re.sub(r"\x1b[\[\]]", "", lines) == as_text(of, verbose=True)
    assert {"red", "yellow", "green"} <= set(painted)


def test_verbose_adds_and_takes_nothing_away() -> None:
    for of in REVIEWS.values():
        short, long = as_text(of).split("\n"), as_text(of, verbose=True).split("\n")
        kept = [line for line in short if not line.endswith("(-v)") and "GiB" not in line]
        widths = [re.sub(r"  +", "  ", line) for line in long]
        assert not [line for line in kept if re.sub(r"  +", "  ", line) not in widths]


# --- github


def test_annotations_are_of_the_head_side_and_errors_come_first() -> None:
    for of in REVIEWS.values():
        lines = list(github(of))
        levels = [re.fullmatch(r"::(error|warning|notice) ([^:]*)::(.+)", line) for line in lines]
        assert all(levels)
        kinds = [found[1] for found in levels if found]
        assert kinds == sorted(kinds, key=["error", "warning", "notice"].index)
        assert len(set(lines)) == len(lines)
    assert not list(github(REVIEWS["removed"]))
    assert not list(github(REVIEWS["nothing"]))


def test_what_cannot_be_read_is_annotated_at_its_line() -> None:
    (line,) = github(REVIEWS["unreadable"])
    assert line.startswith("::error file=recipes/broken/axolotl.yaml,line=3,title=recipes/broken::this is no YAML")
    before = replace(UNREADABLE, problems=("before: a.yaml:3: broken",))
    assert not list(github(review(before)))
    assert "Blocking" not in markdown(review(before))


# --- JSON


@cache
def validator() -> Any:
    names = ("diff.schema.json", "check.schema.json", "plan.schema.json")
    schemas = [json.loads((SCHEMAS / name).read_text(encoding="utf-8")) for name in names]
    registry = Registry().with_resources([(s["$id"], Resource.from_contents(s)) for s in schemas])
    jsonschema.Draft202012Validator.check_schema(schemas[0])
    return jsonschema.Draft202012Validator(schemas[0], registry=registry)


def validate(document: Any) -> None:
    validator().validate(document)


@pytest.mark.parametrize("name", REVIEWS)
def test_json_is_as_its_schema_says(name: str) -> None:
    document = json.loads(as_json(REVIEWS[name]))
    validate(document)
    assert sum(document["counts"].values()) == len(document["recipes"])


def test_json_has_a_form_for_whatever_a_file_can_state() -> None:
    import datetime

    values = (math.nan, math.inf, 10**5000, datetime.date(2026, 1, 1), {1: {2, 3}}, b"\xff", Status.ADDED, (None, True))
    changes = tuple(Change(f"passthrough.axolotl.k{i}", value, None) for i, value in enumerate(values))
    effects = (Effect("time of the run", "s", math.inf, math.nan),)
    row = replace(CHANGED, changes=changes, effects=effects)
    document = json.loads(as_json(review(row)))
    validate(document)
    (recipe,) = document["recipes"]
    said = [change["before"] for change in recipe["changes"]]
    assert said[0] == "nan"
    assert said[2].startswith("0x")
    assert said[3:] == ["2026-01-01", {"1": ["2", "3"]}, "b'\\xff'", "added", [None, True]]
    assert recipe["effects"][0]["before"] is None
    assert as_text(review(row))
    assert markdown(review(row))


# --- the comment


PARSER = MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"])
OWN_TAGS = re.compile(r"</?(?:details|summary|code)>|<!-- recipegen-review -->")
# A line and a row of a table on GitHub, and what is between blocks (px); characters on a line and in a row.
LINE, ROW, GAP, LINE_HOLDS, ROW_HOLDS, HEADING_HOLDS = 24, 37, 16, 110, 106, 88


def inlines(tokens: list[Token]) -> Iterator[tuple[str, Token]]:
    """Each inline token with the kind of the block around it."""
    for before, token in pairwise(tokens):
        if token.type == "inline":
            yield before.type, token


def words_of(token: Token) -> str:
    return "".join(child.content for child in token.children or () if child.type in ("text", "code_inline"))


def height(comment: str) -> int:
    """Of what is not folded, as GitHub shows it."""
    visible = comment.partition("<details>")[0]
    tokens = PARSER.parse(visible)
    px, row = 0, 0
    for kind, token in inlines(tokens):
        if kind in ("td_open", "th_open"):
            row += len(words_of(token))
        else:
            holds = HEADING_HOLDS if kind == "heading_open" else LINE_HOLDS
            px += LINE * max(1, math.ceil(len(words_of(token)) / holds))
    for token in tokens:
        if token.type == "tr_open":
            px += ROW
    assert row <= ROW_HOLDS * sum(token.type == "tr_open" for token in tokens)
    blocks = sum(token.level == 0 and token.nesting >= 0 and token.type != "html_block" for token in tokens)
    return px + GAP * blocks


LONG = "a long name of_a/recipe " * 100
SIZES = {
    **REVIEWS,
    "two": review(CHANGED, TOO_BIG),
    "500": review(*many(500)),
    "5000": review(*many(5000)),
    "long": review(hostile(LONG)),
    "long-many": review(*(replace(hostile(LONG), name=f"{i}{LONG}") for i in range(300))),
    "many-of-one": review(replace(hostile(LONG), changes=hostile("|" * 5000).changes * 3000, new=TOO_BIG.new * 300)),
    "wide": review(*(replace(hostile("\U0001f600" * 3000), name=f"{i}") for i in range(80))),
}


@pytest.mark.parametrize("name", SIZES)
def test_a_comment_fits_one_screen_and_github_takes_it(name: str) -> None:
    comment = markdown(SIZES[name], tag=TAG)
    assert tag_of(comment) == f"<!-- {TAG} -->"
    assert height(comment) <= SCREEN
    assert len(comment.encode("utf-16-le")) // 2 <= LONGEST
    assert comment.count("<details>") == comment.count("</details>")
    assert comment.count("\n|--") <= 1


def test_the_answers_stand_in_the_order_in_which_they_are_asked() -> None:
    for name in ("changed", "several", "sixty"):
        visible = markdown(REVIEWS[name]).partition("<details>")[0]
        order = ["Does it fit?", "a different experiment?", "checkpoints still resume?", "does it cost?"]
        places = [visible.index(question) for question in order]
        assert places == sorted(places)
        assert max(places) < visible.index("\n|--")


def test_of_too_many_recipes_the_urgent_ones_are_kept_and_the_rest_is_counted() -> None:
    comment = markdown(SIZES["5000"], tag=TAG)
    broken = [row.name for row in SIZES["5000"].recipes if row.verdict_after is TOO_BIG.verdict_after][:20]
    fine = [row.name for row in SIZES["5000"].recipes if row.status is RENAMED.status][-20:]
    assert all(f"<code>{name}</code>" in comment for name in broken)
    assert not any(name in comment for name in fine)
    left_out = re.search(r"^And ([\d,]+) recipes that a comment has no room for", comment, re.MULTILINE)
    assert left_out is not None
    below = comment.partition("<summary>All")[2]
    named = len(re.findall(r"^- `recipes/|<code>recipes/", below, re.MULTILINE))
    assert named + int(left_out[1].replace(",", "")) == len(SIZES["5000"].changed)


def test_without_hours_the_cost_is_of_tokens() -> None:
    speed = [one for one in CHANGED.effects if one.name in (MEMORY, SPEED)]
    row = replace(CHANGED, effects=tuple(speed))
    assert "**2.0 → 1.9 h** (-3%) for 100 million tokens" in markdown(review(row))
    assert "| per 100M tokens |" in markdown(review(row, replace(row, name="other")))
    assert "**What does it cost?** Not known." in markdown(review(UNREADABLE, replace(UNREADABLE, name="other")))


@pytest.mark.parametrize("tag", ["", "a -->", "A", "<b>", "x" * 201, "a\nb"])
def test_a_tag_that_would_not_stay_hidden_is_refused(tag: str) -> None:
    with pytest.raises(ValueError, match="is no tag"):
        markdown(REVIEWS["changed"], tag=tag)


# --- hostile recipes

NASTY = (
    "</details>", "<details>", "</summary>", "<img src=x onerror=alert(1)>", "<b>", "<!--", "-->", "![a](http://x)",
    "[a](http://x)", "[a](b)", "![a](b)", "[a](<b>)", "<b title=>", "[a]", "[a]: http://x", "<https://x.org>",
    "https://x.org", "www.x.org", "a@b.org", "@everyone",
    "@org/team", "(@me)", "#12", "GH-12", "org/repo#1", "org/repo@abcdef1", "abcdef1234", "`", "``", "```", "~~~",
    "|", "\\|", "\\\\|", "\\", "|---|", "\n", "\r", "\r\n", "\n\n", "\t", "---", "===", "# h", "> q", "- x", "1. x",
    "* x", "**", "__", "_", "*", "~~", "~", "$x$", "$`x`$", "$$", "&lt;", "&#64;me", "&commat;me", "&#96;", ":tada:",
    "\u202e", "\u2066", "\u200b", "\u2028", "\x1b[31m", "\x00", "\x85", "\ud800", "e" + "\u0301" * 50, " ", " -> ",
    "    ", "**x**", "*x*", "~~x~~", "[x]", "[^1]", "[!NOTE]", "x",
)  # fmt: skip
TEXTS = st.lists(st.sampled_from(NASTY) | st.text(max_size=4), min_size=1, max_size=8).map("".join)
_ACTS = re.compile(r"@|://|www\.|#\d|\bgh-\d|\$|:[\w+-]+:", re.IGNORECASE)
_OUTSIDE_OF_CODE = re.compile(r"<code>.*?</code>")


def structure(comment: str, tokens: list[Token]) -> Counter[str]:
    """How often each kind of block, mark and tag of our own occurs; the words do not count."""
    found: Counter[str] = Counter()
    found.update(token.type for token in tokens if token.type != "inline")
    for token in tokens:
        if token.type == "html_block":
            found.update(OWN_TAGS.findall(token.content))
    for _, token in inlines(tokens):
        found.update(c.type for c in token.children or () if c.type not in ("text", "code_inline", "softbreak"))
    found["lines"] = comment.count("\n")
    return found


def comments(said: str) -> list[str]:
    """Of a hostile recipe alone, and beside another one."""
    return [markdown(of, tag=TAG) for of in (review(hostile(said)), review(hostile(said), RENAMED))]


EXPECTED = [structure(comment, PARSER.parse(comment)) for comment in comments("x")]


def only_shows_text(said: str) -> None:
    for comment, expected in zip(comments(said), EXPECTED, strict=True):
        tokens = PARSER.parse(comment)
        assert all(character == "\n" or character.isprintable() for character in comment)
        assert structure(comment, tokens) == expected
        rows = [line.count("|") for line in comment.split("\n") if line.startswith("|")]
        assert len(set(rows)) == 1, "a parser drops cells that there is no column for"
        for token in tokens:
            if token.type == "html_block":
                assert "<" not in re.sub(OWN_TAGS, "", token.content)
                assert not _ACTS.search(_OUTSIDE_OF_CODE.sub("", token.content))
        for _, token in inlines(tokens):
            plain = " ".join(child.content for child in token.children or () if child.type == "text")
            assert not _ACTS.search(plain), plain


WORDS = TEXTS.filter(lambda said: bool(said.strip()))


@settings(deadline=None, max_examples=30)
@given(WORDS)
@example("</details>\n\n# @everyone [x](http://y)|`")
@example("a\\|b|c\\")
@example("`<img src=x>`")
@example("&#64;everyone &lt;b>")
def test_a_hostile_recipe_can_only_show_text(said: str) -> None:
    only_shows_text(said)


@pytest.mark.parametrize("between", ["", " ", "x"])
def test_hostile_words_one_after_the_other_only_show_themselves(between: str) -> None:
    for start in range(0, len(NASTY), 8):
        only_shows_text(between.join((*NASTY[start : start + 8], "x")))


@pytest.mark.long
@settings(deadline=None, max_examples=3000)
@given(WORDS)
def test_a_hostile_recipe_can_only_show_text_at_length(said: str) -> None:
    only_shows_text(said)


@settings(deadline=None, max_examples=20)
@given(TEXTS)
def test_a_hostile_recipe_breaks_no_other_format(said: str) -> None:
    of = Review(said, said, (hostile(said),))
    assert all(character == "\n" or character.isprintable() for character in as_text(of, verbose=True))
    for line in github(of):
        assert re.fullmatch(r"::(error|warning|notice) [^:\r\n]*::[^\r\n]*", line)
    validate(json.loads(as_json(of)))


def test_marks_that_would_cover_the_lines_around_are_left_out() -> None:
    comment = markdown(review(hostile("e" + "\u0301" * 50 + "x")), tag=TAG)
    assert "e\u0301\u0301\u0301x" in comment
    assert "\u0301" * 4 not in comment


@pytest.mark.parametrize("said", ["@everyone", "https://x.org", "#12", "org/repo#1", "$x$", "abcdef1234"])
def test_what_github_would_act_on_is_code(said: str) -> None:
    below = markdown(review(hostile(f"see {said}, or not")), tag=TAG).partition("<details>")[2]
    assert f"see `{said}`, or not" in below


def regenerate() -> None:
    """Rewrite tests/review/golden."""
    shutil.rmtree(GOLDEN, ignore_errors=True)
    for name in REVIEWS:
        (GOLDEN / name).mkdir(parents=True)
        for file, content in shown(name).items():
            (GOLDEN / name / file).write_bytes(content.encode())


if __name__ == "__main__":
    regenerate()
