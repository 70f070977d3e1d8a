"""The shapes of rows: recognised from their columns, checked row by row."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cache, lru_cache
from typing import Any

from recipegen.dataset.facts import facts
from recipegen.dataset.problems import shown
from recipegen.spec import DataFormat


@dataclass(frozen=True)
class Shape:
    """How to find the training text in a row.

    `columns` maps a part (`messages`, `text`, `prompt`, `answer`, `context`, `system`, ...) to its column; `role`,
    `content` and `training` are keys inside a message.
    """

    format: DataFormat
    columns: dict[str, str] = field(default_factory=dict)

    @property
    def is_chat(self) -> bool:
        return self.format in (DataFormat.MESSAGES, DataFormat.SHAREGPT)

    @property
    def is_segments(self) -> bool:
        return "segments" in self.columns

    @property
    def label(self) -> str:
        """`sharegpt (conversations: from, value)`."""
        names = [
            f"{self.columns[p]}"
            for p in ("messages", "segments", "text", "prompt", "context", "answer")
            if p in self.columns
        ]
        inner = [self.columns[p] for p in ("role", "content") if p in self.columns]
        return f"{self.format.value} ({', '.join(names)}{': ' + ', '.join(inner) if inner else ''})"


@cache
def role_of() -> dict[str, str]:
    """Name of a speaker in lower case -> role of the chat template."""
    return {alias: role for role, aliases in facts()["chat"]["roles"].items() for alias in (role, *aliases)}


def recognise(row: dict[str, Any], wanted: DataFormat | None = None) -> Shape | None:
    """The shape of one row, or None. `wanted` leaves only shapes of that format."""
    for shape in _candidates(row):
        if wanted is None or shape.format is wanted:
            return shape
    return None


def recognise_all(head: Iterable[dict[str, Any]], wanted: DataFormat | None) -> Shape | None:
    """The shape that most of the rows have; the earliest where two are equally frequent."""
    found = [shape for row in head if (shape := recognise(row, wanted)) is not None]
    if not found:
        return None
    labels = Counter(shape.label for shape in found)
    most = labels.most_common(1)[0][0]
    return next(shape for shape in found if shape.label == most)


def _candidates(row: dict[str, Any]) -> Iterable[Shape]:
    if "chosen" in row and "rejected" in row:
        yield Shape(DataFormat.PREFERENCE, {"chosen": "chosen", "rejected": "rejected"})
    yield from _chats(row)
    if isinstance(row.get("segments"), list):
        yield Shape(DataFormat.INPUT_OUTPUT, {"segments": "segments"})
    if "instruction" in row and "output" in row:
        columns = {"prompt": "instruction", "answer": "output"}
        columns |= {"context": "input"} if "input" in row else {}
        yield Shape(DataFormat.ALPACA, columns)
    for prompt, answer, context in facts()["pairs"]:
        if prompt in row and answer in row:
            columns = {"prompt": prompt, "answer": answer}
            columns |= {"context": context} if context and context in row else {}
            yield Shape(DataFormat.INPUT_OUTPUT, columns)
            break
    for name in facts()["completion_fields"]:
        if isinstance(row.get(name), str):
            yield Shape(DataFormat.COMPLETION, {"text": name})
            break
    else:
        if len(row) == 1 and isinstance(next(iter(row.values())), str):
            yield Shape(DataFormat.COMPLETION, {"text": next(iter(row))})


def _chats(row: dict[str, Any]) -> Iterable[Shape]:
    known = facts()["chat"]
    for name in (*(n for n in known["fields"] if n in row), *(n for n in row if n not in known["fields"])):
        turns = as_turns(row[name])
        if not isinstance(turns, list) or not all(isinstance(turn, dict) for turn in turns):
            continue
        role = _first_in(turns, known["role_fields"])
        content = _first_in(turns, known["content_fields"])
        if role is None or content is None:
            if not turns and name in ("messages", "conversations"):
                role, content = ("role", "content") if name == "messages" else ("from", "value")
            else:
                continue
        columns = {"messages": name, "role": role, "content": content}
        training = _first_in(turns, known["training_fields"])
        columns |= {"training": training} if training else {}
        yield Shape(DataFormat.SHAREGPT if (role, content) == ("from", "value") else DataFormat.MESSAGES, columns)
        return


def _first_in(turns: list[dict[str, Any]], names: list[str]) -> str | None:
    return next((n for n in names if any(n in turn for turn in turns)), None)


def as_turns(value: object) -> object:
    """The turns of a conversation; a string that holds JSON is decoded, as the trainer does."""
    if isinstance(value, str) and value.lstrip()[:1] == "[":
        try:
            return json.loads(value)
        except (ValueError, RecursionError):
            return value
    return value


class Checker:
    """Says what is wrong with a row of a shape, and gathers what the `datasets:` entry must name."""

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self._roles: dict[str, str] = {}  # name of a speaker as the data has it -> role
        self.system_rows = 0
        self.untrained_end_rows = 0  # the last turn is not the assistant's
        self.training_flags = False
        self.broken_alternation_rows = 0

    def problem(self, row: dict[str, Any]) -> str:
        """One line that says why the row cannot be trained on; empty when it can."""
        if self.shape.is_chat:
            text = self._chat(row)
        elif self.shape.is_segments:
            text = self._segments(row)
        else:
            text = self._texts(row)
        if text:
            other = recognise(row)
            if other is not None and set(other.columns.values()).isdisjoint(self.shape.columns.values()):
                text = f"this row looks like {other.label}, but the file like {self.shape.label}"
        elif _has_text(row, "system") and self.shape.format is not DataFormat.COMPLETION:
            self.system_rows += 1
        return text

    # ---- plain texts

    def _texts(self, row: dict[str, Any]) -> str:
        columns = self.shape.columns
        for part in ("text", "answer", "prompt"):
            name = columns.get(part)
            if name is None:
                continue
            value = row.get(name)
            if value is None:
                return f"the field {shown(name)} is missing" if name not in row else f"the field {shown(name)} is null"
            if not isinstance(value, str):
                return f"the field {shown(name)} must be text, but is {_kind(value)}"
            if part != "prompt" and not value.strip():
                return f"the field {shown(name)} is empty: there is nothing to train on"
        for part in ("context", "system"):
            value = row.get(columns.get(part, part)) if part in columns or part == "system" else None
            if value is not None and not isinstance(value, str):
                return f"the field {shown(columns.get(part, part))} must be text, but is {_kind(value)}"
        prompt = columns.get("prompt")
        if prompt and not row[prompt].strip() and not _has_text(row, columns.get("context", "")):
            return f"the field {shown(prompt)} is empty"
        return ""

    # ---- segments of Axolotl's input_output

    def _segments(self, row: dict[str, Any]) -> str:
        segments = row.get("segments")
        if not isinstance(segments, list) or not segments:
            return "'segments' must be a list of {label, text} that is not empty"
        for number, segment in enumerate(segments, 1):
            if not isinstance(segment, dict):
                return f"segment {number} must be an object with label and text, but is {_kind(segment)}"
            if not isinstance(segment.get("label"), bool):
                return f"segment {number}: 'label' must be true (trained) or false (masked)"
            if not isinstance(segment.get("text"), str):
                return f"segment {number}: 'text' must be text, but is {_kind(segment.get('text'))}"
        if not any(s["label"] and s["text"] for s in segments):
            return "no segment has label true: there is nothing to train on"
        return ""

    # ---- chats

    def _chat(self, row: dict[str, Any]) -> str:
        columns = self.shape.columns
        name = columns["messages"]
        turns = as_turns(row.get(name))
        if turns is None:
            return f"the field {shown(name)} is {'null' if name in row else 'missing'}"
        if not isinstance(turns, list):
            return f"the field {shown(name)} must be a list of messages, but is {_kind(turns)}"
        if not turns:
            return f"the field {shown(name)} is an empty list"
        role_key, content_key, training_key = columns["role"], columns["content"], columns.get("training")
        known, roles, spoken, flags = self._roles, [], False, False
        for number, turn in enumerate(turns, 1):
            role = known.get(turn[role_key]) if type(turn) is dict and type(turn.get(role_key)) is str else None
            # Only what is not the usual case is looked at closely; this loop decides how fast a file is read.
            if role is None or type(turn.get(content_key)) is not str:
                text = self._turn(number, turn)
                if text:
                    return text
                role = known[turn[role_key]] = role_of()[turn[role_key].lower()]
            roles.append(role)
            if role == "assistant" and (turn.get(content_key) or turn.get("tool_calls")):
                spoken = True
            if training_key is not None and turn.get(training_key) is not None:
                flags = True
        if "assistant" not in roles:
            return "no message is the assistant's: there is nothing to train on"
        if not spoken:
            return "every message of the assistant is empty: there is nothing to train on"
        self.training_flags |= flags
        if roles[0] == "system":
            self.system_rows += not _has_text(row, "system")
        self.untrained_end_rows += roles[-1] != "assistant"
        self.broken_alternation_rows += not _alternates(tuple(roles))
        return ""

    @property
    def roles(self) -> dict[str, set[str]]:
        """Names of speakers seen in the data, by role."""
        seen: dict[str, set[str]] = {}
        for name, role in self._roles.items():
            seen.setdefault(role, set()).add(name)
        return seen

    def _turn(self, number: int, turn: object) -> str:
        columns = self.shape.columns
        if not isinstance(turn, dict):
            return f"message {number} must be an object, but is {_kind(turn)}"
        role = turn.get(columns["role"])
        if not isinstance(role, str):
            state = "missing" if role is None else f"{_kind(role)}, not text"
            return f"message {number}: {shown(columns['role'])} is {state}"
        if role.lower() not in role_of():
            known = ", ".join(facts()["chat"]["roles"])
            return f"message {number}: the role {shown(role)} is not known (known: {known} and their usual names)"
        content = turn.get(columns["content"])
        if isinstance(content, list):
            return self._parts(number, content)
        if isinstance(content, str) or (content is None and turn.get("tool_calls")):
            return ""
        state = "missing" if content is None else f"{_kind(content)}, not text"
        return f"message {number}: {shown(columns['content'])} is {state}"

    @staticmethod
    def _parts(number: int, parts: list[object]) -> str:
        for part in parts:
            if not isinstance(part, dict):
                return f"message {number}: a part of its content must be an object, but is {_kind(part)}"
            if part.get("type") not in (None, "text") or not isinstance(part_text(part), str):
                return (
                    f"message {number}: only text is trained, but its content has a part of type "
                    f"{shown(part.get('type'))}"
                )
        return ""


@lru_cache(maxsize=4096)
def _alternates(roles: tuple[str, ...]) -> bool:
    """Whether user and assistant take turns, after a system text and not counting tools."""
    talk = [role for role in (roles[1:] if roles[0] == "system" else roles) if role != "tool"]
    return all(role == ("user", "assistant")[index % 2] for index, role in enumerate(talk))


def part_text(part: dict[str, Any]) -> object:
    """The words of one content part, under the names that the trainer tries."""
    for name in ("text", "content", "value"):
        if part.get(name):
            return part[name]
    return ""


def _has_text(row: dict[str, Any], name: str) -> bool:
    value = row.get(name)
    return isinstance(value, str) and bool(value)


def _kind(value: object) -> str:
    names: dict[type, str] = {
        list: "a list",
        dict: "an object",
        str: "text",
        bool: "a boolean",
        int: "a number",
        float: "a number",
    }
    return names.get(type(value), "null" if value is None else type(value).__name__)
