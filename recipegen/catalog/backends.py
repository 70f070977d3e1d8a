"""What collectives cost on the wire, by communication backend: backends.yaml, read once."""

from __future__ import annotations

from functools import lru_cache


@lru_cache(maxsize=8)
def wire_factors(backend: str) -> dict[str, float]:
    """Operation -> bytes that each of n ranks sends, as a multiple of (n - 1) / n of the whole tensor.

    `backend` is nccl or gloo; the operations are all_gather, reduce_scatter and all_reduce.
    """
    from pathlib import Path  # here: the formulas are imported without reading anything

    from recipegen.catalog.reading import load_yaml

    row = load_yaml(Path(__file__).with_name("backends.yaml"))[backend]
    return {name: float(fact["value"]) for name, fact in row.items() if isinstance(fact, dict)}
