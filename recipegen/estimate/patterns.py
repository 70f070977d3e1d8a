"""Regular expressions that somebody else wrote, for peft's target modules: only those that cannot take for ever.

Python's engine backtracks: a repeated group that can match one text in two ways takes exponential time. Such a pattern
is refused before it is run; those that people write for module names are not of the kind.
"""

from __future__ import annotations

import re
from functools import lru_cache

from recipegen.spec import RecipegenError

_LONGEST = 2000  # characters
_MOST_REPEATS = 4  # one after the other; module paths have some 60 characters, and time grows with this power of them
_REPEATS = "*+{"


@lru_cache(maxsize=256)
def module_pattern(pattern: str) -> re.Pattern[str]:
    """The compiled pattern. Raises RecipegenError where it is none, or one that might not end."""
    reason = _too_much(pattern)
    if reason:
        raise RecipegenError(f"target_modules {pattern[:60]!r} {reason}", fix="List the module names instead.")
    try:
        return re.compile(pattern)
    except (re.error, RecursionError, OverflowError) as error:
        raise RecipegenError(f"target_modules {pattern[:60]!r} is not a pattern: {error}") from None


def _too_much(pattern: str) -> str:
    """Why the pattern is not run; empty for one that is."""
    if len(pattern) > _LONGEST:
        return f"is longer than {_LONGEST} characters"
    groups = [False]  # of every open group: whether it can match in more than one way
    repeats, at = 0, 0
    while at < len(pattern):
        character = pattern[at]
        if character == "\\":
            at += 1
        elif character == "[":
            at = _end_of_set(pattern, at)
        elif character == "(":
            groups.append(False)
        elif character == ")" and len(groups) > 1:
            ambiguous = groups.pop()
            repeated = pattern[at + 1 : at + 2] in tuple(_REPEATS)
            if ambiguous and repeated:
                return "repeats a group that repeats or chooses, which can take for ever"
            groups[-1] |= ambiguous
        elif character == "|":
            groups[-1] = True
        elif character in _REPEATS:
            repeats += 1
            groups[-1] = True
        at += 1
    return f"has more than {_MOST_REPEATS} repetitions" if repeats > _MOST_REPEATS else ""


def _end_of_set(pattern: str, start: int) -> int:
    """The index of the bracket that closes a character set; the end of the pattern where none does."""
    at = start + 1
    if pattern[at : at + 1] == "^":
        at += 1
    if pattern[at : at + 1] == "]":
        at += 1
    while at < len(pattern) and pattern[at] != "]":
        at += 2 if pattern[at] == "\\" else 1
    return at
