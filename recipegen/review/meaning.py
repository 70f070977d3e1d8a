"""What a change means for training: rate, batch, method, schedule, optimizer, precision."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from itertools import pairwise

from recipegen.catalog.defaults import training_defaults
from recipegen.review import meaning_data
from recipegen.review.difference import Statement, Weight
from recipegen.review.fields import Meaning
from recipegen.review.pair import Pair, number, words
from recipegen.spec import Method

Say = Callable[[Pair], Iterator[Statement]]
_RATE = "schedule.learning_rate"
_OPTIMIZER = ("beta1", "beta2", "epsilon", "weight_decay")


def statements(pair: Pair) -> tuple[Statement, ...]:
    """Everything that is to be said, alarms first; the order of the functions within a weight."""
    found = [statement for say in (*_SAY, *meaning_data.SAY) for statement in say(pair)]
    order = list(Weight)
    return tuple(sorted(found, key=lambda statement: order.index(statement.weight)))


def _limits() -> dict[str, float]:
    return {key: value for key, value in training_defaults()["review"].items() if isinstance(value, (int, float))}


def rate_and_batch(pair: Pair) -> Iterator[Statement]:
    """AdamW wants the rate to move with the square root of the batch; adapters do not gain from large batches."""
    limits, batch = _limits(), pair.batch_factor
    rate = pair.factor(_RATE)
    if batch == 1.0 or rate is None or pair.changed("method"):
        return
    old, new = pair.batch
    said = f"global batch {old} -> {new} sequences"
    paths = (_RATE, "micro_batch_size", "gradient_accumulation", "parallelism")
    wide = max(batch, 1 / batch) >= limits["batch_alarm"]
    square = number(pair.before.get(_RATE) * math.sqrt(batch))
    if _near(rate, math.sqrt(batch)):
        yield pair.say("RV101", Weight.DETAIL, f"{said}: the rate follows by the square root", *paths)
    elif _near(rate, batch):
        yield pair.say("RV101", Weight.NOTICE, f"{said}: the rate follows linearly; AdamW wants {square}", *paths)
    elif _near(rate, 1.0) and pair.adapter:
        tail = "; large batches cost adapters more than they gain" if batch > 1 else ""
        yield pair.say("RV101", Weight.NOTICE, f"{said}, the rate did not move{tail}", *paths)
    elif _near(rate, 1.0):
        weight = Weight.ALARM if wide else Weight.NOTICE
        yield pair.say("RV101", weight, f"{said}, the rate did not move; by the square-root rule {square}", *paths)
    elif (rate > 1) != (batch > 1):
        text = f"{said}, but the rate went the other way: {_rates(pair)}; by the square-root rule {square}"
        yield pair.say("RV101", Weight.ALARM if wide else Weight.NOTICE, text, *paths)
    else:
        beyond = max(rate, 1 / rate) / max(batch, 1 / batch)
        text = f"{said}, learning rate {_rates(pair)} ({_times(rate)}); by the square-root rule {square}"
        weight = Weight.ALARM if beyond >= limits["rate_alarm"] else Weight.NOTICE
        yield pair.say("RV101", weight, text, *paths)


def rate_and_method(pair: Pair) -> Iterator[Statement]:
    """Adapters want about ten times the rate of a full fine-tune."""
    old, new = pair.both("method")
    rate = pair.factor(_RATE)
    if not isinstance(old, Method) or not isinstance(new, Method) or old.is_adapter is new.is_adapter or rate is None:
        return
    limits = _limits()
    least, usual = limits["rate_ratio_least"], limits["adapter_rate_ratio"]
    moved = rate if new.is_adapter else 1 / rate
    said = f"{old.value} -> {new.value}, learning rate {_rates(pair)}"
    if moved < least:
        direction = f"about {usual:g} times the rate" if new.is_adapter else f"about a {usual:g}th of the rate"
        yield pair.say("RV102", Weight.ALARM, f"{said}: {new.value} wants {direction} of {old.value}", _RATE, "method")
    else:
        yield pair.say("RV102", Weight.DETAIL, f"{said}: as the method wants", _RATE, "method")


def rate_alone(pair: Pair) -> Iterator[Statement]:
    rate = pair.factor(_RATE)
    if rate is None or rate == 1.0 or pair.batch_factor != 1.0 or pair.changed("method") or _RATE not in pair.changes:
        return
    weight = Weight.ALARM if max(rate, 1 / rate) >= _limits()["rate_alarm"] else Weight.NOTICE
    yield pair.say("RV103", weight, f"learning rate {_rates(pair)} ({_times(rate)})", _RATE)


def adapter_scale(pair: Pair) -> Iterator[Statement]:
    """An adapter's update reaches the weights as rate x alpha / r (alpha / sqrt(r) with rsLoRA)."""
    old, new = _scale(pair.before), _scale(pair.after)
    if old is None or new is None or math.isclose(old[0], new[0]) or not old[1] or not new[1]:
        return
    factor = new[1] / old[1]
    weight = Weight.ALARM if max(factor, 1 / factor) >= _limits()["rate_alarm"] else Weight.NOTICE
    yield pair.say(
        "RV104",
        weight,
        f"an adapter's updates are scaled by {old[0]:.3g} -> {new[0]:.3g}; with the rate {_times(factor)}",
        "adapter.alpha",
        "adapter.r",
        "adapter.use_rslora",
    )


