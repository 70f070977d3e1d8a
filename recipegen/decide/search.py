"""The best variant of a candidate: the largest micro-batch that fits, then the fastest of what fits."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from recipegen.catalog.defaults import training_defaults
from recipegen.decide.batch import Split, splits
from recipegen.decide.build import Choice, build
from recipegen.decide.candidates import METHODS, SIMPLICITY, Candidate
from recipegen.decide.setting import Setting
from recipegen.estimate import estimate
from recipegen.estimate.symbols import symbols
from recipegen.rules import evaluate, evaluate_recipe
from recipegen.spec import (
    Estimate,
    Finding,
    LossKernel,
    Parallelism,
    Recipe,
    Severity,
    Verdict,
)

_RANK = {Verdict.FITS: 0, Verdict.TIGHT: 1, Verdict.UNKNOWN: 2, Verdict.DOES_NOT_FIT: 3}


@dataclass(frozen=True)
class Scored:
    """A priced recipe with its findings. `verdict` is does_not_fit for anything a rule rejects with an error."""

    candidate: Candidate
    recipe: Recipe
    estimate: Estimate
    findings: tuple[Finding, ...]

    @property
    def errors(self) -> tuple[Finding, ...]:
        """What rejects it: first what cannot work at all, then what lacks most."""
        found = (f for f in self.findings if f.severity is Severity.ERROR)
        return tuple(sorted(found, key=lambda f: -_shortage(f)))

    @property
    def verdict(self) -> Verdict:
        return Verdict.DOES_NOT_FIT if self.errors else self.estimate.gpu.verdict

    @property
    def survives(self) -> bool:
        return updates_survive(self.recipe)

    @property
    def time_per_sequence_s(self) -> float:
        return self.estimate.time.step_s / max(self.recipe.global_batch_size, 1)

    @functools.cached_property
    def key(self) -> tuple[float, ...]:
        """The order of the variants of one candidate: what fits, then time. Of what is tight, the one with most room;
        of what does not fit, the one with fewest and smallest shortages."""
        gpu = self.estimate.gpu
        return (
            _RANK[self.verdict],
            len(self.errors),
            max((_shortage(f) for f in self.errors), default=0.0),
            gpu.needed_high_bytes if self.verdict is Verdict.TIGHT else 0,
            self.time_per_sequence_s,
            gpu.needed_bytes,
        )


def _shortage(finding: Finding) -> float:
    """Needed over available; infinite for what no amount of memory mends."""
    return finding.required_bytes / finding.available_bytes if finding.available_bytes else math.inf


def updates_survive(recipe: Recipe) -> bool:
    """True when updates are not lost to rounding: by the precision, or by a learning rate that is large enough."""
    limit = float(training_defaults()["learning"]["pure_bf16_min_learning_rate"])
    return recipe.precision.updates_survive_rounding or recipe.schedule.learning_rate >= limit


def ranked(scored: list[Scored], auto_method: bool) -> list[Scored]:
    """The candidates of a request, best first: fits, updates survive rounding, no offload where something else fits,
    LoRA before QLoRA before full when the method is free; then time, where a difference inside the error of the time
    estimate is a tie that the simpler wins."""
    classes: dict[tuple[float, ...], list[Scored]] = {}
    for one in scored:
        classes.setdefault(_class(one, auto_method), []).append(one)
    return [one for key in sorted(classes) for one in _by_time(classes[key])]


def _class(one: Scored, auto_method: bool) -> tuple[float, ...]:
    return (
        _RANK[one.verdict],
        len(one.errors),
        round(max((_shortage(f) for f in one.errors), default=0.0), 3),
        0 if one.survives else 1,
        METHODS.index(one.recipe.method) if auto_method else 0,
        ("none", "cpu", "nvme").index(one.recipe.parallelism.strategy.offload_device),
    )


def _by_time(group: list[Scored]) -> list[Scored]:
    margin = 1.0 + float(training_defaults()["ranking"]["time_margin"])
    fastest = min(one.time_per_sequence_s for one in group)
    near = [one for one in group if one.time_per_sequence_s <= margin * fastest]
    near.sort(key=lambda one: (SIMPLICITY.index(one.recipe.parallelism.strategy), one.time_per_sequence_s))
    rest = sorted((one for one in group if one not in near), key=lambda one: one.time_per_sequence_s)
    return near + rest


def best_variant(s: Setting, candidate: Candidate) -> Scored:
    """The best priced recipe of a candidate, also when it does not fit (then the one that comes nearest)."""
    ranks = Parallelism.of(
        candidate.strategy, s.cluster.nodes, s.cluster.node.gpu_count, candidate.dp_shard
    ).data_parallel_ranks
    best: Scored | None = None
    for group in splits(s, candidate.method, ranks):
        found = _best_of_group(s, candidate, group)
        if best is None or _RANK[found.verdict] < _RANK[best.verdict]:
            best = found
        if best.verdict is Verdict.FITS or _hopeless(best):
            break
    assert best is not None
    return best


def _hopeless(scored: Scored) -> bool:
    """No smaller batch helps: an error that is not about GPU memory."""
    return any(f.rule != "RG101" for f in scored.errors)


def _best_of_group(s: Setting, candidate: Candidate, group: list[Split]) -> Scored:
    scored: list[Scored] = []
    for variant in _variants(s, candidate):
        smallest = group[-1]
        recipe = _recipe(s, variant, smallest, True)
        errors = [f for f in evaluate_recipe(recipe, s.model, s.cluster, s.stack) if f.severity is Severity.ERROR]
        if errors:
            scored.append(_score(s, candidate, recipe))
            continue
        largest = group.index(_largest_that_fits(s, recipe, group))
        # Rows that are not packed are padded to the longest of the micro-batch: a smaller one may be faster.
        for split in group[largest:] if not recipe.packing else group[largest : largest + 1]:
            scored.extend(_score(s, candidate, r) for r in _synced_or_not(s, variant, split))
    return min(scored, key=lambda x: x.key)


def _variants(s: Setting, candidate: Candidate) -> Iterator[Choice]:
    """Loss kernel and activation checkpointing; offloaded activations only when they are asked for."""
    base = Choice(candidate.method, candidate.strategy, candidate.dp_shard, candidate.optimizer, candidate.load_dtype)
    kernel = s.pins.get("loss_kernel") or best_loss_kernel(s)
    pinned = s.pins.get("activation_checkpointing")
    both = (True,) if s.pins.get("activation_offloading") else (True, False)
    for checkpointing in both if pinned is None else (pinned,):
        yield replace(
            base,
            loss_kernel=kernel,
            activation_checkpointing=checkpointing,
            activation_offloading=s.pins.get("activation_offloading", False),
        )


def best_loss_kernel(s: Setting) -> LossKernel:
    """The cheapest in memory that the card is known to run and the trainer has."""
    gpu = s.cluster.gpu
    if s.request.trainer != "axolotl" or not gpu.triton:
        return LossKernel.STOCK
    if gpu.fused_linear_loss and s.stack.supports_fused_linear(s.model):
        return LossKernel.FUSED_LINEAR
    return LossKernel.STOCK if s.model.own_loss else LossKernel.CHUNKED_UPCAST


def _largest_that_fits(s: Setting, recipe: Recipe, group: list[Split]) -> Split:
    """Bisection: memory only grows with the micro-batch. The smallest when none fits. `recipe` has any of the splits.

    The first is asked alone: without accumulation nothing accumulates, so it may fit where the next does not. The
    smallest is next: where it does not fit, none does.
    """
    low, high = min(1, len(group) - 1), len(group) - 1  # from the largest micro-batch to the smallest
    if _fits(s, _with_split(s, recipe, group[0])):
        return group[0]
    if low < high and not _fits(s, _with_split(s, recipe, group[high])):
        return group[high]
    while low < high:
        middle = (low + high) // 2
        if _fits(s, _with_split(s, recipe, group[middle])):
            high = middle
        else:
            low = middle + 1
    return group[low]


def _with_split(s: Setting, recipe: Recipe, split: Split) -> Recipe:
    """The recipe with another split, for its memory: warm-up and saving steps would be others too."""
    sharded = recipe.parallelism.strategy.is_fsdp and split.gradient_accumulation > 1
    return replace(
        recipe,
        micro_batch_size=split.micro_batch_size,
        gradient_accumulation=split.gradient_accumulation,
        sync_each_batch=s.pins.get("sync_each_batch", sharded),
    )


def _fits(s: Setting, recipe: Recipe) -> bool:
    gpu = s.cluster.gpu
    x = symbols(s.model, recipe, s.stack, triton=gpu.triton)
    return s.peaks(x, gpu.memory_bytes).verdict is Verdict.FITS


def _recipe(s: Setting, choice: Choice, split: Split, sync: bool) -> Recipe:
    sharded = choice.strategy.is_fsdp and split.gradient_accumulation > 1
    return build(
        s,
        replace(
            choice,
            micro_batch_size=split.micro_batch_size,
            gradient_accumulation=split.gradient_accumulation,
            sync_each_batch=sharded and sync,
        ),
    )


def _synced_or_not(s: Setting, choice: Choice, split: Split) -> Iterator[Recipe]:
    """Accumulation under FSDP keeps unsharded gradients unless every micro-batch reduces; faster where it fits."""
    yield _recipe(s, choice, split, True)
    if choice.strategy.is_fsdp and split.gradient_accumulation > 1 and "sync_each_batch" not in s.pins:
        recipe = _recipe(s, choice, split, False)
        if _fits(s, recipe):
            yield recipe


def _score(s: Setting, candidate: Candidate, recipe: Recipe) -> Scored:
    priced = estimate(s.model, s.cluster, recipe, s.stack, memory=s.peaks)
    return Scored(candidate, recipe, priced, evaluate(recipe, s.model, s.cluster, priced, s.stack))
