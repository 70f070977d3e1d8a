"""Text of somebody else in a comment on GitHub: it is shown, and does nothing.

A recipe of a pull request is untrusted, and the comment is written in the name of the project: no markup, no HTML, no
link or image, no mention of a person or an issue may come of what a recipe says. What could be one is put in a code
span, where GitHub looks for none of them; punctuation of markdown is escaped everywhere else. The text never begins a
line, which would make a heading or a list of it, and is never more than one line.
https://github.github.com/gfm/, https://docs.github.com/en/get-started/writing-on-github
"""

from __future__ import annotations

import html
import re

from recipegen.review.printers.shared import clip, safe

_MARKUP = re.compile(r"([\\*_\[\]~])")
_ENTITIES = {"&": "&amp;", "<": "&lt;", ">": "&gt;", "|": "&#124;", "`": "&#96;"}
# Addresses, mentions, issues (#1, GH-1), commits, emoji, formulas; and names of fields, which are code anyway.
_ACTS = re.compile(r"@|://|www\.|#\d|\bgh-\d|\$|_|:[\w+-]+:|\b[0-9a-f]{7,40}\b|\bcve-|\bghsa-", re.IGNORECASE)
_HEAD, _TAIL = "([", ".,:;)]"  # of a sentence, not of a word


def code(text: str, most: int, *, cell: bool = False) -> str:
    """A code span. `cell`: in a table, where no escape of `|` is read alike by all parsers."""
    said = clip(safe(text), most).replace("`", "'")
    if cell:
        said = said.replace("|", "¦")
    return f"`{said}`" if said else "(empty)"


def path_code(text: str, most: int, *, cell: bool = False) -> str:
    """A code span of a name or a place, whose end says more than its beginning."""
    said = safe(text)
    return code(said if len(said) <= most else "..." + said[3 - most :], most, cell=cell)


def prose(text: str, most: int, *, cell: bool = False) -> str:
    """A sentence. To be put behind words of our own on the same line."""
    return " ".join(_word(word, cell) for word in clip(safe(text), most).replace(" -> ", " → ").split(" "))


def html_code(text: str, most: int) -> str:
    """For <summary>, in which markdown is not read."""
    return f"<code>{html.escape(clip(safe(text), most)) or '(empty)'}</code>"


def _word(word: str, cell: bool) -> str:
    if _ACTS.search(word):
        start = len(word) - len(word.lstrip(_HEAD))
        bare = word[start:].rstrip(_TAIL)
        if bare:
            return _escaped(word[:start]) + code(bare, len(bare), cell=cell) + _escaped(word[start + len(bare) :])
    return _escaped(word)


def _escaped(text: str) -> str:
    marked = _MARKUP.sub(r"\\\1", text)
    return "".join(_ENTITIES.get(character, character) for character in marked)
