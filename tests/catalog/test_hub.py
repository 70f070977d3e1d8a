"""Models from a local folder and from a Hub: a small HTTP server stands for the Hub, no network is used."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest

from recipegen.catalog import load_model
from recipegen.catalog.hub import is_hub_id
from recipegen.estimate import parameters
from recipegen.spec import RecipegenError

CONFIG = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 256,
    "max_position_embeddings": 512,
}
TEMPLATE = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
COMMIT = "0123456789abcdef0123456789abcdef01234567"


def safetensors(shapes: dict[str, tuple[str, list[int]]]) -> bytes:
    """The beginning of a safetensors file (the weights themselves are never read)."""
    header = {name: {"dtype": d, "shape": s, "data_offsets": [0, 0]} for name, (d, s) in shapes.items()}
    encoded = json.dumps({"__metadata__": {"format": "pt"}, **header}).encode()
    return struct.pack("<Q", len(encoded)) + encoded + b"\x00" * 64


class Hub:
    """What the server answers: files by repository, API documents, and repositories that refuse."""

    def __init__(self) -> None:
        self.files: dict[str, dict[str, bytes]] = {}
        self.api: dict[str, dict[str, Any]] = {}
        self.refuse: dict[str, tuple[int, str]] = {}  # repository -> status, X-Error-Code
        self.asked: list[str] = []
        self.has_api = True


class Handler(BaseHTTPRequestHandler):
    """The resolve and api routes of the Hub, with the headers that huggingface_hub reads."""

    hub: Hub

    def log_message(self, *args: Any) -> None:
        pass

    def do_HEAD(self) -> None:
        self.respond(body=False)

    def do_GET(self) -> None:
        self.respond(body=True)

    def refuse(self, status: int, code: str) -> None:
        self.send_response(status)
        self.send_header("X-Error-Code", code)
        self.send_header("X-Error-Message", code)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def respond(self, body: bool) -> None:
        path = unquote(urlsplit(self.path).path)
        self.hub.asked.append(f"{self.command} {path}")
        if path.startswith("/api/models/"):
            self.answer_api(path.removeprefix("/api/models/"), body)
            return
        repository, _, rest = path.lstrip("/").partition("/resolve/")
        revision, _, name = rest.partition("/")
        if repository in self.hub.refuse:
            self.refuse(*self.hub.refuse[repository])
        elif repository not in self.hub.files:
            self.refuse(401, "RepoNotFound")
        elif revision not in ("main", COMMIT):
            self.refuse(404, "RevisionNotFound")
        elif name not in self.hub.files[repository]:
            self.refuse(404, "EntryNotFound")
        else:
            self.send_file(self.hub.files[repository][name], body)

    def send_file(self, data: bytes, body: bool) -> None:
        start, end = 0, len(data) - 1
        wanted = self.headers.get("Range")
        if wanted:
            first, _, last = wanted.removeprefix("bytes=").partition("-")
            start, end = int(first), min(int(last or end), end)
        self.send_response(206 if wanted else 200)
        self.send_header("ETag", f'"{hashlib.sha256(data).hexdigest()}"')
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("Content-Length", str(end - start + 1))
        if wanted:
            self.send_header("Content-Range", f"bytes {start}-{end}/{len(data)}")
        self.end_headers()
        if body:
            self.wfile.write(data[start : end + 1])

    def answer_api(self, rest: str, body: bool) -> None:
        repository, _, revision = rest.partition("/revision/")
        if repository in self.hub.refuse:
            self.refuse(*self.hub.refuse[repository])
        elif not self.hub.has_api or repository not in self.hub.files:
            self.refuse(404, "RepoNotFound")
        elif revision not in ("", "main", COMMIT):
            self.refuse(404, "RevisionNotFound")
        else:
            siblings = [{"rfilename": name} for name in self.hub.files[repository]]
            document = {"id": repository, "sha": COMMIT, "siblings": siblings, **self.hub.api.get(repository, {})}
            data = json.dumps(document).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            if body:
                self.wfile.write(data)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty Hub cache for this test alone; the client read its own variables when it was imported."""
    from huggingface_hub import constants

    folder = tmp_path / "cache"
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(folder))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "no-token"))
    return folder


