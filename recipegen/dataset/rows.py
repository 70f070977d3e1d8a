"""Reading rows one by one, in constant memory: JSONL, a JSON array, CSV, Parquet."""

from __future__ import annotations

import codecs
import csv
import io
import json
import re
import zlib
from collections.abc import Callable, Iterator
from typing import IO, Any, NamedTuple

from recipegen.dataset.facts import facts, limit
from recipegen.dataset.files import DataFile, Kind
from recipegen.dataset.problems import shown
from recipegen.spec import RecipegenError

Progress = Callable[[int, int], None]
"""Called with (bytes done, bytes in all) of the file on disk."""

_DECODER = json.JSONDecoder()
_BOM = b"\xef\xbb\xbf"


class Row(NamedTuple):
    """One row. `value` is None when `problem` says what is wrong with it."""

    line: int
    value: dict[str, Any] | None
    problem: str = ""


def rows(file: DataFile, progress: Progress | None = None) -> Iterator[Row]:
    """All rows of the file in order. Blank lines are not rows.

    Raises RecipegenError where reading cannot go on (a broken array, archive or quote, a row over the bound).
    """
    readers = {Kind.JSONL: _jsonl, Kind.JSON_ARRAY: _json_array, Kind.CSV: _csv}
    every = limit("progress_rows")
    try:
        if file.kind is Kind.PARQUET:
            yield from _parquet(file, progress)
            return
        with file.open() as (stream, raw):
            for number, row in enumerate(readers[file.kind](file, stream), 1):
                yield row
                if progress and number % every == 0:
                    progress(raw.tell(), file.size_bytes)
        if progress:
            progress(file.size_bytes, file.size_bytes)
    except (OSError, EOFError, zlib.error) as error:
        raise RecipegenError(f"cannot be read to its end: {error}", where=file.name) from None


def count_rest(file: DataFile, read: int) -> int:
    """Rows of the file in all, when `read` of them were read: the others are counted, not checked."""
    if file.kind is Kind.PARQUET:
        return int(_parquet_file(file).metadata.num_rows)
    if file.kind is Kind.JSONL:
        with file.open() as (stream, _):
            return sum(1 for line in _lines(file, stream) if line.strip())
    return read + sum(1 for number, _ in enumerate(rows(file)) if number >= read)


def json_object(text: str) -> Row:
    """A row from the text of one JSON object; the line is 0."""
    try:
        value = _DECODER.decode(text)
    except json.JSONDecodeError as error:
        return Row(0, None, f"not valid JSON: {error.msg} at column {error.colno}")
    except RecursionError:
        return Row(0, None, "not valid JSON: nested too deeply")
    except ValueError as error:  # a number with too many digits
        return Row(0, None, f"not valid JSON: {error}")
    if not isinstance(value, dict):
        return Row(0, None, f"a JSON object is needed, but this is {_json_name(value)}")
    return Row(0, value)


def _json_name(value: object) -> str:
    names = {list: "an array", str: "a string", bool: "a boolean", int: "a number", float: "a number"}
    return names.get(type(value), "null" if value is None else "an object")


def _too_long(file: DataFile, line: int) -> RecipegenError:
    bound = limit("row_bytes") >> 20
    return RecipegenError(
        f"this row is longer than {bound} MiB", where=f"{file.name}:{line}", fix="Is it one row a line?"
    )


def _lines(file: DataFile, stream: IO[bytes]) -> Iterator[bytes]:
    bound = limit("row_bytes")
    number = 0
    while line := stream.readline(bound + 1):
        number += 1
        if len(line) > bound:
            raise _too_long(file, number)
        yield line


def _jsonl(file: DataFile, stream: IO[bytes]) -> Iterator[Row]:
    for number, line in enumerate(_lines(file, stream), 1):
        text = line.removeprefix(_BOM) if number == 1 else line
        if text.isspace() or not text:
            continue
        if b"\0" in text:
            yield Row(number, None, "a NUL byte: this is not text")
            continue
        try:
            decoded = text.decode("utf-8")
        except UnicodeDecodeError as error:
            yield Row(number, None, _not_utf8(error))
            continue
        row = json_object(decoded)
        if row.problem and number == 1 and decoded.strip() == "{":
            raise RecipegenError(
                "one JSON object over several lines; the trainer needs one row a line (JSONL) or an array of rows",
                where=f"{file.name}:{number}",
                fix="Convert it with: jq -c '.[]' FILE > FILE.jsonl (or .KEY[] where the rows are under a key)",
            )
        yield row._replace(line=number, problem=row.problem or _surrogate(decoded, row.value))


