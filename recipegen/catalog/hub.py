"""A model that is not in the catalogue: a local folder, or a Hub id. Configuration and weight metadata, never weights.

`HF_ENDPOINT`, `HF_HUB_OFFLINE`, `HF_HOME` and `HF_TOKEN` mean what they mean to huggingface_hub; the first two are
read at every call, so that a program may change them after the import.
"""

from __future__ import annotations

import logging
import os
import re
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from recipegen.catalog import weights
from recipegen.catalog.model_config import architecture_facts, from_config, parse_json
from recipegen.spec import ModelSpec, RecipegenError

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}", re.ASCII)
_TIMEOUT_S = 4.0  # of each part (connect, read) of the one request; HF_HUB_ETAG_TIMEOUT, if set, wins
_CLIENTS = ("httpx", "httpx2", "httpcore", "requests", "urllib3")  # what huggingface_hub has used to connect
_DEFAULT_ENDPOINT = "https://huggingface.co"


def is_hub_id(name: str) -> bool:
    """`organisation/name` in the Hub's alphabet, without `..` or `--`."""
    return _HUB_ID.fullmatch(name) is not None and ".." not in name and "--" not in name


def from_folder(folder: Path, model_id: str) -> ModelSpec:
    """The model of a folder with a config.json; weight and tokenizer files are used where they are there.

    Raises RecipegenError with the file (and line) that cannot be read.
    """
    path = folder / "config.json"
    spec = from_config(parse_json(_bytes(path), str(path)), model_id, where=str(path))
    return _with_local_facts(spec, folder)


def from_hub(model_id: str, revision: str | None = None, *, offline: bool | None = None) -> ModelSpec:
    """The model of a Hub id: its config.json and the metadata of its safetensors files.

    Offline (None: as `HF_HUB_OFFLINE` says) the cache alone is read. Raises RecipegenError that says what would help: a
    licence to accept, a login, the name that was meant, or the network.
    """
    with _quiet():
        return _from_hub(model_id, revision, _offline() if offline is None else offline)


def _from_hub(model_id: str, revision: str | None, offline: bool) -> ModelSpec:
    try:
        path = Path(_download(model_id, revision, offline))
    except RecipegenError:
        raise
    except Exception as error:  # the client's libraries raise many kinds; each must end as one clear line
        raise _explain(error, model_id, revision, offline) from None
    where = f"{model_id}/config.json"
    spec = from_config(parse_json(_bytes(path), where), model_id, where=where)
    spec = replace(_with_local_facts(spec, path.parent), source=f"{_endpoint()}/{model_id}/blob/main/config.json")
    return spec if offline else _with_hub_facts(spec, model_id, revision)


# --- local files


def _bytes(path: Path) -> bytes:
    limit = int(architecture_facts()["limits"]["config_bytes"])
    try:
        if path.stat().st_size > limit:
            raise RecipegenError(f"is larger than {limit} bytes", where=str(path))
        return path.read_bytes()
    except OSError as error:
        raise RecipegenError(f"cannot be read: {error.strerror or error}", where=str(path)) from None


def _with_local_facts(spec: ModelSpec, folder: Path) -> ModelSpec:
    """Parameter count and size from the weight files, chat template and end of turn from the tokenizer files."""
    stored = weights.stored_in(folder)
    tokenizer: Mapping[str, Any] = {}
    path = folder / "tokenizer_config.json"
    if path.is_file():
        tokenizer = parse_json(_bytes(path), str(path))
    template = tokenizer.get("chat_template")
    separate = folder / "chat_template.jinja"
    if separate.is_file():
        template = _bytes(separate).decode("utf-8", errors="replace")
    return replace(
        _with_tokenizer(spec, tokenizer, template),
        num_parameters=stored.parameters or spec.num_parameters,
        download_bytes=stored.bytes or spec.download_bytes,
    )


