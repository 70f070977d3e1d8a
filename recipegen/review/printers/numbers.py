"""Numbers of both sides in one unit, with as many decimals as it takes to see that they differ."""

from __future__ import annotations

from dataclasses import dataclass

from recipegen.review.difference import Effect
from recipegen.review.printers.shared import known
from recipegen.spec.units import GB, GIB, MB, MIB

NOT_KNOWN = "not known"
_ON_DISK = ("disk", "one checkpoint")  # bytes that lie on a disk are counted in GB, those of a memory in GiB
# Of a unit: from which number on, what it is divided by, what it is called. Durations change where `seconds` does.
_SCALES: dict[str, tuple[tuple[float, float, str], ...]] = {
    "bytes": ((GIB / 10, GIB, "GiB"), (0, MIB, "MiB")),
    "bytes on disk": ((GB / 10, GB, "GB"), (0, MB, "MB")),
    "bytes per step": ((GB / 10, GB, "GB per step"), (0, MB, "MB per step")),
    "parameters": ((1e9, 1e9, "billion"), (1e6, 1e6, "million"), (0, 1, "")),
    "s": ((172800, 86400, "days"), (7200, 3600, "h"), (120, 60, "min"), (0, 1, "s")),
}
_MOST_DECIMALS = 3
_LARGE = 100  # from here on no decimals, if they are not needed


@dataclass(frozen=True)
class Numbers:
    """An effect in words. `before` and `after` are bare numbers, or `not known`; `change` is "" where there is none or
    one side is missing; `band` is that of the after side."""

    before: str
    after: str
    suffix: str
    change: str
    band: str

    def arrow(self) -> str:
        """`21.8 -> 25.3 GiB`, `25.3 GiB` of what did not change."""
        if self.before == self.after:
            return self.of(self.after)
        if NOT_KNOWN in (self.before, self.after):
            return f"{self.of(self.before)} -> {self.of(self.after)}"
        return f"{self.before} -> {self.of(self.after)}"

    def single(self) -> str:
        """Of a recipe that is on one side."""
        return self.of(self.before if self.after == NOT_KNOWN else self.after)

    def of(self, value: str) -> str:
        """One of the sides with its unit."""
        return value if value == NOT_KNOWN or not self.suffix else f"{value} {self.suffix}"


def numbers(effect: Effect) -> Numbers:
    """An effect in the unit that its larger side asks for."""
    old, new = known(effect.before), known(effect.after)
    values = [value for value in (old, new) if value is not None]
    divisor, suffix = _scale(effect, max(map(abs, values), default=0.0))
    decimals = _decimals(effect.unit, [value / divisor for value in values])

    def said(value: float | None) -> str:
        return NOT_KNOWN if value is None else f"{value / divisor:,.{decimals}f}"

    band = ""
    low, high = known(effect.low), known(effect.high)
    if low is not None and high is not None:
        band = f"{said(low)} to {said(high)} {suffix}".rstrip()
    return Numbers(said(old), said(new), suffix, _change(effect, old, new, divisor, decimals), band)


def _scale(effect: Effect, largest: float) -> tuple[float, str]:
    unit = "bytes on disk" if effect.unit == "bytes" and effect.name in _ON_DISK else effect.unit
    for start, divisor, suffix in _SCALES.get(unit, ()):
        if largest >= start:
            return divisor, suffix
    return 1.0, unit


def _decimals(unit: str, values: list[float]) -> int:
    """None for what is counted; else the fewest that keep two numbers apart and a small one from being 0."""
    if unit not in _SCALES and all(value == round(value) for value in values):
        return 0
    if unit == "parameters" and all(value == round(value) for value in values):
        return 0
    for decimals in range(0 if all(abs(value) >= _LARGE for value in values) else 1, _MOST_DECIMALS):
        told = {f"{value:.{decimals}f}" for value in values}
        if len(told) == len(set(values)) and not any(value and float(f"{value:.{decimals}f}") == 0 for value in values):
            return decimals
    return _MOST_DECIMALS


def _change(effect: Effect, old: float | None, new: float | None, divisor: float, decimals: int) -> str:
    """`+3.5` of a memory, of anything else the share; nothing where a side is missing or both are the same."""
    if old is None or new is None or old == new:
        return ""
    if effect.unit == "bytes":
        return f"{(new - old) / divisor:+,.{decimals}f}"
    return share(old, new)


def share(old: float, new: float) -> str:
    """`+75%`; beyond tenfold `x13.6`; "" where it means nothing."""
    if old <= 0 or new < 0 or old == new:
        return ""
    if new / old >= 10:
        return f"x{new / old:,.3g}" if new / old < 1000 else f"x{new / old:,.0f}"
    moved = (new / old - 1) * 100
    return f"{moved:+.0f}%" if abs(moved) >= 1 else f"{moved:+.2g}%"


def hours(seconds: float) -> str:
    """`31 h`, `3.1 h`, `0.25 h`: always in hours, so that recipes can be held against each other."""
    value = seconds / 3600
    if value >= 100:
        return f"{value:,.0f} h"
    return f"{value:.1f} h" if value >= 1 else f"{value:.2g} h"


def hours_arrow(old: float | None, new: float | None) -> str:
    """`3.1 → 6.2 h` of seconds; one number where there is one, or both look the same; "" where there is none."""
    sides = dict.fromkeys(hours(side).removesuffix(" h") for side in (old, new) if side is not None)
    return f"{' → '.join(sides)} h" if sides else ""
