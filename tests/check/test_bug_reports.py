"""The public bug reports through `recipegen check PATH --format json`: each is answered as its right answer says."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

CORPUS = Path(__file__).parents[1] / "corpus" / "bug-reports.yaml"
CASES = {case["id"]: case for case in yaml.safe_load(CORPUS.read_text(encoding="utf-8"))["cases"]}
CHECKABLE = [name for name, case in CASES.items() if "cannot" not in case]

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("recipegen.cli.check") is None, reason="recipegen has no command `check` yet"
)


SEVERITIES = ("note", "warning", "error")


def _marked() -> Iterator[Any]:
    for name in CHECKABLE:
        miss = CASES[name].get("miss")
        yield pytest.param(name, marks=pytest.mark.xfail(reason=miss, strict=True)) if miss else name


def answer(case: dict[str, Any], folder: Path) -> dict[str, Any]:
    """The JSON that the command prints for the files of a report."""
    from recipegen.cli.main import run

    project = folder / "project"
    for name, text in case["files"].items():
        path = project / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    hardware = case["hardware"]
    if not isinstance(hardware, str):
        profile = folder / "hardware.yaml"
        profile.write_text(
            yaml.safe_dump({"format_version": 1, "name": "report", **hardware}, sort_keys=False), encoding="utf-8"
        )
        hardware = str(profile)
    nodes = case.get("nodes", 1)
    several = ["--nodes", str(nodes), "--network", "roce-100"] if nodes > 1 else []
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        code = run(["check", str(project), "--hardware", hardware, "--format", "json", *several])
    assert code in (0, 1)
    return dict(json.loads(printed.getvalue()))


@pytest.mark.parametrize("name", list(_marked()))
def test_the_report_is_answered(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    said = answer(case, tmp_path)
    findings = [*said["findings"], *(finding for project in said["projects"] for finding in project["findings"])]
    expected = case["expect"]
    for rule, least in expected.get("rules", {}).items():
        worst = max((SEVERITIES.index(f["severity"]) for f in findings if f["rule"] == rule), default=-1)
        assert worst >= SEVERITIES.index(least), f"{rule} as {least} or worse"
    if "verdict" in expected:
        assert said["verdict"] in expected["verdict"]


def test_at_least_seventy_of_the_reports_are_answered() -> None:
    assert len(CASES) == 77
    assert len([name for name in CHECKABLE if "miss" not in CASES[name]]) >= 70
