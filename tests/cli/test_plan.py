"""`recipegen plan`: verdict first, stable JSON, light."""

import json
import os
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest

from recipegen.cli.main import run

SCHEMA = json.loads((Path(__file__).parents[2] / "docs/schemas/plan.schema.json").read_text())
BOX = ["--model", "Llama-3.1-8B", "--hardware", "kentino-8x-rtx-5090"]


def plan_json(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, dict]:
    code = run(["plan", *args, "--format", "json"])
    out = capsys.readouterr()
    return code, json.loads(out.out)


@pytest.mark.parametrize("method", ["full", "lora", "qlora"])
def test_json_holds_to_its_schema(capsys: pytest.CaptureFixture[str], method: str) -> None:
    code, document = plan_json(capsys, *BOX, "--method", method)
    jsonschema.validate(document, SCHEMA)
    assert code == 0
    assert document["recipe"]["method"] == method


def test_the_verdict_comes_first(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plan", *BOX]) == 0
    out = capsys.readouterr().out
    assert out.startswith("FITS")
    assert "GiB" in out
    assert "bound by" in out
    assert "Alternatives, and why not" in out


def test_what_cannot_fit_exits_1_with_one_line_and_the_binding_term(capsys: pytest.CaptureFixture[str]) -> None:
    code = run(["plan", "--model", "Llama-3.1-405B", "--method", "full", "--hardware", "kentino-8x-rtx-pro-6000"])
    out = capsys.readouterr()
    assert code == 1
    assert out.out.startswith("DOES NOT FIT")
    assert out.err.startswith("does not fit: ")
    assert out.err.count("\n") == 1
    assert "Ways out" in out.out


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["plan"], "--model"),
        (["plan", "--model", "Llama-3.1-8B"], "--hardware"),
        (["plan", "--model", "Llama-3.1-8X", "--hardware", "kentino-8x-rtx-5090"], "Llama-3.1-8B"),
        (["plan", "--model", "Llama-3.1-8B", "--hardware", "kentino-8x-rtx-5091"], "kentino-8x-rtx-5090"),
        (["plan", *BOX, "--nodes", "2"], "--network"),
        (["plan", *BOX, "--set", "lora_r=8"], "adapter.r"),
        (["plan", *BOX, "--set", "nonsense"], "KEY=VALUE"),
        (["plan", *BOX, "--learning-rate", "nan"], "learning-rate"),
        (["plan", *BOX, "--global-batch-size", "12"], "multiple of the 8"),
        (["plan", *BOX, "--set", "strategy=single"], "not possible on 8 GPUs"),
        (["plan", *BOX, "--dataset", "no-such-file.jsonl"], "no-such-file.jsonl"),
        (["plan", *BOX, "--stack", "axolotl-1"], "no such option"),
        (["plna"], "plan"),
    ],
)
def test_bad_input_is_one_line_and_exit_2(capsys: pytest.CaptureFixture[str], args: list[str], said: str) -> None:
    assert run(args) == 2
    err = capsys.readouterr().err
    assert said.lower() in err.lower()
    assert err.count("\n") == 1
    assert "Traceback" not in err