def adapter_shape(pair: Pair) -> Iterator[Statement]:
    old, new = pair.both("adapter.r")
    if old and new and old != new:
        yield pair.say("RV105", Weight.NOTICE, f"rank {old} -> {new}: another capacity", "adapter.r")
    before, after = (
        set(pair.before.get("adapter.target_modules", ())),
        set(pair.after.get("adapter.target_modules", ())),
    )
    if before and after and before != after:
        parts = [
            f"{word} {', '.join(sorted(names))}" for word, names in (("more", after - before), ("less", before - after))
        ]
        said = "; ".join(part for part in parts if not part.endswith(" "))
        yield pair.say("RV106", Weight.NOTICE, f"adapted modules: {said}", "adapter.target_modules")


def optimizer(pair: Pair) -> Iterator[Statement]:
    """Another class brings its own numbers along."""
    if "optimizer.name" not in pair.changes:
        return
    old, new = pair.both("optimizer.name")
    moved = [
        f"{part} {_numbers(pair, f'optimizer.{part}')}" for part in _OPTIMIZER if pair.changed(f"optimizer.{part}")
    ]
    said = f"optimizer {old} -> {new}"
    silent = [
        part for part in _OPTIMIZER if pair.changed(f"optimizer.{part}") and not pair.after.where(f"optimizer.{part}")
    ]
    if moved:
        tail = ", which no file states" if silent else ""
        yield pair.say(
            "RV107", Weight.ALARM if silent else Weight.NOTICE, f"{said}: {', '.join(moved)}{tail}", "optimizer.name"
        )
    else:
        yield pair.say("RV107", Weight.NOTICE, f"{said}, with the same betas, epsilon and decay", "optimizer.name")


def clipping(pair: Pair) -> Iterator[Statement]:
    if not pair.changed("optimizer.max_grad_norm"):
        return
    new = pair.after.get("optimizer.max_grad_norm")
    tail = "" if new else ": gradients are not clipped any more"
    text = f"max_grad_norm {_numbers(pair, 'optimizer.max_grad_norm')}{tail}"
    yield pair.say("RV108", Weight.NOTICE if new else Weight.ALARM, text, "optimizer.max_grad_norm")


def precision(pair: Pair) -> Iterator[Statement]:
    """What is kept in which dtype, and how much of an update is left after rounding."""
    old, new = pair.before.recipe, pair.after.recipe
    if old is None or new is None:
        return
    before, after, limits = moves(pair.before), moves(pair.after), _limits()
    if old.precision.label is not new.precision.label:
        lost = old.precision.updates_survive_rounding and not new.precision.updates_survive_rounding
        said = f"{old.precision.label.value} -> {new.precision.label.value}"
        if lost or new.precision.updates_survive_rounding != old.precision.updates_survive_rounding:
            said += f"; of the updates about {before:.0%} -> {after:.0%} survive rounding"
        yield pair.say(
            "RV109",
            Weight.ALARM if lost and after < limits["moves_alarm"] else Weight.NOTICE,
            said,
            "precision",
            "optimizer.name",
        )
    elif abs(before - after) > limits["moves_notice"]:
        text = f"{new.precision.label.value}: of the updates about {before:.0%} -> {after:.0%} survive rounding"
        yield pair.say("RV109", Weight.NOTICE, text, _RATE, "precision")
    if old.precision.reduction is not new.precision.reduction:
        said = f"gradients are reduced in {old.precision.reduction.value} -> {new.precision.reduction.value}"
        yield pair.say("RV110", Weight.DETAIL, said, "precision.reduction")


