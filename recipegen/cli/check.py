"""`recipegen check`: what will fail, what will be dropped without a word, what it costs. Only --fix changes files."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from recipegen.cli.answer import wrap, write
from recipegen.cli.options import complete, complete_hardware

if TYPE_CHECKING:
    from recipegen.check.checking import Checked, Options, Outcome

_FORMATS = ["text", "json", "github", "sarif"]


@click.command()
@click.argument("paths", nargs=-1, type=click.Path(), metavar="PATH...")
@click.option(
    "--hardware",
    metavar="NAME|FILE",
    shell_complete=complete(complete_hardware),
    help="The machine; else the one of recipe.yaml or recipe.lock (`recipegen hardware list`).",
)
@click.option("--nodes", type=click.IntRange(1, 64), help="Machines of that profile.")
@click.option("--network", metavar="NAME", help="Between the machines: tcp-25, roce-25, roce-100, ib-hdr, ib-ndr.")
@click.option("--stack", metavar="NAME", help="The trainers' versions.  [default: of recipe.yaml, else the newest]")
@click.option(
    "--format",
    "output",
    type=click.Choice(_FORMATS),
    default="text",
    show_default=True,
    help="github: annotations of a workflow; sarif: SARIF 2.1.0 for code scanning.",
)
@click.option("--strict", is_flag=True, help="Fail for warnings, and where no estimate can be made.")
@click.option("--allow-empty", is_flag=True, help="No recipe among the paths is no error, as before a commit.")
@click.option("--accept-tight", is_flag=True, help="Do not fail for `tight`.")
@click.option("--explain", metavar="RULE", help="Print a rule with its source, check nothing.")
@click.option(
    "--policy",
    "policy_file",
    type=click.Path(),
    metavar="FILE",
    help="Severities and budgets.  [default: the nearest .recipegen.yaml]",
)
@click.option(
    "--probe",
    "probe_file",
    type=click.Path(),
    metavar="FILE",
    help="What `recipegen hardware probe --format json` found on the training box: answers `needs verification`.",
)
@click.option("--full", is_flag=True, help="Run all of the trainers' own validators that are installed (slow).")
@click.option("--fix", is_flag=True, help="Show the safe fixes as a diff, write them, check again.")
@click.option("--diff", "diff_only", is_flag=True, help="Show the safe fixes as a diff, write nothing.")
@click.option("--yes", is_flag=True, help="With --fix: do not ask on a terminal.")
@click.option("--output", "output_file", type=click.Path(), metavar="FILE", help="Write the answer there.")
@click.option("-v", "--verbose", is_flag=True, help="Every note, every term, which validations ran.")
def check(paths: tuple[str, ...], explain: str | None, output: str, **given: Any) -> int:
    """Say what will fail in any recipe before it fails: project folders, single files, or a mixture.

    \b
    Reads Axolotl YAML, Accelerate YAML, DeepSpeed JSON, arguments of the Transformers trainer, launch scripts and batch
    files, and what `recipegen new` wrote. Nothing is downloaded, imported or executed.

    \b
    Examples:
      recipegen check .
      recipegen check axolotl.yaml --hardware kentino-8x-rtx-5090
      recipegen check recipes/ --format github
      recipegen check . --fix
      recipegen check . --probe box.json
      recipegen check . && ./launch.sh

    Exit code: 0 good, 1 does not fit, tight (unless --accept-tight) or any error, 2 bad input.
    """
    if explain:
        from recipegen.cli.explain import print_rule

        print_rule(explain)
        return 0
    if not paths:
        raise click.UsageError("no PATH is given; `recipegen check .` checks this folder")
    from recipegen.check.checking import Options
    from recipegen.check.checking import check as check_paths
    from recipegen.check.gather import Target
    from recipegen.check.printers.shared import failure
    from recipegen.check.probe import read_probe

    options = Options(
        target=Target(given["hardware"], given["nodes"], given["network"], given["stack"]),
        policy_file=Path(given["policy_file"]) if given["policy_file"] else None,
        full=given["full"],
        strict=given["strict"],
        accept_tight=given["accept_tight"],
        allow_empty=given["allow_empty"],
        fix=given["fix"] or given["diff_only"],
        probe=read_probe(given["probe_file"]) if given["probe_file"] else None,
    )
    outcome = check_paths(paths, options)
    fixed: dict[str, Any] = {}
    if options.fix:
        outcome, fixed = _fixed(paths, options, outcome, output, given)
    lines = list(_lines(outcome, output, given["verbose"], fixed, colour=not given["output_file"]))
    write(lines, given["output_file"])
    if outcome.exit_code:
        click.echo(click.style("check failed: ", fg="red", bold=True) + failure(outcome), err=True)
    return outcome.exit_code


def _fixed(
    paths: Sequence[str], options: Options, outcome: Outcome, output: str, given: dict[str, Any]
) -> tuple[Outcome, dict[str, Any]]:
    """Show the fixes, write them unless only the diff is asked for or the answer is no, and check again.

    The diff is part of the answer: before the rest of a text, inside of the JSON; else it goes to stderr.
    """
    from recipegen.check.checking import check as check_paths
    from recipegen.project import fixing

    fixes = fixing.collect(outcome)
    ask = given["fix"] and not given["diff_only"] and not given["yes"] and _on_a_terminal()
    aside = output != "text" or given["output_file"] is not None

    def say(text: str) -> None:
        if not aside or output != "json" or ask:
            click.echo(text, err=aside)

    if fixes.changes:
        say(fixes.diff.rstrip("\n"))
    else:
        say("nothing to fix: no finding has a fix that is safe to make without you")
    for found, why in fixes.left:
        say(f"not fixed: {found.where}: {found.reason} ({why})")
    wanted = bool(fixes.changes) and not given["diff_only"]
    if wanted and ask and not click.confirm("Write these changes?", default=True, err=True):
        click.echo("nothing was written", err=True)
        wanted = False
    if wanted:
        fixing.write(fixes)
        files = ", ".join(change.shown for change in fixes.changes)
        say(f"fixed {len(fixes.made)} finding{'s'[: len(fixes.made) - 1]} in {files}")
        outcome = check_paths(paths, replace(options, fix=False))
    say("")
    return outcome, fixing.as_json(fixes, written=wanted)


def _on_a_terminal() -> bool:
    return sys.stdin is not None and sys.stderr is not None and sys.stdin.isatty() and sys.stderr.isatty()


def _lines(outcome: Outcome, output: str, verbose: bool, fixed: dict[str, Any], *, colour: bool) -> Iterator[str]:
    from recipegen.check import printers
    from recipegen.cli import show

    if output == "github":
        yield from printers.github(outcome)
    elif output in ("json", "sarif"):
        document = (
            printers.sarif(outcome)
            if output == "sarif"
            else {**printers.as_json(outcome, recipe=show.recipe_json, estimate=show.estimate_json), **fixed}
        )
        yield json.dumps(document, indent=2)
    else:

        def costs(one: Checked) -> Iterator[str]:
            recipe, model, cost = one.subject.assembled.recipe, one.subject.assembled.model, one.subject.estimate
            if recipe is not None and model is not None and cost is not None:
                yield show.what(recipe, cost, model)
                yield from show.costs(recipe, cost, model, verbose=verbose)

        def paint(text: str, name: str) -> str:
            return click.style(text, fg=name, bold=True)

        for line in printers.text(outcome, costs=costs, paint=paint, wrap=wrap, verbose=verbose):
            yield line if colour else click.unstyle(line)
