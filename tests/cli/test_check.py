"""`recipegen check`, as a person or a workflow calls it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from recipegen.cli.main import run

AXOLOTL = """\
base_model: Qwen/Qwen3-8B
datasets: [{path: data.jsonl, type: alpaca}]
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
BOX = ("--hardware", "kentino-8x-rtx-5090")
Output = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def _inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("axolotl.yaml").write_text(AXOLOTL)


def replace(old: str, new: str) -> None:
    Path("axolotl.yaml").write_text(AXOLOTL.replace(old, new))


def test_a_good_recipe_exits_0_and_shows_the_estimate(capsys: Output) -> None:
    assert run(["check", "axolotl.yaml", *BOX]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("FITS, ")
    assert "GPU memory at the peak, per GPU" in out
    assert err == ""


def test_an_error_exits_1_with_one_line_on_stderr(capsys: Output) -> None:
    replace("learning_rate", "learning_rte")
    assert run(["check", ".", *BOX]) == 1
    out, err = capsys.readouterr()
    assert "error    RG701  axolotl.yaml:12  learning_rte" in out
    assert "fix: did you mean learning_rate?" in out
    assert err.startswith("check failed: axolotl.yaml:")
    assert err.count("\n") == 1


def test_what_does_not_fit_exits_1(capsys: Output) -> None:
    replace("micro_batch_size: 1", "micro_batch_size: 64")
    assert run(["check", "axolotl.yaml", *BOX]) == 1
    assert capsys.readouterr().out.startswith("DOES NOT FIT, ")


def tight() -> None:
    """A micro-batch inside the error band, found by asking."""
    from recipegen.check.checking import Options, check
    from recipegen.check.gather import Target
    from recipegen.spec import Verdict

    for size in range(1, 64):
        replace("micro_batch_size: 1", f"micro_batch_size: {size}")
        outcome = check(["axolotl.yaml"], Options(Target(hardware=BOX[1])))
        if outcome.verdict is Verdict.TIGHT:
            return
    raise AssertionError("no micro-batch is tight")


def test_tight_exits_1_unless_it_is_accepted(capsys: Output) -> None:
    tight()
    assert run(["check", "axolotl.yaml", *BOX]) == 1
    assert run(["check", "axolotl.yaml", *BOX, "--accept-tight"]) == 0
    Path(".recipegen.yaml").write_text("accept_tight: true\n")
    assert run(["check", "axolotl.yaml", *BOX]) == 0


def test_warnings_fail_with_strict_only(capsys: Output) -> None:
    Path("axolotl.yaml").write_text(AXOLOTL + "somebody_elses_key: 1\n")
    assert run(["check", "axolotl.yaml", *BOX]) == 0
    assert run(["check", "axolotl.yaml", *BOX, "--strict"]) == 1


def test_without_a_machine_the_answer_says_so(capsys: Output) -> None:
    assert run(["check", "axolotl.yaml"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("NOT ESTIMATED, ")
    assert "give --hardware NAME" in out


@pytest.mark.parametrize(
    "args",
    [
        [], ["missing"], [".", "--hardware", "no-such-box"], [".", "--format", "xml"], [".", "--stack", "x"],
        [".", "--policy", "missing.yaml"], [".", "--nodes", "0"], [".", *BOX, "--nodes", "2"],
        ["--explain", "RG999"], [".", "--output", "no/such/folder/out.txt"], [".", "--output", "."],
    ],
)  # fmt: skip
def test_bad_input_exits_2_with_one_line(args: list[str], capsys: Output) -> None:
    assert run(["check", *args]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ")
    assert err.count("\n") == 1


def test_a_file_of_nothing_exits_2(capsys: Output) -> None:
    Path("ci.yaml").write_text("jobs: {}\n")
    assert run(["check", "ci.yaml"]) == 2
    assert "nothing to check: ci.yaml: none of the formats" in capsys.readouterr().err


def test_a_refused_file_is_a_finding(capsys: Output) -> None:
    Path("axolotl.yaml").write_bytes(b"\0" * 10)
    assert run(["check", "."]) == 1
    assert "RG706  axolotl.yaml  a binary file" in capsys.readouterr().out


def test_a_rule_is_explained(capsys: Output) -> None:
    assert run(["check", "--explain", "rg101"]) == 0
    assert capsys.readouterr().out.startswith("RG101: gpu memory is enough (error, memory)\n")


@pytest.mark.parametrize("form", ["text", "json", "github", "sarif"])
def test_the_answer_goes_to_a_file(form: str, capsys: Output) -> None:
    assert run(["check", ".", *BOX, "--format", form]) == 0
    printed = capsys.readouterr().out
    Path("answer").write_text("old")
    assert run(["check", ".", *BOX, "--format", form, "--output", "answer"]) == 0
    assert capsys.readouterr().out == ""
    assert Path("answer").read_text() == printed
    assert sorted(os.listdir()) == ["answer", "axolotl.yaml"]


def test_json_and_sarif_are_the_whole_of_stdout(capsys: Output) -> None:
    replace("learning_rate", "learning_rte")
    for form in ("json", "sarif"):
        assert run(["check", ".", *BOX, "--format", form]) == 1
        json.loads(capsys.readouterr().out)


def test_verbose_says_what_ran(capsys: Output) -> None:
    assert run(["check", ".", *BOX, "-v"]) == 0
    assert "checked: axolotl.yaml: keys, types and values" in capsys.readouterr().out


def test_nothing_heavy_is_imported_and_no_network_is_used() -> None:
    program = """
import socket, sys
def refused(*a, **k): raise AssertionError("the network was used")
socket.socket.connect = refused
from recipegen.cli.main import run
code = run(["check", ".", "--hardware", "kentino-8x-rtx-5090", "--output", "answer"])
heavy = [m for m in ("torch", "transformers", "accelerate", "deepspeed", "huggingface_hub") if m in sys.modules]
print(code, heavy)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, env={
        **os.environ, "PYTHONPATH": str(Path(__file__).parents[2])
    })  # fmt: skip
    assert done.stdout.split() == ["0", "[]"], done.stderr


def test_the_example_of_the_docs_says_what_is_printed_there(capsys: Output) -> None:
    text = (Path(__file__).parents[2] / "docs/check.md").read_text(encoding="utf-8")
    Path("axolotl.yaml").write_text(text.split("```yaml\n")[1].split("```")[0])
    assert run(["check", "axolotl.yaml", *BOX]) == 1
    said = [line for line in capsys.readouterr().out.splitlines() if line.startswith(("  error", "  warning"))]
    assert said
    assert all(line in text for line in said)
