"""A shell script as commands and words, without running any of it.

No grammar of a shell: enough to tell what a launch script says. What only a running shell could know (parameters,
command substitutions, variables from outside) is None wherever it would matter.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

MAX_DEPTH = 12  # nested quotes and substitutions
MAX_TEXT = 2**16  # characters of an expanded word; A=$A$A doubles it in every line
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_ARRAY = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\+?=\Z")
_DEFAULT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(:?[-=])(.*)\Z", re.DOTALL)
_HEREDOC = re.compile(r"<<(?!<)(-?)[ \t]*(['\"]?)([A-Za-z_][A-Za-z0-9_]*)\2")
_BREAKS = ";&|"
_CLOSERS = {"{": "}", "(": ")"}


class Unclosed(ValueError):
    """A quote or bracket that never ends, or too many inside one another. `line` counts from 1."""

    def __init__(self, line: int) -> None:
        super().__init__("a quote or bracket is opened here and never closed")
        self.line = line


@dataclass(frozen=True)
class Word:
    """A word as it stands in the script, quotes and all."""

    raw: str
    line: int


@dataclass(frozen=True)
class Command:
    """Words up to the next newline or `;`, `&`, `|`, `&&`, `||`; `after` is what stood before the first word."""

    words: tuple[Word, ...]
    line: int
    after: str
    comment: str = ""  # the comment lines directly above


@dataclass
class Scan:
    """The commands found, and where scanning had to stop."""

    commands: list[Command] = field(default_factory=list)
    unclosed: int | None = None  # line


def scan(text: str) -> Scan:
    """The commands of a script in order, those inside functions and blocks among them."""
    text = text.replace("\r\n", "\n")
    result = Scan()
    words: list[Word] = []
    comments: list[str] = []
    heredocs: list[tuple[str, bool]] = []
    i, line, after, blank = 0, 1, "\n", True

    def end(break_: str) -> None:
        nonlocal after
        if words:
            result.commands.append(Command(tuple(words), words[0].line, after, " ".join(comments)))
            words.clear()
            comments.clear()
        after = break_

    try:
        while i < len(text):
            char = text[i]
            if char == "\n":
                if blank:
                    comments.clear()
                end("\n")
                i, line, blank = i + 1, line + 1, True
                while heredocs:
                    i, line = _skip_heredoc(text, i, line, *heredocs.pop(0))
            elif char in " \t\r":
                i += 1
            elif text.startswith("\\\n", i):
                i, line = i + 2, line + 1
            elif char == "#":
                stop = text.find("\n", i)
                stop = len(text) if stop < 0 else stop
                if blank:  # not behind a command
                    comments.append(text[i + 1 : stop].strip())
                    blank = False
                i = stop
            elif char in _BREAKS:
                blank = False
                double = text.startswith(char * 2, i)
                end(char * 2 if double else char)
                i += 2 if double else 1
            elif char in "<>" and (here := _HEREDOC.match(text, i)):
                heredocs.append((here[3], bool(here[1])))
                i = here.end()
            elif char in "()" and not (char == "(" and words and _ARRAY.search(words[-1].raw) and text[i - 1] == "="):
                blank = False
                end(char)
                i += 1
            else:
                blank = False
                behind = _word_end(text, i)
                if behind is None:
                    raise Unclosed(line)
                words.append(Word(text[i:behind], line))
                line += text.count("\n", i, behind)
                i = behind
        end("\n")
    except Unclosed as problem:
        result.unclosed = problem.line
    return result


def _skip_heredoc(text: str, i: int, line: int, name: str, tabs: bool) -> tuple[int, int]:
    while i < len(text):
        stop = text.find("\n", i)
        stop = len(text) if stop < 0 else stop
        row = text[i:stop]
        i, line = stop + 1, line + 1
        if (row.lstrip("\t") if tabs else row) == name:
            break
    return min(i, len(text)), line


def _word_end(text: str, i: int) -> int | None:
    """The index behind the word that starts at `i`; None when it never ends."""
    start = i
    while i < len(text):
        char = text[i]
        if char == "\\":
            i += 2
        elif char in "'\"`" or (char == "$" and text[i + 1 : i + 2] in ("{", "(", "'")):
            closed = _closed(text, i, MAX_DEPTH)
            if closed is None:
                return None
            i = closed
        elif char == "(" and _ARRAY.fullmatch(text[start:i]):
            closed = _until(text, i + 1, ")", MAX_DEPTH)
            if closed is None:
                return None
            i = closed
        elif char == "&" and i > start and text[i - 1] in "<>":
            i += 1  # 2>&1
        elif char in " \t\n\r" or char in _BREAKS or char in "()":
            break
        else:
            i += 1
    return max(min(i, len(text)), start + 1)


def _closed(text: str, i: int, depth: int) -> int | None:
    """The index behind the quote or substitution that opens at `i`."""
    if depth == 0:
        return None
    char = text[i]
    if char == "'" or text.startswith("$'", i):
        i += 1 if char == "'" else 2
        while i < len(text) and text[i] != "'":
            i += 2 if char == "$" and text[i] == "\\" else 1
        return i + 1 if i < len(text) else None
    if char == "`":
        stop = text.find("`", i + 1)
        return stop + 1 if stop >= 0 else None
    if char == '"':
        return _until(text, i + 1, '"', depth - 1)
    return _until(text, i + 2, _CLOSERS[text[i + 1]], depth - 1)


def _until(text: str, i: int, closer: str, depth: int) -> int | None:
    """The index behind `closer`, over quotes and brackets of all kinds."""
    while i < len(text):
        char = text[i]
        if char == closer:
            return i + 1
        if char == "\\":
            i += 2
            continue
        opens = char in '"`' or (char == "'" and closer != '"') or (char == "$" and text[i + 1 : i + 2] in ("{", "("))
        if opens:
            closed = _closed(text, i, depth)
        elif char == "(" and closer == ")":
            closed = _until(text, i + 1, ")", depth - 1) if depth else None
        else:
            closed = i + 1
        if closed is None:
            return None
        i = closed
    return None


# --- expansion


@dataclass
class Variables:
    """What the script has set so far. A text of None is known to be unknown."""

    texts: dict[str, str | None] = field(default_factory=dict)
    arrays: dict[str, list[Word]] = field(default_factory=dict)
    defaulted: set[str] = field(default_factory=set)  # taken from ${NAME:-word}: the caller may say otherwise


def expand(raw: str, variables: Variables, depth: int = MAX_DEPTH) -> str | None:
    """The text of one word; None when it depends on something only a running shell knows."""
    pieces: list[str] = []
    i = size = 0
    while i < len(raw):
        char = raw[i]
        if char == "\\":
            pieces.append(raw[i + 1 : i + 2] if raw[i + 1 : i + 2] != "\n" else "")
            i += 2
        elif char in "'\"":
            stop = _closed(raw, i, MAX_DEPTH)
            if stop is None:
                return None
            inside = raw[i + 1 : stop - 1]
            piece = inside if char == "'" else _quoted(inside, variables, depth)
            size += len(piece or "")
            if piece is None or size > MAX_TEXT:
                return None
            pieces.append(piece)
            i = stop
        elif char in "`$":
            piece, i = _dollar(raw, i, variables, depth)
            size += len(piece or "")
            if piece is None or size > MAX_TEXT:
                return None
            pieces.append(piece)
        else:
            pieces.append(char)
            i += 1
    return "".join(pieces)


def _quoted(inside: str, variables: Variables, depth: int) -> str | None:
    """The inside of double quotes."""
    pieces: list[str] = []
    i = size = 0
    while i < len(inside):
        char = inside[i]
        if char == "\\" and inside[i + 1 : i + 2] in ("$", "`", '"', "\\", "\n"):
            pieces.append(inside[i + 1].replace("\n", ""))
            i += 2
        elif char in "`$":
            piece, i = _dollar(inside, i, variables, depth)
            size += len(piece or "")
            if piece is None or size > MAX_TEXT:
                return None
            pieces.append(piece)
        else:
            pieces.append(char)
            i += 1
    return "".join(pieces)


def _dollar(text: str, i: int, variables: Variables, depth: int) -> tuple[str | None, int]:
    """The expansion that starts at `i`, and the index behind it."""
    name = _NAME.match(text, i + 1) if text[i] == "$" else None
    if name:
        return variables.texts.get(name[0]), name.end()
    following = text[i + 1 : i + 2]
    if text[i] == "$" and following not in ("{", "(", "'"):
        # $1, $@ and their kin are not known; a dollar before anything else is a dollar.
        return (None, len(text)) if following and following in "0123456789@*#?$!-" else ("$", i + 1)
    stop = _closed(text, i, MAX_DEPTH)
    if stop is None or text[i] == "`" or following == "'" or depth == 0:
        return None, len(text)
    if text.startswith("$((", i):
        return _product(text[i + 3 : stop - 2], variables), stop
    if following == "(":
        return None, stop
    inside = text[i + 2 : stop - 1]
    if _NAME.fullmatch(inside):
        return variables.texts.get(inside), stop
    default = _DEFAULT.match(inside)
    if not default:
        return None, stop
    known = variables.texts.get(default[1])
    if known is not None and (known or not default[2].startswith(":")):
        return known, stop
    if default[1] in variables.texts and known is None:
        return None, stop
    variables.defaulted.add(default[1])
    return expand(default[3], variables, depth - 1), stop


def _product(inside: str, variables: Variables) -> str | None:
    """`SLURM_NNODES * 8`: whole numbers and known variables, multiplied. Any other arithmetic is not known."""
    result = 1
    for factor in inside.split("*"):
        word = factor.strip().removeprefix("$").strip("{}")
        text = variables.texts.get(word, word)
        if text is None or not text.isdecimal() or len(text) > MAX_DEPTH:
            return None
        result *= int(text)
        if result.bit_length() > 64:  # a count that no machine has
            return None
    return str(result)


def array(raw: str) -> list[Word] | None:
    """The words of `NAME=(a b c)`; None for another word."""
    name, separator, inside = raw.partition("=")
    if not separator or not _NAME.fullmatch(name.removesuffix("+")) or not inside.startswith("("):
        return None
    return [word for command in scan(inside[1:-1]).commands for word in command.words]


def assignment(raw: str) -> tuple[str, str] | None:
    """NAME and the raw value of `NAME=value`; None for another word."""
    name, separator, value = raw.partition("=")
    return (name, value) if separator and _NAME.fullmatch(name) else None


def set_text(variables: Variables, name: str, value: str | None, certain: bool) -> None:
    """Note an assignment. One that may not be reached leaves the name unknown, unless it says the same again."""
    if not certain and variables.texts.get(name) != value:
        value = None
    variables.texts[name] = value
