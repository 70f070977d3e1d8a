"""`recipegen gallery`: the recipes that are checked in, and whether they are what would be made today."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from recipegen.spec import Decision, Request

_SHOWN = 20  # names of files in a text answer


@click.group()
def gallery() -> None:
    """Recipes that people ask for, generated from one list.

    \b
    Examples:
      recipegen gallery build
      recipegen gallery build --check
    """


@gallery.command()
@click.argument("folder", required=False, type=click.Path(file_okay=False))
@click.option("--check", "only_check", is_flag=True, help="Write nothing; exit 1 when anything would change.")
def build(folder: str | None, only_check: bool) -> int:
    """Decide every request of FOLDER/gallery.yaml and write the projects and their table.

    FOLDER is `recipes` of the checkout by default. Only what changed is written; a project that is not asked for any
    more is removed. Exit code: 0 as it should be, 1 with --check when it is not, 2 bad input.

    \b
    Examples:
      recipegen gallery build
      recipegen gallery build recipes --check
    """
    from recipegen.catalog.resources import data_folder
    from recipegen.cli.solve import solve
    from recipegen.project import gallery as room

    root = Path(folder) if folder else data_folder("recipes")
    cells = room.read_list(root / room.LIST)

    with click.progressbar(length=len(cells), label="deciding", file=sys.stderr, hidden=not sys.stderr.isatty()) as bar:

        def solved(request: Request) -> Decision:
            decision = solve(request)
            bar.update(1)
            return decision

        built = room.build(cells, solved)
    found = room.compare(root, built)
    for word, names in (("missing", found.missing), ("changed", found.changed), ("extra", found.extra)):
        for name in names[:_SHOWN]:
            click.echo(f"{word:8} {root / name}")
        if len(names) > _SHOWN:
            click.echo(f"{word:8} and {len(names) - _SHOWN} more")
    total = f"{built.projects} projects of {len(cells)} requests"
    if only_check and found:
        count = len(found.missing) + len(found.changed) + len(found.extra)
        text = f"{root}: {count} files are not what would be made today. Run `recipegen gallery build`"
        click.echo(click.style("gallery: ", fg="red", bold=True) + text, err=True)
        return 1
    if not only_check:
        room.write(root, built, found)
    click.echo(f"{root}: {total}, {'up to date' if not found else 'written'}")
    return 0
