"""Walk a value along a compact key schema and say what does not match. Pure: no files, no trainers.

The grammar is that of scripts/gen_axolotl_schema.py. Conversions are pydantic's lax ones, so that nothing is called an
error here that the trainer would accept: "3" is an int, 1 is a float, "yes" is a bool, 3 is not a string.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from itertools import islice
from typing import Any

Path = tuple[str, ...]
_BOOL_WORDS = {"true", "false", "yes", "no", "on", "off", "t", "f", "y", "n", "1", "0"}
_SCIENTIFIC = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+")
MOST = 1000  # problems of one file that are listed
_CLOSE = 0.78  # difflib ratio from which a key counts as misspelt


class Kind(Enum):
    """What is wrong."""

    UNKNOWN = "unknown"  # a key that nobody reads
    TYPE = "type"  # a value of the wrong type
    ENUM = "enum"  # not one of the values
    NUMBER_AS_STRING = "number as string"  # 2e-4: YAML 1.1 reads a string


@dataclass(frozen=True)
class Problem:
    """One mismatch. `object` is the schema object the key is in; `near` the known key that was probably meant."""

    kind: Kind
    path: Path
    message: str
    object: str = ""
    near: str = ""
    converted: bool = False  # NUMBER_AS_STRING only: the trainer turns it into a number all the same


@dataclass(frozen=True)
class Schema:
    """A key schema and the names that are legal in a place beyond it (keys of listed plugins)."""

    data: Mapping[str, Any]
    more: Mapping[str, tuple[str, ...]]  # object -> further objects whose keys it also takes
    choose: Mapping[Path, str]  # path pattern ("*" for list positions) -> the object that is meant there

    @property
    def root(self) -> str:
        return str(self.data["root"])

    def fields(self, name: str) -> dict[str, Any]:
        """Every key that may be written into an object, aliases included, with its type."""
        objects = self.data["objects"]
        keys = dict(objects[name])
        for further in self.more.get(name, ()):
            keys.update(objects[further])
        for alias, field in self.data["aliases"].get(name, {}).items():
            keys[alias] = keys[field]
        return keys

    def forbids(self, name: str) -> bool:
        """True when the trainer rejects unknown keys of this object."""
        return name in self.data["forbid"]


def walk(schema: Schema, value: Mapping[str, Any]) -> list[Problem]:
    """What in `value` (the file's top-level mapping) the schema does not know; at most MOST problems, and if there are
    more one that says so."""
    found = _object(schema, schema.root, value, ())
    first = list(islice(found, MOST))
    beyond = next(found, None)
    if beyond is not None:
        first.append(Problem(Kind.TYPE, beyond.path, f"more than {MOST} keys and values like this; no other is listed"))
    return first


def closest(key: str, known: Iterable[str]) -> str:
    """The known key that `key` is probably a misspelling of, or an empty string."""
    found = difflib.get_close_matches(key, list(known), n=1, cutoff=_CLOSE)
    return found[0] if found else ""


def show(value: object) -> str:
    """A value for a message: short, one line, printable."""
    text = (
        repr(value) if not isinstance(value, (dict, list)) else ("a mapping" if isinstance(value, dict) else "a list")
    )
    text = "".join(c if c.isprintable() else "?" for c in text)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _object(schema: Schema, name: str, value: Mapping[str, Any], path: Path) -> Iterator[Problem]:
    fields = schema.fields(name)
    prefix = schema.data["prefixes"].get(name, "")
    for key, item in value.items():
        here = (*path, str(key))
        known = str(key)
        if known not in fields and prefix and known.removeprefix(prefix) in fields:
            known = known.removeprefix(prefix)
        if known in fields:
            yield from _typed(schema, fields[known], item, here)
        else:
            yield Problem(Kind.UNKNOWN, here, f"{key} is not a key of {_place(path)}", name, closest(str(key), fields))


def _typed(schema: Schema, kind: Any, value: Any, path: Path) -> Iterator[Problem]:
    alternatives = kind if isinstance(kind, list) else [kind]
    if any(_exact(alternative, value) for alternative in alternatives):
        yield from _inside(schema, alternatives, value, path)
        if _looks_like_number(value) and any(alternative in ("int", "float") for alternative in alternatives):
            yield _number(path, value, converted=True)
        return
    if any(_converts(alternative, value) for alternative in alternatives):
        if _looks_like_number(value):
            yield _number(path, value, converted=True)
        return
    if "any" in alternatives:
        yield from _free(value, path)
        return
    yield _mismatch(alternatives, value, path)


def _mismatch(alternatives: list[Any], value: Any, path: Path) -> Problem:
    wanted = " or ".join(dict.fromkeys(_name(alternative) for alternative in alternatives if alternative != "null"))
    enums = [item for part in alternatives if isinstance(part, dict) for item in part.get("enum", ())]
    kind = Kind.ENUM if enums and not isinstance(value, (dict, list)) else Kind.TYPE
    near = closest(str(value), [str(item) for item in enums]) if kind is Kind.ENUM else ""
    return Problem(kind, path, f"{'.'.join(path)} is {show(value)}; it must be {wanted}", near=near)


def _inside(schema: Schema, alternatives: list[Any], value: Any, path: Path) -> Iterator[Problem]:
    """The items of a container that has the right shape."""
    if isinstance(value, dict):
        names = [a["object"] for a in alternatives if isinstance(a, dict) and "object" in a]
        if names:
            yield from _best(schema, names, value, path)
            return
        maps = [a["map"] for a in alternatives if isinstance(a, dict) and "map" in a]
        for key, item in value.items():
            yield from _typed(schema, maps[0] if maps else "any", item, (*path, str(key)))
    elif isinstance(value, list):
        lists = [a["list"] for a in alternatives if isinstance(a, dict) and "list" in a]
        for index, item in enumerate(value):
            yield from _typed(schema, lists[0] if lists else "any", item, (*path, str(index)))


def _best(schema: Schema, names: list[str], value: Mapping[str, Any], path: Path) -> Iterator[Problem]:
    """The object that is meant here: the one named for this path, else the one with the fewest problems."""
    pattern = tuple("*" if part.isdigit() else part for part in path)
    chosen = schema.choose.get(pattern)
    if chosen in names:
        yield from _object(schema, str(chosen), value, path)
        return
    yield from min(([*_object(schema, name, value, path)] for name in names), key=len)


def _exact(kind: Any, value: Any) -> bool:
    if isinstance(kind, dict):
        if "enum" in kind:
            return any(value == item and isinstance(value, bool) == isinstance(item, bool) for item in kind["enum"])
        return isinstance(value, list) if "list" in kind else isinstance(value, dict)
    types: dict[str, Any] = {"str": str, "bool": bool, "null": type(None), "float": (int, float), "int": int}
    if kind not in types:
        return False
    return isinstance(value, types[kind]) and not (isinstance(value, bool) and kind in ("int", "float"))


def _converts(kind: Any, value: Any) -> bool:
    """What pydantic's lax mode turns into the type."""
    if kind == "bool":
        return (isinstance(value, str) and value.strip().lower() in _BOOL_WORDS) or value in (0, 1)
    if kind == "int":
        return isinstance(value, bool) or (isinstance(value, float) and value.is_integer()) or _is_int_text(value)
    if kind == "float":
        return isinstance(value, bool) or _is_float_text(value)
    return False


def _is_int_text(value: Any) -> bool:
    return isinstance(value, str) and re.fullmatch(r"[-+]?\d+(_\d+)*(\.0*)?", value.strip()) is not None


def _is_float_text(value: Any) -> bool:
    if not isinstance(value, str):
        return False
    try:
        float(value)
    except ValueError:
        return False
    return True


def _looks_like_number(value: Any) -> bool:
    return isinstance(value, str) and _SCIENTIFIC.fullmatch(value) is not None


def _number(path: Path, value: str, *, converted: bool) -> Problem:
    message = f"{'.'.join(path)}: {value} is a string in YAML 1.1; a float needs a point and a sign"
    return Problem(Kind.NUMBER_AS_STRING, path, message, near=_with_point(value), converted=converted)


def _with_point(text: str) -> str:
    """2e-4 as YAML 1.1 reads a float: 2.0e-4."""
    mantissa, exponent = re.split("[eE]", text)
    return f"{mantissa if '.' in mantissa else f'{mantissa}.0'}e{exponent if exponent[0] in '+-' else f'+{exponent}'}"


def _free(value: Any, path: Path) -> Iterator[Problem]:
    """Inside a value nobody types: only numbers that became strings can be seen."""
    if _looks_like_number(value):
        yield _number(path, value, converted=False)
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _free(item, (*path, str(key)))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _free(item, (*path, str(index)))


def _place(path: Path) -> str:
    return "the top level" if not path else ".".join(path)


def _name(kind: Any) -> str:
    if isinstance(kind, dict):
        if "enum" in kind:
            values = [str(item) for item in kind["enum"]]
            return values[0] if len(values) == 1 else f"one of {', '.join(values)}"
        return "a list" if "list" in kind else "a mapping"
    words = {"str": "text (quote it)", "int": "a whole number", "float": "a number", "bool": "true or false"}
    return words.get(kind, str(kind))
