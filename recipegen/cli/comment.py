"""`recipegen comment`: put a review on a pull request, as one comment that is kept up to date."""

from __future__ import annotations

import os
from pathlib import Path

import click

from recipegen.spec import RecipegenError

_LONGEST = 2**20  # bytes of a comment's file


@click.command()
@click.argument("file", type=click.Path())
@click.option("--repository", envvar="GITHUB_REPOSITORY", metavar="OWNER/NAME", help="[env: GITHUB_REPOSITORY]")
@click.option("--pull-request", type=int, metavar="NUMBER", required=True, help="Its number.")
@click.option(
    "--mode",
    type=click.Choice(["update", "new", "keep"]),
    default="update",
    show_default=True,
    help="Edit the earlier comment, write another, or leave the first as it is.",
)
@click.option("--only-update", is_flag=True, help="Write no first comment: stay silent where there is nothing to say.")
@click.option("--dry-run", is_flag=True, help="Say what would be posted; send nothing.")
def comment(file: str, repository: str | None, pull_request: int, mode: str, only_update: bool, dry_run: bool) -> int:
    """Post FILE (of `recipegen review --format github`) on a pull request of GitHub, or edit the earlier comment.

    \b
    The token is read from GITHUB_TOKEN (or GH_TOKEN), the address from GITHUB_API_URL. A token that may not write, as a
    fork's pull request has it, is said and is no error.

    \b
    Examples:
      recipegen review --base main --head HEAD --output review.md
      recipegen comment review.md --repository owner/name --pull-request 12
    """
    from recipegen.review import poster
    from recipegen.source import Limits, read_bounded

    if not repository:
        raise RecipegenError("which repository?", fix="Give --repository OWNER/NAME")
    content = read_bounded(Path(file), Limits(file_bytes=_LONGEST))
    try:
        body = content.decode("utf-8")
    except UnicodeDecodeError:
        raise RecipegenError("is no UTF-8 text", where=file) from None
    poster.tag_of(body)
    if dry_run:
        poster.Place(repository, pull_request, "none is needed")
        click.echo(f"would post {len(body):,} characters on {repository}#{pull_request}")
        return 0
    token = os.environ.get("GITHUB_TOKEN") or os.environ.get("GH_TOKEN") or ""
    place = poster.Place(repository, pull_request, token, os.environ.get("GITHUB_API_URL") or poster.API)
    posted = poster.post(place, body, mode=poster.Mode(mode), only_when_there=only_update)
    if posted.outcome is poster.Outcome.DENIED:
        click.echo(f"{repository}#{pull_request}: the token may not comment; nothing was posted", err=True)
        return 0
    click.echo(f"{repository}#{pull_request}: {posted.outcome.value} {posted.url}".rstrip())
    return 0
