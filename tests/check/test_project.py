"""A whole project: generated files hold, and the answer says which validations ran and which did not."""

from __future__ import annotations

import itertools
from importlib.metadata import PackageNotFoundError

import pytest

from recipegen.check import check_rules, report, validate_project
from recipegen.project.files import render
from recipegen.spec import Cluster, Method, Recipe, Severity, Strategy
from tests import recipes_for_tests as samples

TRAINERS = ("axolotl", "accelerate")
# Adapters under DeepSpeed are rejected by rule RG204 and never written.
CELLS = [(s, m) for s, m in itertools.product(Strategy, Method) if not (s.is_deepspeed and m.is_adapter)]


def project(trainer: str, strategy: Strategy, method: Method) -> tuple[dict[str, bytes], Cluster, Recipe]:
    decision = samples.decision(samples.recipe(strategy, method, trainer=trainer))
    return render(decision), decision.cluster, decision.recipe


@pytest.mark.parametrize("trainer", TRAINERS)
@pytest.mark.parametrize(("strategy", "method"), CELLS)
def test_generated_files_pass_the_key_check_and_agree(trainer: str, strategy: Strategy, method: Method) -> None:
    files, cluster, recipe = project(trainer, strategy, method)
    findings, _ = validate_project(files, recipe, cluster, trainers=False)
    assert [f for f in findings if f.severity is not Severity.NOTE] == []


def test_without_the_stack_the_answer_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(package: str) -> str:
        raise PackageNotFoundError(package)

    monkeypatch.setattr(report, "version", absent)
    files, cluster, recipe = project("axolotl", Strategy.ZERO3_CPU, Method.FULL)
    findings, ran = validate_project(files, recipe, cluster)
    assert not any(f.severity is Severity.ERROR for f in findings)
    said = [line for line in ran if line.startswith("not run: ")]
    assert [line.split()[2].rstrip(":") for line in said] == ["axolotl", "accelerate", "deepspeed"]
    assert "axolotl 0.19.0 is not installed" in said[0]


def test_another_version_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "version", lambda _package: "0.18.0")
    files, cluster, recipe = project("axolotl", Strategy.DDP, Method.LORA)
    _, ran = validate_project(files, recipe, cluster)
    assert any("axolotl 0.18.0 is installed, and axolotl-0.19.0 needs 0.19.0" in line for line in ran)


def test_every_check_explains_itself() -> None:
    for rule_id, rule in check_rules().items():
        assert rule_id.startswith("RG7")
        assert rule.family
        assert rule.title
        assert len(rule.doc) > 40


@pytest.mark.stack
@pytest.mark.parametrize("trainer", TRAINERS)
def test_generated_files_pass_the_trainers_own_validators(trainer: str) -> None:
    from recipegen.check import TrainerProcess

    with TrainerProcess() as child:
        for strategy, method in CELLS:
            files, cluster, recipe = project(trainer, strategy, method)
            findings, ran = validate_project(files, recipe, cluster, process=child, full=True)
            assert [f for f in findings if f.severity is Severity.ERROR] == [], (strategy, method)
            assert not [line for line in ran if line.startswith("not run")], ran
