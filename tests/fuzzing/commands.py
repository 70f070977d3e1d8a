"""The command line on hostile files: its answer, and what must hold of every answer."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from recipegen.cli.main import run

CANARY = "CANARY"  # a file that only code of the hostile files makes
_ANSWERS = (0, 1, 2)
_ANNOTATION = re.compile(r"::(?:error|warning|notice|group|endgroup|debug)\b")


@dataclass(frozen=True)
class Answer:
    code: int
    out: str
    err: str


def write(folder: Path, files: Mapping[str, bytes]) -> None:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def asked(folder: Path, arguments: Sequence[str]) -> Answer:
    """`recipegen ARGUMENTS`, in this process and in that folder."""
    out, err = io.StringIO(), io.StringIO()
    before = os.getcwd()
    os.chdir(folder)
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = run(arguments)
    finally:
        os.chdir(before)
    return Answer(code, out.getvalue(), err.getvalue())


def complaints(answer: Answer, arguments: Sequence[str], folder: Path) -> Iterator[str]:
    """What is wrong with an answer; nothing, as it should be."""
    if answer.code not in _ANSWERS:
        log = re.search(r"(\S+recipegen-\S+\.log)", answer.err)
        yield f"exit code {answer.code}: {Path(log[1]).read_text(encoding='utf-8') if log else answer.err}"
        return
    if (folder / CANARY).exists():
        yield "something of the files was executed"
    if "Traceback" in answer.err or "Traceback" in answer.out:
        yield f"a traceback: {answer.err}"
    for text in (answer.out, answer.err):
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            yield f"not printable as UTF-8: {error}"
        if controls := re.findall(
            r"[\x00-\x08\x0b-\x1f\x7f\x85\u2028\u2029\u202a-\u202e]", re.sub(r"\x1b\[\d*m", "", text)
        ):
            yield f"control characters {sorted(set(controls))!r}"
    if answer.code == 2:
        if len(answer.err.splitlines()) != 1 or not answer.err.startswith("error: "):
            yield f"exit 2 with more than its line, or without: {answer.err!r}"
        return
    if "json" in arguments or "sarif" in arguments:
        try:
            json.loads(answer.out, parse_constant=_refuse)
        except ValueError as error:
            yield f"no JSON: {error}: {answer.out[:300]!r}"
    if "github" in arguments:
        for line in answer.out.splitlines():
            if line.startswith("::") and not _ANNOTATION.match(line):
                yield f"no annotation of a workflow: {line!r}"


def _refuse(word: str) -> None:
    raise ValueError(f"{word} is not a number of JSON")
