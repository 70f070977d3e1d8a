"""`recipegen explain`: a rule with its source, or the fields that can be set."""

from __future__ import annotations

import difflib
import textwrap
import typing
from enum import Enum

import click

from recipegen.spec import RecipegenError


@click.command()
@click.argument("what", required=False)
def explain(what: str | None) -> None:
    """Explain a rule (RG101), or list the rules, or the fields of --set (`recipegen explain fields`)."""
    if what == "fields":
        _fields()
        return
    from recipegen.rules import all_rules, find_rule

    if what is None:
        for rule in all_rules():
            click.echo(f"{rule.id}  {rule.severity.value:8} {rule.family:11} {rule.title}")
        return
    found = find_rule(what)
    if found is None:
        near = difflib.get_close_matches(what.upper(), [r.id for r in all_rules()], n=1)
        raise RecipegenError(
            f"there is no rule {what!r}", fix=f"Did you mean {near[0]}?" if near else "`recipegen explain` lists them"
        )
    click.echo(click.style(f"{found.id}: {found.title}", bold=True) + f" ({found.severity.value}, {found.family})")
    click.echo(textwrap.fill(found.doc, 100))
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
