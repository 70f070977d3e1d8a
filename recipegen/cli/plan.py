"""`recipegen plan`: the verdict, the budget, the time, the alternatives. Writes nothing."""

from __future__ import annotations

from typing import Any

import click

from recipegen.cli.options import make_request, request_options


@click.command()
@request_options
@click.option("--format", "output", type=click.Choice(["text", "json"]), default="text", show_default=True)
@click.option("-v", "--verbose", is_flag=True, help="Every phase and term, every reason.")
def plan(output: str, verbose: bool, **given: Any) -> int:
    """Say whether and how a fine-tune fits, before anything is downloaded.

    \b
    Examples:
      recipegen plan --model Llama-3.1-8B --hardware kentino-8x-rtx-5090
      recipegen plan --model Qwen3-32B --dataset data.jsonl --hardware kentino-4x-rtx-pro-6000 --method full
      recipegen plan --model Qwen3-32B --hardware kentino-8x-rtx-pro-6000 --nodes 2 --network ib-hdr --method full
      recipegen plan --model Qwen3-8B --hardware 2x-l40s --format json | jq .verdict

    Exit code: 0 fits or tight, 1 does not fit, 2 bad input.
    """
    from recipegen.cli import show
    from recipegen.cli.solve import solve

    decision = solve(make_request(given, ask=("model", "hardware") if output == "text" else ()))
    show.decision(decision, output, "plan", verbose=verbose)
    return show.exit_code(decision)
