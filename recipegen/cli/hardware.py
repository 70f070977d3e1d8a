"""`recipegen hardware`: the profiles."""

from __future__ import annotations

import json
import sys

import click

from recipegen import __version__
from recipegen.cli.answer import write
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


@hardware.command("probe")
@click.option(
    "--format",
    "output",
    type=click.Choice(["text", "json", "yaml"]),
    default="text",
    show_default=True,
    help="json: for `recipegen check --probe`; yaml: a profile for --hardware.",
)
@click.option("--out", type=click.Path(), metavar="FILE", help="Write the answer there.")
@click.option(
    "--path",
    "paths",
    multiple=True,
    type=click.Path(),
    metavar="DIR",
    help="A folder whose disk counts: the project, an NVMe folder. May be repeated.  [default: the current folder]",
)
@click.option("--python", metavar="FILE", help="The Python of the training environment.  [default: recipegen's own]")
@click.option(
    "--timeout",
    type=click.FloatRange(0.1, 600),
    metavar="SECONDS",
    default=15.0,
    show_default=True,
    help="For each command; torch has twice of it.",
)
def probe_hardware(output: str, out: str | None, paths: tuple[str, ...], python: str | None, timeout: float) -> None:
    """Find out what this machine is: run it on the training box. Changes nothing; takes seconds.

    \b
    GPUs, driver, peer-to-peer, what torch sees (if it is installed), /dev/shm, RAM and container limits, cores, disks,
    network, ulimits, IOMMU. What cannot be found is listed with the reason.

    \b
    Examples:
      recipegen hardware probe
      recipegen hardware probe --format json --out box.json && recipegen check . --probe box.json
      recipegen hardware probe --format yaml --out box.yaml && recipegen plan --hardware box.yaml --model Qwen3-8B
    """
    from recipegen.runtime import Box, probe, profile_yaml, table

    document = probe(Box(paths=paths or (".",), python=python or sys.executable, seconds=timeout))
    if output == "yaml":
        text = profile_yaml(document)
    elif output == "json":
        text = json.dumps(document, indent=2) + "\n"
    else:
        text = "".join(f"{line}\n" for line in table(document))
    write(text.splitlines(), out)


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