def test_a_plan_imports_nothing_heavy() -> None:
    """The light tool answers with the standard library, PyYAML and click."""
    code = (
        "import sys\nfrom recipegen.cli.main import run\n"
        "code = run(['plan', '--model', 'Llama-3.3-70B-Instruct', '--method', 'full', '--hardware',"
        " 'kentino-8x-rtx-pro-6000', '--nodes', '2', '--network', 'roce-100'])\n"
        "print('MODULES', *sorted({m.split('.')[0] for m in sys.modules}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.rsplit("MODULES", 1)[1].split())
    heavy = {"torch", "transformers", "accelerate", "axolotl", "peft", "pyarrow", "tokenizers", "huggingface_hub",
             "pydantic", "rich", "jinja2", "numpy", "deepspeed", "requests", "httpx"}  # fmt: skip
    assert not loaded & heavy


def test_a_field_of_the_recipe_wins_over_a_trainers_key_of_the_same_prefix(capsys: pytest.CaptureFixture[str]) -> None:
    code, document = plan_json(capsys, *BOX, "--method", "full", "--set", "deepspeed.sub_group_size=5000")
    assert code == 0
    assert document["recipe"]["deepspeed"]["sub_group_size"] == 5000
    assert document["recipe"]["passthrough"] == {}


def test_the_line_on_stderr_is_the_error_not_a_warning(capsys: pytest.CaptureFixture[str]) -> None:
    args = ["--model", "gemma-2-9b-it", "--hardware", "kentino-8x-rtx-5090", "--set", "packing=true"]
    assert run(["plan", *args]) == 1
    assert "packing with eager attention" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--set", "axolotl.sequence_len=32768"], "use --set sequence_len="),
        (["--set", "axolotl.output_dir=/x"], "decided by the recipe"),
        (["--set", "axolotl.warmup_ratio=0.1"], "use --set schedule.warmup_ratio="),
        (["--set", "axolotl.context_parallel_size=2"], "use --set parallelism.cp="),
        (["--set", "axolotl.load_in_8bit=true"], "use --method qlora"),
        (["--set", "axolotl.=1"], "names no key"),
        (["--set", "axolotl.x=&a [*a]"], "plain YAML value"),
        (["--set", "axolotl.x=" + "[" * 3000], "plain YAML value"),
        (["--set", "seed=1", "--set", "seed=2"], "given twice"),
        (["--set", "strategy=ddp", "--set", "parallelism.strategy=zero2"], "set twice"),
        (["--set", "adapter.target_modules=foo", "--method", "lora"], "no module foo"),
        (["--set", "precision=bf16"], "precision.parameters"),
        (["--set", "fsdp.layer_class=Foo"], "follows from other fields"),
        (["--recipe", "/dev/zero"], "not a regular file"),
        (["--recipe", "no-such.yaml"], "no-such.yaml"),
        (["--hardware-override", "nvme_gb=1", "--hardware-override", "nvme_gb=2"], "given twice"),
    ],
)
def test_what_would_be_ignored_or_contradictory_is_refused(
    capsys: pytest.CaptureFixture[str], args: list[str], said: str
) -> None:
    assert run(["plan", *BOX, *args]) == 2
    err = capsys.readouterr().err
    assert said.lower() in err.lower()
    assert err.count("\n") == 1


def test_a_deepspeed_strategy_needs_no_method(capsys: pytest.CaptureFixture[str]) -> None:
    code, document = plan_json(
        capsys, "--model", "Llama-3.2-1B", "--hardware", "kentino-8x-rtx-5090", "--set", "strategy=zero2"
    )
    assert code == 0
    assert document["recipe"]["method"] == "full"


def test_a_way_out_says_which_pins_it_leaves_out(capsys: pytest.CaptureFixture[str]) -> None:
    _, document = plan_json(capsys, *BOX, "--method", "full", "--set", "strategy=zero2")
    assert document["ways_out"]
    assert any("parallelism.strategy" in w["without"] for w in document["ways_out"])


@pytest.mark.parametrize("redirect", ["| head -1", ">&-"])
def test_a_reader_that_goes_away_is_no_error(redirect: str) -> None:
    command = f"set -o pipefail; {sys.executable} -m recipegen.cli.main hardware list {redirect}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert "Traceback" not in done.stderr
    assert done.returncode == 0


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_is_one_line() -> None:
    command = f"{sys.executable} -m recipegen.cli.main hardware list > /dev/full"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


def test_a_terminal_without_block_characters_gets_plain_bars() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "recipegen.cli.main", "plan", *BOX],
        capture_output=True, env={**os.environ, "PYTHONIOENCODING": "latin-1"}, check=True,
    )  # fmt: skip
    assert b"####" in done.stdout


@pytest.mark.parametrize("command", [[], ["models"], ["hardware"]])
def test_no_command_prints_the_help(capsys: pytest.CaptureFixture[str], command: list[str]) -> None:
    assert run(command) == 0
    assert "Usage:" in capsys.readouterr().out
