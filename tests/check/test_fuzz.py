"""Hostile files through `check`, `check --fix --diff` and `import`: findings or one line, and nothing is executed."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recipegen.check.trainer_process import TrainerProcess
from tests.fuzzing import commands, mutations

MACHINE = ("--hardware", "8x-h100")
NAMES = st.sampled_from(mutations.NAMES)
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20) | st.dates()
TREES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4)
)
KEYS = st.sampled_from(
    [
        "base_model", "micro_batch_size", "sequence_len", "num_processes", "distributed_type", "zero_optimization",
        "train_micro_batch_size_per_gpu", "model_name_or_path", "learning_rate", "format_version", "model", "hardware",
        "fsdp_config", "deepspeed", "datasets", "lora_r", "lora_target_modules", "bf16", "stage", "num_machines",
    ]
)  # fmt: skip
WORDS = st.sampled_from(
    [
        "torchrun", "accelerate", "launch", "deepspeed", "axolotl", "train", "srun", "python", "-m", "--nproc_per_node",
        "--config_file", "accelerate.yaml", "axolotl.yaml", "8", "export", "A=b", "$A", "${A:-8}", '"$A"', "'$A'",
        "$(touch CANARY)", "`touch CANARY`", "<(touch CANARY)", "|", "&&", ";", "\\\n", "\n", "<<EOF\n", "EOF\n", "{",
        "}", "(", ")", "if", "then", "fi", "for", "do", "done", "#SBATCH --nodes=2\n", "#", "'", '"', "\\", ">", "&",
        "--a=b", "--learning_rate", "1e999", "-1", "9" * 400, "\0", "é", "\r",
    ]
)  # fmt: skip


@pytest.fixture(autouse=True)
def _no_trainer(monkeypatch: pytest.MonkeyPatch) -> None:
    """The trainers' own validators are another program; the readers are what is tried here."""

    def asked(_self: TrainerProcess, _kind: str, **_request: Any) -> dict[str, Any]:
        return {"errors": [], "warnings": [], "resolved": {}}

    monkeypatch.setattr(TrainerProcess, "ask", asked)


@contextmanager
def project(files: Mapping[str, bytes]) -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as name:
        commands.write(Path(name), files)
        yield Path(name)


def assert_answered(files: Mapping[str, bytes], *arguments: str) -> commands.Answer:
    with project(files) as folder:
        answer = commands.asked(folder, arguments)
        wrong = list(commands.complaints(answer, arguments, folder))
    assert not wrong, f"{arguments}: {wrong}"
    return answer


COMMANDS = st.sampled_from(
    [
        ("check", ".", "--format", "json", *MACHINE),
        ("check", ".", "--format", "json"),
        ("check", ".", "--format", "sarif", *MACHINE),
        ("check", ".", "--format", "github", *MACHINE),
        ("check", ".", "-v", *MACHINE),
        ("check", ".", "--fix", "--diff", *MACHINE),
        ("import", ".", "--out", "new", "--format", "json", *MACHINE),
    ]
)


@settings(max_examples=12, deadline=None)
@given(
    NAMES, st.binary(max_size=300) | st.text(max_size=300).map(lambda text: text.encode("utf-8", "ignore")), COMMANDS
)
def test_any_bytes_are_answered(name: str, content: bytes, command: tuple[str, ...]) -> None:
    assert_answered({name: content}, *command)


@settings(max_examples=12, deadline=None)
@given(NAMES, st.dictionaries(KEYS, TREES, min_size=1, max_size=6), COMMANDS)
def test_any_values_are_answered(name: str, values: dict[str, object], command: tuple[str, ...]) -> None:
    assert_answered({name: json.dumps(values, default=str).encode("utf-8", "surrogatepass")}, *command)


@settings(max_examples=12, deadline=None)
@given(st.lists(WORDS, max_size=40), st.sampled_from(["launch.sh", "job.sbatch", "run"]), COMMANDS)
def test_any_script_is_answered_and_none_is_run(words: list[str], name: str, command: tuple[str, ...]) -> None:
    assert_answered({name: f"#!/bin/bash\ntorchrun {' '.join(words)}".encode()}, *command)


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 2**32), COMMANDS)
def test_broken_recipes_are_answered(seed: int, command: tuple[str, ...]) -> None:
    random = Random(seed)
    assert_answered(mutations.broken(random, mutations.project(random)), *command)


