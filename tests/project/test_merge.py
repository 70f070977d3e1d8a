"""Three ways by key: nothing of a person's is lost, and what comes out reads again."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from recipegen.formats import documents
from recipegen.project.merge import MISSING, Clash, merge, same
from recipegen.project.merge_file import MergedFile, merge_file
from recipegen.project.merge_launcher import merge_launcher
from recipegen.spec import RecipegenError

BASE = {"lr": 1e-4, "seed": 42, "names": ["a", "b"], "fsdp": {"version": 2, "offload": False}}


@pytest.mark.parametrize(
    ("yours", "new", "expected"),
    [
        ({}, {"lr": 2e-4}, {"lr": 2e-4}),
        ({"lr": 3e-4}, {}, {"lr": 3e-4}),
        ({"lr": 2e-4}, {"lr": 2e-4}, {"lr": 2e-4}),
        ({"lr": "2e-4"}, {"lr": 2e-4}, {"lr": 2e-4}),  # a text in YAML 1.1, and the same number
        ({"lr": "1e-4"}, {"lr": 5e-4}, {"lr": 5e-4}),  # written otherwise is not edited
        ({"seed": 42.0}, {"seed": 1}, {"seed": 1}),
        ({"names": ["a"]}, {}, {"names": ["a"]}),
        ({"mine": 1}, {"theirs": 2}, {"mine": 1, "theirs": 2}),
        ({"seed": None}, {}, {"seed": MISSING}),
        ({}, {"seed": None}, {"seed": MISSING}),
        ({"seed": None}, {"seed": None}, {"seed": MISSING}),
        ({"fsdp": {"version": 1, "offload": False}}, {"fsdp": {"version": 2, "offload": True}},
         {"fsdp": {"version": 1, "offload": True}}),
        ({"fsdp": None}, {}, {"fsdp": MISSING}),
        ({}, {"fsdp": None}, {"fsdp": MISSING}),
        ({"fsdp": {"version": 2, "offload": False, "mine": 1}}, {"fsdp": None}, {"fsdp": {"mine": 1}}),
    ],
)  # fmt: skip
def test_one_side_changed(yours: Mapping[str, Any], new: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
    """None in the table: the key is taken out."""
    found = merge(BASE, changed(BASE, yours), changed(BASE, new))
    assert found.clashes == ()
    assert found.values == {k: v for k, v in {**BASE, **expected}.items() if v is not MISSING}


@pytest.mark.parametrize(
    ("yours", "new", "clash"),
    [
        ({"lr": 3e-4}, {"lr": 2e-4}, Clash(("lr",), 1e-4, 3e-4, 2e-4)),
        ({"lr": None}, {"lr": 2e-4}, Clash(("lr",), 1e-4, MISSING, 2e-4)),
        ({"lr": 3e-4}, {"lr": None}, Clash(("lr",), 1e-4, 3e-4, MISSING)),
        ({"x": 1}, {"x": 2}, Clash(("x",), MISSING, 1, 2)),
        ({"names": ["a"]}, {"names": ["b"]}, Clash(("names",), ["a", "b"], ["a"], ["b"])),
        ({"fsdp": {"version": 1, "offload": False}}, {"fsdp": None}, Clash(("fsdp", "version"), 2, 1, MISSING)),
        ({"fsdp": None}, {"fsdp": {"version": 3, "offload": False}},
         Clash(("fsdp",), BASE["fsdp"], MISSING, {"version": 3, "offload": False})),
        ({"seed": True}, {"seed": 1}, Clash(("seed",), 42, True, 1)),
    ],
)  # fmt: skip
def test_both_changed_otherwise(yours: Mapping[str, Any], new: Mapping[str, Any], clash: Clash) -> None:
    theirs = changed(BASE, yours)
    found = merge(BASE, theirs, changed(BASE, new))
    assert found.clashes == (clash,)
    assert leaf(found.values, clash.path) == leaf(theirs, clash.path)


def changed(values: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in {**copy.deepcopy(dict(values)), **changes}.items() if value is not None}


def leaf(values: Any, path: tuple[str, ...]) -> Any:
    for part in path:
        if not isinstance(values, Mapping) or part not in values:
            return MISSING
        values = values[part]
    return values


# --- any edits of a person, any changes of the tool

KEYS = st.sampled_from(["a", "b", "c", "learning_rate", "no", "fsdp_config"])
SCALARS = st.one_of(
    st.booleans(), st.none(), st.integers(-9, 9), st.sampled_from([1e-4, 2e-4, 0.0]),
    st.sampled_from(["", "no", "1e-4", "x: y", "# no comment", "two\nlines", "'", "ü", "x" * 200]),
)  # fmt: skip
VALUES = st.one_of(SCALARS, st.lists(SCALARS, max_size=3))
TREES = st.dictionaries(KEYS, st.one_of(VALUES, st.dictionaries(KEYS, VALUES, max_size=3)), min_size=1, max_size=5)
CHANGES = st.lists(
    st.tuples(st.lists(KEYS, min_size=1, max_size=2), st.one_of(st.just(MISSING), VALUES, TREES)), max_size=4
)


def apply(values: Mapping[str, Any], changes: list[tuple[list[str], Any]]) -> dict[str, Any]:
    found = copy.deepcopy(dict(values))
    for path, value in changes:
        here = found
        for part in path[:-1]:
            if not isinstance(here.get(part), dict):
                here[part] = {}
            here = here[part]
        if value is MISSING:
            here.pop(path[-1], None)
        else:
            here[path[-1]] = copy.deepcopy(value)
    return found or {"left": 1}


def leaves(values: Mapping[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from leaves(value, (*path, key))
        else:
            yield (*path, key), value


def written(values: Mapping[str, Any], name: str) -> bytes:
    if name.endswith(".json"):
        return json.dumps(values, indent=2).encode()
    return yaml.safe_dump(dict(values), sort_keys=False, allow_unicode=True).encode()


@settings(max_examples=150, deadline=None)
@given(base=TREES, edits=CHANGES, changes=CHANGES)
def test_nothing_of_a_persons_is_lost(
    base: dict[str, Any], edits: list[tuple[list[str], Any]], changes: list[tuple[list[str], Any]]
) -> None:
    yours, new = apply(base, edits), apply(base, changes)
    merged = merge(base, yours, new)
    old, theirs = dict(leaves(base)), dict(leaves(yours))
    for path in {*old, *theirs}:
        edited = not same(old.get(path, MISSING), theirs.get(path, MISSING))
        if edited and not isinstance(leaf(yours, path), Mapping):  # what is in a mapping has paths of its own
            assert same(leaf(merged.values, path), leaf(yours, path)), path
    if same(yours, base):
        assert same(merged.values, new)
    if same(new, base):
        assert same(merged.values, yours)
        assert merged.clashes == ()


@pytest.mark.parametrize("name", ["axolotl.yaml", "deepspeed.json"])
@settings(max_examples=20, deadline=None)
@given(base=TREES, edits=CHANGES, changes=CHANGES)
def test_the_merged_file_reads_as_the_merged_values(
    name: str, base: dict[str, Any], edits: list[tuple[list[str], Any]], changes: list[tuple[list[str], Any]]
) -> None:
    yours, new = apply(base, edits), apply(base, changes)
    merged = merge(base, yours, new)
    found = merge_file(name, written(base, name), written(yours, name), written(new, name), exact=True)
    assert documents.read(found.content, name).values == merged.values
    again = merge_file(name, written(new, name), found.content, written(new, name), exact=True)
    assert documents.read(again.content, name).values == merged.values
    assert again.conflicts == ()


# --- files

GENERATED = b"""\
# made by a tool
# --- Model
# the largest that fits
micro_batch_size: 2
lr: 0.0001
datasets:
  - path: a.jsonl
    type: alpaca
