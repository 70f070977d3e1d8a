"""The parent's side of trainer_worker.py: start it, ask it, end it."""

from __future__ import annotations

import datetime
import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from recipegen.spec import RecipegenError

DATE = "\0date"  # the only key of a mapping that stands for a date
TIMEOUT_S = 300.0  # a first import of the whole stack takes 10 to 60 s on a busy machine
_KEPT = ("HOME", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "PATH", "PYTHONUSERBASE", "SYSTEMROOT", "TMPDIR", "VIRTUAL_ENV")
_SET = {
    "AXOLOTL_DO_NOT_TRACK": "1",
    "CUDA_VISIBLE_DEVICES": "",
    "DO_NOT_TRACK": "1",
    "DS_ACCELERATOR": "cpu",
    "HF_DATASETS_OFFLINE": "1",
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "PYTHONDONTWRITEBYTECODE": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "TRANSFORMERS_OFFLINE": "1",
    "WANDB_MODE": "disabled",
}


class TrainerProcess:
    """A child that validates with the trainers' own code. Starts with the first question; a context manager ends it."""

    def __init__(self, timeout_s: float = TIMEOUT_S) -> None:
        self._timeout_s = timeout_s
        self._child: subprocess.Popen[str] | None = None
        self._answers: queue.Queue[str] = queue.Queue()
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    def __enter__(self) -> TrainerProcess:
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _tb: TracebackType | None
    ) -> None:
        self.close()

    def ask(self, kind: str, **request: Any) -> Mapping[str, Any]:
        """The child's answer. Raises RecipegenError when it died or took longer than the timeout."""
        line = json.dumps({"kind": kind, **request}, default=_date) + "\n"
        child = self._started()
        assert child.stdin is not None
        try:
            child.stdin.write(line)
            child.stdin.flush()
            answer: Mapping[str, Any] = json.loads(self._answers.get(timeout=self._timeout_s) or "null")
        except (OSError, queue.Empty, ValueError):
            answer = {}
        if not answer:
            self.close()
            raise RecipegenError(f"the validator of {kind} ended without an answer within {self._timeout_s:.0f} s")
        return answer

    def close(self) -> None:
        """End the child and remove its folder."""
        child, self._child = self._child, None
        if child is not None:
            child.kill()
            child.wait()
            for pipe in (child.stdin, child.stdout):
                if pipe is not None:
                    pipe.close()
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None

    def _started(self) -> subprocess.Popen[str]:
        if self._child is None:
            self._folder = tempfile.TemporaryDirectory(prefix="recipegen-check-")
            self._answers = queue.Queue()
            self._child = subprocess.Popen(
                [sys.executable, "-m", "recipegen.check.trainer_worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                encoding="utf-8",
                cwd=self._folder.name,
                env=_environment(self._folder.name),
            )
            assert self._child.stdout is not None
            threading.Thread(target=_read, args=(self._child.stdout, self._answers), daemon=True).start()
        return self._child


def _date(value: Any) -> Any:
    """A date of YAML on its way through JSON; trainer_worker.py makes it one again."""
    if isinstance(value, datetime.date):
        return {DATE: value.isoformat()}
    raise TypeError(f"a {type(value).__name__} has no place in a request")


def _read(stream: IO[str], answers: queue.Queue[str]) -> None:
    try:
        for line in stream:
            answers.put(line)
    except ValueError:  # closed while reading
        pass
    answers.put("")  # it ended: wake up whoever waits


def _environment(folder: str) -> dict[str, str]:
    """Nothing of a launcher, a token or a GPU around us; our own package must be importable."""
    package_parent = str(Path(__file__).resolve().parents[2])
    inherited = [p for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if os.path.isabs(p)]
    return {
        **{key: os.environ[key] for key in _KEPT if key in os.environ},
        **_SET,
        "HF_HOME": folder,  # the user's own accelerate defaults lie in HF_HOME
        "PYTHONPATH": os.pathsep.join([package_parent, *inherited]),
    }
