"""`recipegen models`: what the catalogue knows."""

from __future__ import annotations

import json

import click

from recipegen import __version__
from recipegen.cli.options import complete, complete_model


@click.group()
def models() -> None:
    """Models whose shape is known without a download."""


@models.command("list")
@click.option("--format", "output", type=click.Choice(["text", "json"]), default="text", show_default=True)
def list_models(output: str) -> None:
    """All models of the catalogue."""
    from recipegen.catalog import all_models

    specs = list(all_models())
    if output == "json":
        _json(
            "models list",
            [{"id": m.id, "parameters": m.num_parameters, "license": m.license, "gated": m.gated} for m in specs],
        )
        return
    for m in specs:
        gated = ", gated" if m.gated else ""
        click.echo(f"{m.id:48} {m.num_parameters / 1e9:7.2f}B  {m.license}{gated}")


@models.command("show")
@click.argument("name", shell_complete=complete(complete_model))
@click.option("--format", "output", type=click.Choice(["text", "json"]), default="text", show_default=True)
def show_model(name: str, output: str) -> None:
    """One model: shape, parameters, sources. NAME may also be a folder or a Hub id."""
    from recipegen.catalog import describe

    facts = describe(name)
    if output == "json":
        _json("models show", facts)
        return
    for key, value in facts.items():
        click.echo(f"{key}: {json.dumps(value) if isinstance(value, (dict, list)) else value}")


def _json(command: str, body: object) -> None:
    head = {"format_version": 1, "tool_version": __version__, "command": command}
    click.echo(json.dumps({**head, "models" if command.endswith("list") else "model": body}, indent=2))
