"""From the name of a model as people write it to its ModelSpec.

Names are taken apart by rule, not looked up row by row (catalog/model_words.py): organisation, letter case and
separators do not count, a size (`7B`) is a number that must agree with the model's, and words such as Instruct, AWQ or
a date are dropped where the name as a whole fits nothing. Shapes are the catalogue's and those of catalog/shapes/. Only
the file of the model that is meant is opened.

`model_of(name, exact=True)` is for a file that trains what it names: family, version and size must all be there, so a
fine-tune under a name of its own is unknown rather than taken for a model that is called alike.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from recipegen.catalog import model as catalogue
from recipegen.catalog.model_words import VERSION, Words, name_facts, words
from recipegen.catalog.reading import load_yaml
from recipegen.catalog.shape_files import SHAPES_FOLDER, read
from recipegen.estimate import parameters
from recipegen.spec import ModelSpec

SAME_COUNT = 0.02  # a stated parameter count is rounded to two or three digits
SAME_SIZE = 0.1  # a size in a name is rounded more freely: "7B" is said of 6.74 to 7.62 billion
CONTRADICTION = 0.25  # beyond this a stated count and a name cannot mean the same model

_REQUIRED = tuple(f.name for f in fields(ModelSpec) if f.default is MISSING)
_SHAPELESS = ("num_parameters", "license", "gated", "chat_template", "end_of_turn", "eos_token", "instruct",
              "download_bytes", "trust_remote_code", "unconfirmed", "source", "quantization")  # fmt: skip
_SINGLE_WORD = 4  # letters from which a family's only word may begin a longer one (llava, llavanext)


class UnknownModel(KeyError):
    """No shape for this name; `reason` says why, in one line. `silent`: nothing is known of the name at all."""

    def __init__(self, reason: str, *, silent: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.silent = silent

    def __str__(self) -> str:
        return self.reason


@dataclass(frozen=True)
class KnownModel:
    """A model's shape and how sure it is.

    `notes` says what makes the shape less than certain: what it approximates, which variant was taken, weights that
    were published quantised. `derived` names the model whose shape this one has, with the source: a fact, not a guess.
    `module_names` maps a linear module's published name to this project's where they differ (`c_attn` ->
    `qkv_proj`). `quantised` is the format word of a republication with quantised weights (`awq`), else None.
    """

    spec: ModelSpec
    notes: tuple[str, ...] = ()
    derived: str = ""
    module_names: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    quantised: str | None = None


# --- what is known


@dataclass(frozen=True)
class _Entry:
    """A known name and the file of its shape."""

    name: str
    words: Words
    path: Path
    derived: str = ""

    @cached_property
    def spec(self) -> ModelSpec:
        return read(self.path)

    @cached_property
    def total(self) -> int:
        return parameters.total(self.spec)

    @cached_property
    def shape(self) -> ModelSpec:
        """The spec without what has no influence on memory or time: equal for models of one shape."""
        plain = ModelSpec(**{name: getattr(self.spec, name) for name in _REQUIRED})
        changed = {name: getattr(plain, name) for name in _SHAPELESS}
        return replace(self.spec, **changed, id="", max_position_embeddings=0)


@lru_cache(maxsize=1)
def _entries() -> tuple[_Entry, ...]:
    paths = [*sorted(SHAPES_FOLDER.glob("*.yaml")), *sorted(catalogue.MODELS_FOLDER.glob("*.yaml"))]
    by_id = {path.stem.replace("--", "/", 1): path for path in paths}
    found = [_Entry(name, words(name, decimal_underscore=True), path) for name, path in by_id.items()]
    for row in name_facts()["same_shape"]:
        derived = f"{row['name']} has the shape of {row['as']}: {row['source']}"
        found.append(_Entry(row["name"], words(row["name"]), by_id[row["as"]], derived))
    return tuple(found)


# --- the look-up


def model_of(name: str, params_b: float | None = None, *, exact: bool = False) -> KnownModel:
    """The model that `name` means. `params_b`, in billions, is the count that the publication states, if it does.

    `exact`: no word of a model's name may be missing, and its size must be named as its own name does.
    Raises UnknownModel with a reason when no shape fits, several different ones do, or name and count disagree.
    """
    readings = list(dict.fromkeys([words(name), words(name, decimal_underscore=True)]))
    candidates, family = _candidates(name, readings, params_b, exact)
    entry, note = _one(name, candidates, params_b)
    facts = load_yaml(entry.path)
    quantised = readings[0].quantised
    notes = [note, _count_note(entry, params_b), *facts.get("approximation", ())]
    if quantised:
        notes.append(f"the published weights are quantised ({quantised}); the shape is the original's")
    names = {key: tuple(value) for key, value in facts.get("module_names", {}).items()}
    return KnownModel(entry.spec, tuple(filter(None, notes)), entry.derived or family, names, quantised)


def _candidates(name: str, readings: list[Words], params_b: float | None, exact: bool) -> tuple[list[_Entry], str]:
    """The entries that the strictest reading finds, and the family whose shapes they are where it is another one."""
    for wanted in readings:
        for found in _levels(wanted, params_b, exact):
            if found:
                return found, ""
    for wanted in readings:
        for row in name_facts()["same_family"]:
            other = _in_family(wanted, row)
            for found in _levels(other, params_b, exact) if other else ():
                if found:
                    return found, f"{row['family']} has the shapes of {row['as']}: {row['source']}"
    reason = _why_unknown(name, readings)
    raise UnknownModel(reason or f"no shape is known for {name!r}", silent=not reason)


def _levels(wanted: Words, params_b: float | None, exact: bool) -> Iterator[list[_Entry]]:
    """Candidates from the strictest reading of a name to the loosest: a known name that begins with the words."""
    if not wanted.core:
        return
    begun = [entry for entry in _entries() if entry.words.core[:1] == wanted.core[:1]]
    if exact:  # the words first: no file is opened for the size of another model
        whole = [entry for entry in begun if wanted.core == entry.words.core and _same_size(wanted, entry)]
        yield [entry for entry in whole if entry.words.full == wanted.full]
        yield [entry for entry in whole if entry.words.full == wanted.core]
        yield [entry for entry in whole if entry.words.dated == wanted.dated]
        yield whole
        return
    sized = [entry for entry in begun if _size_fits(wanted, entry)]
    yield [entry for entry in sized if entry.words.full == wanted.full]
    yield [entry for entry in sized if entry.words.full == wanted.core]
    yield [entry for entry in sized if entry.words.dated == wanted.dated]
    same = [entry for entry in sized if entry.words.core == wanted.core]
    yield [entry for entry in same if entry.words.size == wanted.size]
    yield same
    longer = [entry for entry in sized if entry.words.core[: len(wanted.core)] == wanted.core]
    yield [entry for entry in longer if params_b is None or _near(entry, params_b, SAME_COUNT)]


def _size_fits(wanted: Words, entry: _Entry) -> bool:
    """Two sizes must be equal, or the wanted one the model's total; one alone must be near it; none fits all."""
    if wanted.size is None or wanted.size == entry.words.size:
        return True
    return _near(entry, wanted.size, SAME_SIZE if entry.words.size is None else SAME_COUNT)


