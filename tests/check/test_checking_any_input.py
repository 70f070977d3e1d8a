"""Whatever stands in the files: findings or one clear error, never anything else."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from recipegen.check.checking import Options, check
from recipegen.check.gather import Target
from recipegen.project.files import render
from recipegen.spec import Method, RecipegenError, Strategy
from tests import recipes_for_tests as samples

NAMES = ("axolotl.yaml", "accelerate.yaml", "deepspeed.json", "train.json", "recipe.yaml", "recipe.lock", "launch.sh")
GENERATED = {
    name: content
    for trainer, strategy in (("axolotl", Strategy.ZERO3_CPU), ("accelerate", Strategy.FSDP2_FULL))
    for name, content in render(samples.decision(samples.recipe(strategy, Method.FULL, trainer=trainer))).items()
}
VALUES = st.sampled_from(
    [
        b"-1",
        b"0",
        b"1e999",
        b"9" * 400,
        b"[]",
        b"{}",
        b"null",
        b'"x"',
        b"{a: b}",
        b"true",
        b".inf",
        b'"\\ud800"',
        b"${X}",
    ]
)


@st.composite
def mutated(draw: st.DrawFn) -> bytes:
    """A generated file with some lines changed, or any bytes."""
    if draw(st.integers(0, 4)) == 0:
        return draw(st.binary(max_size=200))
    lines = GENERATED[draw(st.sampled_from(sorted(GENERATED)))].split(b"\n")
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(lines) - 1))
        key, colon, _ = lines[at].partition(b":")
        lines[at] = key + b": " + draw(VALUES) if colon else lines[at][: draw(st.integers(0, len(lines[at])))]
    return b"\n".join(lines)


@settings(max_examples=120, deadline=None)
@given(st.dictionaries(st.sampled_from(NAMES), mutated(), min_size=1, max_size=3), st.booleans())
def test_any_files_give_findings_or_an_error(files: dict[str, bytes], machine: bool) -> None:
    with tempfile.TemporaryDirectory() as folder, _working_in(folder):
        for name, content in files.items():
            Path(name).write_bytes(content)
        with contextlib.suppress(RecipegenError):
            outcome = check(["."], Options(Target(hardware="kentino-8x-rtx-5090" if machine else None)))
            assert all((f.reason + f.where + f.fix).isprintable() for f in outcome.all_findings())


@contextlib.contextmanager
def _working_in(folder: str) -> Iterator[None]:
    before = os.getcwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)
