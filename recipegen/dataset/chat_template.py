"""A model's chat template and special tokens, read from its tokenizer files; what ends a turn."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from recipegen.dataset.facts import facts
from recipegen.dataset.files import is_hub_id
from recipegen.dataset.problems import shown_path
from recipegen.spec import ModelSpec, RecipegenError

# Tags of the transformers library's own Jinja extension; they mark text and print nothing.
_GENERATION = re.compile(r"\{%-?\s*(?:generation|endgeneration)\s*-?%\}")
_FILE_BYTES = 1 << 28


class EndOfTurn(NamedTuple):
    """`chat_template` is Axolotl's name for the template; `eot_tokens` end an assistant's turn and must be trained."""

    chat_template: str
    eot_tokens: tuple[str, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True)
class TokenizerFiles:
    """What a model's folder says of its tokenizer. `added` are the tokens that exist as one whole."""

    folder: Path
    template: str | None = None
    eos: str | None = None
    bos: str | None = None
    generation_eos: tuple[str, ...] = ()
    added: frozenset[str] = field(default_factory=frozenset)


def find_tokenizer(model: ModelSpec, tokenizer_path: str | os.PathLike[str] | None = None) -> Path | None:
    """The folder with the model's tokenizer: the given one, the model's own, or that of the Hugging Face cache.

    Nothing is downloaded. Raises RecipegenError when `tokenizer_path` is given and holds no tokenizer files.
    """
    if tokenizer_path is not None:
        folder = Path(tokenizer_path)
        folder = folder.parent if folder.is_file() else folder
        if not any((folder / name).is_file() for name in ("tokenizer.json", "tokenizer_config.json")):
            raise RecipegenError(f"{shown_path(tokenizer_path)} holds neither tokenizer.json nor tokenizer_config.json")
        return folder
    try:
        own = Path(model.id)
        if (own / "tokenizer_config.json").is_file() or (own / "tokenizer.json").is_file():
            return own
    except (OSError, ValueError):
        return None
    return _cached(model.id) if is_hub_id(model.id) else None


def _cached(hub_id: str) -> Path | None:
    """The newest snapshot of a model in the cache, by the cache's documented layout and variables."""
    environment = os.environ
    home = environment.get("HF_HOME") or os.path.join(
        environment.get("XDG_CACHE_HOME") or os.path.join("~", ".cache"), "huggingface"
    )
    root = Path(environment.get("HF_HUB_CACHE") or os.path.join(home, "hub")).expanduser()
    folder = root / f"models--{hub_id.replace('/', '--')}"
    try:
        main = (folder / "refs" / "main").read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        main = ""
    try:
        snapshots = sorted((folder / "snapshots").iterdir(), key=lambda p: p.stat().st_mtime, reverse=True)
    except OSError:
        return None
    ordered = sorted(snapshots, key=lambda p: p.name != main)
    return next(
        (p for p in ordered if (p / "tokenizer.json").is_file() or (p / "tokenizer_config.json").is_file()), None
    )


def read_tokenizer_files(folder: Path) -> TokenizerFiles:
    """Template, end tokens and whole tokens of a folder. A file that is missing or broken says nothing."""
    config = _json(folder / "tokenizer_config.json")
    special = _json(folder / "special_tokens_map.json")
    by_id: dict[int, str] = {}
    decoder = config.get("added_tokens_decoder")
    for number, token in decoder.items() if isinstance(decoder, dict) else ():
        text = _content(token)
        if text and str(number).isdigit():
            by_id[int(number)] = text
    added = _json(folder / "tokenizer.json").get("added_tokens")
    for token in added if isinstance(added, list) else ():
        if isinstance(token, dict) and isinstance(token.get("id"), int) and _content(token):
            by_id[token["id"]] = str(_content(token))
    ids = _json(folder / "generation_config.json").get("eos_token_id")
    numbers = ids if isinstance(ids, list) else [ids]
    return TokenizerFiles(
        folder=folder,
        template=_template(folder, config),
        eos=_content(config.get("eos_token")) or _content(special.get("eos_token")),
        bos=_content(config.get("bos_token")) or _content(special.get("bos_token")),
        generation_eos=tuple(by_id[n] for n in numbers if isinstance(n, int) and n in by_id),
        added=frozenset(by_id.values()),
    )


