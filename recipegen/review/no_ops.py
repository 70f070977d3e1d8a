"""Changes without any effect: somebody believes that they did something."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from recipegen.check.checking import Checked
from recipegen.formats.documents import Document
from recipegen.review.difference import Statement, Weight
from recipegen.review.fields import same
from recipegen.review.pair import Pair, words
from recipegen.rules.learning import decay_rounds_away
from recipegen.spec import Recipe

# A field, when it does nothing on the head side, and why.
_DEAD: tuple[tuple[str, Callable[[Recipe], bool], str], ...] = (
    ("schedule.warmup_ratio", lambda r: r.schedule.warmup_steps is not None, "warmup_steps wins"),
    ("activation_checkpointing_reentrant", lambda r: not r.activation_checkpointing, "nothing is recomputed"),
    ("saving.eval_steps", lambda r: not r.val_set_size, "there are no validation rows"),
    ("epochs", lambda r: r.max_steps is not None, "max_steps ends the run"),
    ("network", lambda r: r.parallelism.nodes == 1, "one node uses no network"),
    ("excess_length_strategy", lambda r: _nothing_lost(r), "no row is longer than the sequence"),
)


def no_ops(pair: Pair, before: Checked | None = None, after: Checked | None = None) -> tuple[Statement, ...]:
    """Fields that do nothing where they are, decay that bf16 rounds away, and keys that the trainer drops."""
    return (*_fields(pair), *_decay(pair), *(_dropped(before, after) if before and after else ()))


def _fields(pair: Pair) -> Iterator[Statement]:
    recipe = pair.after.recipe
    if recipe is None:
        return
    for path, dead, why in _DEAD:
        if path in pair.changes and dead(recipe):
            old, new = pair.both(path)
            yield pair.say("RV501", Weight.NOTICE, f"{path} {words(old)} -> {words(new)} does nothing: {why}", path)


def _decay(pair: Pair) -> Iterator[Statement]:
    """p *= 1 - rate x decay rounds to p in bf16 while rate x decay is small; compensation does not cover it."""
    path, recipe = "optimizer.weight_decay", pair.after.recipe
    if path not in pair.changes or recipe is None:
        return
    if decay_rounds_away(recipe):
        old, new = pair.both(path)
        text = (
            f"weight_decay {words(old)} -> {words(new)} moves no bf16 weight at rate {recipe.schedule.learning_rate:g}"
        )
        yield pair.say("RV502", Weight.NOTICE, text, path)


def _dropped(before: Checked, after: Checked) -> Iterator[Statement]:
    """Keys that mean nothing to the trainer, with another value than before."""
    for found in after.findings:
        if found.rule not in ("RG701", "RG703") or not found.field:
            continue
        name = _name(after, found.where)
        old, new = before.subject.documents.get(name), after.subject.documents.get(name)
        if new is None:
            continue
        value = _at(new, found.field)
        earlier = _at(old, found.field) if old is not None else None
        if value is not None and not same(value, earlier):
            text = f"{found.field} {words(earlier)} -> {words(value)} does nothing: the trainer drops the key"
            yield Statement("RV503", Weight.NOTICE, text, (), found.where)


def _name(checked: Checked, where: str) -> str:
    """The file's name in the project, of a place as a person sees it."""
    shown = where.rpartition(":")[0]
    return next((name for name, path in checked.project.shown.items() if path == shown), shown)


def _at(document: Document | None, path: str) -> Any:
    value: Any = document.values if document else None
    for key in path.split("."):
        if isinstance(value, Mapping):
            value = value.get(key)
        elif isinstance(value, list) and key.isdigit() and int(key) < len(value):
            value = value[int(key)]
        else:
            return None
    return value


def _nothing_lost(recipe: Recipe) -> bool:
    lengths = [spec.lengths for spec in recipe.datasets]
    return bool(lengths) and all(one is not None and not one.rows_longer_than(recipe.sequence_len) for one in lengths)
