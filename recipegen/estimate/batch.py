"""The largest micro-batch that a GPU holds. Memory only grows with the micro-batch, so bisection finds it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from recipegen.estimate.memory import gpu_memory
from recipegen.estimate.symbols import symbols
from recipegen.spec import Verdict

if TYPE_CHECKING:
    from recipegen.catalog.stack import Stack
    from recipegen.spec import Cluster, ModelSpec, Recipe


def largest_micro_batch(
    model: ModelSpec,
    cluster: Cluster,
    recipe: Recipe,
    stack: Stack,
    *,
    limit: int = 64,
    verdicts: tuple[Verdict, ...] = (Verdict.FITS,),
) -> int:
    """Sequences per GPU and forward pass, at most `limit`, for which the verdict is one of `verdicts`; 0 when not
    even one sequence is. Pass `(FITS, TIGHT)` to accept the error band."""
    triton = cluster.gpu.triton
    base = symbols(model, recipe, stack, triton=triton)

    def holds(micro: int) -> bool:
        tokens = -(-micro * recipe.sequence_len // recipe.parallelism.cp)
        return gpu_memory(replace(base, T=tokens), cluster.gpu.memory_bytes).verdict in verdicts

    if not holds(1):
        return 0
    low, high = 1, 2
    while high <= limit and holds(high):
        low, high = high, high * 2
    high = min(high, limit + 1)
    while high - low > 1:
        middle = (low + high) // 2
        if holds(middle):
            low = middle
        else:
            high = middle
    return low
