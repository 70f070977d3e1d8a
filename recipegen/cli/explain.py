"""`recipegen explain`: a rule with its source, or the fields that can be set."""

from __future__ import annotations

import difflib
import textwrap
import typing
from dataclasses import dataclass
from enum import Enum
from typing import Any

import click

from recipegen.spec import RecipegenError


@dataclass(frozen=True)
class _Entry:
    kind: str
    title: str
    doc: str
    source: str


def _entries() -> dict[str, _Entry]:
    """The rules of both rooms by id: those on a recipe, and those on its files."""
    from recipegen.check.known import known_rules

    return {
        r.id: _Entry(f"{r.severity or 'files'}, {r.family}", r.title, r.doc, r.source) for r in known_rules().values()
    }


def _complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[Any]:
    return [name for name in ("fields", *_entries()) if name.lower().startswith(incomplete.lower())]


@click.command()
@click.argument("what", required=False, shell_complete=_complete)
def explain(what: str | None) -> None:
    """Explain a rule, or list the rules, or the fields of --set.

    \b
    Examples:
      recipegen explain
      recipegen explain RG101
      recipegen explain fields
    """
    if what == "fields":
        _fields()
        return
    if what is None:
        for rule_id, entry in _entries().items():
            click.echo(f"{rule_id}  {entry.kind:22} {entry.title}")
        return
    print_rule(what)


def print_rule(what: str) -> None:
    """A rule with its source. Raises RecipegenError with the nearest ids where there is none of that id."""
    entries = _entries()
    found = entries.get(what.upper())
    if found is None:
        near = difflib.get_close_matches(what.upper(), entries, n=1)
        raise RecipegenError(
            f"there is no rule {what!r}", fix=f"Did you mean {near[0]}?" if near else "`recipegen explain` lists them"
        )
    click.echo(click.style(f"{what.upper()}: {found.title}", bold=True) + f" ({found.kind})")
    click.echo(textwrap.fill(found.doc, 100))
    if found.source:
        click.echo(f"Source: {found.source}")


def _fields() -> None:
    from recipegen.decide import field_types

    for path, hint in field_types().items():
        click.echo(f"{path:40} {_type_name(hint)}")


def _type_name(hint: object) -> str:
    if isinstance(hint, type) and issubclass(hint, Enum):
        return " | ".join(str(m.value) for m in hint)
    if typing.get_origin(hint) is tuple:
        return "list, a,b,c"
    args = [a for a in typing.get_args(hint) if a is not type(None)]
    if args:
        return f"{_type_name(args[0])} or none"
    return {"int": "whole number", "float": "number", "bool": "true | false", "str": "text"}.get(
        getattr(hint, "__name__", ""), str(hint)
    )
