"""`recipegen diff`: what a change of recipes does, between two paths or two revisions of a repository."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from recipegen.cli.answer import wrap, write
from recipegen.cli.options import complete, complete_hardware

if TYPE_CHECKING:
    from recipegen.review import Review
    from recipegen.review.sides import Wanted

F = TypeVar("F", bound=Callable[..., Any])

# github: the comment of a pull request, with the hidden tag it is found by; annotations: lines of an Actions log.
FORMATS = ["text", "json", "markdown", "github", "annotations"]
TAG = "recipegen-review"  # of the comment that is updated
_BEHIND = "recipegen.paths"


class SplitAtDashes(click.Command):
    """A command that can tell what stands behind `--`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if "--" in args:
            at = args.index("--")
            ctx.meta[_BEHIND] = args[at + 1 :]
            args = args[:at]
        return super().parse_args(ctx, args)


def behind_dashes(ctx: click.Context) -> list[str] | None:
    """The words behind `--`; None where there was none."""
    found: list[str] | None = ctx.meta.get(_BEHIND)
    return found


def common_options(command: F) -> F:
    """What `diff` and `review` have in common, but for the format."""
    for option in reversed(
        (
            click.option(
                "--hardware",
                metavar="NAME|FILE",
                shell_complete=complete(complete_hardware),
                help="The machine, of both sides; else the one of each recipe (`recipegen hardware list`).",
            ),
            click.option("--nodes", type=click.IntRange(1, 64), help="Machines of that profile, of both sides."),
            click.option("--network", metavar="NAME", help="Between them: tcp-25, roce-25, roce-100, ib-hdr, ib-ndr."),
            click.option("--all", "everything", is_flag=True, help="Recipes without a change, too."),
            click.option(
                "--policy",
                "policy_file",
                type=click.Path(),
                metavar="FILE",
                help="What fails (review: {fail_on: [...]}).  [default: .recipegen.yaml of the base side]",
            ),
            click.option("--strict", is_flag=True, help="Fail for what does not fit, a new error, or is not readable."),
            click.option("--full", is_flag=True, help="Also ask Axolotl's own models, where they are installed."),
            click.option("--output", "output_file", type=click.Path(), metavar="FILE", help="Write the answer there."),
            click.option("-v", "--verbose", is_flag=True, help="Every number and every finding."),
        )
    ):
        command = option(command)
    return command


@click.command(cls=SplitAtDashes)
@click.argument("sides", nargs=-1, metavar="[A [B] | A...B] [-- PATH...]")
@click.option("--format", "output", type=click.Choice(FORMATS), default="text", show_default=True)
@common_options
@click.pass_context
def diff(ctx: click.Context, /, sides: tuple[str, ...], output: str, **given: Any) -> int:
    """Say what a change does to a training run, not which lines moved: memory, batch, steps, hours, what resumes.

    \b
    Two paths are compared as they are. Anything else are revisions of this repository, read through git: nothing is
    checked out, fetched or executed. Without a second one, the working tree; without any, HEAD and the working tree.

    \b
    Examples:
      recipegen diff
      recipegen diff HEAD~1 -- recipes/
      recipegen diff main...HEAD
      recipegen diff old/axolotl.yaml new/axolotl.yaml --hardware kentino-8x-rtx-5090

    Exit code: 0, 1 where .recipegen.yaml of the base side says so (or --strict), 2 bad input.
    """
    from recipegen.review.sides import wanted

    return answer("diff", wanted(sides, behind_dashes(ctx)), output, given)


def answer(command: str, asked: Wanted, output: str, given: dict[str, Any], *, silent_below: str = "none") -> int:
    """Compare, print, and the exit code."""
    from recipegen.check.checking import Options
    from recipegen.check.gather import Target
    from recipegen.review.difference import Weight
    from recipegen.review.gate import failures, reaches
    from recipegen.review.pairs import ReviewOptions, review
    from recipegen.review.sides import opened

    policy_file = Path(given["policy_file"]) if given["policy_file"] else None
    target = Target(given["hardware"], given["nodes"], given["network"])
    check = Options(target=target, trainers=given["full"])
    with opened(asked, everything=given["everything"], policy_file=policy_file) as sides:
        found = review(sides.base, sides.head, ReviewOptions(check, sides.policy_of, given["everything"]))
        failed = failures(found, sides.policy_of, strict=given["strict"])
    silent = silent_below != "none" and not reaches(found, Weight(silent_below)) and not failed
    lines = [] if silent else _lines(found, output, given)
    write(lines, given["output_file"])
    if failed:
        more = f"; {len(failed) - 1} more" if len(failed) > 1 else ""
        click.echo(click.style(f"{command} failed: ", fg="red", bold=True) + failed[0] + more, err=True)
        return 1
    return 0


def _lines(found: Review, output: str, given: dict[str, Any]) -> list[str]:
    from recipegen.review.printers import github, markdown, plain_json, text

    if output == "json":
        return _split(plain_json(found))
    if output == "markdown":
        return _split(markdown(found))
    if output == "github":
        return _split(markdown(found, tag=TAG))
    if output == "annotations":
        return _split(github(found))

    def paint(text: str, name: str) -> str:
        return click.style(text, fg=name, bold=True)

    lines = _split(text(found, paint=paint, wrap=wrap, verbose=given["verbose"]))
    return [click.unstyle(line) for line in lines] if given["output_file"] else lines


def _split(said: Any) -> list[str]:
    if isinstance(said, dict):
        return [json.dumps(said, indent=2)]
    if isinstance(said, str):
        return said.rstrip("\n").split("\n")
    lines: Iterable[str] = said
    return list(lines)
