"""The one error type whose text is the whole message a person reads."""

from __future__ import annotations


class RecipegenError(Exception):
    """Bad input or an answer that cannot be given.

    The message is one line: what is wrong, where (file and line when there is one), and what to do.
    The command line prints it on stderr and exits with `exit_code`.
    """

    exit_code = 2

    def __init__(self, message: str, *, where: str | None = None, fix: str | None = None) -> None:
        text = " ".join(str(message).split())
        if where:
            text = f"{where}: {text}"
        if fix:
            end = "" if text.endswith("?") else "."
            text = f"{text.rstrip('.')}{end} {' '.join(fix.split())}"
        super().__init__(text)
