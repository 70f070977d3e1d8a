"""Malformed rows: the first few by file and line, and how many there are."""

from __future__ import annotations

from recipegen.dataset.facts import limit
from recipegen.spec import RecipegenError


def shown(name: object) -> str:
    """A name from a file, quoted, without line breaks and not longer than a message can bear."""
    text = str(name)
    longest = limit("field_name_characters")
    return repr(text if len(text) <= longest else text[:longest] + "...")


def shown_path(path: object) -> str:
    """A path, quoted, in one line; of a very long one the end."""
    text, longest = str(path), limit("path_characters")
    return repr(text if len(text) <= longest else "..." + text[-longest:])


class Problems:
    """Collects what is wrong with rows. The text of a problem says what, its place says where."""

    def __init__(self, file_name: str) -> None:
        self.file_name = " ".join(file_name.split()) or file_name
        self.count = 0
        self._first: list[tuple[str, str]] = []

    def place(self, line: int, unit: str = "line") -> str:
        """`data.jsonl:3`, or `data.parquet, row 3` where a file has no lines."""
        return f"{self.file_name}:{line}" if unit == "line" else f"{self.file_name}, {unit} {line}"

    def add(self, line: int, text: str, unit: str = "line") -> None:
        self.count += 1
        if len(self._first) < limit("problems_shown"):
            self._first.append((self.place(line, unit), text))

    def stop(self, rows: int) -> None:
        """Raises RecipegenError when there was a problem. `rows` is the number of rows read in all."""
        if not self.count:
            return
        named = "; ".join(f"{where}: {text}" for where, text in self._first)
        more = self.count - len(self._first)
        if more:
            named += f"; and {more} more malformed rows of {rows}"
        raise RecipegenError(named, fix="Correct or remove these rows, then run it again.")