def _with_tokenizer(spec: ModelSpec, tokenizer: Mapping[str, Any], template: object) -> ModelSpec:
    eos = _token(tokenizer.get("eos_token")) or spec.eos_token
    if isinstance(template, list):  # several named templates; the default one is for chat
        named = {item.get("name"): item.get("template") for item in template if isinstance(item, dict)}
        template = named.get("default", next(iter(named.values()), None))
    if not isinstance(template, str) or not template.strip():
        return replace(spec, eos_token=eos)
    return replace(
        spec,
        eos_token=eos,
        chat_template="tokenizer_default",
        end_of_turn=_end_of_turn(template, eos),
        instruct=True,
    )


def _token(value: object) -> str | None:
    """A special token, written as a string or as {"content": string}."""
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) and value else None


def _end_of_turn(template: str, eos: str | None) -> tuple[str, ...]:
    """The tokens that end an assistant's turn, as far as the template's text tells."""
    for token in architecture_facts()["turn_end_tokens"]:
        if token in template:
            return (token,)
    return (eos,) if eos and ("eos_token" in template or eos in template) else ()


# --- the Hub


def _offline() -> bool:
    return os.environ.get("HF_HUB_OFFLINE", "").strip().upper() in ("1", "ON", "YES", "TRUE")


def _endpoint() -> str:
    endpoint = os.environ.get("HF_ENDPOINT", "").strip().rstrip("/") or _DEFAULT_ENDPOINT
    if not endpoint.startswith(("http://", "https://")):
        raise RecipegenError(f"HF_ENDPOINT is {endpoint!r}; it must start with http:// or https://")
    return endpoint


def _timeout_s() -> float:
    try:
        stated = float(os.environ.get("HF_HUB_ETAG_TIMEOUT", ""))
    except ValueError:
        return _TIMEOUT_S
    return stated if 0 < stated < float("inf") else _TIMEOUT_S


@contextmanager
def _quiet() -> Iterator[None]:
    """Nothing that the client and its libraries log, warn or draw reaches stderr: what matters is in the one error."""
    logged = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            from huggingface_hub.utils import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars

            hidden = are_progress_bars_disabled()
            disable_progress_bars()
            try:
                yield
            finally:
                if not hidden:
                    enable_progress_bars()
    finally:
        logging.disable(logged)


def _download(model_id: str, revision: str | None, offline: bool) -> str:
    """The path of config.json in the cache. Asks the Hub once: the client's own download retries for 23 s."""
    from huggingface_hub import errors, get_hf_file_metadata, hf_hub_download, hf_hub_url

    def download(cached: bool) -> str:
        return str(
            hf_hub_download(
                model_id,
                "config.json",
                revision=revision,
                endpoint=_endpoint(),
                local_files_only=cached,
                etag_timeout=_timeout_s(),
            )
        )

    if offline:
        return download(cached=True)
    try:
        url = hf_hub_url(model_id, "config.json", revision=revision, endpoint=_endpoint())
        get_hf_file_metadata(url, timeout=_timeout_s())
    except Exception as error:
        if isinstance(error, errors.RevisionNotFoundError | errors.EntryNotFoundError):
            raise
        try:  # no answer, or a refusal: an earlier download still serves
            return download(cached=True)
        except Exception:  # nothing is cached
            raise error from None
    return download(cached=False)


def _with_hub_facts(spec: ModelSpec, model_id: str, revision: str | None) -> ModelSpec:
    """What the Hub's API says of a repository. A mirror without that API leaves the facts as they are."""
    from huggingface_hub import HfApi

    api = HfApi(endpoint=_endpoint())
    try:
        info = api.model_info(
            model_id,
            revision=revision,
            timeout=_timeout_s(),
            expand=["safetensors", "gated", "cardData", "config"],
        )
    except Exception:  # metadata only: the shape is known, and a file endpoint need not have an API
        return _with_weight_headers(spec, model_id, revision)
    tensors = info.safetensors
    counts = dict(tensors.parameters) if tensors is not None else {}
    card = info.card_data
    facts = info.config if isinstance(info.config, dict) else {}
    tokenizer = facts.get("tokenizer_config")
    if isinstance(tokenizer, dict) and spec.chat_template is None:
        template = tokenizer.get("chat_template") or facts.get("chat_template_jinja")
        spec = _with_tokenizer(spec, tokenizer, template)
    licence = getattr(card, "license", None) if card is not None else None
    spec = replace(
        spec,
        license=licence if isinstance(licence, str) else spec.license,
        gated=bool(info.gated),
    )
    if not counts:
        return _with_weight_headers(spec, model_id, revision)
    return replace(spec, num_parameters=sum(counts.values()), download_bytes=weights.bytes_of(counts))