fsdp_config:
  # a reason
  offload: false
  version: 2
"""
RENEWED = b"""\
# made by a newer tool
# --- Model
# another reason
micro_batch_size: 4
# asked for
lr: 0.0002
fresh: true
datasets:
  - path: a.jsonl
    type: alpaca
fsdp_config:
  offload: true
  version: 2
"""


def merged(yours: bytes, new: bytes = RENEWED, *, exact: bool = True) -> MergedFile:
    return merge_file("axolotl.yaml", GENERATED, yours, new, exact=exact)


def test_the_new_text_with_their_values_and_comments() -> None:
    yours = (
        GENERATED.replace(b"lr: 0.0001\n", b"lr: 0.0005  # found by hand\n")
        .replace(b"datasets:", b"# our data\n#   since May\n\ndatasets:  # all")
        .replace(b"  version: 2", b"  # do not touch\n  version: 1 # !")
        + b"# why wandb\nwandb_project: mine  # ours\n# the end\n"
    )
    found = merged(yours)
    assert (
        found.content.decode()
        == """\
# made by a newer tool
# --- Model
# another reason
micro_batch_size: 4
# asked for
lr: 0.0005  # found by hand
fresh: true
# our data
#   since May
datasets:  # all
  - path: a.jsonl
    type: alpaca
