"""Commands of the box, started together and each ended at its time: a driver that hangs must not hang the probe."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import IO, TypeVar

T = TypeVar("T")
_LONGEST = 4 * 2**20  # bytes of output that are read


@dataclass(frozen=True)
class Answer:
    """`problem` is empty when the command ended with 0."""

    text: str
    problem: str = ""
    missing: bool = False


class Command:
    """One command in a session of its own. Its output goes to a file, so that no pipe is waited for."""

    def __init__(self, words: Sequence[str], seconds: float) -> None:
        self._words, self._deadline, self._seconds = words, time.monotonic() + seconds, seconds
        self._process: subprocess.Popen[bytes] | None = None
        self._output: IO[bytes] | None = None
        self._problem = ""
        if shutil.which(words[0]) is None:
            return
        self._output = tempfile.TemporaryFile()  # noqa: SIM115
        environment = {**os.environ, "LC_ALL": "C"}
        try:
            self._process = subprocess.Popen(  # noqa: S603
                words,
                stdin=subprocess.DEVNULL,
                stdout=self._output,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,
            )
        except OSError as error:
            self._problem = f"{words[0]} cannot be started: {error.strerror}"

    def answer(self) -> Answer:
        """Waits no longer than the command's time."""
        if self._process is None or self._output is None:
            return Answer("", self._problem or f"{self._words[0]} is not installed", missing=not self._problem)
        try:
            code = self._process.wait(max(self._deadline - time.monotonic(), 0.01))
            problem = "" if code == 0 else f"{self._words[0]} ended with {code}"
        except subprocess.TimeoutExpired:
            self._end(self._process)
            problem = f"{self._words[0]} gave no answer in {self._seconds:g} s"
        self._output.seek(0)
        text = self._output.read(_LONGEST).decode("utf-8", "replace")
        self._output.close()
        if problem and text.strip():
            problem += f": {' '.join(text.split())[:160]}"
        return Answer(text, problem)

    @staticmethod
    def _end(process: subprocess.Popen[bytes]) -> None:
        """A process that hangs in the driver cannot be killed; it is left behind, not waited for."""
        with contextlib.suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(0.5)


def bounded(question: Callable[[], T], seconds: float) -> T | None:
    """The answer, or None when there is none in time (a file system on a server that is gone) or none at all."""
    found: list[T] = []

    def ask() -> None:
        with contextlib.suppress(OSError, ValueError):
            found.append(question())

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(seconds)
    return found[0] if found else None