def schedule(pair: Pair) -> Iterator[Statement]:
    """In optimizer steps: more epochs, rows or a smaller batch stretch the decay over more of them."""
    old, new = steps(pair.before), steps(pair.after)
    paths = ("epochs", "max_steps", "schedule", "gradient_accumulation", "micro_batch_size")
    if pair.changed("schedule.scheduler"):
        before, after = pair.both("schedule.scheduler")
        yield pair.say("RV111", Weight.NOTICE, f"schedule {before} -> {after}", "schedule.scheduler")
    if pair.changed("epochs", "max_steps") or (old and new and old != new):
        lengths = f"{old:,} -> {new:,} steps" if old and new else _length(pair)
        scheduler = words(pair.after.get("schedule.scheduler"))
        factor = new / old if old and new else pair.factor("epochs") or 1.0
        stretched = "stretches" if factor > 1 else "shortens"
        tail = "" if scheduler == "constant" or factor == 1 else f"; {scheduler} {stretched} over them"
        yield pair.say("RV112", Weight.NOTICE, f"the run has {lengths}{tail}", *paths)
    warm_old, warm_new = _warmup(pair.before, old), _warmup(pair.after, new)
    if pair.changed("schedule.warmup_steps", "schedule.warmup_ratio") and warm_old != warm_new:
        yield pair.say("RV113", Weight.NOTICE, f"warm-up {warm_old} -> {warm_new}", "schedule.warmup_steps", "schedule")


def seed(pair: Pair) -> Iterator[Statement]:
    if pair.changed("seed"):
        tail = "; it does not fix an adapter's start" if pair.adapter else ""
        yield pair.say(
            "RV114", Weight.NOTICE, f"seed {_numbers(pair, 'seed')}: another order of the rows{tail}", "seed"
        )


# --- numbers of one side


def steps(side: Meaning) -> int | None:
    """Optimizer steps of the run; None where the data are not measured."""
    if side.recipe is None:
        return None
    if side.recipe.max_steps is not None:
        return side.recipe.max_steps
    per_epoch = side.estimate.time.steps_per_epoch if side.estimate else None
    return None if per_epoch is None else round(per_epoch * side.recipe.epochs)


def moves(side: Meaning) -> float:
    """The share of an fp32 run's movement that the weights make: 1 with an fp32 master or compensated sums, else by
    the learning rate, between the points that were measured (on a logarithmic scale)."""
    recipe = side.recipe
    if recipe is None or recipe.precision.updates_survive_rounding or recipe.schedule.learning_rate <= 0:
        return 1.0
    points = training_defaults()["review"]["pure_bf16_moves"]
    rate = recipe.schedule.learning_rate
    if rate <= points[0][0]:
        return float(points[0][1])
    for (low, share_low), (high, share_high) in pairwise(points):
        if rate <= high:
            part = math.log(rate / low) / math.log(high / low)
            return float(share_low * (share_high / share_low) ** part)
    return 1.0


def _scale(side: Meaning) -> tuple[float, float] | None:
    """alpha / r, or alpha / sqrt(r); and that times the learning rate."""
    r, alpha, rate = side.get("adapter.r"), side.get("adapter.alpha"), side.get(_RATE, 0.0)
    if not r or alpha is None or not side.get("method", Method.FULL).is_adapter:
        return None
    scale = alpha / (math.sqrt(r) if side.get("adapter.use_rslora") else r)
    return scale, scale * rate


def _warmup(side: Meaning, total: int | None) -> str:
    steps, ratio = side.get("schedule.warmup_steps"), side.get("schedule.warmup_ratio")
    if steps is not None:
        return f"{steps} steps"
    if ratio is None:
        return "none"
    return f"{round(ratio * total)} steps" if total else f"{ratio:.0%} of the steps"


def _length(pair: Pair) -> str:
    if pair.changed("max_steps"):
        old, new = pair.both("max_steps")
        return f"max_steps {words(old)} -> {words(new)}"
    return f"{_numbers(pair, 'epochs')} epochs"


def _near(value: float, wanted: float) -> bool:
    return abs(value - wanted) <= _limits()["rate_follows"] * wanted


def _rates(pair: Pair) -> str:
    return _numbers(pair, _RATE)


def _numbers(pair: Pair, path: str) -> str:
    old, new = pair.both(path)
    return f"{number(old)} -> {number(new)}"


def _times(factor: float) -> str:
    return f"{factor:.3g} times"


_SAY: tuple[Say, ...] = (
    rate_and_batch,
    rate_and_method,
    rate_alone,
    adapter_scale,
    adapter_shape,
    optimizer,
    clipping,
    precision,
    schedule,
    seed,
)