AXOLOTL = (mutations.ROOT / "recipes/4x-rtx-4090/qwen3-14b-qlora-4k/axolotl.yaml").read_bytes()


@pytest.mark.parametrize("value", [".nan", "-.inf", "2001-01-01", "2001-01-01T10:00:00Z"])
def test_what_json_has_no_word_for_is_a_text_in_the_answer(value: str) -> None:
    """A key that recipegen does not know is passed on with whatever value it has."""
    files = {"axolotl.yaml": AXOLOTL + f"surprise: {value}\n".encode()}
    answer = assert_answered(files, "check", ".", "--format", "json", *MACHINE)
    passed = json.loads(answer.out)["projects"][0]["recipe"]["passthrough"]["axolotl"]
    assert isinstance(passed["surprise"], str)
    assert assert_answered(files, "import", ".", "--out", "new", "--format", "json", *MACHINE).code == 0


@pytest.mark.parametrize("digits", ["9" * 500, "0x1" + "0" * 500, "1" + ":59" * 300, "1" + ":59" * 300 + ".5"])
def test_a_number_without_end_is_said_with_its_line(digits: str) -> None:
    files = {"axolotl.yaml": b"base_model: x\nsequence_len: " + digits.encode()}
    answer = assert_answered(files, "check", ".", *MACHINE)
    assert answer.code == 1
    assert f"axolotl.yaml:2: a number of {len(digits)} characters" in " ".join(answer.err.split())
    assert_answered({"deepspeed.json": b'{"zero_optimization": {"stage": ' + b"9" * 500 + b"}}"}, "check", ".")


def test_thousands_of_unknown_keys_are_not_all_listed() -> None:
    keys = b", ".join(b'"surprise%d": 1' % number for number in range(1100))
    files = {"deepspeed.json": b'{"zero_optimization": {"stage": 3}, ' + keys + b"}"}
    answer = assert_answered(files, "check", ".", "--format", "json", *MACHINE)
    reasons = [found["reason"] for found in json.loads(answer.out)["projects"][0]["findings"]]
    assert sum("surprise" in reason for reason in reasons) == 1000
    assert any("more than 1000 keys" in reason for reason in reasons)


@pytest.mark.parametrize("key", ["save_total_limit", "sequence_len", "lora_r", "micro_batch_size", "num_epochs"])
@pytest.mark.parametrize("value", ["1e308", "1" + "0" * 300, "1" + "0" * 60, "-1", "0", ".nan"])
def test_numbers_beyond_any_machine_are_answered(key: str, value: str) -> None:
    kept = b"".join(line for line in AXOLOTL.splitlines(keepends=True) if not line.startswith(key.encode()))
    assert_answered({"axolotl.yaml": kept + f"{key}: {value}\n".encode()}, "check", ".", "--format", "json", *MACHINE)


def test_control_characters_of_a_name_do_not_reach_the_terminal() -> None:
    named = AXOLOTL.replace(b"path: HuggingFaceTB/smol-smoltalk", b'path: "\\x1b]0;owned\\x07"')
    assert named != AXOLOTL
    assert "data ?]0;owned?" in assert_answered({"axolotl.yaml": named}, "check", ".", "-v", *MACHINE).out


def test_a_direction_of_text_in_a_name_does_not_reach_the_terminal() -> None:
    files = {"args.yaml": b'model_name_or_path: "\\u202Ex"\nlearning_rate: 1\nnum_train_epochs: 1\n'}
    assert assert_answered(files, "import", ".", "--out", "new", *MACHINE).code == 2


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes in the file system")
def test_pipes_devices_loops_and_forbidden_files_are_refused() -> None:
    with project({"axolotl.yaml": AXOLOTL, "secret.yaml": b"base_model: x"}) as folder:
        os.mkfifo(folder / "accelerate.yaml")
        os.symlink("/dev/zero", folder / "deepspeed.json")
        os.symlink("loop.yaml", folder / "loop.yaml")
        os.symlink(".", folder / "again")
        os.symlink("gone.yaml", folder / "dangling.yaml")
        os.chmod(folder / "secret.yaml", 0)
        arguments = ("check", ".", "--format", "json", *MACHINE)
        answer = commands.asked(folder, arguments)
        assert not list(commands.complaints(answer, arguments, folder))
        refused = {found["path"] for found in json.loads(answer.out)["findings"]}
        assert {"accelerate.yaml", "deepspeed.json", "loop.yaml", "dangling.yaml"} <= refused
