"""Axolotl's own validation: the stubbed route and the full one give the same verdict, and both that of the table."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from recipegen.catalog import load_cluster
from recipegen.catalog.stack import load_stack
from recipegen.check import TrainerProcess, validate_axolotl
from recipegen.check.axolotl_lite import LiteAxolotl, capabilities, lite_axolotl, plain
from recipegen.check.keys import check_axolotl
from recipegen.spec import Severity
from tests.check.axolotl_cases import BASE, CASES, LIGER

pytestmark = pytest.mark.stack
STACK = load_stack()
CLUSTER = load_cluster("kentino-8x-rtx-5090")
TARGET = capabilities(CLUSTER)


@pytest.fixture(scope="module")
def child() -> Iterator[TrainerProcess]:
    with TrainerProcess() as process:
        yield process


def full(process: TrainerProcess, values: dict[str, Any], target: dict[str, Any]) -> tuple[list[str], Any]:
    plugins = [p for p in values.get("plugins", ()) if "axolotl" in p]
    answer = process.ask(
        "axolotl", values=values, plugins=plugins, capabilities=target, torch=STACK.pins["torch"], files={}
    )
    return [f"{place}: {said}" for place, said in answer["errors"]], answer["resolved"]


def test_the_target_is_data() -> None:
    assert TARGET == {
        "bf16": True,
        "fp8": True,
        "tf32": True,
        "n_gpu": 8,
        "n_node": 1,
        "compute_capability": "sm_120",
    }
    old = capabilities(load_cluster("kentino-4x-rtx-4090"))
    assert (old["compute_capability"], old["fp8"], old["n_gpu"]) == ("sm_89", False, 4)


@pytest.mark.parametrize("name", CASES)
def test_both_routes_say_the_same(name: str, child: TrainerProcess) -> None:
    changed, target, expected = CASES[name]
    values = {**BASE, **changed}
    lite = lite_axolotl(STACK).validate(values, {**TARGET, **target})
    errors, resolved = full(child, values, {**TARGET, **target})
    assert [f"{place}: {said}" for place, said in lite.errors] == errors
    if expected is None:
        assert errors == []
        assert plain(lite.resolved) == plain(resolved)
    else:
        assert len(errors) >= 1
        assert expected.lower() in " ".join(errors).lower()


@pytest.mark.parametrize("name", CASES)
def test_the_key_check_calls_nothing_an_error_of_schema_that_axolotl_accepts(name: str) -> None:
    changed, target, _ = CASES[name]
    values = {**BASE, **changed}
    findings = check_axolotl(yaml.safe_dump(values).encode(), STACK)
    rejected = [f for f in findings if f.rule == "RG702" and f.severity is Severity.ERROR]
    later = [f for f in rejected if f.field in ("optimizer", "lr_scheduler")]  # refused when training starts
    if rejected and not later:
        assert lite_axolotl(STACK).validate(values, {**TARGET, **target}).errors


def test_nothing_of_the_stand_ins_is_left_in_the_process() -> None:
    before = {name: id(module) for name, module in sys.modules.items()}
    LiteAxolotl(STACK).validate({**BASE, "plugins": LIGER, "liger_rope": True}, TARGET)
    after = {name: id(module) for name, module in sys.modules.items()}
    changed = {name for name in before if before[name] != after.get(name)}
    new = {name.split(".")[0] for name in after if name not in before}
    assert changed == set()
    assert not new & {"axolotl", "torch", "transformers", "accelerate", "peft", "PIL", "numpy"}


def test_plugins_of_one_configuration_do_not_reach_the_next(child: TrainerProcess) -> None:
    lite = lite_axolotl(STACK)
    keyed = {**BASE, "liger_rope": True}
    assert lite.validate({**keyed, "plugins": LIGER}, TARGET).resolved["liger_rope"] is True
    assert "liger_rope" not in lite.validate(keyed, TARGET).resolved
    assert full(child, {**keyed, "plugins": LIGER}, TARGET)[1]["liger_rope"] is True
    assert "liger_rope" not in full(child, keyed, TARGET)[1]


def test_a_plugin_from_elsewhere_is_never_imported(child: TrainerProcess, tmp_path: Any, monkeypatch: Any) -> None:
    canary = tmp_path / "canary"
    (tmp_path / "evil_plugin.py").write_text(
        f"open({str(canary)!r}, 'w').close()\nclass Plugin: ...\n", encoding="utf-8"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    content = yaml.safe_dump({**BASE, "plugins": ["evil_plugin.Plugin"]}).encode()
    with TrainerProcess() as fresh:
        for process in (None, fresh):
            assert validate_axolotl(content, CLUSTER, STACK, process=process).ran
    assert not canary.exists()


def test_files_outside_the_project_are_never_opened(child: TrainerProcess, tmp_path: Any) -> None:
    outside = tmp_path / "outside.json"
    outside.write_text('{"zero_optimization": {}}', encoding="utf-8")
    content = yaml.safe_dump({**BASE, "tensor_parallel_size": 2, "deepspeed": str(outside)}).encode()
    for process in (None, child):
        report = validate_axolotl(content, CLUSTER, STACK, process=process)
        assert "is not a file of this project" in report.findings[0].reason
    inside = yaml.safe_dump({**BASE, "tensor_parallel_size": 2, "deepspeed": "deepspeed.json"}).encode()
    for process in (None, child):
        files = {"deepspeed.json": b'{"zero_optimization": {}}'}
        assert validate_axolotl(inside, CLUSTER, STACK, files=files, process=process).accepted


def test_findings_have_the_line_and_the_trainers_warnings() -> None:
    content = b"base_model: m\ndatasets: [{path: p}]\nlearning_rate: 1.0e-4\nbf16: true\nmicro_batch_size: one\n"
    report = validate_axolotl(content, CLUSTER, STACK)
    assert [f.where for f in report.findings if f.severity is Severity.ERROR] == ["axolotl.yaml:5"]
    warned = validate_axolotl(content.replace(b"one", b"1") + b"adapter: lora\nlora_r: 8\n", CLUSTER, STACK)
    assert warned.accepted
    assert any("Auto-enabling LoRA kernel" in f.reason for f in warned.findings)


def test_many_configurations_take_milliseconds_each() -> None:
    lite = lite_axolotl(STACK)
    start = time.process_time()
    for _ in range(100):
        lite.validate(BASE, TARGET)
    assert (time.process_time() - start) / 100 < 0.05
