"""Text of single values: YAML scalars, shell words, JSON, comments. What one program writes another must read back.

Every function returns text that cannot break out of its place: a YAML scalar stays one value of one line, a comment
stays a comment, a shell word stays one word.
"""

from __future__ import annotations

import json
import math
import re
import shlex
import textwrap
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any

from recipegen.spec import RecipegenError

# Words that some YAML 1.1 or 1.2 reader takes for something else than a string.
_RESERVED = frozenset({"y", "n", "yes", "no", "on", "off", "true", "false", "null", "none", "nan", "inf"})
# Plain (unquoted) strings are a small, safe set; everything else is quoted.
_PLAIN = re.compile(r"(?:\.{1,2}/|/)?[A-Za-z_][A-Za-z0-9_./@+-]*\Z")
_ESCAPES = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t", "\0": "\\0"}
_PIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*==[A-Za-z0-9][A-Za-z0-9.!+_-]*\Z")
_WIDTH = 100


def scalar(value: Any) -> str:
    """`value` as YAML on one line; lists and mappings in flow form.

    Reread by PyYAML's safe_load it gives the same value of the same type. Takes None, bool, int, float, str, and
    lists, tuples and mappings of these (a tuple comes back as a list, an Enum as its value).
    """
    if isinstance(value, Enum):
        return scalar(value.value)
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return _integer(value)
    if isinstance(value, float):
        return _float(value)
    if isinstance(value, str):
        return _string(value)
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{scalar(k)}: {scalar(v)}" for k, v in value.items()) + "}"
    if isinstance(value, Sequence) and not isinstance(value, (bytes, bytearray)):
        return "[" + ", ".join(scalar(item) for item in value) + "]"
    raise RecipegenError(f"a value of type {type(value).__name__} cannot be written as YAML: {value!r:.80}")


def _integer(value: int) -> str:
    try:
        return str(value)
    except ValueError:  # Python prints integers of up to 4300 digits
        raise RecipegenError("a number with thousands of digits cannot be written") from None


def _float(value: float) -> str:
    """YAML 1.1 wants a dot in the mantissa and a sign in the exponent: 2e-05 is a string there, 2.0e-05 a number."""
    if math.isnan(value):
        return ".nan"
    if math.isinf(value):
        return ".inf" if value > 0 else "-.inf"
    text = repr(value)
    if "e" in text:
        mantissa, exponent = text.split("e")
        mantissa = mantissa if "." in mantissa else f"{mantissa}.0"
        exponent = exponent if exponent[0] in "+-" else f"+{exponent}"
        return f"{mantissa}e{exponent}"
    return text


def _string(value: str) -> str:
    if _PLAIN.match(value) and value.lower() not in _RESERVED:
        return value
    return '"' + "".join(_escaped(character) for character in value) + '"'


def _escaped(character: str) -> str:
    if character in _ESCAPES:
        return _ESCAPES[character]
    if character == " " or character.isprintable():
        return character
    code = ord(character)
    if code < 0x100:
        return f"\\x{code:02X}"
    return f"\\u{code:04X}" if code < 0x10000 else f"\\U{code:08X}"


def one_line(text: Any) -> str:
    """`text` without line breaks, control characters or anything else that is not printable."""
    visible = "".join(character if character.isprintable() else " " for character in str(text))
    return " ".join(visible.split())


def comment(text: Any, indent: int = 0, width: int = _WIDTH) -> str:
    """`text` as `# ` lines, wrapped at `width`. Nothing in it can end the comment."""
    prefix = " " * indent + "# "
    lines = textwrap.wrap(one_line(text), max(width - len(prefix), 20), break_long_words=False, break_on_hyphens=False)
    return "\n".join(prefix + line for line in lines) or prefix.rstrip()


def shell(value: Any) -> str:
    """`value` as one word of a POSIX shell. Raises for what no shell can carry (NUL, unpaired surrogates)."""
    text = str(value)
    if "\0" in text:
        raise RecipegenError(f"a NUL character cannot be passed to a program: {text!r:.80}")
    require_utf8(text)
    return shlex.quote(text)


def words(values: Sequence[Any]) -> str:
    """Several shell words, separated by blanks."""
    return " ".join(shell(value) for value in values)


def require_utf8(text: str) -> str:
    """`text`, if it can be written to a file; raises RecipegenError for unpaired surrogates."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise RecipegenError(f"the text is not valid Unicode: {text!r:.80}") from None
    return text


def to_json(value: Any) -> str:
    """`value` as indented JSON in ASCII, keys in their order. Raises for NaN and infinity, which JSON lacks."""
    try:
        return json.dumps(value, indent=2, ensure_ascii=True, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise RecipegenError(f"this cannot be written as JSON: {error}") from None


# An underscore inside a word is no markup; names are full of them.
_MARKDOWN = re.compile(r"([\\`*{}\[\]<>|#~]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9]))")


def text(value: Any) -> str:
    """`value` as running text in Markdown, one line; nothing in it is markup."""
    return _MARKDOWN.sub(r"\\\1", one_line(value))


def code(value: Any) -> str:
    """`value` as inline code in Markdown, also inside a table; the fence is longer than any run of backticks in it."""
    inner = one_line(value).replace("|", "\\|")
    runs = [len(run) for run in re.findall(r"`+", inner)]
    fence = "`" * (max(runs, default=0) + 1)
    pad = " " if inner.startswith("`") or inner.endswith("`") or not inner else ""
    return f"{fence}{pad}{inner}{pad}{fence}"


def pin(value: Any) -> str:
    """`name==version` of requirements.txt. Raises for anything else."""
    if not _PIN.match(str(value)):
        raise RecipegenError(f"not an exact requirement: {str(value)!r:.80}")
    return str(value)
