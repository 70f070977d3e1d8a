"""`recipegen hardware`: the profiles."""

from __future__ import annotations

import json

import click

from recipegen import __version__
from recipegen.cli.options import complete, complete_hardware


@click.group()
def hardware() -> None:
    """Hardware profiles, their numbers and where these are from."""


@hardware.command("list")
@click.option("--format", "output", type=click.Choice(["text", "json"]), default="text", show_default=True)
def list_hardware(output: str) -> None:
    """All named profiles and networks."""
    from recipegen.catalog import hardware_names, network_names

    names, networks = hardware_names(), network_names()
    if output == "json":
        _json("hardware list", {"profiles": names, "networks": networks})
        return
    for name in names:
        click.echo(name)
    click.echo(f"networks: {', '.join(networks)}")
    click.echo("any {n}x-{gpu} of these cards works too, and so does the path of your own YAML")


@hardware.command("show")
@click.argument("name", shell_complete=complete(complete_hardware))
@click.option("--format", "output", type=click.Choice(["text", "json"]), default="text", show_default=True)
def show_hardware(name: str, output: str) -> None:
    """One profile: every number with its mark (measured, spec, derived) and source."""
    from recipegen.catalog import describe_hardware

    facts = describe_hardware(name)
    if output == "json":
        _json("hardware show", {"profile": facts})
        return
    click.echo(_lines(facts))


def _lines(value: object, indent: str = "") -> str:
    if isinstance(value, dict):
        parts = []
        for key, inner in value.items():
            if isinstance(inner, (dict, list)) and inner:
                parts.append(f"{indent}{key}:\n{_lines(inner, indent + '  ')}")
            else:
                parts.append(f"{indent}{key}: {inner}")
        return "\n".join(parts)
    if isinstance(value, list):
        return "\n".join(f"{indent}- {_lines(v, indent + '  ').strip()}" for v in value)
    return f"{indent}{value}"


def _json(command: str, body: dict[str, object]) -> None:
    head = {"format_version": 1, "tool_version": __version__, "command": command}
    click.echo(json.dumps({**head, **body}, indent=2, default=str))