def _json(path: Path) -> dict[str, Any]:
    try:
        if path.stat().st_size > _FILE_BYTES:
            return {}
        loaded = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return loaded if isinstance(loaded, dict) else {}


def _content(token: object) -> str | None:
    """A token is written as text or as an object with `content`."""
    if isinstance(token, dict):
        token = token.get("content")
    return token if isinstance(token, str) and token else None


def _template(folder: Path, config: dict[str, Any]) -> str | None:
    """The default template; the file chat_template.jinja goes before the config's key, as in transformers."""
    try:
        return (folder / "chat_template.jinja").read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        pass
    template = config.get("chat_template")
    if isinstance(template, list):
        named = {t.get("name"): t.get("template") for t in template if isinstance(t, dict)}
        template = named.get("default")
    return template if isinstance(template, str) and template else None


class TemplateRefused(Exception):
    """The template itself refuses a conversation (its raise_exception), or cannot render it."""


class ChatTemplate:
    """Renders conversations as transformers does, in Jinja's sandbox."""

    def __init__(self, source: str, files: TokenizerFiles) -> None:
        import jinja2
        from jinja2.sandbox import ImmutableSandboxedEnvironment

        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        environment.filters["tojson"] = _tojson
        environment.globals["raise_exception"] = _refuse
        environment.globals["strftime_now"] = lambda form: "29 Nov 2026" if form else ""
        try:
            self._template = environment.from_string(_GENERATION.sub("", source))
        except (jinja2.TemplateError, RecursionError) as error:
            raise TemplateRefused(str(error)) from None
        self._tokens = {"bos_token": files.bos or "", "eos_token": files.eos or ""}

    def render(self, turns: Sequence[dict[str, Any]], tools: object = None) -> str:
        """The text of a conversation. Raises TemplateRefused."""
        try:
            return str(self._template.render(messages=turns, tools=tools, add_generation_prompt=False, **self._tokens))
        except TemplateRefused:
            raise
        except Exception as error:  # a template may fail in any way a program can
            raise TemplateRefused(f"{type(error).__name__}: {error}") from None


def _refuse(message: object) -> None:
    raise TemplateRefused(" ".join(str(message).split()))


def _tojson(value: object, ensure_ascii: bool = False, indent: int | None = None, **_: object) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent)


def load_template(files: TokenizerFiles) -> ChatTemplate | None:
    """The folder's template when it renders an ordinary conversation, else None."""
    if not files.template:
        return None
    try:
        template = ChatTemplate(files.template, files)
        template.render(_PROBE)
    except (TemplateRefused, ImportError):
        return None
    return template


_ANSWERS = ("qzanswerone", "qzanswertwo")
_PROBE: list[dict[str, Any]] = [
    {"role": "user", "content": "qzquestionone"},
    {"role": "assistant", "content": _ANSWERS[0]},
    {"role": "user", "content": "qzquestiontwo"},
    {"role": "assistant", "content": _ANSWERS[1]},
]


def end_of_turn(model: ModelSpec, tokenizer_dir: str | os.PathLike[str] | None = None) -> EndOfTurn:
    """The chat template to train with and the tokens that end an assistant's turn.

    From the tokenizer's files where they are at hand: the template is rendered and the token right behind an answer is
    read off. Else from the catalogue's facts. A base model gets its family's template whose tokens exist already; a
    token is never added.
    """
    folder = find_tokenizer(model, tokenizer_dir)
    if folder is None:
        return _from_catalogue(model)
    files = read_tokenizer_files(folder)
    template = load_template(files)
    if template is not None:
        return _from_template(model, files, template)
    if files.template:
        note = "the tokenizer's chat template cannot be rendered here; the end of a turn is not verified"
        known = _from_catalogue(model)
        return EndOfTurn("tokenizer_default", known.eot_tokens, (note,))
    return _from_family(model, files)


