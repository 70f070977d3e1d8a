"""Live bytes over time: a list of storages with a birth and a death, and the highest total of every phase.

Nothing here knows of torch. Who lived at a phase's peak is worked out afterwards from births and deaths, so following
an allocation costs two numbers and a label may still be corrected after the peak has passed.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from recipegen.spec import Phase, Term

ROUNDING_BYTES = 512  # the CUDA caching allocator hands out multiples of this (c10/cuda/CUDACachingAllocator.cpp)
_ALIVE = 1 << 62
_SHOWN = 4  # tensors named in a term's basis


@dataclass(slots=True, eq=False)
class Entry:
    """One storage of constant size. `what` says what it first held, e.g. `mm (4096, 14336) bf16`."""

    bytes: int
    label: str
    what: str
    born: int
    died: int = _ALIVE
    fixed: bool = False  # the label was given by someone who knows, not by the phase


@dataclass
class Ledger:
    """The storages of one run. Bytes are rounded up to `rounding` as they come."""

    rounding: int = ROUNDING_BYTES
    total: int = 0
    clock: int = 0
    phase: str = ""
    entries: list[Entry] = field(default_factory=list)
    peaks: dict[str, tuple[int, int]] = field(default_factory=dict)  # phase -> (bytes, clock)

    def open(self, size: int, label: str, what: str = "", fixed: bool = False) -> Entry:
        """A storage of `size` bytes comes to life."""
        self.clock += 1
        rounded = -(-size // self.rounding) * self.rounding
        entry = Entry(rounded, label, what, self.clock, fixed=fixed)
        self.entries.append(entry)
        self.total += rounded
        self._look()
        return entry

    def close(self, entry: Entry) -> None:
        """It is gone."""
        if entry.died == _ALIVE:
            self.clock += 1
            entry.died = self.clock
            self.total -= entry.bytes

    def enter(self, phase: str) -> None:
        """From here on peaks are counted under `phase`; what is alive now counts for it."""
        self.phase = phase
        self._look()

    def start(self) -> None:
        """Forget the peaks so far: the measured step begins."""
        self.peaks = {}

    def _look(self) -> None:
        best = self.peaks.get(self.phase)
        if self.phase and (best is None or self.total > best[0]):
            self.peaks[self.phase] = (self.total, self.clock)

    def at(self, clock: int) -> list[Entry]:
        """Everything that was alive then, largest first."""
        return sorted((e for e in self.entries if e.born <= clock < e.died), key=lambda e: -e.bytes)

    def phases(self) -> tuple[Phase, ...]:
        """Every phase at its peak, in the order they were first entered; a phase's bytes are its terms' sum."""
        return tuple(Phase(name, self._terms(name, clock)) for name, (_, clock) in self.peaks.items())

    def _terms(self, phase: str, clock: int) -> tuple[Term, ...]:
        groups: dict[str, list[Entry]] = defaultdict(list)
        for entry in self.at(clock):
            if entry.bytes:
                groups[entry.label].append(entry)
        terms = [Term(label, phase, sum(e.bytes for e in group), _basis(group)) for label, group in groups.items()]
        return tuple(sorted(terms, key=lambda term: -term.bytes))


def _basis(group: list[Entry]) -> str:
    """`32 x add (4096, 4096) bf16; ...`: the kinds of tensors that take most of a term."""
    kinds: dict[str, list[int]] = defaultdict(list)
    for entry in group:
        kinds[entry.what].append(entry.bytes)
    ranked = sorted(kinds.items(), key=lambda item: -sum(item[1]))
    named = [f"{len(sizes)} x {what}" if len(sizes) > 1 else what for what, sizes in ranked[:_SHOWN]]
    left = len(ranked) - len(named)
    return "; ".join([*named, *([f"{left} more kinds"] if left > 0 else [])])
