"""Frozen dataclasses to plain JSON values and back, driven by their type hints."""

from __future__ import annotations

import dataclasses
import datetime
import math
import types
import typing
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any, TypeVar

from recipegen.formats.scalars import scalar
from recipegen.spec import RecipegenError

T = TypeVar("T")


def to_plain(value: Any, *, for_print: bool = False) -> Any:
    """`value` as dicts, lists, strings, numbers, booleans and None. Field names become keys, Enums their values.

    With `for_print` what YAML has and JSON has not (dates, .nan, .inf) becomes a text; else a date is refused, and the
    numbers stay as they are.
    """
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = dataclasses.fields(value)
        return {field.name: to_plain(getattr(value, field.name), for_print=for_print) for field in fields}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        return {str(key): to_plain(item, for_print=for_print) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_plain(item, for_print=for_print) for item in value]
    if for_print and isinstance(value, datetime.date):
        return value.isoformat()
    if for_print and isinstance(value, float) and not math.isfinite(value):
        return scalar(value)
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise RecipegenError(f"a {type(value).__name__} has no plain form: {value!r:.80}")


def from_plain(kind: type[T], plain: Any, where: str = "") -> T:
    """The dataclass `kind` that `to_plain` turned into `plain`.

    Missing fields take their defaults (a file of an older version). Raises RecipegenError, naming the field, for
    unknown fields, wrong types, and values that the class itself refuses.
    """
    return typing.cast(T, _build(kind, plain, where))


def _build(hint: Any, plain: Any, where: str) -> Any:
    origin = typing.get_origin(hint)
    if hint is Any or hint is object:
        return plain
    if origin in (typing.Union, types.UnionType):
        return _union(typing.get_args(hint), plain, where)
    if origin is tuple:
        return _tuple(typing.get_args(hint), plain, where)
    if origin is not None and issubclass(origin, Mapping):
        _expect(plain, Mapping, "a mapping", where)
        inner = typing.get_args(hint)[1]
        return {str(key): _build(inner, item, f"{where}.{key}") for key, item in plain.items()}
    if origin is not None and issubclass(origin, Sequence):
        _expect(plain, list, "a list", where)
        return [_build(typing.get_args(hint)[0], item, f"{where}[{i}]") for i, item in enumerate(plain)]
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return _dataclass(hint, plain, where)
    if isinstance(hint, type) and issubclass(hint, Enum):
        try:
            return hint(plain)
        except ValueError:
            known = ", ".join(str(member.value) for member in hint)
            raise RecipegenError(f"{plain!r:.60} is none of {known}", where=where) from None
    return _leaf(hint, plain, where)


def _leaf(hint: Any, plain: Any, where: str) -> Any:
    if hint is float and isinstance(plain, int) and not isinstance(plain, bool):
        return float(plain)
    if hint is type(None):
        hint_ok = plain is None
    else:
        hint_ok = isinstance(plain, hint) and not (isinstance(plain, bool) and hint is not bool)
    if not hint_ok:
        raise RecipegenError(f"{plain!r:.60} is not {_article(hint)}", where=where)
    return plain


def _article(hint: Any) -> str:
    names = {int: "a whole number", float: "a number", str: "a text", bool: "true or false", type(None): "null"}
    return names.get(hint, f"a {getattr(hint, '__name__', hint)}")


def _union(kinds: tuple[Any, ...], plain: Any, where: str) -> Any:
    if plain is None and type(None) in kinds:
        return None
    inner = [kind for kind in kinds if kind is not type(None)]
    problem: RecipegenError | None = None
    for kind in inner:
        try:
            return _build(kind, plain, where)
        except RecipegenError as error:
            problem = problem or error
    assert problem is not None
    raise problem


def _tuple(kinds: tuple[Any, ...], plain: Any, where: str) -> tuple[Any, ...]:
    _expect(plain, list, "a list", where)
    if len(kinds) == 2 and kinds[1] is Ellipsis:
        return tuple(_build(kinds[0], item, f"{where}[{i}]") for i, item in enumerate(plain))
    if len(plain) != len(kinds):
        raise RecipegenError(f"{len(plain)} items where {len(kinds)} are expected", where=where)
    return tuple(_build(kind, item, f"{where}[{i}]") for i, (kind, item) in enumerate(zip(kinds, plain, strict=True)))


def _dataclass(kind: Any, plain: Any, where: str) -> Any:
    _expect(plain, Mapping, "a mapping", where)
    hints = typing.get_type_hints(kind)
    known = {field.name: field for field in dataclasses.fields(kind)}
    unknown = [name for name in plain if name not in known]
    if unknown:
        raise RecipegenError(f"{kind.__name__} has no field {unknown[0]!r:.60}", where=where)
    prefix = f"{where}." if where else ""
    built = {name: _build(hints[name], item, f"{prefix}{name}") for name, item in plain.items()}
    try:
        return kind(**built)
    except (TypeError, ValueError) as error:
        raise RecipegenError(f"{kind.__name__}: {error}", where=where or None) from None


def _expect(plain: Any, kind: type, name: str, where: str) -> None:
    if not isinstance(plain, kind):
        raise RecipegenError(f"{plain!r:.60} is not {name}", where=where or None)
