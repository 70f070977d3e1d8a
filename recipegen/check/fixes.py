"""The edits behind those findings whose fix is mechanical and safe. Everything else is for a person to decide.

A fix is offered only when it was tried: with it, the finding is gone, the key check finds no new error, the reader
meets no new problem, and a deprecated spelling reads as the same values as before.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import yaml

from recipegen.catalog.stack import Stack
from recipegen.check.keys import PLUGIN_PACKAGE, accelerate_keys, axolotl_keys, deepspeed_keys
from recipegen.check.subject import Subject
from recipegen.formats import (
    accelerate_read,
    arguments_read,
    axolotl_read,
    deepspeed_read,
    documents,
    edits,
    train_json_read,
)
from recipegen.formats.documents import Document, KeyPath
from recipegen.formats.reading import Reading
from recipegen.spec import Edit, Finding, RecipegenError, Severity

MAX_TRIALS = 100  # of one recipe at once: each reads and checks the changed file again,
MAX_TRIED = 2 * 2**20  # and so many bytes are read in all (a few seconds a MiB)
_CLOSE = 0.78  # as schema.closest
_CLEARLY = 0.08  # by how much the nearest known key must be nearer (difflib ratio) than the second
_SLIPS = 2  # letters missing, too many, wrong or swapped in a misspelling; more is another word (`comet_project_name`)
_DID_YOU_MEAN = re.compile(r"did you mean (\S+)\?")
_NOT_A_KEY = " is not a key of "  # schema.Kind.UNKNOWN
_PLUGINS = ("plugins",)
# Their today's spelling is another engine, not another word.
_OTHER_ENGINE = frozenset({("fsdp",), ("fsdp_config",)})
_KEYS: Mapping[str, Callable[[Document, Stack], Iterator[Finding]]] = {
    "axolotl": axolotl_keys,
    accelerate_read.FORMAT: accelerate_keys,
    deepspeed_read.FORMAT: deepspeed_keys,
}
_READERS: Mapping[str, Callable[[bytes, str], Reading]] = {
    "axolotl": axolotl_read.read,
    accelerate_read.FORMAT: accelerate_read.read,
    deepspeed_read.FORMAT: deepspeed_read.read,
    arguments_read.FORMAT: arguments_read.read,
    train_json_read.FORMAT: train_json_read.read,
}


def edits_for(finding: Finding, subject: Subject) -> tuple[Edit, ...]:
    """The safe fix of a finding whose `where` is a file of the subject; empty where there is none."""
    return _Fixer(subject).edits_for(finding)


def with_edits(findings: Iterable[Finding], subject: Subject) -> tuple[Finding, ...]:
    """The findings, each with its safe fix. For `--fix` only: every fix is tried on its file."""
    fixer = _Fixer(subject)
    return tuple(replace(one, edits=one.edits or fixer.edits_for(one)) for one in findings)


@dataclass(frozen=True)
class _Place:
    """Where a finding points: a key of a file that was read."""

    document: Document
    reading: Reading
    path: KeyPath

    @property
    def name(self) -> str:
        return self.document.name

    def value(self, path: KeyPath | None = None) -> Any:
        """What stands at a path, by default the finding's; None for nothing."""
        here: Any = self.document.values
        for part in self.path if path is None else path:
            if isinstance(here, list) and part.isdecimal() and int(part) < len(here):
                here = here[int(part)]
            elif isinstance(here, Mapping):
                here = here.get(part)
            else:
                return None
        return here


