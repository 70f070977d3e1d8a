"""Micro-batch, accumulation and the global batch: which splits of a global batch exist."""

from __future__ import annotations

from dataclasses import dataclass

from recipegen.catalog.defaults import training_defaults
from recipegen.decide.setting import Setting
from recipegen.spec import Method, RecipegenError


@dataclass(frozen=True)
class Split:
    """`micro_batch_size` x `gradient_accumulation` sequences per rank and optimizer step."""

    micro_batch_size: int
    gradient_accumulation: int


def splits(s: Setting, method: Method, ranks: int) -> list[list[Split]]:
    """Groups of splits, one group per global batch in the order of preference; inside a group the largest
    micro-batch first.

    A global batch that was asked for is the only one; otherwise the default, then smaller ones, because a batch
    without accumulation may fit where the default does not. Raises RecipegenError, with the equation, when what
    was asked for does not multiply out.
    """
    micro, accumulation = s.pins.get("micro_batch_size"), s.pins.get("gradient_accumulation")
    asked = s.request.global_batch_size
    if micro and accumulation:
        if asked and micro * accumulation * ranks != asked:
            raise RecipegenError(
                f"micro_batch_size({micro}) * gradient_accumulation({accumulation}) * data-parallel ranks({ranks})"
                f" = {micro * accumulation * ranks}, but global_batch_size is {asked}",
                fix="Leave one of them out",
            )
        return [[Split(micro, accumulation)]]
    if asked:
        if asked % ranks:
            raise RecipegenError(
                f"global_batch_size {asked} is not a multiple of the {ranks} data-parallel ranks",
                fix=f"Use {max(1, round(asked / ranks)) * ranks}",
            )
        group = _group(asked // ranks, micro, accumulation)
        if not group:
            raise RecipegenError(
                f"global_batch_size {asked} over {ranks} ranks is {asked // ranks} sequences per rank, which "
                f"{'micro_batch_size ' + str(micro) if micro else 'gradient_accumulation ' + str(accumulation)} "
                "does not divide",
                fix="Change one of them",
            )
        return [group]
    if micro:
        per_rank = max(1, _default_per_rank(s, method, ranks) // micro) * micro
        return [[Split(micro, per_rank // micro)]]
    if accumulation:
        per_rank = max(1, _default_per_rank(s, method, ranks) // accumulation) * accumulation
        return [[Split(per_rank // accumulation, accumulation)]]
    groups: list[list[Split]] = []
    per_rank = _default_per_rank(s, method, ranks)
    smallest = int(training_defaults()["adapter" if method.is_adapter else "full"]["global_batch_min"])
    while per_rank >= 1 and (not groups or per_rank * ranks >= smallest):
        groups.append(_group(per_rank, None, None))
        per_rank //= 2
    return groups


def _group(per_rank: int, micro: int | None, accumulation: int | None) -> list[Split]:
    limit = int(training_defaults()["batch"]["micro_batch_limit"])
    return [
        Split(m, per_rank // m)
        for m in range(min(per_rank, limit), 0, -1)
        if per_rank % m == 0 and (micro in (None, m)) and (accumulation in (None, per_rank // m))
    ]


def _default_per_rank(s: Setting, method: Method, ranks: int) -> int:
    """Sequences per rank of the default global batch: a power of two, smaller for a data set of few steps."""
    d = training_defaults()
    target = int(d["adapter" if method.is_adapter else "full"]["global_batch_size"])
    sequences = s.sequences_per_epoch()
    if sequences is not None:
        target = min(target, max(1, sequences // int(d["batch"]["min_steps_per_epoch"])))
    per_rank = max(1, target // ranks)
    return 1 << (per_rank.bit_length() - 1)
