"""The gallery's README.md: what fits where, and at what speed; a table per box, a row per request."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from recipegen.formats.rendering import render
from recipegen.spec import Decision, Verdict
from recipegen.spec.units import gib, seconds

_TOKENS = 100_000_000  # of the time column: about what 50,000 chats of 2,000 tokens are
_WORDS = {Verdict.FITS: "fits", Verdict.TIGHT: "tight", Verdict.DOES_NOT_FIT: "does not fit"}


@dataclass(frozen=True)
class Line:
    """A row; `link` is the project's folder, empty where none was written."""

    request: str
    link: str
    verdict: str
    strategy: str
    memory: str
    speed: str
    time: str


@dataclass(frozen=True)
class Box:
    """The rows of one machine, or of several alike."""

    name: str
    lines: tuple[Line, ...]


def write(rows: Sequence[tuple[str, Decision, bool]]) -> str:
    """The text, from (folder, decision, whether the folder was written)."""
    boxes: dict[str, list[Line]] = {}
    for folder, decision, written in rows:
        boxes.setdefault(decision.cluster.summary(), []).append(_line(folder, decision, written))
    return render(
        "gallery.md.j2",
        boxes=[Box(name, tuple(lines)) for name, lines in boxes.items()],
        count=sum(written for _, _, written in rows),
        asked=len(rows),
        data=rows[0][1].request.dataset[0] if rows else "",
        tokens=f"{_TOKENS // 1_000_000} M tokens",
    )


def _line(folder: str, decision: Decision, written: bool) -> Line:
    recipe, gpu, time = decision.recipe, decision.estimate.gpu, decision.estimate.time
    verdict = _WORDS.get(decision.verdict, "unknown")
    if decision.verdict is Verdict.FITS and not written:
        verdict = "fits, not recommended"
    trainer = "" if recipe.trainer == "axolotl" else f", {recipe.trainer}"
    needed = f"{gib(gpu.needed_low_bytes)} to {gib(gpu.needed_high_bytes)} of {gib(gpu.capacity_bytes)}"
    return Line(
        request=f"{decision.model.id.rpartition('/')[2]}, {recipe.method.value}, {recipe.sequence_len:,}{trainer}",
        link=folder if written else "",
        verdict=verdict,
        strategy=f"{recipe.parallelism.strategy.label}, {recipe.optimizer.name}",
        memory=needed,
        speed=f"{time.tokens_per_s:,.0f} tokens/s",
        time=seconds(_TOKENS / time.tokens_per_s) if time.tokens_per_s else "",
    )