@pytest.fixture
def hub(cache: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    state = Hub()
    state.files["org/tiny"] = {"config.json": json.dumps(CONFIG).encode()}
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Bound", (Handler,), {"hub": state}))
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    yield state
    server.shutdown()
    server.server_close()
    thread.join(timeout=5)


# --- the Hub


def test_a_hub_id_is_read_from_the_endpoint(hub: Hub) -> None:
    hub.api["org/tiny"] = {
        "safetensors": {"parameters": {"BF16": 1000, "F32": 10}, "total": 1010},
        "gated": "manual",
        "cardData": {"license": "apache-2.0"},
        "config": {"tokenizer_config": {"chat_template": TEMPLATE, "eos_token": "<|endoftext|>"}},
    }
    spec = load_model("org/tiny")
    assert (spec.id, spec.hidden_size, spec.license, spec.gated) == ("org/tiny", 64, "apache-2.0", True)
    assert (spec.num_parameters, spec.download_bytes) == (1010, 2 * 1000 + 4 * 10)
    assert (spec.chat_template, spec.end_of_turn) == ("tokenizer_default", ("<|im_end|>",))
    assert spec.eos_token == "<|endoftext|>"
    assert "/org/tiny" in spec.source
    assert parameters.disagreement(spec) is not None


def test_weights_are_never_asked_for(hub: Hub) -> None:
    hub.files["org/tiny"]["model.safetensors"] = safetensors({"a": ("BF16", [3, 5])}) + b"\x00" * 10_000_000
    hub.api["org/tiny"] = {"safetensors": {"parameters": {"BF16": 15}, "total": 15}}
    load_model("org/tiny")
    assert not [request for request in hub.asked if "safetensors" in request and request.startswith("GET /org")]


def test_without_an_api_the_headers_of_the_files_are_read(hub: Hub) -> None:
    """A mirror that serves files only, and a repository whose card knows nothing."""
    hub.files["org/tiny"]["model.safetensors"] = safetensors({"a": ("BF16", [3, 5]), "b": ("F32", [7])})
    spec = load_model("org/tiny")
    assert (spec.num_parameters, spec.download_bytes) == (22, 2 * 15 + 4 * 7)


def test_a_mirror_without_an_api_still_gives_the_shape(hub: Hub) -> None:
    hub.has_api = False
    spec = load_model("org/tiny")
    assert (spec.hidden_size, spec.num_parameters) == (64, 0)
    assert parameters.total(spec) > 0


def test_a_revision_is_asked_for(hub: Hub) -> None:
    assert load_model("org/tiny", revision=COMMIT).hidden_size == 64
    assert any(f"/resolve/{COMMIT}/config.json" in request for request in hub.asked)
    with pytest.raises(RecipegenError, match="no revision 'v9'"):
        load_model("org/tiny", revision="v9")


def test_a_gated_model_says_how_to_get_in(hub: Hub) -> None:
    hub.refuse["org/gated"] = (403, "GatedRepo")
    with pytest.raises(
        RecipegenError, match=r"org/gated is gated\. Accept its licence at http.*org/gated.*hf auth login"
    ):
        load_model("org/gated")
    hub.refuse["org/gated"] = (401, "GatedRepo")
    with pytest.raises(RecipegenError, match="is gated"):
        load_model("org/gated")
    hub.refuse["org/gated"] = (403, "")
    with pytest.raises(RecipegenError, match="is gated"):
        load_model("org/gated")


def test_a_missing_model_gets_the_nearest_catalogue_names(hub: Hub) -> None:
    with pytest.raises(RecipegenError, match=r"no model 'Qwen/Qwen3-8C'.*Did you mean Qwen/Qwen3-8B.*hf auth login"):
        load_model("Qwen/Qwen3-8C")


def test_a_repository_without_a_config_is_probably_an_adapter(hub: Hub) -> None:
    hub.files["org/adapter"] = {"adapter_config.json": b"{}"}
    with pytest.raises(RecipegenError, match=r"org/adapter has no config\.json\. Adapter and GGUF"):
        load_model("org/adapter")


def test_an_unknown_architecture_on_the_hub_names_the_repository(hub: Hub) -> None:
    hub.files["org/tiny"]["config.json"] = b'{"model_type": "mamba2"}'
    with pytest.raises(RecipegenError, match=r"org/tiny/config\.json.*mamba2.*Known: "):
        load_model("org/tiny")


def test_a_server_error_is_one_line(hub: Hub) -> None:
    hub.refuse["org/tiny"] = (418, "")
    with pytest.raises(RecipegenError, match="could not be read from http") as caught:
        load_model("org/tiny")
    assert "\n" not in str(caught.value)


def test_offline_reads_the_cache(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    load_model("org/tiny")
    asked = len(hub.asked)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert load_model("org/tiny").hidden_size == 64
    assert len(hub.asked) == asked


def test_offline_without_a_cache_says_so(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(
        RecipegenError, match=r"HF_HUB_OFFLINE is set and the config\.json of org/tiny is not in the cache"
    ):
        load_model("org/tiny")
    assert hub.asked == []


def test_a_dead_endpoint_says_so(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(RecipegenError, match=r"http://127\.0\.0\.1:9 cannot be reached"):
        load_model("org/tiny")


LOAD = """
import sys
from recipegen.catalog import load_model
from recipegen.spec import RecipegenError
try:
    print(load_model(sys.argv[1]).id)
except RecipegenError as error:
    print(error)
"""


def load_elsewhere(name: str, home: Path, endpoint: str, **variables: str) -> tuple[str, str]:
    """stdout and stderr of a process of its own: the client prints through handlers made at its import."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("HF_")}
    done = subprocess.run(
        [sys.executable, "-c", LOAD, name],
        cwd=Path(__file__).parents[2],
        env={**environment, "HF_HOME": str(home), "HF_ENDPOINT": endpoint, **variables},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout, done.stderr


@pytest.mark.parametrize("variables", [{}, {"HF_HUB_VERBOSITY": "debug", "HF_HUB_DISABLE_PROGRESS_BARS": "0"}])
def test_nothing_of_the_client_reaches_stderr(hub: Hub, tmp_path: Path, variables: dict[str, str]) -> None:
    out, err = load_elsewhere("nobody/nothing", tmp_path, "http://127.0.0.1:9", **variables)
    assert out.count("\n") == 1
    assert "cannot be reached" in out
    assert err == ""
    endpoint = os.environ["HF_ENDPOINT"]
    assert load_elsewhere("org/tiny", tmp_path, endpoint, **variables) == ("org/tiny\n", "")
    hub.refuse["org/down"] = (503, "")
    out, err = load_elsewhere("org/down", tmp_path, endpoint, **variables)
    assert "HTTP 503" in out
    assert err == ""


def test_logging_and_progress_bars_are_as_they_were(hub: Hub) -> None:
    from huggingface_hub.utils import are_progress_bars_disabled

    before = (logging.root.manager.disable, are_progress_bars_disabled())
    load_model("org/tiny")
    with pytest.raises(RecipegenError):
        load_model("org/none")
    assert (logging.root.manager.disable, are_progress_bars_disabled()) == before


def test_a_server_that_is_down_is_asked_once(hub: Hub) -> None:
    hub.refuse["org/down"] = (503, "")
    with pytest.raises(RecipegenError, match="could not be read"):
        load_model("org/down")
    assert hub.asked == ["HEAD /org/down/resolve/main/config.json"]


def test_a_server_that_says_nothing_is_given_up(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{silent.getsockname()[1]}")
        monkeypatch.setenv("HF_HUB_ETAG_TIMEOUT", "0.2")
        start = time.monotonic()
        with pytest.raises(RecipegenError, match="cannot be reached"):
            load_model("org/tiny")
        assert time.monotonic() - start < 2


def test_without_an_answer_the_cache_serves(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    load_model("org/tiny")
    hub.refuse["org/tiny"] = (503, "")
    assert load_model("org/tiny").hidden_size == 64
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    assert load_model("org/tiny").hidden_size == 64


def test_an_endpoint_that_is_no_address(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "file:///etc")
    with pytest.raises(RecipegenError, match="HF_ENDPOINT"):
        load_model("org/tiny")


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("a/b", True),
        ("meta-llama/Llama-3.1-8B", True),
        ("a", False),
        ("a/b/c", False),
        ("a/..", False),
        ("a--b/c", False),
        ("a/b c", False),
        ("a/b\n", False),
        ("ä/b", False),
        ("a/" + "b" * 97, False),
    ],
)
def test_what_a_hub_id_looks_like(name: str, answer: bool) -> None:
    assert is_hub_id(name) is answer


# --- a folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "my model"
    path.mkdir()
    (path / "config.json").write_text(json.dumps(CONFIG))
    return path


def test_a_folder_with_nothing_but_a_config(folder: Path) -> None:
    spec = load_model(str(folder))
    assert (spec.id, spec.hidden_size, spec.num_parameters) == (str(folder), 64, 0)
    assert spec.chat_template is None
    assert not spec.instruct
    assert load_model(str(folder / "config.json")).hidden_size == 64


def test_weight_headers_of_a_folder_are_counted(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(safetensors({"a": ("BF16", [3, 5]), "b": ("F8_E4M3", [8])}))
    spec = load_model(str(folder))
    assert (spec.num_parameters, spec.download_bytes) == (23, 38)


def test_an_index_counts_its_shards_or_speaks_for_them(folder: Path) -> None:
    index = {"metadata": {"total_size": 64}, "weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    assert (load_model(str(folder)).num_parameters, load_model(str(folder)).download_bytes) == (0, 64)
    for shard in ("model-1.safetensors", "model-2.safetensors"):
        (folder / shard).write_bytes(safetensors({shard: ("BF16", [10])}))
    assert (load_model(str(folder)).num_parameters, load_model(str(folder)).download_bytes) == (20, 40)


def test_an_index_cannot_lead_out_of_the_folder(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "secret.safetensors").write_bytes(safetensors({"a": ("BF16", [3])}))
    index = {"metadata": {"total_size": 5}, "weight_map": {"a": "../secret.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    assert load_model(str(folder)).num_parameters == 0


@pytest.mark.parametrize(
    "content",
    [
        b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n",
        b"",
        b"\xff" * 16,
        struct.pack("<Q", 2) + b"[]",
        struct.pack("<Q", 12) + b'{"a": "oops"',
        struct.pack("<Q", 15) + b'{"a": {"x": 1}}',
        struct.pack("<Q", 27) + b'{"a": {"shape": [-1, "x"]}}',
    ],
)
def test_a_weight_file_that_is_none_is_named(folder: Path, content: bytes) -> None:
    (folder / "model.safetensors").write_bytes(content)
    with pytest.raises(RecipegenError, match=r"model\.safetensors: not a safetensors file"):
        load_model(str(folder))


@pytest.mark.parametrize("where", ["tokenizer_config.json", "chat_template.jinja"])
def test_the_tokenizer_files_tell_how_a_turn_ends(folder: Path, where: str) -> None:
    tokenizer: dict[str, Any] = {"eos_token": {"content": "</s>", "lstrip": False}}
    if where == "chat_template.jinja":
        (folder / where).write_text(TEMPLATE)
    else:
        tokenizer["chat_template"] = [{"name": "tools", "template": "x"}, {"name": "default", "template": TEMPLATE}]
    (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer))
    spec = load_model(str(folder))
    assert (spec.eos_token, spec.end_of_turn, spec.instruct) == ("</s>", ("<|im_end|>",), True)


def test_a_template_that_ends_turns_with_eos(folder: Path) -> None:
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"eos_token": "<eos>", "chat_template": "{{ m.content + eos_token }}"})
    )
    assert load_model(str(folder)).end_of_turn == ("<eos>",)


def test_bad_files_of_a_folder_name_file_and_line(folder: Path) -> None:
    (folder / "config.json").write_text('{\n  "model_type": "llama",\n  oops\n}')
    with pytest.raises(RecipegenError, match=r"config\.json:3: not valid JSON"):
        load_model(str(folder))
    (folder / "config.json").write_text(json.dumps(CONFIG))
    (folder / "tokenizer_config.json").write_text("[]")
    with pytest.raises(RecipegenError, match=r"tokenizer_config\.json.*not a mapping"):
        load_model(str(folder))


def test_a_folder_without_a_config(tmp_path: Path) -> None:
    with pytest.raises(RecipegenError, match=r"has no config\.json"):
        load_model(str(tmp_path))


def test_a_folder_wins_over_a_name(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    local = folder.parent / "Qwen" / "Qwen3-14B"
    local.mkdir(parents=True)
    (local / "config.json").write_text(json.dumps(CONFIG))
    monkeypatch.chdir(folder.parent)
    assert load_model("Qwen/Qwen3-14B").hidden_size == 64
