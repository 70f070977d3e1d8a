"""What torch's CPU allocator gives out while some code runs, from the profiler's own events."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Moment:
    """Bytes of one step above what lived before the first: the most that lived, and what lives when it has ended."""

    peak: int
    left: int


def measured(*steps: Callable[[], Any]) -> list[Moment]:
    """Runs the steps one after the other. What they return is dropped; what shall live on, they must keep themselves."""
    from torch.profiler import ProfilerActivity, profile

    ends: list[int] = []
    gc.collect()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        began = time.time_ns()
        for step in steps:
            step()
            ends.append(time.time_ns())
    events = [e for e in profiler.profiler.kineto_results.events() if e.name() == "[memory]"]
    events.sort(key=lambda event: event.start_ns())
    times = [(event.start_ns(), event.nbytes()) for event in events if event.start_ns() >= began]
    moments, live, position = [], 0, 0
    for end in ends:
        peak = live
        while position < len(times) and times[position][0] <= end:
            live += times[position][1]
            peak = max(peak, live)
            position += 1
        moments.append(Moment(peak, live))
    return moments
