"""What a change costs: the numbers of both estimates, in one fixed order, each with what moved it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from recipegen.estimate.dataset_size import training_data
from recipegen.review.difference import Effect
from recipegen.review.fields import Meaning
from recipegen.spec import Estimate, Recipe

_LINKS = {
    "node": "between the GPUs of a node",
    "network": "between the nodes",
    "host": "to host memory",
    "nvme": "to NVMe",
}


@dataclass(frozen=True)
class _Number:
    """One number of an estimate. `steps` and hours are None where the data are not measured."""

    name: str
    unit: str
    of: Callable[[Recipe, Estimate], float | None]
    band: Callable[[Estimate], tuple[float, float]] | None = None
    terms: Callable[[Estimate], Counter[str]] | None = None


def _peak(cost: Estimate) -> Counter[str]:
    terms = Counter({"outside the allocator": cost.gpu.outside_bytes})
    for term in cost.gpu.terms:
        terms[term.name.replace("_", " ")] += term.bytes
    return terms


def _host(cost: Estimate) -> Counter[str]:
    terms: Counter[str] = Counter()
    for term in cost.host.terms:
        terms[term.name.replace("_", " ")] += term.bytes
    return terms


def _disk(cost: Estimate) -> Counter[str]:
    disk = cost.disk
    return Counter(
        {
            "download": disk.download_bytes,
            "tokenized data": disk.prepared_bytes,
            "checkpoints": disk.checkpoint_bytes * disk.checkpoints_kept,
            "swapped states": disk.swap_bytes,
            "the result": disk.result_bytes,
        }
    )


def _link(group: str) -> Callable[[Recipe, Estimate], float | None]:
    def of(_: Recipe, cost: Estimate) -> float:
        return float(sum(item.bytes_per_step for item in cost.traffic.collectives if item.group == group))

    return of


def _total_steps(recipe: Recipe, cost: Estimate) -> float | None:
    if recipe.max_steps is not None:
        return recipe.max_steps
    per_epoch = cost.time.steps_per_epoch
    return None if per_epoch is None else round(per_epoch * recipe.epochs)


def _data(recipe: Recipe, what: str) -> float | None:
    """Of the rows that are trained on: without validation rows, and without those that are dropped for their length."""
    known = training_data(recipe)
    return None if known is None else float(round(getattr(known, what)))


NUMBERS: tuple[_Number, ...] = (
    _Number(
        "GPU memory needed at the peak",
        "bytes",
        lambda _, c: c.gpu.needed_bytes,
        lambda c: (c.gpu.needed_low_bytes, c.gpu.needed_high_bytes),
        _peak,
    ),
    _Number("host RAM at the peak", "bytes", lambda _, c: c.host.peak_bytes, None, _host),
    _Number("disk", "bytes", lambda _, c: c.disk.total_bytes, None, _disk),
    _Number("one checkpoint", "bytes", lambda _, c: c.disk.checkpoint_bytes),
    _Number("trainable parameters", "parameters", lambda _, c: c.trainable_parameters),
    _Number("global batch", "sequences", lambda r, _: r.global_batch_size),
    _Number("tokens per step", "tokens", lambda r, _: r.global_batch_size * r.sequence_len),
    _Number("rows per epoch", "rows", lambda r, _: _data(r, "rows")),
    _Number("tokens per epoch", "tokens", lambda r, _: _data(r, "tokens")),
    _Number("steps per epoch", "steps", lambda _, c: c.time.steps_per_epoch),
    _Number("steps", "steps", _total_steps),
    _Number("time per step", "s", lambda _, c: c.time.step_s),
    _Number("throughput", "tokens/s", lambda _, c: c.time.tokens_per_s),
    _Number("time per epoch", "s", lambda _, c: c.time.epoch_s),
    _Number("time of the run", "s", lambda _, c: c.time.total_s),
    *(_Number(f"transfers {words}", "bytes per step", _link(group)) for group, words in _LINKS.items()),
)


def effects(before: Meaning, after: Meaning) -> tuple[Effect, ...]:
    """Every number that one side has, changed or not. Empty where neither side has an estimate."""
    return tuple(_effects(before, after))


def _effects(before: Meaning, after: Meaning) -> Iterator[Effect]:
    for number in NUMBERS:
        old, new = _value(number, before), _value(number, after)
        if not old and not new:
            continue
        low, high = None, None
        if number.band and after.estimate:
            low, high = number.band(after.estimate)
        yield Effect(number.name, number.unit, old, new, low, high, _because(number, before, after, old, new))


def _value(number: _Number, side: Meaning) -> float | None:
    if side.recipe is None or side.estimate is None:
        return None
    return number.of(side.recipe, side.estimate)


def _because(number: _Number, before: Meaning, after: Meaning, old: float | None, new: float | None) -> str:
    """The term that moved most in the direction of the sum, where the number is a sum of terms."""
    if number.terms is None or old is None or new is None or old == new:
        return ""
    assert before.estimate is not None
    assert after.estimate is not None
    moved = number.terms(after.estimate)
    moved.subtract(number.terms(before.estimate))
    sign = 1 if new > old else -1
    name, most = max(moved.items(), key=lambda item: (sign * item[1], item[0]), default=("", 0))
    return name if sign * most > 0 else ""
