"""How fast files are read and reviewed: one file and 80, a diff of one changed recipe and of 60, the gallery.

    python -m benchmarks.review_speed [--format text|json]

Every command is a fresh interpreter; CPU seconds (user and system, git's included), the best of REPEATS, beside an
interpreter that does nothing. The repository of the diffs is made of this one's gallery, in a temporary folder.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

REPEATS = 3
CHANGED = 60
FILES = 80
_ROOT = Path(__file__).resolve().parents[1]
_GALLERY = _ROOT / "recipes"
_GIT = ("git", "-c", "user.name=benchmark", "-c", "user.email=benchmark@example.org")


@dataclass(frozen=True)
class Row:
    """`promise_s` None: nothing was promised."""

    what: str
    cpu_s: float
    ratio: float  # to an interpreter that does nothing
    promise_s: float | None

    @property
    def kept(self) -> bool | None:
        return None if self.promise_s is None else self.cpu_s <= self.promise_s


def measured(command: Sequence[str], folder: Path, caches: Path) -> float:
    """CPU seconds of a child, the best of REPEATS after one that fills the caches."""
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    environment |= {"PYTHONPATH": str(_ROOT), "PYTHONPYCACHEPREFIX": str(caches)}
    times = []
    for _ in range(REPEATS + 1):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        if done.returncode not in (0, 1):
            raise SystemExit(f"{' '.join(command)}: {done.stderr.decode()}")
        times.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return min(times[1:])


def git(folder: Path, *words: str) -> None:
    subprocess.run([*_GIT, *words], cwd=folder, check=True, capture_output=True)


def repository(folder: Path) -> None:
    """Three commits: the gallery, one recipe changed, CHANGED recipes changed."""
    git(folder, "init", "-q", ".")
    shutil.copytree(_GALLERY, folder / "recipes")
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", "gallery")
    configs = sorted((folder / "recipes").glob("*/*/axolotl.yaml"))
    for count in (1, CHANGED):
        for path in configs[:count]:
            path.write_text(path.read_text() + f"# change {count}\nseed_of_{count}: 1\n")
            path.write_text(path.read_text().replace("\nseed: 42", f"\nseed: {count}"))
        git(folder, "commit", "-qam", f"{count} changed")


def rows(folder: Path) -> list[Row]:
    """All measurements, in `folder`."""
    caches, work, files = folder / "caches", folder / "work", folder / "files"
    work.mkdir()
    files.mkdir()
    repository(work)
    found = sorted(_GALLERY.glob("*/*/axolotl.yaml"))[:FILES]
    for number, path in enumerate(found):
        shutil.copy(path, files / f"{number}.yaml")
    tool = [sys.executable, "-m", "recipegen.cli.main"]
    box = ["--hardware", "kentino-8x-rtx-5090"]
    empty = measured([sys.executable, "-c", "pass"], folder, caches)
    asked: list[tuple[str, list[str], Path, float | None]] = [
        ("check of one file", [*tool, "check", "0.yaml", *box], files, 0.6),
        (f"check of {len(found)} files", [*tool, "check", ".", *box], files, 4.0),
        ("diff of one changed recipe", [*tool, "diff", "HEAD~2..HEAD~1"], work, 0.7),
        (f"diff of {CHANGED} changed recipes", [*tool, "diff", "HEAD~1..HEAD"], work, 5.0),
        ("gallery build --check", [*tool, "gallery", "build", str(_GALLERY), "--check"], work, 30.0),
    ]
    return [
        Row(what, seconds := measured(command, place, caches), seconds / empty, promise)
        for what, command, place, promise in asked
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--format", choices=["text", "json"], default="text")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = rows(Path(folder))
    if options.format == "json":
        print(json.dumps([asdict(row) for row in found], indent=2))
        return
    for row in found:
        promise = (
            "" if row.promise_s is None else f"promise of {row.promise_s:g} s: {'kept' if row.kept else 'NOT KEPT'}"
        )
        print(f"{row.what:32} {row.cpu_s:6.2f} s CPU  {row.ratio:5.0f} x an empty interpreter  {promise}")


if __name__ == "__main__":
    main()