def _with_weight_headers(spec: ModelSpec, model_id: str, revision: str | None) -> ModelSpec:
    """Counts from the headers of the safetensors files (range requests; the client reads only the first bytes)."""
    from huggingface_hub import HfApi

    if spec.num_parameters:
        return spec
    try:
        metadata = HfApi(endpoint=_endpoint()).get_safetensors_metadata(model_id, revision=revision)
    except Exception:  # no safetensors files, or an endpoint without range requests: the shape says enough
        return spec
    counts = dict(metadata.parameter_count)
    return replace(spec, num_parameters=sum(counts.values()), download_bytes=weights.bytes_of(counts))


def _explain(error: Exception, model_id: str, revision: str | None, offline: bool) -> RecipegenError:
    """One line for whatever the client raised: what is wrong and what would help."""
    from huggingface_hub import errors

    from recipegen.catalog.model import suggestion

    page = f"{_endpoint()}/{model_id}"
    near = f"{hint} " if (hint := suggestion(model_id)) else ""
    chain = _chain(error)
    status = next((code for e in chain if (code := getattr(getattr(e, "response", None), "status_code", None))), None)
    if any(isinstance(e, errors.GatedRepoError) for e in chain) or status == 403:
        return RecipegenError(
            f"{model_id} is gated",
            fix=f"Accept its licence at {page}, then run `hf auth login` (or set HF_TOKEN).",
        )
    if isinstance(error, errors.RepositoryNotFoundError) or status == 401:
        return RecipegenError(
            f"no model {model_id!r} on the Hub, or it is private",
            fix=f"{near}For a private model run `hf auth login` (or set HF_TOKEN).",
        )
    if isinstance(error, errors.RevisionNotFoundError):
        return RecipegenError(f"{model_id} has no revision {revision!r}", fix=f"Revisions: {page}/tree/main.")
    if status is None and any(map(_means_no_answer, chain)):
        if offline:
            return RecipegenError(
                f"HF_HUB_OFFLINE is set and the config.json of {model_id} is not in the cache",
                fix=f"{near}Unset HF_HUB_OFFLINE, or give a local folder that holds a config.json.",
            )
        return RecipegenError(
            f"the Hub at {_endpoint()} cannot be reached and the config.json of {model_id} is not in the cache",
            fix=f"{near}Check the network or HF_ENDPOINT, or give a local folder that holds a config.json.",
        )
    if isinstance(error, errors.EntryNotFoundError) and not isinstance(error, errors.LocalEntryNotFoundError):
        return RecipegenError(
            f"{model_id} has no config.json",
            fix="Adapter and GGUF repositories have none: name the model they were made from.",
        )
    reason = f"HTTP {status}" if status else type(chain[-1]).__name__
    return RecipegenError(f"{model_id} could not be read from {_endpoint()} ({reason})", fix="Try again later.")


def _chain(error: BaseException) -> list[BaseException]:
    """The error and what it was raised from: the client wraps an HTTP status in `not in the cache`."""
    chain = [error]
    while (cause := chain[-1].__cause__) is not None and cause not in chain:
        chain.append(cause)
    return chain


def _means_no_answer(error: BaseException) -> bool:
    """No server answered: offline, refused, timed out, or the client gave up on its connection."""
    from huggingface_hub import errors

    if isinstance(error, errors.LocalEntryNotFoundError | errors.OfflineModeIsEnabled | OSError):
        return True
    gave_up = isinstance(error, RuntimeError) and "client has been closed" in str(error)  # huggingface_hub 1.17
    return gave_up or type(error).__module__.partition(".")[0] in _CLIENTS
