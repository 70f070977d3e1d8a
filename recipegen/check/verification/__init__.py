"""What no file shows and the recipe depends on: a note each, with the command that shows it on the machine.

With a probe of that machine (`recipegen hardware probe`) each note is answered: it becomes a line of what was checked,
or a finding with the number. What the probe could not find stays a note.
"""

from __future__ import annotations

from collections.abc import Iterator

from recipegen.check.probe import Probe
from recipegen.check.subject import Subject
from recipegen.check.verification import gpus, room, transfers
from recipegen.check.verification.answer import BOX, Answer, Good, different, good, note
from recipegen.spec import Finding, Severity

__all__ = ["answers", "fulfilled", "notes"]


def notes(subject: Subject, probe: Probe | None = None) -> Iterator[Finding]:
    """The findings of `answers`: the notes of a subject, or what a probe makes of them. None for a machine without
    GPUs, and none where nothing depends on it."""
    return (answer for answer in answers(subject, probe) if isinstance(answer, Finding))


def fulfilled(subject: Subject, probe: Probe | None) -> list[str]:
    """What the probe settled, a line each."""
    return [answer.text for answer in answers(subject, probe) if isinstance(answer, Good)]


def answers(subject: Subject, probe: Probe | None = None) -> Iterator[Answer]:
    """Every question about the machine, as a note or as the probe answers it."""
    cluster = subject.cluster
    where = subject.main or next(iter(subject.files), "")
    if cluster is None and probe is not None:
        reason = f"the box of {probe.path}: no machine is named to compare it with; its own profile does"
        yield note(reason, "recipegen hardware probe --format yaml --out box.yaml", where)
    if cluster is None or cluster.gpu.compute_capability == "cpu":
        return
    recipe = subject.assembled.recipe
    together = recipe.parallelism.gpus_per_node if recipe else cluster.node.gpu_count
    if probe is not None and probe.taken_at:
        yield good(f"the box of {probe.path} as it was at {probe.taken_at}")
    yield from gpus.driver(subject, probe, where)
    if probe is not None:
        yield from gpus.cards(subject, cluster, together, probe, where)
    yield from transfers.answers(subject, cluster, together, probe, where)
    if subject.estimate is not None:
        yield from room.ram(subject.estimate, probe, where)
        yield from room.disk(subject, subject.estimate, probe, where)
    if probe is not None:
        for problem in probe.problems:
            yield different(BOX, Severity.WARNING, f"the box of {probe.path}: {problem}", "", where)
