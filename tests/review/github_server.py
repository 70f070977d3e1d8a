"""A server on this machine that speaks the REST calls of a pull request's comments."""

from __future__ import annotations

import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit


class GitHub(ThreadingHTTPServer):
    """Comments of one pull request. `status` answers everything with that code instead."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.comments: list[dict[str, Any]] = []
        self.calls: list[tuple[str, str]] = []
        self.login: str | None = None  # None: an Actions token
        self.status: int | None = None
        self.raw: bytes | None = None
        self.tokens: set[str | None] = set()

    @property
    def api(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def add(self, body: str, login: str = "github-actions[bot]", kind: str = "Bot") -> None:
        self.comments.append({"id": len(self.comments) + 1, "body": body, "user": {"login": login, "type": kind}})


class _Handler(BaseHTTPRequestHandler):
    server: GitHub

    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        self._note()
        parts = urlsplit(self.path)
        if parts.path == "/user":
            self._answer(*((200, {"login": self.server.login}) if self.server.login else (403, {})))
            return
        query = parse_qs(parts.query)
        size, page = int(query["per_page"][0]), int(query["page"][0])
        self._answer(200, self.server.comments[(page - 1) * size : page * size])

    def do_POST(self) -> None:
        self._note()
        self.server.add(self._body(), self.server.login or "github-actions[bot]")
        self._answer(201, {**self.server.comments[-1], "html_url": "https://example.org/1"})

    def do_PATCH(self) -> None:
        self._note()
        number = int(self.path.rpartition("/")[2])
        self.server.comments[number - 1]["body"] = self._body()
        self._answer(200, self.server.comments[number - 1])

    def _note(self) -> None:
        self.server.calls.append((self.command, urlsplit(self.path).path))
        self.server.tokens.add(self.headers.get("Authorization"))

    def _body(self) -> str:
        content = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        return str(content["body"])

    def _answer(self, code: int, content: Any) -> None:
        raw = self.server.raw if self.server.raw is not None else json.dumps(content).encode()
        self.send_response(self.server.status or code)
        if self.server.status in (301, 302, 307):
            self.send_header("Location", "http://127.0.0.1:1/")
        self.send_header("Content-Length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)
