"""Policies and comments: what a team tolerates, and what a file says of itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from recipegen.check import ignore, policy
from recipegen.spec import Finding, RecipegenError, Severity

RULES = ("RG101", "RG701", "RG705", "RG706", "RG783")


@pytest.fixture(autouse=True)
def _inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def read(text: str) -> policy.Policy:
    Path(policy.NAME).write_text(text)
    return policy.read(Path(policy.NAME), RULES)


def said(rule: str, where: str = "a.yaml:3") -> Finding:
    return Finding(rule, Severity.WARNING, "family", "something", where=where)


def test_everything_that_a_policy_can_say() -> None:
    found = read(
        "severities: {RG701: error, RG705: off}\nstrict: true\naccept_tight: true\n"
        "budgets: {max_peak_gib: 30, max_hours: 1.5}\n"
    )
    assert found.severities == {"RG701": Severity.ERROR, "RG705": None}
    assert (found.strict, found.accept_tight) == (True, True)
    assert found.budgets == {"max_peak_gib": 30.0, "max_hours": 1.5}
    assert [(f.rule, f.severity) for f in found.applied([said("RG701"), said("RG705"), said("RG783")])] == [
        ("RG701", Severity.ERROR),
        ("RG783", Severity.WARNING),
    ]


def test_an_empty_policy_changes_nothing() -> None:
    assert read("").severities == {}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("severity: {}\n", r"\.recipegen\.yaml:1: unknown 'severity'\. Did you mean severities\?"),
        ("severities: {RG707: error}\n", r":1: unknown 'RG707'\. Did you mean RG70"),
        ("severities:\n  RG701: fatal\n", r":2: 'fatal' must be one of error, warning, note, off"),
        ("budgets:\n  max_peak: 3\n", r":2: unknown 'max_peak'\. Did you mean max_peak_gib\?"),
        ("budgets: {max_peak_gib: -1}\n", "must be a number above 0"),
        ("budgets: {max_peak_gib: .nan}\n", "must be a number above 0"),
        ("budgets: [1]\n", "budgets must be a mapping"),
        ("strict: 1\n", "must be true or false"),
        ("a: [\n", "not valid YAML"),
        ("- 1\n", "a policy is a mapping"),
    ],
)
def test_a_policy_that_is_none_is_an_error_with_its_line(text: str, message: str) -> None:
    with pytest.raises(RecipegenError, match=message):
        read(text)


def test_the_nearest_policy_up_to_the_current_folder_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("team/a").mkdir(parents=True)
    Path(policy.NAME).write_text("")
    assert policy.find(Path("team/a")) == tmp_path / policy.NAME
    Path("team", policy.NAME).write_text("")
    assert policy.find(Path("team/a")) == tmp_path / "team" / policy.NAME
    monkeypatch.chdir("team/a")
    assert policy.find(Path()) is None  # what lies above the current folder is somebody else's


def ignores(text: str, name: str = "a.yaml") -> ignore.Ignores:
    return ignore.read({name: text.encode()}, RULES)


def test_a_comment_behind_a_value_holds_for_its_line() -> None:
    found = ignores("a: 1\nb: 2\nlearning_rte: 1  # recipegen: ignore[RG701, rg705]\n")
    assert found.covers(said("RG701", "a.yaml:3"))
    assert found.covers(said("RG705", "a.yaml:3"))
    assert not found.covers(said("RG701", "a.yaml:2"))
    assert not found.covers(said("RG701", "b.yaml:3"))
    assert not found.covers(said("RG101", "a.yaml:3"))
    assert found.problems == ()


def test_a_comment_on_its_own_line_holds_for_the_file() -> None:
    found = ignores("#!/bin/bash\n  # recipegen: ignore[RG101]\n", "run.sh")
    assert found.covers(said("RG101", "run.sh:40"))
    assert found.covers(said("RG101", "run.sh"))


def test_comments_that_ignore_nothing_are_said() -> None:
    found = ignores("a: 1  # recipegen: ignore\nb: 2  # recipegen: ignore[RG799]\nc: 3  # recipegen: ignore[RG706]\n")
    assert [(p.where, p.severity) for p in found.problems] == [
        ("a.yaml:1", Severity.WARNING), ("a.yaml:2", Severity.WARNING), ("a.yaml:3", Severity.WARNING),
    ]  # fmt: skip
    assert not found.covers(said("RG706", "a.yaml:3"))


@pytest.mark.parametrize("text", ["", "x: y# recipegen: ignore[RG101]\n", "# recipegen: ignored[RG101]\n", "\xff\0"])
def test_what_is_no_comment_is_nothing(text: str) -> None:
    assert ignores(text).entries == frozenset()
