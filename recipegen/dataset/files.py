"""Finding the data file: local or on the Hub, and of which kind."""

from __future__ import annotations

import difflib
import gzip
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import IO

from recipegen.dataset.problems import shown, shown_path
from recipegen.spec import RecipegenError

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}")
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_HUB_PAGE = re.compile(
    r"(?:https?://(?:www\.)?(?:huggingface\.co|hf\.co)|hf:/)/datasets/([^/?#]+/[^/?#@]+)/?(?:[?#].*)?", re.IGNORECASE
)
_KNOWN = "JSONL (.jsonl), JSON (.json), CSV (.csv) and Parquet (.parquet) files, the first three also as .gz"
# Characters that the trainer's loader (datasets.load_dataset) reads as a pattern or as a chain of file systems.
_PATTERN_CHARACTERS = ("*", "?", "[")


class Kind(str, Enum):
    """How rows lie in the file. `value` is what the loader calls it (`ds_type`), but for the two kinds of JSON."""

    JSONL = "jsonl"
    JSON_ARRAY = "json_array"
    CSV = "csv"
    PARQUET = "parquet"

    @property
    def ds_type(self) -> str:
        """Axolotl's `ds_type`: the loader of the `datasets` library."""
        return self.value if self in (Kind.CSV, Kind.PARQUET) else "json"


@dataclass(frozen=True)
class DataFile:
    """A local data file. `name` is what messages call it; `size_bytes` is that on disk."""

    path: Path
    name: str
    kind: Kind
    compressed: bool
    size_bytes: int

    @contextmanager
    def open(self) -> Iterator[tuple[IO[bytes], IO[bytes]]]:
        """The stream of (decompressed) bytes, and the raw file whose position is the progress."""
        with self.path.open("rb") as raw:
            if not self.compressed:
                yield raw, raw
                return
            with gzip.GzipFile(fileobj=raw) as stream:
                yield stream, raw  # type: ignore[misc]


def is_hub_id(text: str) -> bool:
    """Whether the text has the form `org/name` and no data file's ending."""
    return bool(_HUB_ID.fullmatch(text)) and _kind_by_name(text) is None and ".." not in text


def _kind_by_name(name: str) -> str | None:
    lowered = name.lower().removesuffix(".gz")
    for ending in (".jsonl", ".ndjson", ".json", ".csv", ".parquet", ".tsv", ".txt", ".xlsx", ".arrow"):
        if lowered.endswith(ending):
            return ending
    return None


def find(text: str, base_dir: Path | None = None) -> DataFile | None:
    """The local file that `text` names, or None when it is a Hub id.

    A relative path is taken from `base_dir` (default: the working directory). Raises RecipegenError for a missing
    file (with near names), a URL, a directory, an empty file, an unknown kind, or a path the trainer cannot load.
    """
    if not text.strip():
        raise RecipegenError("the data set's path is empty")
    if "\0" in text:
        raise RecipegenError(f"the data set's path {shown_path(text)} holds a NUL character")
    if _URL.match(text):
        raise _url(text)
    try:
        path = Path(text).expanduser()
        path = path if path.is_absolute() or base_dir is None else base_dir / path
        exists, directory = path.exists(), path.is_dir()
    except (OSError, RuntimeError, ValueError) as error:
        raise RecipegenError(f"the data set {shown_path(text)} cannot be looked up: {error}") from None
    if not exists:
        if is_hub_id(text) and not path.parent.is_dir():
            return None
        raise _missing(text, path)
    if directory:
        inside = [p.name for p in _listing(path) if _kind_by_name(p.name) in (".jsonl", ".json", ".csv", ".parquet")]
        hint = f"Name one of its files: {', '.join(shown(n) for n in inside[:5])}." if inside else "Name a file."
        raise RecipegenError(f"{shown_path(text)} is a directory, not a data file", fix=hint)
    if not path.is_file():
        raise RecipegenError(f"{shown_path(text)} is not a regular file")
    if any(c in text for c in _PATTERN_CHARACTERS) or "::" in text:
        raise RecipegenError(
            f"the path {shown_path(text)} holds one of * ? [ or ::, which the trainer's loader takes for a pattern",
            fix="Rename the file.",
        )
    return _recognised(text, path)