@dataclass
class _Fixer:
    subject: Subject
    trials: int = 0
    tried: int = 0  # bytes
    _checked: dict[str, tuple[Finding, ...]] = field(default_factory=dict)
    _paths: dict[str, dict[tuple[str, str], list[KeyPath]]] = field(default_factory=dict)  # by line and dotted key

    def edits_for(self, finding: Finding) -> tuple[Edit, ...]:
        kinds = {
            "RG701": self._renamed,
            "RG702": self._refused,
            "RG703": self._plugin,
            "RG705": self._number,
            "RG715": self._modern,
        }
        place = self._place(finding) if finding.rule in kinds else None
        if place is None:
            return ()
        proposals = kinds[finding.rule](finding, place)
        return next((made for made in proposals if self._holds(finding, place, made)), ())

    def _place(self, finding: Finding) -> _Place | None:
        name, _, line = finding.where.rpartition(":")
        document, reading = self.subject.documents.get(name), self.subject.readings.get(name)
        if document is None or reading is None or not line.isdecimal() or name not in self.subject.files:
            return None
        # A key may hold dots itself; the line tells such keys apart, and where it does not, nothing is done.
        if name not in self._paths:
            self._paths[name] = {}
            for path, at in document.lines.items():
                self._paths[name].setdefault((str(at), ".".join(path)), []).append(path)
        paths = self._paths[name].get((line, finding.field), [])
        return _Place(document, reading, paths[0]) if len(paths) == 1 and paths[0] else None

    # --- proposals

    def _renamed(self, finding: Finding, place: _Place) -> Iterator[tuple[Edit, ...]]:
        found, key, trainer = _DID_YOU_MEAN.fullmatch(finding.fix), place.path[-1], place.reading.format
        if not found or _NOT_A_KEY not in finding.reason or trainer not in _KEYS:
            return
        if key in self.subject.stack.other_names(trainer):
            return  # another trainer's word, not a misspelling: it may count something else
        if _one_is_near(key, found[1], self._objects(trainer)):
            yield (Edit(place.name, place.path, "rename", key=found[1]),)

    def _refused(self, finding: Finding, place: _Place) -> Iterator[tuple[Edit, ...]]:
        """A misspelt key where keys are strict, or a value that was a spelling once (`bf16: full`)."""
        yield from self._renamed(finding, place)
        yield from self._modern(finding, place)

    def _objects(self, trainer: str) -> list[Iterable[str]]:
        """The names of the keys of each kind of mapping."""
        stack = self.subject.stack
        if trainer == accelerate_read.FORMAT:
            table = stack.accelerate_keys()
            return [table["top"], *(section["keys"] for section in table["sections"].values())]
        table = stack.axolotl_keys() if trainer == "axolotl" else stack.deepspeed_keys()
        return list(table["objects"].values())

    def _plugin(self, finding: Finding, place: _Place) -> Iterator[tuple[Edit, ...]]:
        keys = self.subject.stack.axolotl_keys()
        owners = [plugin for plugin, name in keys["plugins"].items() if finding.field in keys["objects"][name]]
        if len(owners) == 1:
            yield (Edit(place.name, _PLUGINS, "insert", f"{PLUGIN_PACKAGE}{owners[0]}"),)

    def _number(self, finding: Finding, place: _Place) -> Iterator[tuple[Edit, ...]]:
        value = place.value()
        if finding.severity is not Severity.NOTE and isinstance(value, str):  # a note: the trainer converts it
            try:
                yield (Edit(place.name, place.path, "set", float(value)),)
            except ValueError:
                return

    def _modern(self, finding: Finding, place: _Place) -> Iterator[tuple[Edit, ...]]:
        today = place.reading.legacy.get(finding.field)
        if today is not None and place.path not in _OTHER_ENGINE:
            yield from _modern(place, today)

    # --- the trial

    def _holds(self, finding: Finding, place: _Place, made: tuple[Edit, ...]) -> bool:
        self.trials += 1
        self.tried += len(self.subject.files[place.name])
        if self.trials > MAX_TRIALS or (self.trials > 1 and self.tried > MAX_TRIED):
            return False
        try:
            content = edits.apply(self.subject.files[place.name], place.name, made)
        except RecipegenError:
            return False
        read = _READERS.get(place.reading.format)
        if read is None:
            return False
        reading = read(content, place.name)
        if len(reading.problems) > len(place.reading.problems):
            return False
        modern = finding.rule == "RG715" or (finding.rule == "RG702" and finding.field in place.reading.legacy)
        if modern and not _means_the_same(place.reading, reading, finding.field):
            return False
        before, after = self._found(place.document, place.reading), self._check(content, place)
        known = {_identity(one) for one in before}
        gone = _identity(finding) not in {_identity(one) for one in after}
        return gone and all(_identity(one) in known for one in after if one.severity is Severity.ERROR)

    def _found(self, document: Document, reading: Reading) -> tuple[Finding, ...]:
        if document.name not in self._checked:
            check = _KEYS.get(reading.format)
            self._checked[document.name] = tuple(check(document, self.subject.stack)) if check else ()
        return self._checked[document.name]

    def _check(self, content: bytes, place: _Place) -> tuple[Finding, ...]:
        check = _KEYS.get(place.reading.format)
        return tuple(check(documents.read(content, place.name), self.subject.stack)) if check else ()


