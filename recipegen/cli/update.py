"""`recipegen update`: an old project by today's tool, stack, templates and profiles; edits by hand survive."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from recipegen.spec import DatasetSpec, Decision, ModelSpec, RecipegenError, Request, Verdict

if TYPE_CHECKING:
    from recipegen.formats.lock import Lock
    from recipegen.project.merge_file import Conflict
    from recipegen.project.update import Update

_SHOWN = 100  # characters of a value in a line of text


@click.command()
@click.argument("path", default=".", type=click.Path(), metavar="[PATH]")
@click.option("--check", "only_check", is_flag=True, help="Write nothing; exit 1 when anything would change.")
@click.option("--dry-run", is_flag=True, help="Show what would change, write nothing.")
@click.option("--yes", is_flag=True, help="Do not ask on a terminal.")
@click.option("--format", "output", type=click.Choice(["text", "json"]), default="text", show_default=True)
def update(path: str, only_check: bool, dry_run: bool, yes: bool, output: str) -> int:
    """Plan a project again from its recipe.yaml and merge what came out with what people edited.

    For a new recipegen, stack, template or hardware profile, and after a change of recipe.yaml. Files that nobody
    edited are replaced. An edited YAML or JSON file is merged by key: your values stay where you changed them. Of
    other edited files yours is kept, and the new text is written beside it as NAME.new. Nothing is downloaded.

    \b
    Examples:
      recipegen update
      recipegen update my-tune --dry-run
      recipegen update my-tune --yes
      recipegen update my-tune --check      in CI: is it what would be written today?

    Exit code: 0 up to date or written; 1 something is left for you (a conflict; with --check any change), or the
    recipe does not fit any more (nothing is written); 2 bad input.
    """
    from recipegen.project import update as room

    folder = Path(os.path.abspath(path))
    locked = room.read_lock(folder)
    if room.interrupted(folder):
        if only_check or dry_run:
            return _fail(f"{path}: an interrupted recipegen left it half written; run `recipegen update {path}`")
        room.recover(folder)
        locked = room.read_lock(folder)
    decision, notes = _decide(folder, path, locked)
    if decision.verdict not in (Verdict.FITS, Verdict.TIGHT):
        reason = next((f.reason for f in decision.findings if f.severity.value == "error"), "nothing fits")
        recipe = os.path.join(path, "recipe.yaml")
        return _fail(
            f"{path}: it does not fit any more: {reason}. Nothing was written; see `recipegen plan --recipe {recipe}`"
        )
    found = room.plan(folder, locked, decision)
    wanted = not (found.up_to_date or only_check or dry_run)
    if wanted:
        notes += _validated(found)
    for note in notes:
        click.echo(f"note: {note}", err=True)
    if output == "text":
        for line in _lines(found, path):
            click.echo(line)
    ask = wanted and not yes and _on_a_terminal()
    if ask and not click.confirm("Write these changes?", default=True, err=True):
        click.echo("nothing was written", err=True)
        wanted = False
    if wanted:
        room.write(found)
    if output == "json":
        click.echo(json.dumps(_as_json(found, path, written=wanted), indent=2, default=str))
    elif wanted:
        click.echo(f"{path}: {_count(len(found.files) + len(found.removals), 'file')} written or removed")
        if found.kept or found.unresolved:
            click.echo(f"Next: recipegen check {path}")
    if only_check:
        return (
            0
            if found.up_to_date
            else _fail(f"{path} is not what would be written today; run `recipegen update {path}`")
        )
    if found.unresolved:
        names = ", ".join(row.name for row in found.unresolved)
        return _fail(f"{path}: you and the new version both changed {names}; yours is kept")
    return 0


def _fail(text: str) -> int:
    click.echo(click.style("update: ", fg="red", bold=True) + text, err=True)
    return 1


def _on_a_terminal() -> bool:
    return sys.stdin is not None and sys.stderr is not None and sys.stdin.isatty() and sys.stderr.isatty()


# --- planning again


def _decide(folder: Path, path: str, locked: Lock) -> tuple[Decision, list[str]]:
    """What recipe.yaml asks for, decided today; nothing is downloaded. And what a person should know of it."""
    from recipegen.cli.options import make_request
    from recipegen.cli.solve import solve
    from recipegen.project import update as room

    room.read_request(folder)
    request = make_request({"recipe_file": os.path.join(path, "recipe.yaml")})
    if not request.dataset:
        raise RecipegenError("names no data", where=os.path.join(path, "recipe.yaml"), fix="Add a dataset.")
    known = dict(_measured(request, folder, locked))
    notes = [f"{one} is not here; its rows and lengths are those of recipe.lock" for one in known]
    return solve(request, model=_model(request, path), measured=known), notes


def _model(request: Request, path: str) -> ModelSpec:
    """From a folder, the catalogue, or what the Hub's client has in its cache."""
    from recipegen.catalog import hub, load_model
    from recipegen.catalog.model import find

    name = request.model
    if os.path.isdir(os.path.expanduser(name)) or find(name) is not None or not hub.is_hub_id(name):
        return load_model(name, revision=request.model_revision)
    try:
        return hub.from_hub(name, request.model_revision, offline=True)
    except RecipegenError:
        raise RecipegenError(
            f"the model {name} is not in the catalogue, and update downloads nothing",
            where=os.path.join(path, "recipe.yaml"),
            fix=f"Ask the Hub once: recipegen plan --model {name} ..., then run it again.",
        ) from None


