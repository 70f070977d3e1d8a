"""The command as its own process on files that are large, deep or without end: an answer, in bounded memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from recipegen.check.trainer_process import TrainerProcess
from tests.fuzzing import commands, mutations

MIB = 2**20
MOST_MIB = 500
HANG_S = 300.0  # a guard against no end at all, not a measure of speed
MUTATED = 2000
GALLERY = mutations.ROOT / "recipes/4x-rtx-4090/qwen3-14b-qlora-4k"
AXOLOTL = (GALLERY / "axolotl.yaml").read_bytes()
SHELL = b"#!/bin/bash\n"
ZERO = b'{"zero_optimization": {"stage": 3}, '
# Prints the peak of the command's memory. In a process of its own: a child's peak begins with that of its parent.
MEASURED = """
import json, os, subprocess, sys
child = subprocess.Popen(sys.argv[1:], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
import threading
out = []
reader = threading.Thread(target=lambda: out.append(child.stdout.read()))
reader.start()
err = child.stderr.read()
reader.join()
_, status, used = os.wait4(child.pid, 0)
unit = 1 if sys.platform == "darwin" else 1024
print(json.dumps([os.waitstatus_to_exitcode(status), used.ru_maxrss * unit, err.decode(), out[0].decode()]))
"""


def answered(folder: Path, *arguments: str) -> commands.Answer:
    command = [sys.executable, "-m", "recipegen.cli.main", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(mutations.ROOT)}
    ran = subprocess.run(
        [sys.executable, "-c", MEASURED, *command], cwd=folder, env=environment, capture_output=True, timeout=HANG_S
    )
    code, peak, err, out = json.loads(ran.stdout)
    assert peak < MOST_MIB * MIB, f"{peak / MIB:.0f} MiB"
    answer = commands.Answer(code, out, err)
    assert not list(commands.complaints(answer, arguments, folder))
    return answer


def laughs() -> bytes:
    levels = (b"a%d: &a%d [%s]\n" % (n, n, b", ".join([b"*a%d" % (n - 1)] * 9)) for n in range(1, 12))
    return b"base_model: x\na0: &a0 [x, x, x]\n" + b"".join(levels)


CASES: dict[str, tuple[str, Callable[[], bytes]]] = {
    "one line of 50 MB": ("axolotl.yaml", lambda: b"base_model: " + b"x" * (50 * MIB)),
    "50 MB of keys": ("axolotl.yaml", lambda: b"".join(b"key%07d: v\n" % n for n in range(3_500_000))),
    "50 MB of documents": ("axolotl.yaml", lambda: b"--- {base_model: x}\n" * 2_500_000),
    "50 MB of a list": ("deepspeed.json", lambda: ZERO + b'"x": [' + b"1," * (25 * MIB) + b"1]}"),
    "50 MB of a batch file": ("job.sbatch", lambda: SHELL + b"#SBATCH --nodes=2\n" * 2_900_000),
    "a million levels of YAML": ("axolotl.yaml", lambda: b"base_model: " + b"[" * 10**6),
    "levels of dashes": ("axolotl.yaml", lambda: b"base_model: x\na:\n  " + b"- " * 500_000),
    "levels of JSON": ("deepspeed.json", lambda: b'{"zero_optimization":' + b'{"a":' * 150_000),
    "a million levels of JSON": ("deepspeed.json", lambda: b'{"zero_optimization":' + b"[" * 10**6),
    "levels in a lock": ("recipe.lock", lambda: b'{"recipe": ' + b"[" * 10**6),
    "a million digits": ("axolotl.yaml", lambda: b"base_model: x\nsequence_len: " + b"9" * (10**6)),
    "a million digits of JSON": ("deepspeed.json", lambda: b'{"zero_optimization": {"stage": ' + b"9" * 10**6 + b"}}"),
    "a time without end": ("axolotl.yaml", lambda: b"base_model: x\nsequence_len: 1" + b":59" * 340_000),
    "hexadecimal digits": ("axolotl.yaml", lambda: b"base_model: x\nsequence_len: 0x" + b"f" * 10**6),
    "aliases of aliases": ("axolotl.yaml", laughs),
    "a mapping merged by many": (
        "axolotl.yaml",
        lambda: AXOLOTL
        + b"m: &m {"
        + b", ".join(b"k%d: 1" % n for n in range(9000))
        + b"}\n"
        + b"".join(b"b%d: {<<: *m}\n" % n for n in range(10_000)),
    ),
    "keys that are not known": ("axolotl.yaml", lambda: AXOLOTL + b"".join(b"k%05d: 1\n" % n for n in range(45_000))),
    "misspelt keys": ("axolotl.yaml", lambda: AXOLOTL + b"".join(b"sequence_lem%d: 1\n" % n for n in range(40_000))),
    "keys on one line": (
        "deepspeed.json",
        lambda: ZERO + b", ".join(b'"k%d": {}' % n for n in range(45_000)) + b"}",
    ),
    "auto on one line": (
        "deepspeed.json",
        lambda: ZERO + b", ".join(b'"k%d": "auto"' % n for n in range(45_000)) + b"}",
    ),
    "wrong data sets": (
        "axolotl.yaml",
        lambda: b"base_model: x\ndatasets: [" + b"{path: 1}, " * 24_000 + b"]\n",
    ),
    "comments that ignore": ("axolotl.yaml", lambda: AXOLOTL + b"# recipegen: ignore RG701 x\n" * 37_000),
    "patterns": (
        "axolotl.yaml",
        lambda: AXOLOTL.replace(b"lora_target_linear: true", b'lora_target_modules: "(([a-z._0-9])+)+(x|x)+Q$"')
        + b'unfrozen_parameters: ["(a+)+$", "' + b"(" * 5000 + b'", "(.*)*(.*)*(.*)*x"]\n',
    ),
    "one command of 1 MB": ("launch.sh", lambda: SHELL + b"accelerate launch train.py " + b"--x y \\\n" * 120_000),
    "many commands": ("launch.sh", lambda: SHELL + b"accelerate launch train.py --x y\n" * 31_000),
    "variables that double": ("launch.sh", lambda: SHELL + b"V=aaaa\n" + b'V="$V$V"\n' * 80 + b"torchrun x.py --o $V"),
    "open substitutions": ("launch.sh", lambda: SHELL + b"torchrun " + b'"$(' * 300_000),
    "here-documents": ("launch.sh", lambda: SHELL + b"torchrun x\n" + b"cat <<E <<E <<E <<E\n" * 50_000),
    "exports": ("launch.sh", lambda: SHELL + b"".join(b"export A%d=1\n" % n for n in range(50_000)) + b"torchrun x"),
    "batch options": ("job.sbatch", lambda: SHELL + b"#SBATCH --nodes=2\n" * 50_000 + b"srun torchrun x"),
    "a policy without end": (
        ".recipegen.yaml",
        lambda: b"severities: {" + b", ".join(b"RG%d: error" % n for n in range(40_000)) + b"}",
    ),
}  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize("name", list(CASES))
def test_a_file_without_end_is_answered(name: str, tmp_path: Path) -> None:
    file, content = CASES[name]
    commands.write(tmp_path, {"axolotl.yaml": AXOLOTL} if file == ".recipegen.yaml" else {})
    commands.write(tmp_path, {file: content()})
    for arguments in (("--format", "json"), ("--fix", "--diff")):
        answered(tmp_path, "check", ".", "--hardware", "8x-h100", *arguments)


@pytest.mark.long
def test_folders_without_end_are_answered(tmp_path: Path) -> None:
    for number in range(3000):
        (tmp_path / "many" / f"f{number}.json").parent.mkdir(exist_ok=True)
        (tmp_path / "many" / f"f{number}.json").write_bytes(b"{}")
    deep = tmp_path / "deep" / "/".join("d" * 200)
    deep.mkdir(parents=True)
    (deep / "axolotl.yaml").write_bytes(AXOLOTL)
    os.symlink(tmp_path, tmp_path / "deep" / "again")
    os.symlink("/dev/zero", tmp_path / "deep" / "axolotl.yaml")
    assert "more than 1000 files" in answered(tmp_path, "check", "many").err
    answered(tmp_path, "check", "deep", "--format", "json")


@pytest.mark.long
@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("axolotl.yaml", b'base_model: "' + b"x" * (MIB - 100) + b'"'),
        ("axolotl.yaml", AXOLOTL + b"x: [" + b"1," * 80_000 + b"1]\n"),
        ("axolotl.yaml", AXOLOTL + b"x: {" + b",".join(b"k%d: {}" % n for n in range(40_000)) + b"}\n"),
        ("deepspeed.json", ZERO + b",".join(b'"k%d": {}' % n for n in range(45_000)) + b"}"),
        ("launch.sh", SHELL + b"accelerate launch train.py --x y\n" * 31_000),
        ("launch.sh", SHELL + b"accelerate launch train.py " + b"--x y \\\n" * 120_000),
        ("launch.sh", SHELL + b"".join(b"export A%d=1\n" % n for n in range(70_000)) + b"torchrun x"),
    ],
)
@pytest.mark.parametrize("count", [3, 8, 300])
def test_many_large_files_are_answered(count: int, file: str, content: bytes, tmp_path: Path) -> None:
    for number in range(count):
        commands.write(tmp_path / str(number), {file: content})
    answered(tmp_path, "check", ".", "--format", "json")


@pytest.mark.long
def test_thousands_of_broken_recipes_are_answered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nothing: dict[str, object] = {"errors": [], "warnings": [], "resolved": {}}
    monkeypatch.setattr(TrainerProcess, "ask", lambda _self, _kind, **_request: nothing)
    wrong: list[str] = []
    for seed in range(MUTATED):
        random = Random(seed)
        folder = tmp_path / str(seed)
        commands.write(folder, mutations.broken(random, mutations.project(random)))
        arguments = random.choice(
            (
                ("check", ".", "--format", random.choice(("text", "json", "github", "sarif"))),
                ("check", ".", "--fix", "--diff"),
                ("import", ".", "--out", "new", "--format", "json"),
            )
        )
        machine = random.choice((("--hardware", "8x-h100"), ("--hardware", "8x-h100"), ()))
        answer = commands.asked(folder, (*arguments, *machine))
        wrong += [f"seed {seed}: {what}" for what in commands.complaints(answer, arguments, folder)]
    assert not wrong
