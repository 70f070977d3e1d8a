"""On a terminal: questions for what is missing, and colour. Elsewhere neither."""

import os
import pty
import select
import subprocess
import sys
import time
from pathlib import Path

import pytest


def on_terminal(arguments: list[str], answers: list[str], folder: Path) -> tuple[int, str]:
    """Run with a pseudo-terminal for all three streams; type each answer when something is asked."""
    leader, follower = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "recipegen.cli.main", *arguments],
        stdin=follower, stdout=follower, stderr=follower, cwd=folder, close_fds=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "TERM": "xterm"},
    )  # fmt: skip
    os.close(follower)
    said, left, deadline = "", list(answers), time.monotonic() + 60
    while time.monotonic() < deadline:
        if select.select([leader], [], [], 0.2)[0]:
            try:
                said += os.read(leader, 65536).decode(errors="replace")
            except OSError:
                break
            if left and said.rstrip().endswith("]:"):
                os.write(leader, (left.pop(0) + "\n").encode())
        elif process.poll() is not None:
            break
    return process.wait(timeout=30), said


def test_what_is_missing_is_asked_for_with_a_default(tmp_path: Path) -> None:
    (tmp_path / "data.jsonl").write_text('{"text": "hello world"}\n' * 50)
    code, said = on_terminal(["new", "tune"], ["", "", ""], tmp_path)
    assert code == 0, said
    assert "Model [meta-llama/Llama-3.1-8B-Instruct]:" in said
    assert "Data file or Hub id [data.jsonl]:" in said
    assert "Hardware profile [kentino-8x-rtx-5090]:" in said
    assert (tmp_path / "tune/axolotl.yaml").exists()


def test_plan_never_asks_for_data(tmp_path: Path) -> None:
    code, said = on_terminal(["plan", "--model", "Llama-3.1-8B", "--hardware", "kentino-8x-rtx-5090"], [], tmp_path)
    assert code == 0
    assert "Data file" not in said


@pytest.mark.parametrize(("terminal", "coloured"), [(True, True), (False, False)])
def test_colour_only_on_a_terminal(
    tmp_path: Path, terminal: bool, coloured: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    arguments = ["plan", "--model", "Llama-3.1-8B", "--hardware", "kentino-8x-rtx-5090"]
    if terminal:
        said = on_terminal(arguments, [], tmp_path)[1]
    else:
        command = [sys.executable, "-m", "recipegen.cli.main", *arguments]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert ("\x1b[" in said) == coloured


def test_no_color_is_honoured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    arguments = ["plan", "--model", "Llama-3.1-8B", "--hardware", "kentino-8x-rtx-5090"]
    assert "\x1b[" not in on_terminal(arguments, [], tmp_path)[1]
