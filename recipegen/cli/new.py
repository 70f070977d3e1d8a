"""`recipegen new`: a project folder that runs."""

from __future__ import annotations

import atexit
import functools
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from recipegen.cli.options import make_request, request_options
from recipegen.spec import Decision, RecipegenError, Severity, Verdict

if TYPE_CHECKING:
    from recipegen.check import TrainerProcess


@click.command()
@click.argument("name")
@click.option(
    "--output",
    type=click.Path(file_okay=False),
    default=".",
    metavar="DIR",
    help="Where the folder is made.  [default: here]",
)
@request_options
@click.option(
    "--force",
    is_flag=True,
    help="Replace generated files of an existing project; edited ones are kept as *.bak-DIGEST.",
)
@click.option("--format", "output_format", type=click.Choice(["text", "json"]), default="text", show_default=True)
@click.option("-v", "--verbose", is_flag=True, help="Every phase and term, every reason.")
def new(name: str, output: str, force: bool, output_format: str, verbose: bool, **given: Any) -> int:
    """Write a fine-tune project: configs, launcher, and why they are as they are.

    \b
    Examples:
      recipegen new my-tune --model Llama-3.1-8B-Instruct --dataset chat.jsonl --hardware kentino-8x-rtx-5090
      recipegen new my-tune --model ./models/base --dataset data.parquet --hardware box.yaml --method qlora
      recipegen new my-tune --recipe recipe.yaml --set strategy=fsdp2_full --force

    Then: cd my-tune && ./launch.sh

    Exit code: 0 written, 1 it would not fit (nothing is written), 2 bad input (nothing is written).
    """
    from recipegen.cli import show
    from recipegen.cli.solve import solve
    from recipegen.project import check_name, create, localize, render

    check_name(name)
    request = make_request(given, ask=("model", "dataset", "hardware") if output_format == "text" else ())
    if not request.dataset:
        raise RecipegenError("which data?", fix="Give --dataset FILE (JSONL, JSON, CSV, Parquet) or a Hub id")
    decision = solve(request)
    folder = Path(output) / name
    written: list[str] = []
    validation: list[str] = []
    if decision.verdict in (Verdict.FITS, Verdict.TIGHT):
        validation, doubts = validate(render(localize(decision, folder.absolute())), decision)
        decision = replace(decision, warnings=(*decision.warnings, *doubts))
        written = create(decision, folder, force=force)
    show.decision(
        decision, output_format, "new", verbose=verbose, folder=folder, written=written, validation=validation
    )
    return show.exit_code(decision)


@functools.cache
def _trainers() -> TrainerProcess:
    """One child for the trainers' own code, however many projects this process writes; it starts when it is asked."""
    from recipegen.check import TrainerProcess

    process = TrainerProcess()
    atexit.register(process.close)
    return process


def validate(files: dict[str, bytes], decision: Decision) -> tuple[list[str], list[str]]:
    """What was validated, and its warnings; an error is a key that was passed on, or a bug of ours."""
    from recipegen.check import validate_project

    findings, ran = validate_project(
        files, decision.recipe, decision.cluster, model=decision.model, process=_trainers()
    )
    errors = [f for f in findings if f.severity is Severity.ERROR]
    if errors:
        first = errors[0]
        more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
        raise RecipegenError(f"{first.reason}{more}", where=first.where or None, fix=first.fix or None)
    doubts = [f"{f.where + ': ' if f.where else ''}{f.reason}" for f in findings if f.severity is Severity.WARNING]
    return list(ran), doubts
