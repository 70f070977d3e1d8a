"""The public bug reports: what the rules of this room must say of their files, without a Recipe."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from subjects import subject

from recipegen.catalog import load_cluster
from recipegen.catalog.model import find
from recipegen.check.rules import find_file_rule, findings
from recipegen.spec import Cluster

CORPUS = Path(__file__).parents[2] / "corpus" / "bug-reports.yaml"
CASES = {case["id"]: case for case in yaml.safe_load(CORPUS.read_text(encoding="utf-8"))["cases"]}
# Said of a Recipe; in this room only where none can be made, as here.
SEVERITIES = ("note", "warning", "error")
SUBSTITUTES = {"RG201", "RG202", "RG203", "RG205"}


def hardware(case: dict[str, Any], folder: Path) -> Cluster:
    stated, nodes = case["hardware"], case.get("nodes", 1)
    network = "roce-100" if nodes > 1 else "none"
    if isinstance(stated, str):
        return load_cluster(stated, nodes=nodes, network=network)
    path = folder / "hardware.yaml"
    path.write_text(yaml.safe_dump({"format_version": 1, "name": "report", **stated}), encoding="utf-8")
    return load_cluster(str(path), nodes=nodes, network=network)


def expected(case: dict[str, Any]) -> set[str]:
    rules = case.get("expect", {}).get("rules", {})
    return {rule for rule in rules if find_file_rule(rule) or rule in SUBSTITUTES}


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if expected(case)])
def test_the_report_is_answered(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    main = case["files"].get("axolotl.yaml") or case["files"].get("args.yaml") or "{}"
    values = yaml.safe_load(main)
    model = str(values.get("base_model") or values.get("model_name_or_path") or "")
    looked_at = subject(case["files"], hardware=hardware(case, tmp_path), model=model if find(model) else "")
    found = {finding.rule: finding for finding in findings(looked_at)}
    assert expected(case) <= set(found)
    for rule in expected(case):
        assert SEVERITIES.index(found[rule].severity.value) >= SEVERITIES.index(case["expect"]["rules"][rule])
        assert found[rule].fix or found[rule].severity.value == "note"


def test_all_reports_are_in_the_corpus() -> None:
    assert len(CASES) == 77
    assert sum("cannot" in case for case in CASES.values()) <= 7
    for case in CASES.values():
        assert case["source"].startswith("https://")
        assert ("cannot" in case) != bool(case.get("expect", {}).get("rules") or case.get("expect", {}).get("verdict"))