def _same_size(wanted: Words, entry: _Entry) -> bool:
    """Both name one size, or neither does; a size beside a known name without one must be near its count."""
    if wanted.size == entry.words.size:
        return True
    return entry.words.size is None and wanted.size is not None and _near(entry, wanted.size, SAME_SIZE)


def _near(entry: _Entry, billions: float, share: float) -> bool:
    """Within `share` of the model's count, or of its text decoder's: publications state either."""
    counts = (entry.total, entry.total - entry.spec.extra_parameters)
    return any(abs(count / 1e9 - billions) <= share * count / 1e9 for count in counts)


def _one(name: str, candidates: list[_Entry], params_b: float | None) -> tuple[_Entry, str]:
    """The entry that the candidates agree on, with what had to be assumed: the stated count decides between shapes,
    then the lowest version."""
    if params_b is not None and len({entry.shape for entry in candidates}) > 1:
        candidates = [entry for entry in candidates if _near(entry, params_b, SAME_COUNT)] or candidates
    first = min(candidates, key=lambda entry: (len(entry.words.core), entry.words.core, len(entry.name), entry.name))
    note = ""
    if len({entry.shape for entry in candidates}) > 1:
        if not _only_versions_differ(candidates):
            names = ", ".join(sorted({entry.name for entry in candidates})[:4])
            raise UnknownModel(f"{name!r} leaves open which of several different models it is: {names} ...")
        note = f"{name!r} leaves the version open; taken as {first.name}"
    if params_b is not None and not _near(first, params_b, CONTRADICTION):
        raise UnknownModel(f"{name!r} is said to have {params_b} billion parameters, {first.name} has {first.total}")
    return first, note


def _only_versions_differ(candidates: list[_Entry]) -> bool:
    """`Mistral-7B` fits v0.1 to v0.3: the first is what the name meant when it was the only one."""
    rests = {(e.words.size, *(word for word in e.words.core if not VERSION.fullmatch(word))) for e in candidates}
    return len(rests) == 1


def _in_family(wanted: Words, row: Mapping[str, Any]) -> Words | None:
    """`wanted` with the family's words replaced by those of the other family; None for another family."""
    family, other = words(row["family"]).core, words(row["as"]).core
    if wanted.core[: len(family)] != family:
        return None
    core = (*other, *wanted.core[len(family) :])
    return Words(core, core, core, wanted.size, wanted.quantised)


def _count_note(entry: _Entry, params_b: float | None) -> str:
    """Names round freely (AFM-4.5B has 4.62 billion): a doubt only where the count of the shape is itself in doubt."""
    sure = entry.spec.num_parameters == entry.total
    if params_b is None or _near(entry, params_b, SAME_SIZE if sure else SAME_COUNT):
        return ""
    return f"stated as {params_b} billion parameters, the shape has {entry.total / 1e9:.2f} billion"


def _why_unknown(name: str, readings: list[Words]) -> str:
    for row in name_facts()["not_described"]:
        family = words(row["family"]).core
        for wanted in readings:
            if wanted.core[: len(family)] == family or _begins_with(wanted, family):
                return f"{name!r} is not described: {row['reason']}"
    return ""


def _begins_with(wanted: Words, family: tuple[str, ...]) -> bool:
    """A family of one long word also begins joined words: llava is the family of llavanext."""
    long_enough = len(family) == 1 and len(family[0]) >= _SINGLE_WORD
    return long_enough and bool(wanted.core) and wanted.core[0].startswith(family[0])
