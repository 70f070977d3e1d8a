"""Units: GiB for memory, GB for traffic and rates. A number never appears without one of these."""

from __future__ import annotations

KIB = 2**10
MIB = 2**20
GIB = 2**30
MB = 10**6
GB = 10**9
TFLOP = 10**12


def gib(value_bytes: float) -> str:
    """`23.65 GiB` for a number of bytes."""
    return f"{value_bytes / GIB:.2f} GiB"


def gb(value_bytes: float) -> str:
    """`16.1 GB` for a number of bytes that travel or lie on a disk."""
    return f"{value_bytes / GB:.1f} GB"


def seconds(value_s: float) -> str:
    """A duration as a person says it: `0.42 s`, `3.1 min`, `5.2 h`, `2.4 days`."""
    if value_s < 120:
        return f"{value_s:.2f} s" if value_s < 10 else f"{value_s:.0f} s"
    if value_s < 7200:
        return f"{value_s / 60:.1f} min"
    if value_s < 172800:
        return f"{value_s / 3600:.1f} h"
    return f"{value_s / 86400:.1f} days"
