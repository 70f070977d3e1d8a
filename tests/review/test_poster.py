"""The sticky comment, against a server on this machine that speaks the calls it takes."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
from github_server import GitHub

from recipegen.review.poster import LONGEST, Mode, Outcome, Place, post, tag_of
from recipegen.spec import RecipegenError

TAG = "<!-- recipegen-review -->"
BODY = f"{TAG}\n### fits\n"
TOKEN = "a-token"


@pytest.fixture
def github() -> Iterator[GitHub]:
    server = GitHub()
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


def place(github: GitHub) -> Place:
    return Place("owner/name", 7, TOKEN, github.api)


def test_the_first_time_a_comment_is_made_and_then_it_is_edited(github: GitHub) -> None:
    github.add("I like it", "someone", "User")
    assert post(place(github), BODY).outcome is Outcome.CREATED
    assert post(place(github), BODY).outcome is Outcome.UNCHANGED
    assert post(place(github), BODY.replace("fits", "does not fit")).outcome is Outcome.UPDATED
    assert [one["body"] for one in github.comments] == ["I like it", BODY.replace("fits", "does not fit")]
    assert github.tokens == {f"Bearer {TOKEN}"}
    assert ("POST", "/repos/owner/name/issues/7/comments") in github.calls
    assert ("PATCH", "/repos/owner/name/issues/comments/2") in github.calls


def test_it_is_found_behind_many_pages(github: GitHub) -> None:
    for number in range(250):
        github.add(f"talk {number}", "someone", "User")
    github.add(BODY)
    github.add("more talk", "someone", "User")
    assert post(place(github), BODY + "more").outcome is Outcome.UPDATED
    assert len(github.comments) == 252


@pytest.mark.parametrize("login", [None, "a-person"])
def test_nobody_elses_comment_is_touched(github: GitHub, login: str | None) -> None:
    github.login = login
    github.add(BODY, "mallory", "User")
    github.add(f"> {TAG}\nquoted", "github-actions[bot]")
    assert post(place(github), BODY + "x").outcome is Outcome.CREATED
    assert github.comments[0]["body"] == BODY
    assert post(place(github), BODY + "y").outcome is Outcome.UPDATED
    assert github.comments[0]["body"] == BODY
    assert github.comments[2]["body"] == BODY + "y"


def test_modes(github: GitHub) -> None:
    assert post(place(github), BODY, only_when_there=True).outcome is Outcome.UNCHANGED
    assert github.comments == []
    post(place(github), BODY)
    assert post(place(github), BODY + "x", mode=Mode.KEEP).outcome is Outcome.UNCHANGED
    assert post(place(github), BODY + "x", mode=Mode.NEW).outcome is Outcome.CREATED
    assert [one["body"] for one in github.comments] == [BODY, BODY + "x"]
    assert post(place(github), BODY + "over", only_when_there=True).outcome is Outcome.UPDATED


@pytest.mark.parametrize("status", [401, 403, 404])
def test_a_token_without_the_right_is_no_error(github: GitHub, status: int) -> None:
    github.status = status
    assert post(place(github), BODY).outcome is Outcome.DENIED


@pytest.mark.parametrize("status", [302, 422, 500, 503])
def test_an_api_that_fails_is_said_in_one_line(github: GitHub, status: int) -> None:
    github.status = status
    with pytest.raises(RecipegenError, match=str(status)) as caught:
        post(place(github), BODY)
    assert TOKEN not in str(caught.value)


@pytest.mark.parametrize("raw", [b"<html>", b"\xff\xfe", b'{"a": 1}', b'"text"'])
def test_an_answer_that_is_none(github: GitHub, raw: bytes) -> None:
    github.raw = raw
    with pytest.raises(RecipegenError):
        post(place(github), BODY)


@pytest.mark.parametrize("raw", [b'[1, null, {"id": "x", "body": 3}, {"id": 1}, {"id": 2, "body": "b", "user": 4}]'])
def test_comments_that_are_none(github: GitHub, raw: bytes) -> None:
    github.raw = raw
    assert post(place(github), BODY, only_when_there=True).outcome is Outcome.UNCHANGED


def test_no_server(github: GitHub) -> None:
    with pytest.raises(RecipegenError, match="cannot be reached"):
        post(Place("owner/name", 7, TOKEN, "http://127.0.0.1:1"), BODY)


@pytest.mark.parametrize(
    ("repository", "number", "token", "api"),
    [
        ("owner", 7, TOKEN, "https://api.github.com"),
        ("owner/../x", 7, TOKEN, "https://api.github.com"),
        ("owner/name?x=1", 7, TOKEN, "https://api.github.com"),
        ("owner/name", 0, TOKEN, "https://api.github.com"),
        ("owner/name", 7, "", "https://api.github.com"),
        ("owner/name", 7, "a\r\nHost: b", "https://api.github.com"),
        ("owner/name", 7, TOKEN, "http://example.org"),
        ("owner/name", 7, TOKEN, "file:///etc"),
    ],
)
def test_a_place_that_is_none(repository: str, number: int, token: str, api: str) -> None:
    with pytest.raises(RecipegenError) as caught:
        Place(repository, number, token, api)
    assert TOKEN not in str(caught.value)


@pytest.mark.parametrize("body", ["", "no tag", f"text\n{TAG}", "<!-- a --> b\n", "<!-- <b> -->\n"])
def test_a_body_without_a_tag_is_refused(body: str) -> None:
    with pytest.raises(RecipegenError):
        tag_of(body)


def test_a_body_that_is_too_long_is_refused(github: GitHub) -> None:
    with pytest.raises(RecipegenError, match="65,536"):
        post(place(github), BODY + "x" * LONGEST)
    assert github.calls == []
