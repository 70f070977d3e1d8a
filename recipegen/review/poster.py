"""One sticky comment on a pull request, through the three REST calls that it takes.

https://docs.github.com/en/rest/issues/comments: list (100 a page), create, update. The comment is found again by the
hidden tag on its first line, and only among those of the same author as the token's, where that is known: nobody else
can make the poster overwrite a comment by writing the tag.
"""

from __future__ import annotations

import json
import re
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any
from urllib.parse import urlsplit

from recipegen.catalog.bounded_yaml import shown
from recipegen.review.printers.markdown import LONGEST
from recipegen.spec import RecipegenError

API = "https://api.github.com"
_PAGE, _MOST_PAGES = 100, 30
_LONGEST_ANSWER = 32 * 2**20  # bytes
_REPOSITORY = re.compile(r"[A-Za-z0-9_.-]{1,100}/[A-Za-z0-9_.-]{1,100}")
_TAG = re.compile(r"<!-- [a-z0-9 :_./-]{1,200} -->")
_DENIED = (401, 403, 404)  # what a token without the right gets, too


class Mode(str, Enum):
    """UPDATE: the one comment, edited in place. NEW: another one each time. KEEP: the first is never changed."""

    UPDATE = "update"
    NEW = "new"
    KEEP = "keep"


class Outcome(str, Enum):
    CREATED = "created"
    UPDATED = "updated"
    UNCHANGED = "unchanged"
    DENIED = "denied"  # the token may not: a fork's pull request


@dataclass(frozen=True)
class Posted:
    outcome: Outcome
    url: str = ""


@dataclass(frozen=True)
class Place:
    """The pull request. `api` is GITHUB_API_URL; `token` is never printed."""

    repository: str
    number: int
    token: str
    api: str = API
    seconds: float = 30.0

    def __post_init__(self) -> None:
        if not _REPOSITORY.fullmatch(self.repository) or ".." in self.repository:
            raise RecipegenError(f"{shown(self.repository)} is no repository", fix="Give OWNER/NAME.")
        if self.number < 1:
            raise RecipegenError(f"{self.number} is no pull request")
        parts = urlsplit(self.api)
        local = parts.hostname in ("localhost", "127.0.0.1", "::1")
        if parts.scheme != "https" and not (parts.scheme == "http" and local):
            raise RecipegenError(f"{shown(self.api)} is no https address", fix="A token is sent over https only.")
        if not self.token or not self.token.isascii() or not self.token.isprintable():
            raise RecipegenError("no token", fix="Set GITHUB_TOKEN.")


def post(place: Place, body: str, *, mode: Mode = Mode.UPDATE, only_when_there: bool = False) -> Posted:
    """Create the comment, or bring the earlier one up to date. `only_when_there`: nothing new is written, so that a
    pull request that never had something to say stays silent; an earlier comment still learns that it is over.

    Raises RecipegenError for a body without a tag or too long, and for an API that gives no usable answer.
    """
    tag = tag_of(body)
    if len(body) > LONGEST:
        raise RecipegenError(f"the comment has {len(body):,} characters; GitHub takes {LONGEST:,}")
    try:
        earlier = None if mode is Mode.NEW else next(_earlier(place, tag), None)
        if earlier is not None:
            if mode is Mode.KEEP or _same(earlier.get("body"), body):
                return Posted(Outcome.UNCHANGED, _url(earlier))
            path = f"/repos/{place.repository}/issues/comments/{int(earlier['id'])}"
            return Posted(Outcome.UPDATED, _url(_call(place, "PATCH", path, {"body": body})))
        if only_when_there:
            return Posted(Outcome.UNCHANGED)
        path = f"/repos/{place.repository}/issues/{place.number}/comments"
        return Posted(Outcome.CREATED, _url(_call(place, "POST", path, {"body": body})))
    except _Denied:
        return Posted(Outcome.DENIED)


def tag_of(body: str) -> str:
    """The hidden tag on the first line. Raises RecipegenError when there is none."""
    first = body.partition("\n")[0].strip()
    if not _TAG.fullmatch(first):
        raise RecipegenError("the comment does not begin with a hidden tag, so it could not be found again")
    return first


def _same(text: object, body: str) -> bool:
    """GitHub keeps the lines of a body, with \\r\\n where a browser wrote it."""
    return isinstance(text, str) and text.replace("\r\n", "\n").strip() == body.strip()


def _earlier(place: Place, tag: str) -> Iterator[Mapping[str, Any]]:
    """Comments that begin with the tag, written by whoever the token is (a bot, or the account of a personal token)."""
    me = _login(place)
    for page in range(1, _MOST_PAGES + 1):
        path = f"/repos/{place.repository}/issues/{place.number}/comments?per_page={_PAGE}&page={page}"
        found = _call(place, "GET", path)
        if not isinstance(found, list):
            raise RecipegenError("the API's answer is no list of comments", where=place.api)
        for one in found:
            if isinstance(one, Mapping) and isinstance(one.get("id"), int) and isinstance(one.get("body"), str):
                user = one.get("user")
                login = user.get("login") if isinstance(user, Mapping) else None
                bot = isinstance(user, Mapping) and user.get("type") == "Bot"
                mine = login == me if me else bot
                if mine and one["body"].partition("\n")[0].strip() == tag:
                    yield one
        if len(found) < _PAGE:
            return


def _login(place: Place) -> str | None:
    """Whose token it is; None for the token of an Actions run, which may not ask (its comments are a bot's)."""
    try:
        found = _call(place, "GET", "/user")
    except _Denied:
        return None
    return found.get("login") if isinstance(found, Mapping) else None


def _url(answer: Any) -> str:
    url = answer.get("html_url") if isinstance(answer, Mapping) else None
    return url if isinstance(url, str) and url.startswith(("https://", "http://")) and url.isprintable() else ""


class _Denied(Exception):
    """The token has no right to this."""


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A redirect would carry the token to another host."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


def _call(place: Place, method: str, path: str, content: Mapping[str, Any] | None = None) -> Any:
    request = urllib.request.Request(  # noqa: S310 (https, or http to this machine: Place looks)
        place.api.rstrip("/") + path,
        data=None if content is None else json.dumps(content).encode("utf-8"),
        method=method,
        headers={
            "Accept": "application/vnd.github+json",
            "Authorization": f"Bearer {place.token}",
            "Content-Type": "application/json",
            "User-Agent": "recipegen",
            "X-GitHub-Api-Version": "2022-11-28",
        },
    )
    try:
        with urllib.request.build_opener(_NoRedirect).open(request, timeout=place.seconds) as answer:
            read = answer.read(_LONGEST_ANSWER + 1)
    except urllib.error.HTTPError as error:
        if error.code in _DENIED:
            raise _Denied from None
        raise RecipegenError(f"the API answered {error.code} to {method} {path}", where=place.api) from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", None) or error
        raise RecipegenError(f"the API cannot be reached: {reason}", where=place.api) from None
    if len(read) > _LONGEST_ANSWER:
        raise RecipegenError("the API's answer is too long", where=place.api)
    try:
        return json.loads(read) if read else {}
    except ValueError:
        raise RecipegenError("the API's answer is no JSON", where=place.api) from None
