"""A model by name: from the catalogue, from a local folder, or from the Hugging Face Hub.

A catalogue name opens one file, never all: the file's name is the model's id with `--` for the slash.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from recipegen.catalog.model_config import from_config
from recipegen.catalog.reading import load_yaml
from recipegen.spec import ModelSpec, RecipegenError

MODELS_FOLDER = Path(__file__).parent / "models"
_FACTS = ("license", "gated", "instruct", "chat_template", "eos_token", "trust_remote_code", "unconfirmed")
_SHORTEST_PREFIX = 3  # characters; shorter beginnings fit too many names to be a hint
_LONGEST_NAME = 200  # characters that are compared with the catalogue's names


def model_names() -> list[str]:
    """The ids of all catalogue models, sorted; from file names, nothing is opened."""
    return sorted((path.stem.replace("--", "/", 1) for path in MODELS_FOLDER.glob("*.yaml")), key=str.casefold)


def load_model(name_or_path: str, *, revision: str | None = None) -> ModelSpec:
    """The model of a catalogue name (`meta-llama/Llama-3.1-8B`, or `llama-3.1-8b`), a folder with a config.json, or
    a Hub id `organisation/name` (its config.json and the metadata of its weights; never the weights).

    A folder wins over a name, as it does for the trainers. `revision` is for Hub ids that are not in the catalogue.
    Raises RecipegenError with the nearest names when nothing fits.
    """
    name = name_or_path.strip()
    if not name or any(ord(character) < 32 for character in name):
        raise RecipegenError("the model's name is empty or has control characters", fix="Try: recipegen models list.")
    from recipegen.catalog import hub

    folder = _folder(name)
    if folder is not None:
        return hub.from_folder(folder, name)
    found = find(name)
    if found is not None:
        return read(found)
    if hub.is_hub_id(name):
        return hub.from_hub(name, revision)
    raise RecipegenError(
        f"no model {name!r}: not in the catalogue, not a folder, not a Hub id (organisation/name)",
        fix=suggestion(name) or "Try: recipegen models list.",
    )


def _folder(name: str) -> Path | None:
    """The local folder that `name` means, or None where it can only be a name."""
    try:
        path = Path(name).expanduser()
        if path.is_dir() and (path / "config.json").is_file():
            return path
        if path.name == "config.json" and path.is_file():
            return path.parent
        looks_local = name.startswith((".", "/", "~")) or "\\" in name
        exists = path.exists()
    except (OSError, ValueError, RuntimeError):
        return None
    if looks_local:
        what = "has no config.json" if exists else "does not exist"
        raise RecipegenError(f"the model folder {what}", where=name, fix="Give a folder that holds a config.json.")
    return None


def find(name: str) -> Path | None:
    """The catalogue file of a full id or of the part after the organisation, letter case ignored.

    Raises RecipegenError when a short name fits models of several organisations.
    """
    wanted = name.casefold().replace("/", "--", 1)
    short = "/" not in name
    matches = [
        path
        for path in MODELS_FOLDER.glob("*.yaml")
        if (path.stem.partition("--")[2] if short else path.stem).casefold() == wanted
    ]
    if len(matches) > 1:
        ids = ", ".join(sorted(path.stem.replace("--", "/", 1) for path in matches))
        raise RecipegenError(f"{name!r} may be any of {ids}", fix="Write the organisation too.")
    return matches[0] if matches else None


def complete_models(prefix: str) -> list[str]:
    """The catalogue ids that a shell may offer for `prefix`: it begins the id or the part after the organisation.

    Letter case is ignored; the order is that of model_names(). Nothing is opened.
    """
    wanted = prefix.casefold()
    return [
        name
        for name in model_names()
        if name.casefold().startswith(wanted) or name.partition("/")[2].casefold().startswith(wanted)
    ]


def suggestion(name: str) -> str | None:
    """`Did you mean ...?` with up to three catalogue names, or None: those that `name` begins, else similar ones."""
    known = model_names()
    by_key = {model.casefold(): model for model in known}
    by_key |= {model.partition("/")[2].casefold(): model for model in known}
    words = [name.casefold(), *([name.partition("/")[2].casefold()] if "/" in name else [])]
    begun = [sorted(complete_models(word), key=len) for word in words if len(word) >= _SHORTEST_PREFIX]
    near = [difflib.get_close_matches(word[:_LONGEST_NAME], by_key, n=3, cutoff=0.6) for word in words]
    similar = next((keys for keys in near if keys), [])
    found = dict.fromkeys([name for names in begun for name in names] or [by_key[key] for key in similar])
    return f"Did you mean {' or '.join(list(found)[:3])}?" if found else None


@lru_cache(maxsize=8)
def read(path: Path) -> ModelSpec:
    """One catalogue file as a ModelSpec."""
    facts = load_yaml(path)
    spec = from_config(facts["config"], facts["id"], where=path.name)
    return replace(
        spec,
        num_parameters=facts["num_parameters"],
        end_of_turn=tuple(facts.get("end_of_turn", ())),
        download_bytes=facts.get("download_bytes", 0),
        source=next(source["url"] for source in facts["sources"] if source["what"] == "shape"),
        **{key: facts[key] for key in _FACTS if key in facts},
    )


def sources(name: str) -> list[Mapping[str, Any]]:
    """Where a catalogue model's shape and parameter count are from; [] for a model that is not in the catalogue."""
    path = find(name)
    return list(load_yaml(path)["sources"]) if path else []


def all_models() -> Iterator[ModelSpec]:
    """Every catalogue model, in the order of model_names(). For listing; opens every file."""
    for name in model_names():
        path = find(name)
        assert path is not None
        yield read(path)


def describe(name: str) -> dict[str, Any]:
    """Everything known of a model as JSON values: the ModelSpec's fields (`unconfirmed` with them) and the sources.

    A catalogue model has a source of its shape and, unless `unconfirmed`, one of its parameter count; any other model
    has the place it was read from.
    """
    spec = load_model(name)
    facts = {key: value for key, value in asdict(spec).items() if key != "source"}
    facts["qk_norm"] = spec.qk_norm.value
    read_from = [{"what": "shape", "url": spec.source}] if spec.source else []
    facts["sources"] = [dict(source) for source in sources(spec.id)] or read_from
    described: dict[str, Any] = json.loads(json.dumps(facts))  # tuples as lists: what a reader of the JSON gets
    return described
