"""Projects from the files of a folder to verdict and findings, through the public function."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from recipegen.check import report
from recipegen.check.checking import Checked, Options, check
from recipegen.check.gather import Target
from recipegen.project.files import render
from recipegen.spec import Method, RecipegenError, Severity, Strategy, Verdict
from tests import recipes_for_tests as samples

HARDWARE = Target(hardware="kentino-8x-rtx-5090")
AXOLOTL = """\
base_model: Qwen/Qwen3-8B
datasets:
  - path: data.jsonl
    type: alpaca
sequence_len: 2048
adapter: lora
lora_r: 16
lora_alpha: 32
lora_target_linear: true
micro_batch_size: 1
gradient_accumulation_steps: 1
num_epochs: 1
optimizer: adamw_torch_fused
learning_rate: 2.0e-4
lr_scheduler: cosine
bf16: true
gradient_checkpointing: true
"""


@pytest.fixture(autouse=True)
def _inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def one(text: str, target: Target = HARDWARE, name: str = "axolotl.yaml") -> Checked:
    Path(name).write_text(text)
    (checked,) = check([name], Options(target)).checked
    return checked


def generated(strategy: Strategy = Strategy.FSDP2_FULL, method: Method = Method.FULL, **changes: Any) -> None:
    for name, content in render(samples.decision(samples.recipe(strategy, method, **changes))).items():
        Path(name).write_bytes(content)


def rules(checked: Checked, *severities: Severity) -> list[str]:
    return [f.rule for f in checked.findings if not severities or f.severity in severities]


@pytest.mark.parametrize("trainer", ["axolotl", "accelerate"])
@pytest.mark.parametrize("method", [Method.FULL, Method.LORA])
def test_generated_projects_have_no_error_and_their_machine_is_known(trainer: str, method: Method) -> None:
    generated(Strategy.FSDP2_FULL, method, trainer=trainer)
    (checked,) = check(["."]).checked
    assert rules(checked, Severity.ERROR) == []
    assert checked.subject.cluster is not None
    assert "RG781" not in rules(checked)


def test_what_is_wrong_is_said_with_its_line_and_what_to_do() -> None:
    checked = one(AXOLOTL.replace("learning_rate", "learning_rte"))
    (found,) = [f for f in checked.findings if f.rule == "RG701"]
    assert (found.severity, found.where, found.fix) == (
        Severity.ERROR,
        "axolotl.yaml:14",
        "did you mean learning_rate?",
    )
    assert checked.failed


def test_a_hand_written_file_gets_an_estimate() -> None:
    checked = one(AXOLOTL)
    assert checked.verdict is Verdict.FITS
    assert checked.subject.estimate is not None


def test_what_does_not_fit_fails_at_the_line_that_decides_it() -> None:
    checked = one(AXOLOTL.replace("micro_batch_size: 1", "micro_batch_size: 64"))
    assert checked.verdict is Verdict.DOES_NOT_FIT
    (found,) = [f for f in checked.findings if f.rule == "RG101"]
    assert found.where == "axolotl.yaml:10"
    assert checked.failed


def test_without_a_machine_everything_else_is_still_said() -> None:
    checked = one(AXOLOTL.replace("learning_rate", "learning_rte"), Target())
    assert checked.verdict is Verdict.UNKNOWN
    assert {"RG701", "RG709"} <= set(rules(checked))
    assert any("--hardware" in f.fix for f in checked.findings if f.rule == "RG709")
    assert not one(AXOLOTL, Target()).failed


def test_strict_fails_without_an_estimate() -> None:
    Path("axolotl.yaml").write_text(AXOLOTL)
    assert check(["axolotl.yaml"], Options(strict=True)).exit_code == 1


def test_a_change_by_hand_is_drift() -> None:
    generated()
    text = Path("axolotl.yaml").read_text()
    Path("axolotl.yaml").write_text(text.replace("seed: ", "seed: 1"))
    (checked,) = check(["."]).checked
    assert "RG781" in rules(checked, Severity.WARNING)


def test_the_command_line_wins_over_recipe_yaml() -> None:
    generated()
    (checked,) = check(["."], Options(Target(hardware="4x-h100"))).checked
    assert checked.subject.cluster is not None
    assert checked.subject.cluster.world_size == 4
    assert "RG722" in rules(checked, Severity.ERROR)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("recipe.yaml", "format_version: 1\nmodel: m\nhardware: no-such-box\nepochs: 1\n"),
        ("recipe.yaml", "format_version: 99\nmodel: m\nhardware: h\nepochs: 1\n"),
        ("recipe.yaml", "format_version: 1\nmodel: m\nhardware: 8x-h100\nepochs: 1\nstack: nobody-1\n"),
        ("recipe.lock", '{"format_version": 1}'),
        ("recipe.lock", "\xff{"),
    ],
)
def test_a_broken_recipe_or_lock_is_an_error_and_the_rest_is_checked(name: str, text: str) -> None:
    Path("axolotl.yaml").write_text(AXOLOTL)
    Path(name).write_text(text)
    (checked,) = check(["."]).checked
    assert any(f.where.startswith(name) and f.severity is Severity.ERROR for f in checked.findings)


def test_what_the_command_line_names_wrongly_is_an_error() -> None:
    Path("axolotl.yaml").write_text(AXOLOTL)
    for target in (Target(hardware="no-such-box"), Target(stack="no-such-stack")):
        with pytest.raises(RecipegenError):
            check(["axolotl.yaml"], Options(target))
    Path("empty").mkdir()
    with pytest.raises(RecipegenError, match="nothing to check"):
        check(["empty"])


def test_ignored_findings_do_not_fail_and_are_kept() -> None:
    checked = one(AXOLOTL + "learning_rte: 1  # recipegen: ignore[RG701]\n")
    assert "RG701" not in rules(checked)
    assert [f.rule for f in checked.ignored] == ["RG701"]
    assert not checked.failed


def test_a_policy_changes_severities_and_sets_budgets() -> None:
    Path(".recipegen.yaml").write_text("severities: {RG701: note}\nbudgets: {max_peak_gib: 1}\n")
    checked = one(AXOLOTL + "learning_rte: 1\n")
    assert rules(checked, Severity.ERROR) == ["RG782"]
    assert "RG701" in rules(checked, Severity.NOTE)
    Path("other.yaml").write_text("budgets: {max_peak_gib: 1000}\n")
    assert not check(["axolotl.yaml"], Options(HARDWARE, policy_file=Path("other.yaml"))).checked[0].ignored


@pytest.mark.parametrize(
    "text",
    [
        "base_model: [\n", "base_model: &a [*a]\n", "base_model: !!python/object/apply:os.system ['true']\n",
        "base_model: x\nbase_model: y\n", "base_model: " + "[" * 5000, "micro_batch_size: 1e999\nbase_model: x\n",
        "base_model: x\nmicro_batch_size: " + "9" * 5000 + "\n", "base_model: x\nsequence_len: -1\n",
        "base_model: Qwen/Qwen3-8B\nmicro_batch_size: 99999999999999999999\nsequence_len: 99999999999999999999\n",
        "base_model: {a: 1}\ndatasets: 3\nplugins: {a: b}\ndeepspeed: [1]\nfsdp_config: x\n",
        "base_model: '\\ud800'\n", "base_model: ../../../../etc\n", "base_model: ~nobody/x\n",
    ],
)  # fmt: skip
def test_hostile_files_give_findings(text: str) -> None:
    assert one(text).findings


def test_a_shown_text_is_one_printable_line() -> None:
    checked = one(AXOLOTL + '"evil\\n::error::key\\e[31m": 1\n')
    assert all((f.reason + f.fix + f.where).isprintable() for f in checked.findings)


def test_what_only_the_machine_can_say_is_listed_with_its_command() -> None:
    commands = {f.fix for f in one(AXOLOTL).findings if f.rule == "RG780"}
    assert "df -h /dev/shm" in commands
    assert any(command.startswith("nvidia-smi --query-gpu=driver_version") for command in commands)
    assert not any("p2p" in command for command in commands)
    assert "free -g; cat /sys/fs/cgroup/memory.max" not in commands
    peers = {f.fix for f in one(AXOLOTL, Target("8x-rtx-pro-6000")).findings if f.rule == "RG780"}
    assert "nvidia-smi topo -p2p r" in peers
    alone = {f.fix for f in one(AXOLOTL, Target("1x-rtx-5090")).findings if f.rule == "RG780"}
    assert "df -h /dev/shm" not in alone


def test_only_what_is_installed_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    from importlib.metadata import PackageNotFoundError

    def absent(package: str) -> str:
        raise PackageNotFoundError(package)

    monkeypatch.setattr(report, "version", absent)
    checked = one(AXOLOTL)
    assert any(said.startswith("not run: axolotl: ") for said in checked.ran)
    assert not checked.failed


def test_eighty_files_in_four_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(80):
        Path(f"{number}.yaml").write_text(AXOLOTL.replace("lora_r: 16", f"lora_r: {number + 8}"))
    before = time.process_time()
    outcome = check(["."], Options(HARDWARE))
    assert time.process_time() - before < 4
    assert len(outcome.checked) == 80
    assert outcome.exit_code == 0


def test_another_box_has_as_many_nodes_as_the_recipe() -> None:
    generated(Strategy.DDP, Method.LORA, nodes=2)
    (checked,) = check(["."], Options(Target(hardware="kentino-8x-rtx-5090"))).checked
    assert checked.subject.cluster is not None
    assert (checked.subject.cluster.nodes, checked.subject.cluster.gpu.name) == (2, "RTX 5090")


def test_files_for_more_nodes_than_are_given_get_no_estimate_and_the_reason() -> None:
    generated(Strategy.DDP, Method.LORA, nodes=2)
    Path("recipe.yaml").unlink()
    Path("recipe.lock").unlink()
    (checked,) = check(["."], Options(Target(hardware="kentino-8x-rtx-5090"))).checked
    assert checked.verdict is Verdict.UNKNOWN
    assert any("2 nodes, and 1 of" in f.reason for f in checked.findings if f.rule == "RG709")


def test_data_that_new_measured_are_known_as_long_as_they_are_those() -> None:
    generated(Strategy.DDP, Method.LORA)
    (checked,) = check(["."]).checked
    assert checked.subject.estimate is not None
    steps = checked.subject.estimate.time.steps_per_epoch
    assert steps
    assert checked.subject.assembled.recipe is not None
    assert checked.subject.assembled.recipe.datasets[0].rows == samples.dataset().rows
    text = Path("axolotl.yaml").read_text()
    path = samples.dataset().path
    assert f"path: {path}" in text
    Path("axolotl.yaml").write_text(text.replace(f"path: {path}", "path: other.jsonl"))
    (checked,) = check(["."]).checked
    assert checked.subject.estimate is not None
    assert checked.subject.estimate.time.steps_per_epoch is None
