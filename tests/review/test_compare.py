"""Each kind of change alone, and mixtures: what it means, whether old checkpoints resume, what does nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from sides import FULL, LORA, checked, difference, edited

from recipegen.review.compare import compare
from recipegen.review.difference import Experiment, Status, Weight
from recipegen.spec import Verdict

CASES: dict[str, dict[str, Any]] = {
    case["name"]: case for case in yaml.safe_load(Path(__file__).with_name("cases.yaml").read_text(encoding="utf-8"))
}
TEXTS = {"full": FULL, "lora": LORA}
EXPERIMENTS = {"same": Experiment.SAME_ORDER, "comparable": Experiment.COMPARABLE, "different": Experiment.DIFFERENT}
RESUMES = {"yes": True, "no": False, "unknown": None}


def add(line: str) -> tuple[str, str]:
    return "seed: 42\n", f"seed: 42\n{line}\n"


@pytest.mark.parametrize("name", CASES)
def test_what_a_change_means(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    before = edited(TEXTS[case["from"]], *case.get("first", ()))
    after = edited(TEXTS[case["to"]] if "to" in case else before, *case.get("edit", ()))
    found = difference(tmp_path, before, after)
    alarms = {s.rule + "!" for s in found.meaning if s.weight is Weight.ALARM}
    rules = alarms | {s.rule for s in found.meaning}
    assert found.experiment is EXPERIMENTS[case["experiment"]]
    assert set(case.get("says", ())) <= rules
    assert not set(case.get("silent", ())) & rules
    assert found.compatibility is not None
    assert found.compatibility.resumes is RESUMES[case["resumes"]]
    assert {s.rule for s in found.compatibility.reasons} == set(case.get("blocked", ()))
    assert set(case.get("ignored", ())) <= {change.path for change in found.compatibility.ignored}
    assert {s.rule for s in found.no_ops} == set(case.get("no_ops", ()))
    assert bool(found.compatibility.rebuild) == case.get("rebuild", False)
    assert set(case.get("moved", ())) <= {effect.name for effect in found.effects if effect.changed}
    assert all(s.text.isprintable() for s in (*found.meaning, *found.no_ops, *found.compatibility.reasons))


def test_there_are_enough_kinds() -> None:
    assert len(CASES) >= 40


# --- sides


def test_a_recipe_on_one_side_is_added_or_removed(tmp_path: Path) -> None:
    side = checked(tmp_path / "one", LORA)
    added, removed = compare("one", None, side), compare("one", side, None)
    assert (added.status, removed.status) == (Status.ADDED, Status.REMOVED)
    assert (added.verdict_after, removed.verdict_before) == (Verdict.FITS, Verdict.FITS)
    assert added.new == removed.fixed == side.findings
    assert all(effect.before is None for effect in added.effects)
    assert added.effects


def test_without_a_machine_fields_are_compared_all_the_same(tmp_path: Path) -> None:
    found = difference(tmp_path, FULL, edited(FULL, ("1.0e-5", "1.0e-4")), hardware=None)
    assert [change.path for change in found.changes] == ["schedule.learning_rate"]
    assert found.status is Status.CHANGED
    assert not found.effects
    assert found.compatibility is not None
    assert found.compatibility.resumes
    data = difference(tmp_path / "data", FULL, edited(FULL, ("path: data.jsonl", "path: other.jsonl")), hardware=None)
    assert data.experiment is Experiment.DIFFERENT
    spelled = edited(FULL, ("lr_scheduler: cosine\n", ""), ("weight_decay: 0.0\n", ""))
    assert difference(tmp_path / "defaults", FULL, spelled, hardware=None).changes == ()


def test_a_broken_side_says_what_is_wrong_with_it(tmp_path: Path) -> None:
    found = difference(tmp_path, FULL, "base_model: [\n")
    assert found.status is Status.UNREADABLE
    assert (found.experiment, found.compatibility, found.changes, found.meaning) == (None, None, (), ())
    assert any("after: " in problem for problem in found.problems)
    assert any(finding.rule in ("RG704", "RG706", "RG708", "RG709", "RG702") for finding in found.new)


def test_stale_prepared_data_are_said(tmp_path: Path) -> None:
    found = difference(tmp_path, FULL, edited(FULL, ("strategy: drop", "strategy: truncate")))
    assert found.compatibility is not None
    assert "delete the folder" in found.compatibility.rebuild[0]


def test_an_old_checkpoint_is_picked_up(tmp_path: Path) -> None:
    resuming = edited(FULL, add("auto_resume_from_checkpoints: true"))
    found = difference(tmp_path, resuming, edited(resuming, ("path: data.jsonl", "path: other.jsonl")))
    assert found.compatibility is not None
    assert found.compatibility.same_output
    assert not difference(tmp_path / "2", FULL, edited(FULL, ("1.0e-5", "2.0e-5"))).compatibility.same_output  # type: ignore[union-attr]


def test_findings_are_new_fixed_or_kept(tmp_path: Path) -> None:
    typo = edited(FULL, add("learning_rte: 0.5"))
    new, fixed = difference(tmp_path / "1", FULL, typo), difference(tmp_path / "2", typo, FULL)
    assert [f.rule for f in new.new] == [f.rule for f in fixed.fixed] == ["RG701"]
    assert not new.fixed
    assert not fixed.new
    assert {f.rule for f in new.kept} == {f.rule for f in fixed.kept}
    line = typo.splitlines().index("learning_rte: 0.5") + 1
    assert new.new[0].where.endswith(f"axolotl.yaml:{line}")


def test_the_term_that_moved_the_peak_is_named(tmp_path: Path) -> None:
    found = difference(tmp_path, FULL, edited(FULL, ("micro_batch_size: 2", "micro_batch_size: 8")))
    (peak,) = [effect for effect in found.effects if effect.name == "GPU memory needed at the peak"]
    assert peak.because in ("logits and loss", "saved activations")
    assert peak.low is not None
    assert peak.high is not None
    assert peak.low <= (peak.after or 0) <= peak.high


def test_the_sides_mirror_one_another(tmp_path: Path) -> None:
    other = edited(FULL, ("steps: 4", "steps: 8"), ("adamw_torch_fused", "optimi_adamw"), ("path: data", "path: more"))
    one, two = checked(tmp_path / "one", FULL), checked(tmp_path / "two", other)
    there, back = compare("x", one, two), compare("x", two, one)
    assert {c.path: (c.before, c.after) for c in there.changes} == {c.path: (c.after, c.before) for c in back.changes}
    assert [(e.name, e.before, e.after) for e in there.effects] == [(e.name, e.after, e.before) for e in back.effects]
    assert (there.experiment, there.new, there.fixed) == (back.experiment, back.fixed, back.new)
    assert there.status is back.status
