"""Both sides of one recipe and what differs between them: what every statement is made from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from recipegen.review.difference import Change, Statement, Weight
from recipegen.review.fields import Meaning
from recipegen.review.kinds import under
from recipegen.spec import Method


@dataclass(frozen=True)
class Pair:
    """`changes` are all that differ, by path."""

    before: Meaning
    after: Meaning
    changes: Mapping[str, Change]

    def changed(self, *paths: str) -> bool:
        """Whether one of these, or a part of one, means something else."""
        return any(under(path, paths) for path in self.changes)

    def both(self, path: str) -> tuple[Any, Any]:
        return self.before.get(path), self.after.get(path)

    def parts(self, *prefixes: str) -> Iterator[Change]:
        return (change for path, change in self.changes.items() if under(path, prefixes))

    def say(self, rule: str, weight: Weight, text: str, *paths: str) -> Statement:
        """A statement whose place is that of the first of these paths on the head side."""
        return Statement(rule, weight, text, paths, self.after.where(*paths) or self.before.where(*paths))

    def factor(self, path: str) -> float | None:
        """After over before of a number; None where one is missing, or zero."""
        old, new = self.both(path)
        numbers = all(isinstance(one, (int, float)) and not isinstance(one, bool) for one in (old, new))
        return float(new) / float(old) if numbers and old and new else None

    @cached_property
    def batch(self) -> tuple[int | None, int | None]:
        """Sequences per optimizer step on both sides; None where it is not known."""
        old, new = self.before.recipe, self.after.recipe
        return old.global_batch_size if old else None, new.global_batch_size if new else None

    @property
    def batch_factor(self) -> float:
        """1 where it is not known."""
        old, new = self.batch
        return new / old if old and new else 1.0

    @cached_property
    def ranks_changed(self) -> bool:
        """Whether other ranks see different data; False where it is not known."""
        old, new = self.before.recipe, self.after.recipe
        return bool(old and new and old.parallelism.data_parallel_ranks != new.parallelism.data_parallel_ranks)

    @property
    def adapter(self) -> bool:
        """Whether an adapter is trained after the change."""
        method = self.after.get("method")
        return isinstance(method, Method) and method.is_adapter


def number(value: Any) -> str:
    """`0.0002` as people write it: 2e-4; whole numbers with their thousands."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return words(value)
    if isinstance(value, float) and value and (abs(value) < 1e-3 or abs(value) >= 1e6):
        mantissa, _, exponent = f"{value:.3g}".partition("e")
        return f"{mantissa}e{int(exponent)}" if exponent else f"{value:.2e}".replace("e-0", "e-").replace(".00", "")
    return f"{value:,}" if isinstance(value, int) else f"{value:g}"


def words(value: Any) -> str:
    """A value as a line can hold it; enums by their value, nothing as `not set`."""
    if value is None:
        return "not set"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {words(item)}" for key, item in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(words(item) for item in value) + "]"
    value = getattr(value, "value", value)
    return number(value) if isinstance(value, (int, float)) else str(value)
