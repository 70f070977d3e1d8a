"""Rewrite the console blocks of README.md with what the commands print now: python scripts/update_readme.py"""

from __future__ import annotations

import io
import re
import shlex
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

from recipegen.cli.main import run

README = Path(__file__).parents[1] / "README.md"
BLOCK = re.compile(r"```console\n\$ (?P<command>[^\n]+)\n.*?```", re.S)


def output(command: str) -> str:
    """What a command prints on stdout, then stderr, without the program's name."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        run(shlex.split(command)[1:])
    return out.getvalue() + err.getvalue()


def rewritten(text: str) -> str:
    """The README with every console block as the command prints it."""
    return BLOCK.sub(lambda m: f"```console\n$ {m['command']}\n{output(m['command'])}```", text)


if __name__ == "__main__":
    README.write_text(rewritten(README.read_text(encoding="utf-8")), encoding="utf-8")
