"""Where an answer goes: to stdout, or to a file that is there whole or not at all; and how long its lines are."""

from __future__ import annotations

import os
import tempfile
import textwrap
from collections.abc import Iterator, Sequence

import click

from recipegen.spec import RecipegenError

_WIDTH = 100


def wrap(text: str, indent: str) -> Iterator[str]:
    """In lines; a path is never cut, so that it can be copied."""
    yield from textwrap.wrap(
        text,
        _WIDTH,
        initial_indent=indent,
        subsequent_indent=" " * max(len(indent), 4),
        break_long_words=False,
        break_on_hyphens=False,
    )


def write(lines: Sequence[str], file: str | None) -> None:
    """To `file`, or to stdout without one. Raises RecipegenError where it cannot be written."""
    text = "".join(f"{line}\n" for line in lines)
    if file is None:
        click.echo(text, nl=False)
        return
    folder, name = os.path.split(file)
    try:
        if os.path.isdir(file):
            raise RecipegenError("is a folder", where=file)
        handle, temporary = tempfile.mkstemp(prefix=f".{name[:40]}.", dir=folder or ".")
        try:
            with os.fdopen(handle, "w", encoding="utf-8", errors="replace") as stream:
                stream.write(text)
            os.chmod(temporary, 0o666 & ~_umask())
            os.replace(temporary, file)
        except BaseException:
            os.unlink(temporary)
            raise
    except (OSError, ValueError) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
        raise RecipegenError(f"cannot write the answer: {reason}", where=file) from None


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
