"""`measure`: from a path or a Hub id to a DatasetSpec."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from recipegen.dataset.chat_template import (
    EndOfTurn,
    TemplateRefused,
    end_of_turn,
    find_tokenizer,
    load_template,
    read_tokenizer_files,
)
from recipegen.dataset.entry import default_shape, refused, trainer_entry
from recipegen.dataset.facts import facts, limit
from recipegen.dataset.files import DataFile, Kind, find
from recipegen.dataset.lengths import Sample
from recipegen.dataset.problems import Problems, shown
from recipegen.dataset.prompts import Prompt, Prompts
from recipegen.dataset.rows import CsvTypes, Progress, Row, count_rest, rows
from recipegen.dataset.shapes import Checker, Shape, recognise, recognise_all
from recipegen.dataset.tokens import TokenCounter, counter
from recipegen.spec import DataFormat, DatasetSpec, ModelSpec, RecipegenError


def measure(
    path_or_id: str | os.PathLike[str],
    *,
    model: ModelSpec,
    format: str = "auto",
    tokenizer_path: str | os.PathLike[str] | None = None,
    max_rows: int | None = None,
    base_dir: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
) -> DatasetSpec:
    """Recognise, check, count and measure a data set for a model.

    `path_or_id` is a local JSONL, JSON (array), CSV or Parquet file or a Hub id `org/name`; a relative path is taken
    from `base_dir`. `format` is `auto` or a DataFormat's value. All rows are checked (the first `max_rows` only, when
    given) and counted; tokens are counted for a uniform sample with the model's tokenizer where its files are at hand
    (`tokenizer_path`, the model's folder, the Hugging Face cache), else estimated from characters. Memory does not grow
    with the file. `progress` is called with bytes done and bytes in all. Nothing is downloaded.

    Raises RecipegenError: one line with file and line of what is wrong.
    """
    wanted = _wanted(format)
    if max_rows is not None and max_rows < 1:
        raise RecipegenError(f"max_rows is {max_rows}; it must be 1 or more")
    text = os.fspath(path_or_id)
    file = find(text, Path(base_dir) if base_dir is not None else None)
    if file is None:
        return _hub(text, model, wanted, tokenizer_path)
    written = os.path.expanduser(text) if text.startswith("~") else text
    return _Measurement(file, written, model, wanted, tokenizer_path).run(max_rows, progress)


def _wanted(format: str) -> DataFormat | None:
    if format == "auto":
        return None
    try:
        return DataFormat(format)
    except ValueError:
        known = ", ".join(f.value for f in DataFormat)
        raise RecipegenError(f"the data format {shown(format)} is not known", fix=f"Known are auto, {known}.") from None


def _hub(
    hub_id: str, model: ModelSpec, wanted: DataFormat | None, tokenizer_path: str | os.PathLike[str] | None
) -> DatasetSpec:
    notes = ["a Hub data set: its rows are not counted or checked from here"]
    if wanted is None:
        wanted = DataFormat.MESSAGES
        notes.append("its format is assumed to be messages (messages: role, content); name it with --dataset-format")
    if wanted is DataFormat.PREFERENCE:
        raise refused(wanted, hub_id)
    shape = default_shape(wanted)
    ending = end_of_turn(model, tokenizer_path)
    notes += ending.notes if shape.is_chat else ()
    entry = trainer_entry(hub_id, shape, chat_template=ending.chat_template)
    return DatasetSpec(hub_id, wanted, None, None, entry, local=False, notes=tuple(notes))


class _Measurement:
    """One pass over one file."""

    def __init__(
        self,
        file: DataFile,
        written_path: str,
        model: ModelSpec,
        wanted: DataFormat | None,
        tokenizer_path: str | os.PathLike[str] | None,
    ) -> None:
        self.file = file
        self.written_path = written_path
        self.model = model
        self.wanted = wanted
        folder = find_tokenizer(model, tokenizer_path)
        self.counter: TokenCounter = counter(model, folder)
        self.ending: EndOfTurn = end_of_turn(model, folder)
        files = read_tokenizer_files(folder) if folder is not None else None
        self.template = load_template(files) if files else None
        self.problems = Problems(file.name)
        self.unit = "row" if file.kind is Kind.PARQUET else "line"
        self.csv_types = CsvTypes() if file.kind is Kind.CSV else None
        self.sample = Sample()
        self._pending: list[tuple[int, Prompt]] = []
        self._pending_characters = 0

    def run(self, max_rows: int | None, progress: Progress | None) -> DatasetSpec:
        source = rows(self.file, progress)
        head = list(itertools.islice(source, min(limit("head_rows"), max_rows or limit("head_rows"))))
        if not head:
            raise RecipegenError("holds no rows", where=self.file.name)
        shape = self._shape([self._plain(row.value) for row in head if row.value is not None], head)
        system = any(_text(r.value, "system") for r in head)
        checker = Checker(shape)
        prompts = Prompts(
            shape, begin=self.counter.begin, template=self.template, template_name=self._template_facts(), system=system
        )
        read = self._pass(itertools.chain(head, source), max_rows, checker, prompts)
        self._flush()
        self.problems.stop(read)
        self._check_csv(shape)
        total = read
        notes: list[str] = []
        if max_rows is not None and read >= max_rows:
            total = max(count_rest(self.file, read), read)
            if total > read:
                notes.append(f"only the first {read} of {total} rows were checked and measured")
        lengths = self.sample.lengths(self.counter.basis, total)
        notes += self._notes(checker, shape)
        return DatasetSpec(
            path=self.written_path,
            format=shape.format,
            rows=total,
            lengths=lengths,
            entry=trainer_entry(
                self.written_path,
                shape,
                ds_type=self.file.kind.ds_type,
                chat_template=self.ending.chat_template,
                roles=checker.roles,
                training_flags=checker.training_flags,
                system=checker.system_rows > 0,
                verbatim=_verbatim(shape, head),
            ),
            system_rows=checker.system_rows,
            notes=tuple(notes),
        )

    # ---- the pass

    def _pass(self, source: Iterator[Row], max_rows: int | None, checker: Checker, prompts: Prompts) -> int:
        read = 0
        used = tuple(
            checker.shape.columns[p] for p in ("text", "prompt", "answer", "context") if p in checker.shape.columns
        )
        for row in source:
            read += 1
            problem = row.problem
            if not problem and row.value is not None:
                value = self._plain(row.value)
                problem = checker.problem(value) or self._offer(value, prompts)
                if problem and self.csv_types:
                    problem = _csv_words(problem, row.value)
                elif self.csv_types:
                    self.csv_types.see(used, row.value)
            if problem:
                self.problems.add(row.line, problem, self.unit)
            if max_rows is not None and read >= max_rows:
                break
        return read

    def _plain(self, value: dict[str, Any]) -> dict[str, Any]:
        """A row as the trainer will see it: its CSV reader takes some words for missing values."""
        if self.csv_types is None:
            return value
        missing = self.csv_types.missing
        return {name: None if missing(text) else text for name, text in value.items()}

    def _offer(self, value: dict[str, Any], prompts: Prompts) -> str:
        """Hands a row to the sample; the reason when the chat template refuses it."""
        if self.problems.count:
            return ""  # the answer is an error already: no need to count tokens
        slot = self.sample.slot()
        if slot is None:
            return ""
        try:
            prompt = prompts.of(value)
        except TemplateRefused as refusal:
            return f"the model's chat template refuses this row: {shown(refusal)}"
        self._pending.append((slot, prompt))
        self._pending_characters += sum(map(len, prompt.texts))
        if len(self._pending) >= limit("batch_rows") or self._pending_characters > limit("batch_characters"):
            self._flush()
        return ""

    def _flush(self) -> None:
        counts = iter(self.counter.count([text for _, prompt in self._pending for text in prompt.texts]))
        for slot, prompt in self._pending:
            self.sample.put(slot, prompt.extra + sum(next(counts) for _ in prompt.texts))
        self._pending.clear()
        self._pending_characters = 0

    # ---- what the file is

    def _shape(self, values: list[dict[str, Any]], head: list[Row]) -> Shape:
        first = head[0]
        if not values:
            for row in head:
                self.problems.add(row.line, row.problem, self.unit)
            self.problems.stop(len(head))
        shape = recognise_all(values, self.wanted)
        where = self.problems.place(next((r.line for r in head if r.value is not None), first.line), self.unit)
        if shape is None:
            raise self._unknown(values[0], where)
        if shape.format is DataFormat.PREFERENCE:
            raise refused(shape.format, self.file.name)
        return shape

    def _unknown(self, value: dict[str, Any], where: str) -> RecipegenError:
        other = recognise(value) if self.wanted else None
        columns = ", ".join(shown(name) for name in list(value)[:8]) or "none"
        if other is not None and self.wanted is not None:
            return RecipegenError(
                f"the row is not {self.wanted.value} but looks like {other.label}",
                where=where,
                fix=f"Use --dataset-format auto or {other.format.value}.",
            )
        nested = [n for n, v in value.items() if isinstance(v, list) and v and all(isinstance(i, dict) for i in v)]
        if nested and len(nested) == len([v for v in value.values() if isinstance(v, (list, dict))]):
            return RecipegenError(
                f"the rows seem to lie under the key {shown(nested[0])} of one object, which the trainer's loader "
                "reads as one row",
                where=where,
                fix=f"Convert it with: jq -c '.{nested[0] if nested[0].isidentifier() else 'KEY'}[]' FILE > FILE.jsonl",
            )
        return RecipegenError(
            f"the format of the rows is not recognised (columns: {columns})",
            where=where,
            fix="Known are instruction and output, messages or conversations, text, prompt and completion, segments.",
        )

    def _template_facts(self) -> str:
        """The template whose overhead is counted: the one in use, else the family's."""
        name = self.ending.chat_template
        return self.model.chat_template or name if name == "tokenizer_default" else name

    def _check_csv(self, shape: Shape) -> None:
        numbers = set(self.csv_types.not_text()) if self.csv_types else set()
        for part in ("text", "answer", "prompt"):
            name = shape.columns.get(part)
            if name in numbers:
                raise RecipegenError(
                    f"every value of the column {shown(name)} is a number or true/false, so the trainer's CSV reader "
                    "does not read it as text",
                    where=self.file.name,
                    fix="Save the data as JSONL with text values.",
                )

    def _notes(self, checker: Checker, shape: Shape) -> list[str]:
        notes = [self.counter.note]
        if self.sample.seen > self.sample.capacity:
            notes.append(f"tokens are counted for a uniform sample of {self.sample.capacity} rows")
        if shape.is_chat:
            notes += self.ending.notes
            if checker.untrained_end_rows:
                notes.append(
                    f"{checker.untrained_end_rows} rows do not end with the assistant: their last turn is not trained"
                )
            family = facts()["templates"].get(self._template_facts(), {})
            if self.template is None and family.get("alternate") and checker.broken_alternation_rows:
                notes.append(
                    f"{checker.broken_alternation_rows} rows do not alternate user and assistant, which the "
                    f"template {self._template_facts()} refuses"
                )
            if self.template is None and family.get("system") is False and checker.system_rows:
                notes.append(
                    f"{checker.system_rows} rows have a system text, which the template "
                    f"{self._template_facts()} refuses"
                )
        elif shape.is_segments:
            notes.append("segments are trained as they are: beginning and end tokens must be in the data")
        elif shape.format is not DataFormat.COMPLETION and self.model.instruct:
            notes.append("these rows are not put into the model's chat template; write them as messages for that")
        return notes


def _csv_words(problem: str, row: dict[str, Any]) -> str:
    """Explains a value that only the trainer's CSV reader takes for missing."""
    if not problem.endswith(" is null"):
        return problem
    name = next((n for n in row if f"the field {shown(n)} is null" == problem), None)
    if name is None or row[name] == "":
        return problem.replace(" is null", " is empty")
    return f"the field {shown(name)} is {row[name]!r}, which the trainer's CSV reader takes for a missing value"


def _text(row: dict[str, Any] | None, name: str) -> bool:
    value = row.get(name) if row else None
    return isinstance(value, str) and value != ""


def _verbatim(shape: Shape, head: list[Row]) -> bool:
    """Whether prompts and answers already bring the white space between them."""
    if shape.format is not DataFormat.INPUT_OUTPUT or "prompt" not in shape.columns:
        return False
    prompt, answer = shape.columns["prompt"], shape.columns["answer"]
    pairs = [
        (r.value[prompt], r.value[answer])
        for r in head
        if r.value and isinstance(r.value.get(prompt), str) and isinstance(r.value.get(answer), str)
    ]
    joined = sum(p[-1:].isspace() or a[:1].isspace() for p, a in pairs)
    return bool(joined * 2 > len(pairs))