fsdp_config:
  offload: true
  # do not touch
  version: 1  # !
# why wandb
wandb_project: mine  # ours
# the end
"""
    )
    assert found.lost == ()
    assert [(c.where, c.key, c.base, c.yours, c.new) for c in found.conflicts] == [
        ("axolotl.yaml:5", "lr", 0.0001, 0.0005, 0.0002)
    ]
    assert [(k.where, k.key, k.value) for k in found.kept] == [
        ("axolotl.yaml:16", "fsdp_config.version", 1),
        ("axolotl.yaml:18", "wandb_project", "mine"),
    ]


def test_old_reasons_do_not_stay() -> None:
    assert b"largest" not in merged(GENERATED.replace(b"lr: 0.0001", b"lr: 0.1")).content


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        (b"    type: alpaca", b"    type: alpaca  # odd", 8),  # the list is another one in the new text
        (b"  offload: false", b"  # slow\n  offload: false", 11),  # its key is gone
    ],
)
def test_a_comment_without_a_place_is_said(old: bytes, new: bytes, line: int) -> None:
    renewed = RENEWED.replace(b"a.jsonl", b"b.jsonl").replace(b"  offload: true\n", b"")
    found = merged(GENERATED.replace(old, new), renewed)
    assert found.lost == (f"axolotl.yaml:{line}",)
    assert found.content == renewed


def test_without_the_text_of_before_a_comment_that_may_be_ours_counts_as_lost() -> None:
    yours = GENERATED.replace(b"# the largest that fits", b"# an older reason, or mine") + b"# mine\nx: 1 # yes\n"
    found = merged(yours, exact=False)
    assert found.lost == ("axolotl.yaml:3",)
    assert found.content.endswith(b"# mine\nx: 1  # yes\n")


@pytest.mark.parametrize(
    "value", [b'"a # no comment"', b"|\n  text # no comment\n  # nor this", b"'#'", b"a#b", b"[1, 2]", b"{a: '# x'}"]
)
def test_a_sharp_inside_of_a_value_is_no_comment(value: bytes) -> None:
    yours = GENERATED + b"note: " + value + b"\nlast: 1 # one\n"
    found = merged(yours)
    values = documents.read(found.content, "axolotl.yaml").values
    assert values is not None
    assert values["note"] == yaml.safe_load(yours)["note"]
    assert found.content.count(b"# one") == 1
    assert found.lost == ()


def test_a_comment_never_changes_a_value() -> None:
    """Behind the first line of a text of several lines it would be text."""
    new = RENEWED + b'note: "one\n  two"\n'
    found = merged(GENERATED + b'note: "one two"  # short\n', new)
    assert documents.read(found.content, "axolotl.yaml").values == documents.read(new, "axolotl.yaml").values
    assert found.lost == ("axolotl.yaml:13",)


@pytest.mark.parametrize("yours", [b"a: [1\n", b"a: 1\na: 2\n", b"- 1\n", b"\xff", b"a: !!python/none x\n"])
def test_a_file_that_cannot_be_read_is_refused(yours: bytes) -> None:
    with pytest.raises(RecipegenError, match=r"axolotl\.yaml"):
        merged(yours)


def test_aliases_are_read() -> None:
    found = merged(GENERATED + b"x: &x {a: 1}  # one\ny: *x\n")
    values = documents.read(found.content, "axolotl.yaml").values
    assert values is not None
    assert values["y"] == values["x"] == {"a": 1}


def test_json_is_merged_by_key() -> None:
    base, yours, new = ({"lr": 1, "zero": {"stage": 2, "x": 1}}, {"lr": 5, "zero": {"stage": 2, "x": 1, "mine": [1]}},
                        {"zero": {"stage": 3, "x": 1}, "lr": 1})  # fmt: skip
    found = merge_file("deepspeed.json", *(json.dumps(v, indent=4).encode() for v in (base, yours, new)), exact=True)
    assert json.loads(found.content) == {"zero": {"stage": 3, "x": 1, "mine": [1]}, "lr": 5}
    assert list(json.loads(found.content)) == ["zero", "lr"]
    assert b'\n        "stage": 3' in found.content


# --- launch.sh

SCRIPT = b"#!/bin/bash\ndefault() { :; }\n# why\ndefault A 1\ndefault B 'x y'\nexec go\n"


def test_variables_of_the_launcher_are_merged() -> None:
    new = SCRIPT.replace(b"exec go", b"exec run").replace(b"'x y'", b"z") + b"default C 3\n"
    found = merge_launcher(SCRIPT, SCRIPT.replace(b"A 1", b"A 2"), new)
    assert found is not None
    assert found.content == new.replace(b"A 1", b"A 2")
    assert [(k.where, k.key, k.value) for k in found.kept] == [("launch.sh:4", "A", "2")]
    found = merge_launcher(SCRIPT, SCRIPT.replace(b"'x y'", b"mine"), new)
    assert found is not None
    assert found.content == new.replace(b"B z", b"B mine")
    assert [(c.key, c.base, c.yours, c.new) for c in found.conflicts] == [("B", "'x y'", "mine", "z")]


@pytest.mark.parametrize(
    "yours", [SCRIPT + b"echo\n", SCRIPT.replace(b"default A 1\n", b""), SCRIPT.replace(b"# why", b"# no"), b"\xff"]
)
def test_other_edits_of_the_launcher_are_not_merged(yours: bytes) -> None:
    assert merge_launcher(SCRIPT, yours, SCRIPT.replace(b"go", b"run")) is None


def test_a_variable_that_is_gone_is_not_dropped() -> None:
    new = SCRIPT.replace(b"default A 1\n", b"")
    assert merge_launcher(SCRIPT, SCRIPT.replace(b"A 1", b"A 2"), new) is None
    unchanged = merge_launcher(SCRIPT, SCRIPT, new)
    assert unchanged is not None
    assert unchanged.content == new


# --- any comments


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_every_comment_of_theirs_is_in_the_new_text_or_said_to_be_lost(data: st.DataObject) -> None:
    lines = GENERATED.decode().split("\n")
    for number in range(data.draw(st.integers(1, 6))):
        at = data.draw(st.integers(0, len(lines) - 1))
        text = f"# mine {number}"
        if data.draw(st.booleans()) and ":" in lines[at] and "#" not in lines[at]:
            lines[at] += f" {text}"
        else:
            margin = " " * data.draw(st.sampled_from([0, 2, 7]))
            lines[at:at] = [margin + text, *[""] * data.draw(st.integers(0, 1))]
    yours = "\n".join(lines).replace("lr: 0.0001", "lr: 0.3")
    new = data.draw(st.sampled_from([RENEWED, GENERATED, RENEWED.replace(b"a.jsonl", b"b.jsonl"), b"lr: 1\n"]))
    found = merged(yours.encode(), new)
    expected = documents.read(new, "axolotl.yaml").values
    assert expected is not None
    assert documents.read(found.content, "axolotl.yaml").values == {**expected, "lr": 0.3}
    for number, line in enumerate(yours.split("\n"), start=1):
        if "# mine" in line:
            text = line[line.index("# mine") :]
            assert found.content.decode().count(text) + (f"axolotl.yaml:{number}" in found.lost) == 1, text