def _measured(request: Request, folder: Path, locked: Lock) -> Iterator[tuple[str, DatasetSpec]]:
    """Data files that are not on this machine (in CI), as they were measured when the lock was written."""
    from recipegen.project.imported import relocated
    from recipegen.project.paths import seen_from

    for path in request.dataset:
        if os.path.exists(os.path.expanduser(path)):
            continue
        names = {path, seen_from(folder, path), seen_from(folder, path, folder)}
        for spec in locked.recipe.datasets:
            if spec.local and spec.path in names and request.dataset_format in ("auto", spec.format.value):
                yield path, relocated(spec, spec.path, path)


def _validated(found: Update) -> list[str]:
    """Warnings of the trainers about the new files; an error raises."""
    from recipegen.cli.new import validate
    from recipegen.project import localize, render

    return validate(render(localize(found.decision, found.folder)), found.decision)[1]


# --- saying it


def _lines(found: Update, path: str) -> Iterator[str]:
    from recipegen.formats.scalars import one_line
    from recipegen.project.update import versions

    if found.up_to_date:
        yield f"{path}: up to date"
        return
    for change in versions(found):
        yield f"{change.path}: {change.before} -> {change.after}"
    said = _training(found, path)
    if said:
        yield from said
        yield ""
    elif found.changes:
        yield "recipe:"
        width = max(len(change.path) for change in found.changes)
        for change in found.changes:
            yield f"  {change.path:{width}}  {_short(change.before)} -> {_short(change.after)}"
    else:
        yield "recipe: says the same"
    yield "files:"
    for row in found.rows:
        aside = " -> ".join(filter(None, (row.reason, row.beside)))
        yield f"  {row.action.value:9}  {row.name}" + (f"  ({aside})" if aside else "")
    if found.kept:
        yield "yours, and kept:"
        for kept in found.kept:
            yield f"  {kept.where}  {one_line(kept.key)}: {_short(kept.value)}"
    for row in found.rows:
        if row.lost:
            yield f"comments that have no place in the new {row.name}; {row.beside} has them: {', '.join(row.lost)}"
    if found.conflicts:
        yield "conflicts; yours is kept:"
        for one in found.conflicts:
            sides = f"yours {_short(one.yours)}, new {_short(one.new)}, was {_short(one.base)}"
            yield f"  {one.where}  {one_line(one.key)}: {sides}"


def _training(found: Update, path: str) -> list[str]:
    """What it does to the training run; nothing where that is nothing, or a side is no project."""
    from recipegen.cli.answer import wrap
    from recipegen.project.update_review import review
    from recipegen.review import printers

    changed = review(found, Path(path))
    if changed is None or not changed.changed:
        return []

    def paint(text: str, name: str) -> str:
        return click.style(text, fg=name, bold=True)

    said = printers.text(changed, paint=paint, wrap=wrap, verbose=False)
    return said.rstrip("\n").split("\n") if isinstance(said, str) else list(said)


def _short(value: Any) -> str:
    from recipegen.project.merge import MISSING

    if value is MISSING:
        return "not there"
    text = value if isinstance(value, str) and value.isprintable() else json.dumps(value, default=str)
    return text if len(text) <= _SHOWN else text[: _SHOWN - 3] + "..."


def _count(number: int, word: str) -> str:
    return f"{number} {word}" + ("" if number == 1 else "s")


def _as_json(found: Update, path: str, *, written: bool) -> dict[str, Any]:
    """docs/schemas/update.schema.json."""
    from recipegen import __version__
    from recipegen.project.update import versions

    return {
        "format_version": 1,
        "tool_version": __version__,
        "command": "update",
        "folder": path,
        "up_to_date": found.up_to_date,
        "written": written,
        "versions": [vars(change) for change in versions(found)],
        "changes": [vars(change) for change in found.changes],
        "files": [
            {
                "name": row.name,
                "action": row.action.value,
                "beside": row.beside or None,
                "reason": row.reason,
                "lost_comments": list(row.lost),
            }
            for row in found.rows
        ],
        "kept": [_there({"where": k.where, "key": k.key, "value": k.value}) for k in found.kept],
        "conflicts": [_conflict(conflict) for conflict in found.conflicts],
    }


def _conflict(one: Conflict) -> dict[str, Any]:
    return _there({"where": one.where, "key": one.key, "base": one.base, "yours": one.yours, "new": one.new})


def _there(values: Mapping[str, Any]) -> dict[str, Any]:
    """Without what is not there."""
    from recipegen.project.merge import MISSING

    return {key: value for key, value in values.items() if value is not MISSING}