def _not_utf8(error: UnicodeDecodeError) -> str:
    return f"not valid UTF-8: byte 0x{error.object[error.start]:02x} at byte {error.start + 1}; save the file as UTF-8"


def _surrogate(text: str, value: object) -> str:
    """A lone \\ud800 escape decodes in Python, and then neither Arrow nor a tokenizer takes it."""
    if "\\ud" not in text and "\\uD" not in text:
        return ""
    try:
        json.dumps(value, ensure_ascii=False).encode("utf-8")
    except (UnicodeEncodeError, RecursionError, ValueError):
        return "an unpaired surrogate (\\ud800 to \\udfff), which is no character"
    return ""


_SPACE = re.compile(r"[ \t\n\r]*")


def _json_array(file: DataFile, stream: IO[bytes]) -> Iterator[Row]:
    """The objects of one array, decoded as they come; a mistake ends it, since there is nothing to resume at."""
    decode = codecs.getincrementaldecoder("utf-8")()
    buffer, position, line, counted, ended, size = "", 0, 1, 0, False, 1 << 18

    def stop(text: str) -> RecipegenError:
        return RecipegenError(text, where=f"{file.name}:{line + buffer.count(chr(10), counted, position)}")

    def more() -> None:
        nonlocal buffer, position, counted, line, ended
        line += buffer.count("\n", counted, position)
        chunk = stream.read(size)
        ended = not chunk
        try:
            text = decode.decode(chunk, final=ended)
        except UnicodeDecodeError as error:
            raise stop(_not_utf8(error)) from None
        if "\0" in text:
            raise stop("a NUL byte: this is not text")
        buffer, position, counted = buffer[position:] + text, 0, 0

    def token() -> str:
        nonlocal position
        while True:
            position = _SPACE.match(buffer, position).end()  # type: ignore[union-attr]
            if position < len(buffer):
                return buffer[position]
            if ended:
                return ""
            more()

    if token() != "[":
        raise stop("an array of objects is needed")
    position += 1
    last = ""
    while True:
        here = token()
        if here == "]":
            if last == ",":
                raise stop("not valid JSON: an array cannot end with a comma")
            position += 1
            if token():
                raise stop("not valid JSON: text after the end of the array")
            return
        if here == "":
            raise stop("not valid JSON: the array does not end; the file is cut off")
        if here != "{":
            raise stop("every item of the array must be an object (a row)")
        while True:
            try:
                value, end = _DECODER.raw_decode(buffer, position)
            except RecursionError:
                raise stop("not valid JSON: nested too deeply") from None
            except json.JSONDecodeError as error:
                if ended:
                    raise stop(f"not valid JSON: {error.msg}") from None
                end = 0
            except ValueError as error:
                raise stop(f"not valid JSON: {error}") from None
            if (end or len(buffer)) - position > limit("row_bytes"):
                raise _too_long(file, line + buffer.count("\n", counted, position))
            if end:
                break
            size = max(size, len(buffer) - position)  # doubles, so that a long row is not decoded over and over
            more()
        line += buffer.count("\n", counted, position)
        counted = position
        yield Row(line, value, _surrogate(buffer[position:end], value))
        position = end
        last = token()
        if last == ",":
            position += 1
        elif last != "]":
            raise stop("not valid JSON: a comma or ] is needed after a row" if last else "the file is cut off")


def _csv(file: DataFile, stream: IO[bytes]) -> Iterator[Row]:
    bound = limit("row_bytes")
    before = csv.field_size_limit(bound)
    reader = None
    try:
        text = io.TextIOWrapper(stream, encoding="utf-8-sig", newline="")
        reader = csv.reader(_text_lines(file, text), strict=True)
        header = next(reader, None)
        if header is None:
            raise RecipegenError("is empty", where=file.name)
        _check_header(file, header)
        start = reader.line_num + 1
        for fields in reader:
            line, start = start, reader.line_num + 1
            if not fields:
                continue
            if len(fields) != len(header):
                yield Row(line, None, f"{len(fields)} fields, but the header has {len(header)}")
                continue
            yield Row(line, dict(zip(header, fields, strict=True)))
        text.detach()
    except UnicodeDecodeError as error:
        where = f"{file.name}:{reader.line_num + 1 if reader else 1}"
        raise RecipegenError(_not_utf8(error), where=where) from None
    except csv.Error as error:
        where = f"{file.name}:{reader.line_num if reader else 1}"
        raise RecipegenError(
            f"not valid CSV: {error}", where=where, fix='Quote fields with " and double it inside.'
        ) from None
    finally:
        csv.field_size_limit(before)


