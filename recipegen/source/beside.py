"""What lies beside a recipe's files and decides whether it runs: the model's folder, and the checkpoint to go on from.

Of a model's folder config.json and the names of the tied weights in its index; of a checkpoint the names of its files,
without their content. Only folders inside of the project's or next to it, reached without a link, each bounded.
"""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from recipegen.formats.documents import Document
from recipegen.formats.reading import Reading
from recipegen.source.files import Limits, read_bounded
from recipegen.source.within import Within
from recipegen.spec import RecipegenError

CONFIG, INDEX = "config.json", "model.safetensors.index.json"
_MODEL_KEYS = (("base_model",), ("model_name_or_path",), ("model_name",), ("model", "name"))
_RESUME_KEYS = (("resume_from_checkpoint",),)
_OUTPUT_KEYS = (("output_dir",), ("saving", "output"), ("output",))
_INDEX_LIMITS = Limits(file_bytes=16 * 2**20)  # the index of a model of 600 GB has 10 MB
# Names of tensors that rules ask for, as JSON writes them: no other is kept.
_TENSOR = re.compile(rb'"([A-Za-z0-9_.]{0,200}(?:embed_tokens|embed_in|wte|lm_head)\.weight)"\s*:')
_CHECKPOINT = re.compile(r"checkpoint-(\d{1,12})\Z")
_OF_A_CHECKPOINT = re.compile(
    r"(?:__\d+_\d+\.distcp|\.metadata|model[^/]*\.safetensors|pytorch_model[^/]*\.bin|adapter_model\.safetensors"
    r"|[^/]*_optim_states\.pt|[^/]*_model_states\.pt|optimizer\.(?:pt|bin))\Z"
)
_MOST_NAMES, _MOST_ENTRIES, _MOST_LEVELS = 16, 4096, 2
_LONGEST_NAME = 1024


@dataclass
class Beside:
    """`files` by their names as seen from the project's folder; those of a checkpoint are empty."""

    folder: Path
    files: dict[str, bytes] = field(default_factory=dict)
    within: Within | None = None

    def model(self, name: str) -> None:
        """config.json and what is needed of the index of a model's folder."""
        place = self._place(name)
        if place is None:
            return
        path, shown = place
        config = _read(path / CONFIG, Limits())
        if config is None:
            return
        self.files[f"{shown}/{CONFIG}"] = config
        index = _read(path / INDEX, _INDEX_LIMITS)
        if index is not None:
            tensors = dict.fromkeys(found.decode() for found in _TENSOR.findall(index)[:_MOST_NAMES])
            self.files[f"{shown}/{INDEX}"] = json.dumps({"weight_map": dict.fromkeys(tensors, "")}).encode()

    def checkpoint(self, name: str) -> None:
        """The names of the files of a checkpoint's folder that say of which kind it is."""
        place = self._place(name)
        if place is not None:
            self._names(*place)

    def last_checkpoint(self, name: str) -> None:
        """The same of the checkpoint with the highest number in an output folder."""
        place = self._place(name)
        if place is None:
            return
        path, shown = place
        folders, _ = _listed(path)
        numbered = [(int(match[1]), one) for one in folders if (match := _CHECKPOINT.match(one))]
        if numbered:
            last = max(numbered)[1]
            self._names(path / last, f"{shown}/{last}")

    def _names(self, path: Path, shown: str) -> None:
        waiting, found = [(path, shown, 0)], 0
        while waiting and found < _MOST_NAMES:
            here, named, level = waiting.pop(0)
            folders, names = _listed(here)
            for one in [one for one in names if _OF_A_CHECKPOINT.match(one)][: _MOST_NAMES - found]:
                self.files[f"{named}/{one}"] = b""
                found += 1
            if level < _MOST_LEVELS:
                waiting += [(here / one, f"{named}/{one}", level + 1) for one in folders[:_MOST_NAMES]]

    def _place(self, name: str) -> tuple[Path, str] | None:
        """The folder that a file names and its name from the project's folder; None for one that is not looked into."""
        if not 0 < len(name) < _LONGEST_NAME or "\0" in name or name.startswith("~"):
            return None
        if self.within is not None:
            found = self.within.folder(self.folder, name)
            return None if found is None or found == self.folder else (found, os.path.normpath(name))
        root = self.folder.parent
        path = Path(os.path.normpath(self.folder / name))
        try:
            if not path.is_relative_to(root) or path in (root, self.folder) or not path.is_dir():
                return None
            if any((root / part).is_symlink() for part in _upwards(path.relative_to(root))):
                return None
        except (OSError, ValueError):
            return None
        return path, os.path.normpath(name) if not os.path.isabs(name) else os.path.relpath(path, self.folder)


def collect(
    folder: Path, documents: Iterable[Document], scripts: Iterable[Reading], within: Within | None = None
) -> Mapping[str, bytes]:
    """What the files of a project name of folders beside them, or of folders of their tree. Reads nothing else, and
    never raises."""
    found = Beside(folder, within=within)
    documents, scripts = list(documents), list(scripts)
    stated = [document.values for document in documents if document.values is not None]
    words = [{**reading.passthrough, **reading.facts} for reading in scripts]
    models = [reading.values.get("model") for reading in scripts]
    for name in _texts([*_values([*stated, *words], _MODEL_KEYS), *models]):
        found.model(name)
    resumed = list(_values([*stated, *words], _RESUME_KEYS))
    for name in _texts(resumed):
        found.checkpoint(name)
    automatic = True in resumed or True in _values([*stated, *words], (("auto_resume_from_checkpoints",),))
    if automatic:
        for name in _texts(_values([*stated, *words], _OUTPUT_KEYS)):
            found.last_checkpoint(name)
    return found.files


def _values(sources: Iterable[Mapping[str, Any]], paths: Iterable[tuple[str, ...]]) -> Iterator[Any]:
    for values in sources:
        for path in paths:
            value: Any = values
            for key in path:
                value = value.get(key) if isinstance(value, Mapping) else None
            if value is not None:
                yield value


def _texts(values: Iterable[Any]) -> Iterator[str]:
    return iter(dict.fromkeys(value for value in values if isinstance(value, str)))


def _upwards(path: Path) -> Iterator[Path]:
    return (Path(*path.parts[:length]) for length in range(1, len(path.parts) + 1))


def _read(path: Path, limits: Limits) -> bytes | None:
    """A regular file that is no link, within the limits; None for any other."""
    try:
        if not stat.S_ISREG(os.lstat(path).st_mode):
            return None
        return read_bounded(path, limits)
    except (OSError, ValueError, RecipegenError):
        return None


def _listed(folder: Path) -> tuple[list[str], list[str]]:
    """Names of the folders and of the regular files in a folder, sorted; of a crowded one not all."""
    folders: list[str] = []
    names: list[str] = []
    try:
        with os.scandir(folder) as entries:
            for number, entry in enumerate(entries):
                if number >= _MOST_ENTRIES:
                    break
                if entry.is_dir(follow_symlinks=False):
                    folders.append(entry.name)
                elif entry.is_file(follow_symlinks=False):
                    names.append(entry.name)
    except OSError:
        pass
    return sorted(folders), sorted(names)
