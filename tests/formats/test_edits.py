"""Edits of YAML and JSON text: the values change as asked, everything else stays as its author wrote it."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from recipegen.formats import documents
from recipegen.formats.edit_text import Unsafe
from recipegen.formats.edits import MAX_EDITS, apply, diff, edited, same
from recipegen.spec import Edit, RecipegenError

YAML_FILE = "axolotl.yaml"
JSON_FILE = "deepspeed.json"

AXOLOTL = """\
# a comment of the author
base_model: 'org/model'   # where from
learning_rte: 2e-4  # misspelt

datasets:
  - path: data.jsonl  # ours
    type: alpaca
  # the second
  - path: "more.jsonl"
    type: chat_template

fsdp_config:   # sharding
    # versions matter
    fsdp_version: 2
    offload_params: false

lora_target_modules: [q_proj, 'k_proj', v_proj]  # some
optim_args: {fused: true, eps: 1e-8}
note: |
  two
  lines

empty:
last: 1
"""


def change(text: str, *edits: Edit, name: str = YAML_FILE) -> str:
    return apply(text.encode(), name, edits).decode()


def put(path: str, value: Any, name: str = YAML_FILE) -> Edit:
    return Edit(name, tuple(path.split(".")), "set", value)


def rename(path: str, key: str, name: str = YAML_FILE) -> Edit:
    return Edit(name, tuple(path.split(".")), "rename", key=key)


def delete(path: str, name: str = YAML_FILE) -> Edit:
    return Edit(name, tuple(path.split(".")), "delete")


def insert(path: str, key: str, value: Any, name: str = YAML_FILE) -> Edit:
    return Edit(name, tuple(path.split(".")) if path else (), "insert", value, key)


@pytest.mark.parametrize(
    ("edit", "old", "new"),
    [
        (rename("learning_rte", "learning_rate"), "learning_rte: 2e-4", "learning_rate: 2e-4"),
        (put("learning_rte", 2e-4), "learning_rte: 2e-4  #", "learning_rte: 0.0002  #"),
        (put("learning_rte", 1e-5), "learning_rte: 2e-4  #", "learning_rte: 1.0e-05  #"),
        (put("base_model", "it's"), "'org/model'   #", "'it''s'   #"),
        (put("base_model", 8), "'org/model'   #", "8   #"),
        (put("datasets.1.path", "other"), '"more.jsonl"', '"other"'),
        (put("lora_target_modules", ("o_proj",)), "[q_proj, 'k_proj', v_proj]  #", "[o_proj]  #"),
        (put("lora_target_modules.1", "o_proj"), "'k_proj'", "'o_proj'"),
        (put("optim_args.eps", 1e-8), "eps: 1e-8", "eps: 1.0e-08"),
        (put("empty", "no"), "empty:\n", 'empty: "no"\n'),
        (put("empty", ["a", {"b": 1}]), "empty:\n", "empty:\n  - a\n  - {b: 1}\n"),
        (put("empty", {"a": {"b": [1]}}), "empty:\n", "empty:\n    a:\n        b:\n          - 1\n"),
        (put("note", 1), "note: |\n  two\n  lines\n", "note: 1\n"),
        (put("note", "a\nb"), "note: |\n  two\n  lines\n", 'note: "a\\nb"\n'),
        (put("last", [1]), "last: 1\n", "last:\n  - 1\n"),
        (
            put("fsdp_config", None),
            "fsdp_config:   # sharding\n    # versions matter\n    fsdp_version: 2\n    offload_params: false\n",
            "fsdp_config: null   # sharding\n    # versions matter\n",
        ),
        (delete("learning_rte"), "learning_rte: 2e-4  # misspelt\n", ""),
        (delete("fsdp_config.fsdp_version"), "    fsdp_version: 2\n", ""),
        (delete("datasets.0"), "  - path: data.jsonl  # ours\n    type: alpaca\n", ""),
        (delete("datasets.0.path"), "  - path: data.jsonl  # ours\n    type: alpaca\n", "  - type: alpaca\n"),
        (delete("lora_target_modules.0"), "[q_proj, 'k_proj'", "['k_proj'"),
        (delete("lora_target_modules.2"), ", v_proj]", "]"),
        (delete("optim_args.fused"), "{fused: true, eps", "{eps"),
        (delete("note"), "note: |\n  two\n  lines\n", ""),
        (delete("last"), "last: 1\n", ""),
        (insert("", "seed", 1), "last: 1\n", "last: 1\nseed: 1\n"),
        (insert("fsdp_config", "x", 1), "offload_params: false\n", "offload_params: false\n    x: 1\n"),
        (insert("lora_target_modules", "", "o"), "v_proj]", "v_proj, o]"),
        (insert("optim_args", "x", [1]), "1e-8}", "1e-8, x: [1]}"),
        (insert("plugins", "", "a.B"), "last: 1\n", "last: 1\nplugins:\n  - a.B\n"),
        (insert("empty", "", "a.B"), "empty:\n", "empty:\n  - a.B\n"),
        (insert("empty", "a", 1), "empty:\n", "empty:\n    a: 1\n"),
        (insert("new.inner", "a", 1), "last: 1\n", "last: 1\nnew:\n    inner:\n        a: 1\n"),
        (insert("datasets", "", {"path": "x"}), "chat_template\n", "chat_template\n  - {path: x}\n"),
    ],
)
def test_only_the_place_changes(edit: Edit, old: str, new: str) -> None:
    assert AXOLOTL.count(old) == 1
    expected = AXOLOTL.replace(old, new)
    assert change(AXOLOTL, edit) == expected
    crlf = "\ufeff" + AXOLOTL.replace("\n", "\r\n")
    assert change(crlf, edit) == "\ufeff" + expected.replace("\n", "\r\n")


@pytest.mark.parametrize(
    ("text", "edit", "expected"),
    [
        ("a:\n  b: 1\n", delete("a.b"), "a: {}\n"),
        ("a:  # c\n  b: 1", delete("a.b"), "a: {}  # c"),
        ("a:\n- 1\nb: 2\n", delete("a.0"), "a: []\nb: 2\n"),
        ("# c\na: 1\n", delete("a"), "# c\n{}\n"),
        ("a: 1", delete("a"), "{}"),
        ("a: {b: 1}", delete("a.b"), "a: {}"),
        ("a:\n  - b: 1\n", delete("a.0.b"), "a:\n  - {}\n"),
        ("a:\n  - b: 1\n    # c\n    d: 2\n", delete("a.0.b"), "a:\n  - \n    # c\n    d: 2\n"),
        ("{}", insert("", "a", 1), "{a: 1}"),
        ("a: 1\nb: 2", delete("b"), "a: 1"),
        ("a: 1", insert("", "b", 2), "a: 1\nb: 2"),
        ("a: 1\n...\n", insert("", "b", 2), "a: 1\nb: 2\n...\n"),
        ("a: |+\n  x\n\n", insert("", "b", 2), "a: |+\n  x\n\nb: 2\n"),
        ("a:\n- 1\n# tail\n", insert("a", "", 2), "a:\n- 1\n- 2\n# tail\n"),
        ("a:\n- 1\nb:\n", put("b", [1, 2]), "a:\n- 1\nb:\n- 1\n- 2\n"),
        ("a: [\n  1, # one\n  2  # two\n]\n", insert("a", "", 3), "a: [\n  1, # one\n  2,  # two\n  3\n]\n"),
        ("a: [\n  1,\n  2,\n]\n", insert("a", "", 3), "a: [\n  1,\n  2,\n  3,\n]\n"),
        ("a: [\n  1, # one\n  2  # two\n]\n", delete("a.1"), "a: [\n  1 # one\n]\n"),
        ("a: [\n  1, # one\n  2  # two\n]\n", delete("a.0"), "a: [\n  2  # two\n]\n"),
        ("a: [1, 2,]", delete("a.1"), "a: [1, ]"),
        ("'a' : 1\n", rename("a", "b"), "'b' : 1\n"),
        ("é: 1\nü: [ö, ß]\n", put("ü.1", "x"), "é: 1\nü: [ö, x]\n"),
        ("a: &x 1\n", put("a", 2), "a: 2\n"),
        ("a:\n  'long\n  text'  # c\n", put("a", 2), "a:\n  2  # c\n"),
    ],
)
def test_corners_of_yaml(text: str, edit: Edit, expected: str) -> None:
    assert change(text, edit) == expected


SPEED = """{
    "bf16": {"enabled": true},
    "zero_optimization": {
        "stage": 3,
        "cpu_offload": true
    },
    "train_batch_size": "auto", "list": [1, 2]
}
"""


@pytest.mark.parametrize(
    ("edit", "old", "new"),
    [
        (put("zero_optimization.stage", 2, JSON_FILE), '"stage": 3', '"stage": 2'),
        (put("train_batch_size", 1e-7, JSON_FILE), '"auto"', "1e-07"),
        (put("bf16.enabled", "é", JSON_FILE), "true}", '"\\u00e9"}'),
        (delete("zero_optimization.cpu_offload", JSON_FILE), '3,\n        "cpu_offload": true\n', "3\n"),
        (delete("zero_optimization.stage", JSON_FILE), '        "stage": 3,\n', ""),
        (delete("bf16.enabled", JSON_FILE), '"enabled": true', ""),
        (delete("list", JSON_FILE), ', "list": [1, 2]', ""),
        (delete("train_batch_size", JSON_FILE), '"train_batch_size": "auto", ', ""),
        (rename("zero_optimization.cpu_offload", 'o"k', JSON_FILE), '"cpu_offload"', '"o\\"k"'),
        (insert("zero_optimization", "x", None, JSON_FILE), "true\n    }", 'true,\n        "x": null\n    }'),
        (
            insert("zero_optimization", "x", {"device": "cpu"}, JSON_FILE),
            "true\n    }",
            'true,\n        "x": {\n            "device": "cpu"\n        }\n    }',
        ),
        (insert("list", "", 3, JSON_FILE), "[1, 2]", "[1, 2, 3]"),
    ],
)
def test_json_keeps_its_layout(edit: Edit, old: str, new: str) -> None:
    assert SPEED.count(old) == 1
    assert change(SPEED, edit, name=JSON_FILE) == SPEED.replace(old, new)


def test_several_edits_each_see_the_one_before() -> None:
    text = change(
        AXOLOTL, rename("learning_rte", "learning_rate"), put("learning_rate", 1e-3), insert("p", "", 1), delete("p.0")
    )
    assert text == AXOLOTL.replace("learning_rte: 2e-4", "learning_rate: 0.001") + "p: []\n"


@pytest.mark.parametrize(
    ("text", "edit", "where"),
    [
        ("a: 1\n", put("b", 1), "axolotl.yaml:1: cannot set b: there is no b"),
        ("x: 0\na: 1\n", insert("", "a", 1), "a stands there already"),
        ("x: 0\na: 1\n", rename("a", "x"), "axolotl.yaml:2: cannot rename a.x: x stands there already"),
        ("x: 0\na: 1\n", insert("a", "b", 1), "axolotl.yaml:2: cannot insert a.b: a is not a mapping"),
        ("x: 0\na: [1]\n", insert("a", "b", 1), "a is not a mapping"),
        ("x: 0\na: {}\n", insert("a", "", 1), "a is not a list"),
        ("a: &x 1\nb: *x\n", put("a", 1), "axolotl.yaml:2: aliases"),
        ("a: 1\na: 2\n", put("a", 1), "axolotl.yaml:2: the key 'a' stands twice"),
        ("x: 0\n? a\n: 1\n", put("a", [1]), "axolotl.yaml:2: cannot set a: the key and its value"),
        ("x: 0\na: {b}\n", put("a.b", 1), "axolotl.yaml:2: cannot set a.b"),
        ("a: |+\n  x\n\nb: 1\n\n", delete("b"), "axolotl.yaml:4: cannot delete b without changing something else"),
        ("a: 1\n", put("a", object()), "cannot be written"),
        ("a: 1\n", put("a", "\ud800"), "axolotl.yaml:1: cannot set a"),
        ("a: 1\n", Edit(YAML_FILE, (), "set", {}), "whole file"),
        ("a: 1\n", Edit("other.yaml", ("a",), "set", 1), "other.yaml"),
        ("a: [1\n", put("a", 1), "not valid YAML"),
    ],
)
def test_what_cannot_be_done_safely_is_refused_with_its_place(text: str, edit: Edit, where: str) -> None:
    with pytest.raises(RecipegenError) as error:
        change(text, edit)
    assert where in str(error.value)


def test_a_file_keeps_its_line_ends_even_where_an_edit_leaves_one_line() -> None:
    assert change("a: 1\r\nb: 2", delete("b"), insert("", "c", 3)) == "a: 1\r\nc: 3"


def test_too_many_edits_are_refused() -> None:
    large = "a: 1\n" + "#" * 500_000
    assert change(large, put("a", 2)).startswith("a: 2\n")
    with pytest.raises(RecipegenError, match="at most 8"):
        change(large, *[put("a", 2)] * 9)
    with pytest.raises(RecipegenError, match="at most"):
        change("a: 1\n", *[put("a", 2)] * (MAX_EDITS + 1))


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_numbers_that_json_lacks(value: float) -> None:
    with pytest.raises(RecipegenError, match="cannot set a"):
        change('{"a": 1}', put("a", value, JSON_FILE), name=JSON_FILE)
    assert "a: " in change("a: 1", put("a", value))


def test_diff() -> None:
    old, new = b"a: 1\nb: 2\n", b"a: 1\nb: \x1b[31m3"
    assert diff(old, old, "x.yaml") == ""
    assert diff(old, new, "x.yaml") == (
        "--- a/x.yaml\n+++ b/x.yaml\n@@ -1,2 +1,2 @@\n a: 1\n-b: 2\n+b: \ufffd[31m3\n\\ No newline at end of file\n"
    )


# --- any document, any edits

_KEYS = st.sampled_from(["a", "b", "c", "lora_r", "no", "1", "two words", "é", "x: y", "#"])
_SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(10**12), 10**12)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from(["", "2e-4", "null", "a # b", "é", "it's", '"', "- x", "{", "two\nlines\n", " pad ", "0o7", "~"])
    | st.text(st.characters(codec="utf-8", categories=("L", "N", "P", "S", "Zs")), max_size=12)
)
_VALUES = st.recursive(
    _SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_KEYS, inner, max_size=3), max_leaves=8
)
_DOCUMENTS = st.dictionaries(_KEYS, _VALUES, min_size=1, max_size=5)


@st.composite
def yaml_texts(draw: st.DrawFn) -> tuple[str, list[str]]:
    """A document as people write them, with comments on lines of their own and behind block lines, and those."""
    values = draw(_DOCUMENTS)
    indent = draw(st.sampled_from([2, 4]))
    style = draw(st.sampled_from([None, None, False, True]))
    text = yaml.safe_dump(
        values, sort_keys=False, allow_unicode=True, indent=indent, default_flow_style=style, width=10**6
    )
    comments: list[str] = []
    lines: list[str] = []
    for line in text.splitlines():
        plain = style is False and not any(sign in text for sign in "|>'\"")
        if plain and draw(st.booleans()):
            comments.append(f"# comment {len(comments)}.")
            lines.append(" " * draw(st.integers(0, 4)) + comments[-1])
        lines.append(line + ("  # behind" if plain and draw(st.booleans()) else ""))
    ending = draw(st.sampled_from(["\n", "\r\n"]))
    text = ending.join(lines) + draw(st.sampled_from(["", ending]))
    return draw(st.sampled_from(["", "\ufeff"])) + text, comments


def _paths(value: Any, path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(found for key, item in items for found in _paths(item, (*path, str(key))))]


@st.composite
def _edits(draw: st.DrawFn, values: dict[str, Any], name: str) -> Edit:
    path = draw(st.sampled_from(_paths(values)))
    op = draw(st.sampled_from(["set", "rename", "delete", "insert"] if path else ["insert"]))
    value = draw(_VALUES) if op in ("set", "insert") else None
    key = draw(_KEYS) if op in ("rename", "insert") and draw(st.integers(0, 3)) else ""
    return Edit(name, path, op, value, key)


def _check(data: st.DataObject, text: str, name: str, comments: list[str]) -> None:
    content = text.encode()
    values = documents.read(content, name).values
    if values is None:
        return
    for _ in range(3):
        edit = data.draw(_edits(dict(values), name))
        try:
            expected = edited(values, edit)
        except Unsafe:
            with pytest.raises(RecipegenError):
                apply(content, name, (edit,))
            continue
        crlf = b"\r\n" in content
        try:
            content = apply(content, name, (edit,))
        except RecipegenError as error:
            assert str(error).startswith(name)
            continue
        values = documents.read(content, name).values
        assert values is not None
        assert same(values, expected)
        if edit.op in ("rename", "insert"):
            assert all(comment in content.decode() for comment in comments)
        comments = [comment for comment in comments if comment in content.decode()]
        assert content.startswith(b"\xef\xbb\xbf") == text.startswith("\ufeff")
        if crlf:
            assert b"\n" not in content.replace(b"\r\n", b"")


@settings(max_examples=300, deadline=None)
@given(yaml_texts(), st.data())
def test_any_edits_of_any_yaml(document: tuple[str, list[str]], data: st.DataObject) -> None:
    _check(data, document[0], YAML_FILE, document[1])


@settings(max_examples=200, deadline=None)
@given(_DOCUMENTS, st.sampled_from([None, 2, 4, "\t"]), st.booleans(), st.data())
def test_any_edits_of_any_json(values: dict[str, Any], indent: Any, ascii_only: bool, data: st.DataObject) -> None:
    _check(data, json.dumps(values, indent=indent, ensure_ascii=ascii_only), JSON_FILE, [])


_TYPICAL = st.dictionaries(
    st.sampled_from(["a", "b", "c"]),
    st.integers()
    | st.lists(st.integers(), min_size=1)
    | st.dictionaries(st.sampled_from("xyz"), st.integers(), min_size=1),
    min_size=1,
)


@settings(max_examples=200, deadline=None)
@given(_TYPICAL, st.sampled_from([False, None]), st.data())
def test_plain_files_are_never_refused(values: dict[str, Any], style: bool | None, data: st.DataObject) -> None:
    """Keys, block or flow lists and mappings, as recipes are written: every edit that makes sense is made."""
    text = yaml.safe_dump(values, sort_keys=False, default_flow_style=style)
    edit = data.draw(_edits(values, YAML_FILE))
    try:
        expected = edited(values, edit)
    except Unsafe:
        return
    assert same(documents.read(apply(text.encode(), YAML_FILE, (edit,)), YAML_FILE).values, expected)