def _text_lines(file: DataFile, text: IO[str]) -> Iterator[str]:
    bound = limit("row_bytes")
    number = 0
    while line := text.readline(bound + 1):
        number += 1
        if len(line) > bound:
            raise _too_long(file, number)
        if "\0" in line:
            raise RecipegenError("a NUL byte: this is not text", where=f"{file.name}:{number}")
        yield line


def _check_header(file: DataFile, header: list[str]) -> None:
    where = f"{file.name}:1"
    twice = sorted({name for name in header if header.count(name) > 1}) if len(header) < 10_000 else []
    if twice:
        raise RecipegenError(f"the header names {shown(twice[0])} twice", where=where)
    if len(header) == 1 and any(mark in header[0] for mark in ";\t|"):
        raise RecipegenError("the header has one column; fields must be separated by commas", where=where)
    if any(not name.strip() for name in header):
        raise RecipegenError("the header has a column without a name", where=where)
    padded = next((name for name in header if name != name.strip()), None)
    if padded is not None:
        raise RecipegenError(f"the column name {shown(padded)} starts or ends with a space", where=where)


class CsvTypes:
    """What the trainer's CSV reader makes of a column: text, unless every value is a number or a boolean."""

    def __init__(self) -> None:
        self._missing = frozenset(facts()["csv"]["missing"])
        self._booleans = frozenset(facts()["csv"]["booleans"])
        self._deciding = int(facts()["csv"]["rows_that_decide"])
        self._rows = 0
        self._text: set[str] = set()
        self._seen: set[str] = set()

    def missing(self, value: str) -> bool:
        """Whether the reader takes the value for a missing one."""
        return value in self._missing

    def see(self, columns: tuple[str, ...], row: dict[str, Any]) -> None:
        """Looks at the values of a row; the loader decides by its first chunk, and so does this."""
        self._rows += 1
        if self._rows > self._deciding:
            return
        for name in columns:
            value = row.get(name)
            if name in self._text or not isinstance(value, str) or value in self._missing:
                continue
            self._seen.add(name)
            if value not in self._booleans and not _is_number(value):
                self._text.add(name)

    def not_text(self) -> list[str]:
        """Columns that have values and not one of them is text."""
        return sorted(self._seen - self._text)


def _is_number(value: str) -> bool:
    try:
        float(value)
    except ValueError:
        return False
    return "_" not in value


def _parquet_file(file: DataFile) -> Any:
    try:
        import pyarrow.parquet as parquet
    except ImportError:
        raise RecipegenError(
            "reading a Parquet file needs pyarrow", where=file.name, fix="Run: pip install 'recipegen[data]'"
        ) from None
    try:
        return parquet.ParquetFile(file.path)
    except Exception as error:  # pyarrow raises its own ArrowException family and OSError
        raise RecipegenError(f"not a readable Parquet file: {error}", where=file.name) from None


def _parquet(file: DataFile, progress: Progress | None = None) -> Iterator[Row]:
    source = _parquet_file(file)
    import pyarrow as arrow

    schema = source.schema_arrow
    twice = sorted({n for n in schema.names if schema.names.count(n) > 1})
    if twice:
        raise RecipegenError(f"two columns are named {shown(twice[0])}", where=file.name)
    wanted = [f.name for f in schema if not (arrow.types.is_binary(f.type) or arrow.types.is_large_binary(f.type))]
    total, done = source.metadata.num_rows, 0
    try:
        for batch in source.iter_batches(batch_size=limit("batch_rows"), columns=wanted):
            for value in batch.to_pylist():
                done += 1
                yield Row(done, value)
            if progress:
                progress(file.size_bytes * done // max(total, 1), file.size_bytes)
    except RecipegenError:
        raise
    except Exception as error:
        raise RecipegenError(f"cannot be read after row {done}: {error}", where=file.name) from None