def _url(text: str) -> RecipegenError:
    page = _HUB_PAGE.fullmatch(text.strip())
    if page and is_hub_id(page[1]):
        fix = f"Give the Hub id: {page[1]}."
    else:
        fix = "Download the file and give its path, or give a Hub id of the form org/name."
    return RecipegenError(f"{shown_path(text)} is a URL, and data is not read from URLs", fix=fix)


def _listing(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


def _missing(text: str, path: Path) -> RecipegenError:
    names = [p.name for p in _listing(path.parent)]
    near = difflib.get_close_matches(path.name, names, n=3)
    if near:
        fix = f"Near it there is {' and '.join(shown(n) for n in near)}."
    elif _kind_by_name(text) is None and "/" not in text:
        fix = "Give the path of a data file, or a Hub id of the form org/name."
    else:
        fix = f"Checked from {shown_path(os.path.abspath(path.parent))}."
    return RecipegenError(f"the data file {shown_path(text)} does not exist", fix=fix)


def _recognised(text: str, path: Path) -> DataFile:
    try:
        size = path.stat().st_size
        with path.open("rb") as stream:
            start = stream.read(4)
    except OSError as error:
        raise RecipegenError(f"{shown_path(text)} cannot be read: {error.strerror or error}") from None
    if size == 0:
        raise RecipegenError(f"{shown_path(text)} is empty", fix=f"Known are {_KNOWN}.")
    name = " ".join(text.split())
    compressed = start[:2] == b"\x1f\x8b"
    by_name = _kind_by_name(path.name)
    if start == b"PAR1":
        return DataFile(path, name, Kind.PARQUET, False, size)
    if by_name == ".parquet":
        raise RecipegenError(f"{shown_path(text)} is not a Parquet file: it does not start with PAR1")
    if start[:2] in (b"\xff\xfe", b"\xfe\xff"):
        raise RecipegenError(f"{shown_path(text)} is UTF-16 text", fix="Save it as UTF-8.")
    if start[:4] == b"PK\x03\x04" or start[:3] == b"BZh" or start in (b"\xfd7zX", b"\x28\xb5\x2f\xfd"):
        raise RecipegenError(f"{shown_path(text)} is packed in a way that is not read here", fix=f"Known are {_KNOWN}.")
    if by_name == ".csv":
        return DataFile(path, name, Kind.CSV, compressed, size)
    if by_name in (".txt", ".tsv", ".xlsx", ".arrow"):
        raise RecipegenError(f"{shown_path(text)}: {by_name} files are not read here", fix=f"Known are {_KNOWN}.")
    file = DataFile(path, name, Kind.JSONL, compressed, size)
    return _json_kind(file, text, certain=by_name is not None)


def _json_kind(file: DataFile, text: str, *, certain: bool) -> DataFile:
    """JSONL or a JSON array, by the first character that is not white space."""
    try:
        with file.open() as (stream, _):
            head = stream.read(4096)
    except (OSError, EOFError, ValueError) as error:
        raise RecipegenError(f"{shown_path(text)} cannot be read: {error}") from None
    except Exception as error:  # zlib.error has no public base but Exception
        raise RecipegenError(f"{shown_path(text)} is not a whole gzip file: {error}") from None
    if b"\0" in head:
        raise RecipegenError(f"{shown_path(text)} holds NUL bytes: it is not text", fix=f"Known are {_KNOWN}.")
    bare = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    if bare.startswith(b"["):
        if not head.startswith(b"["):
            raise RecipegenError(
                f"{shown_path(text)} starts with a byte order mark or white space before `[`, which the trainer's JSON "
                "loader refuses",
                fix="Save it without, or as JSONL (one object a line).",
            )
        return DataFile(file.path, file.name, Kind.JSON_ARRAY, file.compressed, file.size_bytes)
    if not bare and len(head) >= file.size_bytes:
        raise RecipegenError(f"{shown_path(text)} is empty", fix=f"Known are {_KNOWN}.")
    if certain or bare.startswith(b"{"):
        return file
    raise RecipegenError(f"{shown_path(text)} is of no known kind", fix=f"Known are {_KNOWN}.")
