"""Rewrite the console blocks of README.md and docs/accuracy.md with what the commands print now.

python scripts/update_readme.py
"""

from __future__ import annotations

import importlib
import io
import re
import shlex
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGES = (ROOT / "README.md", ROOT / "docs/accuracy.md")
BLOCK = re.compile(r"```console\n\$ (?P<command>[^\n]+)\n.*?```", re.S)


def output(command: str) -> str:
    """What a command prints on stdout, then stderr: `recipegen ...` or `python -m benchmarks.NAME ...`."""
    words = shlex.split(command)
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        if words[:2] == ["python", "-m"]:
            importlib.import_module(words[2]).main(words[3:])
        else:
            from recipegen.cli.main import run

            run(words[1:])
    return out.getvalue() + err.getvalue()


def rewritten(text: str) -> str:
    """A page with every console block as the command prints it."""
    return BLOCK.sub(lambda m: f"```console\n$ {m['command']}\n{output(m['command'])}```", text)


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    for page in PAGES:
        page.write_text(rewritten(page.read_text(encoding="utf-8")), encoding="utf-8")
