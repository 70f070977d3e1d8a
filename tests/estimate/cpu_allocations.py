"""What torch's CPU allocator gives out while some code runs, from the profiler's own events."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any


@dataclass(frozen=True)
class Timeline:
    """Times (ns) and sizes of allocations and releases, in order."""

    events: list[tuple[int, int]]

    def live(self, at: int) -> int:
        """Bytes that live at a time above those that lived when the code began."""
        return sum(size for when, size in self.events if when <= at)

    def peak(self, after: int, until: int) -> int:
        """The most bytes that lived between two times."""
        most = live = self.live(after)
        for when, size in self.events:
            if after < when <= until:
                live += size
                most = max(most, live)
        return most


@dataclass(frozen=True)
class Moment:
    """Bytes of one step above what lived before the first: the most that lived, and what lives when it has ended."""

    peak: int
    left: int


def timeline(run: Callable[[], Any]) -> Timeline:
    """Every allocation of the CPU allocator while `run` runs."""
    from torch.profiler import ProfilerActivity, profile

    gc.collect()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        began = time.time_ns()
        run()
    events = [e for e in profiler.profiler.kineto_results.events() if e.name() == "[memory]"]
    found = sorted((event.start_ns(), event.nbytes()) for event in events)
    return Timeline([event for event in found if event[0] >= began])


def measured(*steps: Callable[[], Any]) -> list[Moment]:
    """Runs the steps one after the other. What they return is dropped: what shall live on, they keep themselves."""
    times: list[int] = []

    def run() -> None:
        for step in steps:
            times.append(time.time_ns())
            step()
        times.append(time.time_ns())

    found = timeline(run)
    return [Moment(found.peak(a, b), found.live(b)) for a, b in pairwise(times)]