def _identity(finding: Finding) -> tuple[str, str]:
    return finding.rule, finding.field


def _one_is_near(key: str, near: str, objects: list[Iterable[str]]) -> bool:
    """True when `key` is `near` but for slips of the fingers, and no other key of the same mapping was meant."""
    if _slips(key, near) > _SLIPS or re.findall(r"\d+", key) != re.findall(r"\d+", near):
        return False
    beside = {name for names in objects if near in names for name in names} - {near}
    second = difflib.get_close_matches(key, sorted(beside), n=1, cutoff=_CLOSE)
    return not second or _ratio(key, near) - _ratio(key, second[0]) >= _CLEARLY


def _ratio(one: str, other: str) -> float:
    return difflib.SequenceMatcher(None, other, one).ratio()


def _slips(one: str, other: str) -> int:
    """Letters to insert, delete, replace or swap with their neighbour (optimal string alignment distance)."""
    before: list[int] = []
    row: list[int] = list(range(len(other) + 1))
    for i, letter in enumerate(one, 1):
        above = before
        before = row
        row = [i]
        for j, wanted in enumerate(other, 1):
            least = min(before[j] + 1, row[j - 1] + 1, before[j - 1] + (letter != wanted))
            if i > 1 and j > 1 and letter == other[j - 2] and one[i - 2] == wanted:
                least = min(least, above[j - 2] + 1)
            row.append(least)
    return row[-1]


# --- deprecated spellings


def _modern(place: _Place, today: str) -> Iterator[tuple[Edit, ...]]:
    """Ways to write the old key at `place` in today's spelling, `key` or `key: value`; the trial decides."""
    name, old, value = place.name, place.path, place.value()
    key, separator, word = today.partition(": ")
    new = tuple(key.split("."))
    away = Edit(name, old, "delete")
    if value is None or (value is False and (separator or new[-1] == "device")):
        yield (away,)
        return
    if separator:
        written = yaml.safe_load(word)
        if new == old:
            yield (Edit(name, old, "set", written),)
        elif place.value(new) is None and old[:-1] == new[:-1]:
            # `flash_attention: true` is the one key in other words; `gradient_checkpointing: offload` is two settings,
            # of which the trainer refuses the second without the first.
            if value is True:
                yield (Edit(name, old, "rename", key=new[-1]), Edit(name, new, "set", written))
            yield (Edit(name, old, "set", True), Edit(name, new[:-1], "insert", written, new[-1]))
        return
    if old[:-1] == new[:-1]:
        rename = Edit(name, old, "rename", key=new[-1])
        yield (rename,)
        if value is True:  # `fp16: true` of Accelerate: the key is the value of today's
            yield (rename, Edit(name, new, "set", old[-1]))
        return
    moved = "cpu" if value is True and new[-1] == "device" else value
    yield (Edit(name, new[:-1], "insert", moved, new[-1]), away)


def _means_the_same(before: Reading, after: Reading, old: str) -> bool:
    stated = (before.values, before.facts, before.passthrough) == (after.values, after.facts, after.passthrough)
    return stated and old not in after.legacy and after.legacy.keys() <= before.legacy.keys()
