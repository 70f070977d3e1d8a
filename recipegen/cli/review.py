"""`recipegen review`: the comment of a pull request, what the change between two commits does."""

from __future__ import annotations

from typing import Any

import click

from recipegen.cli.diff import FORMATS, SplitAtDashes, answer, behind_dashes, common_options


@click.command(cls=SplitAtDashes)
@click.option("--base", required=True, metavar="SHA", help="The commit, branch or tag that the change goes into.")
@click.option("--head", default="HEAD", show_default=True, metavar="SHA", help="The commit with the change.")
@click.option("--format", "output", type=click.Choice(FORMATS), default="github", show_default=True)
@click.option(
    "--silent-below",
    type=click.Choice(["none", "notice", "alarm"]),
    default="none",
    show_default=True,
    help="Print nothing unless there is a notice, or an alarm.",
)
@common_options
@click.argument("paths", nargs=-1, metavar="[-- PATH...]")
@click.pass_context
def review(
    ctx: click.Context,
    /,
    base: str,
    head: str,
    output: str,
    silent_below: str,
    paths: tuple[str, ...],
    **given: Any,
) -> int:
    """Review the recipes that changed from where HEAD left BASE: does it fit, is it another experiment, do checkpoints
    still resume, what does it cost in hours.

    \b
    Both commits are read through git: nothing is checked out, fetched or executed, nothing outside of the commits is
    opened, and the policy is that of the base.

    \b
    Examples:
      recipegen review --base origin/main
      recipegen review --base "$BASE_SHA" --head "$HEAD_SHA" --output comment.md
      recipegen review --base main --silent-below notice -- recipes/

    Exit code: 0, 1 where .recipegen.yaml of the base says so (or --strict), 2 bad input.
    """
    from recipegen.review.git import check_revision
    from recipegen.review.sides import Wanted

    for revision in (base, head):
        check_revision(revision)
    asked = Wanted(base=base, head=head, merge_base=True, paths=(*paths, *(behind_dashes(ctx) or ())))
    return answer("review", asked, output, given, silent_below=silent_below)