def _from_catalogue(model: ModelSpec) -> EndOfTurn:
    tokens = model.end_of_turn or ((model.eos_token,) if model.eos_token else ())
    unverified = "the end-of-turn token is from the catalogue: the tokenizer's files are not at hand to verify it"
    if not tokens:
        unverified = (
            "the end-of-turn token is not known: the tokenizer's files are not at hand; check that the model's "
            "template ends a turn with its end-of-sequence token"
        )
    if model.instruct:
        return EndOfTurn("tokenizer_default", tokens, (unverified,))
    name = model.chat_template
    if name is None or name not in facts()["templates"]:
        name = name or facts()["last_resort_template"]
        return EndOfTurn(name, tokens, (f"a base model: the template {name} is used, no token is added", unverified))
    end = _ends(name, model.eos_token)
    return EndOfTurn(
        name,
        end or tokens,
        (
            f"a base model: its family's template {name} is used, no token is added",
            _untrained(end, model.eos_token),
            unverified,
        ),
    )


def _ends(name: str, eos: str | None) -> tuple[str, ...]:
    named = facts()["templates"][name]["end"]
    return tuple(t for t in (eos if t == "eos" else t for t in named) if t)


def _untrained(end: Sequence[str], eos: str | None) -> str:
    """Tokens that a base model has but has hardly seen."""
    if not end or list(end) == [eos]:
        return "the end of a turn is the end-of-sequence token, which the base model knows"
    return (
        f"{' '.join(end)} exists in the base tokenizer but the base model has hardly seen it; a full fine-tune learns "
        "it, an adapter on linear layers learns to write it only through its hidden states"
    )


def _from_family(model: ModelSpec, files: TokenizerFiles) -> EndOfTurn:
    """No template in the tokenizer: the family's, then any whose tokens exist, then one that needs none."""
    templates: dict[str, Any] = facts()["templates"]
    names = [model.chat_template] if model.chat_template in templates else []
    names += [name for name, t in templates.items() if not t.get("by_name")]
    fitting = (name for name in names if name and set(templates[name]["needs"]) <= files.added)
    chosen: str = next(fitting, facts()["last_resort_template"])
    end = _ends(chosen, files.eos or model.eos_token)
    notes = [f"the tokenizer has no chat template: {chosen} is used, whose tokens it has; no token is added"]
    if model.chat_template in templates and model.chat_template != chosen:
        notes.append(f"the family's template {model.chat_template} needs tokens that this tokenizer does not have")
    notes.append(_untrained(end, files.eos or model.eos_token))
    return EndOfTurn(chosen, end, tuple(notes))


def _from_template(model: ModelSpec, files: TokenizerFiles, template: ChatTemplate) -> EndOfTurn:
    text = template.render(_PROBE)
    known = {*files.added, *files.generation_eos, *model.end_of_turn, *(t for t in (files.eos, model.eos_token) if t)}
    known |= {end for t in facts()["templates"].values() for end in t["end"] if end != "eos"}
    found: list[str] = []
    notes: list[str] = []
    for answer in _ANSWERS:
        start = text.find(answer)
        tail = text[start + len(answer) :] if start >= 0 else ""
        token = _first_token(tail.partition("qzquestion")[0], known)
        if token and token not in found:
            found.append(token)
    source = files.template or ""
    reachable = [t for t in found if t in source or t == files.eos]
    if not reachable:
        notes.append(
            "no token ends the assistant's turn in the tokenizer's chat template: the model will not learn to stop; "
            "choose another template with --set chat_template=NAME"
        )
    elif files.eos and files.eos not in reachable:
        notes.append(
            f"a turn ends with {' '.join(reachable)}, but the tokenizer's end-of-sequence token is {files.eos}: "
            "serve the model with that stop token"
        )
    return EndOfTurn("tokenizer_default", tuple(reachable), tuple(notes))


def _first_token(tail: str, known: set[str]) -> str | None:
    """The whole token that comes first in the text behind an answer, with at most white space before it."""
    blank = len(tail) - len(tail.lstrip())
    if blank > facts()["end_of_turn_within"]:
        return None
    rest = tail[blank:]
    return max((t for t in known if t and rest.startswith(t)), key=len, default=None)
