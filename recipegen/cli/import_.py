"""`recipegen import`: an existing setup as a project, with its settings kept, and what would be decided otherwise."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from recipegen import __version__
from recipegen.cli.options import complete, complete_hardware
from recipegen.spec import Decision, RecipegenError, Severity, Verdict
from recipegen.spec.units import gib, seconds

if TYPE_CHECKING:
    from recipegen.project.imported import Imported

FORMAT_VERSION = 1
_SHORT = 60  # characters of a value in a line of text
_AS_FAST = 0.005
_MOST = 12  # lines of pins without -v


@click.command("import")
@click.argument("paths", nargs=-1, required=True, type=click.Path(), metavar="PATH...")
@click.option("--out", metavar="NAME", help="The new folder.  [default: NAME-imported, after the file or folder]")
@click.option(
    "--hardware",
    metavar="NAME|FILE",
    shell_complete=complete(complete_hardware),
    help="The machine; else the one of recipe.yaml or recipe.lock (`recipegen hardware list`).",
)
@click.option("--nodes", type=click.IntRange(1, 64), help="Machines of that profile.  [default: as in the files]")
@click.option("--network", metavar="NAME", help="Between the machines: tcp-25, roce-25, roce-100, ib-hdr, ib-ndr.")
@click.option("--stack", metavar="NAME", help="The trainers' versions.  [default: of recipe.yaml, else the newest]")
@click.option("--dataset", multiple=True, metavar="FILE|ID", help="The data, instead of what the files name.")
@click.option("--dataset-format", default="auto", show_default=True, metavar="FORMAT", help="As for `recipegen new`.")
@click.option("--force", is_flag=True, help="As for `recipegen new`: edited files are kept as *.bak-DIGEST.")
@click.option("--format", "output_format", type=click.Choice(["text", "json"]), default="text", show_default=True)
@click.option("-v", "--verbose", is_flag=True, help="Every pin, every term.")
def import_(
    paths: tuple[str, ...], out: str | None, force: bool, output_format: str, verbose: bool, **given: Any
) -> int:
    """Turn an existing setup into a project with a recipe.yaml that holds every setting as a pin.

    \b
    Reads what `recipegen check` reads. Says what it would have decided otherwise, and what that would gain; what the
    new project says differently is listed, with the reason. The files that are read are not touched.

    \b
    Examples:
      recipegen import axolotl.yaml --hardware kentino-8x-rtx-5090
      recipegen import runs/old --hardware box.yaml --out tune

    Exit code: 0 written, 1 written, but it does not fit or has an error, 2 bad input (nothing is written).
    """
    from recipegen.check.gather import Target
    from recipegen.cli import show
    from recipegen.cli.new import validate
    from recipegen.project import check_name, create, localize, render
    from recipegen.project.import_project import Data, import_project, read

    folder = Path(out or _name(paths[0]))
    check_name(Path(os.path.abspath(folder)).name)
    target = Target(given["hardware"], given["nodes"], given["network"], given["stack"])
    gathered = read(paths, target)
    place = Path(os.path.abspath(folder))
    found = import_project(gathered, place, target, Data(given["dataset"], given["dataset_format"]))
    decision = found.decision
    written: list[str] = []
    validation: list[str] = []
    if decision.verdict is not Verdict.UNKNOWN:  # what does not fit is a person's recipe all the same
        try:
            validation, doubts = validate(render(localize(decision, place)), decision)
        except RecipegenError as error:
            raise RecipegenError(
                f"the new project does not pass validation: {error}",
                fix="Mend the original first: `recipegen check` shows where, and --fix mends what is mechanical.",
            ) from None
        decision = replace(decision, warnings=(*decision.warnings, *doubts))
        written = create(decision, folder, force=force)
    found = replace(found, decision=decision)
    if output_format == "json":
        click.echo(json.dumps(_json(found, paths, folder, written, validation), indent=2))
        show.complain(decision)
    else:
        show.decision(
            replace(decision, alternatives=(), ways_out=()),
            "text",
            "import",
            verbose=verbose,
            folder=folder,
            written=written,
            validation=validation,
            between=_lines(found, verbose),
        )
    return _exit_code(decision)


def _exit_code(decision: Decision) -> int:
    """As `recipegen check` of the new project: an error of a rule fails it as well. One line on stderr says so."""
    from recipegen.cli import show

    wrong = next((f for f in decision.findings if f.severity is Severity.ERROR), None)
    if wrong is not None and show.exit_code(decision) == 0:
        click.echo(click.style(f"{wrong.rule}: ", fg="red", bold=True) + wrong.reason, err=True)
        return 1
    return show.exit_code(decision)


def _name(path: str) -> str:
    """`axolotl-imported` for axolotl.yaml, `old-imported` for the folder runs/old."""
    whole = Path(os.path.abspath(path))
    stem = whole.name if whole.is_dir() else whole.stem
    return f"{re.sub(r'[^A-Za-z0-9_.-]+', '-', stem).lstrip('.-')[:80] or 'setup'}-imported"


# --- text


def _lines(found: Imported, verbose: bool) -> Iterator[str]:
    from recipegen.cli.show import wrap

    yield ""
    yield click.style(f"Kept as pins ({len(found.pins)})", bold=True)
    stated = [pin for pin in found.pins if pin.where]
    rest = [pin for pin in found.pins if not pin.where]
    shown = [*stated, *rest] if verbose else [*stated, *rest][:_MOST]
    for pin in shown:
        same = found.otherwise is None or pin.value == pin.otherwise  # then it holds against the other pins
        other = "" if same else f", not {_value(pin.otherwise)}"
        why = f": {pin.why}" if pin.why and verbose else ""
        yield from wrap(
            f"{pin.field}: {_value(pin.value)} ({pin.where or 'the default of the trainer'}{other}{why})", "  "
        )
    if len(shown) < len(found.pins):
        yield f"  ... and {len(found.pins) - len(shown)} more (-v)"
    passed = [f"{file}.{key}" for file, keys in found.decision.request.passthrough.items() for key in keys]
    if passed:
        yield from wrap(f"passed through: {', '.join(passed)}", "  ")
    if found.changed or found.beyond:
        yield ""
        yield click.style("Changed", bold=True)
        for one in found.changed:
            where = f" ({one.where})" if one.where else ""
            yield from wrap(f"{one.what}: {_value(one.was)} -> {_value(one.now)}{where}: {one.reason}", "  ")
        for field, reason in found.beyond.items():
            yield from wrap(f"{field}: in the files only: {reason}", "  ")
    yield ""
    yield click.style("Decided otherwise", bold=True)
    if found.otherwise is None:
        yield from wrap(f"nothing to compare with: {found.why_not}", "  ")
        return
    for line in _gain(found.decision, found.otherwise):
        yield from wrap(line, "  ")


def _gain(kept: Decision, other: Decision) -> Iterator[str]:
    from recipegen.cli.show import what

    yield what(other.recipe, other.estimate, other.model)
    a, b = kept.estimate, other.estimate
    yield f"verdict: {_word(kept.verdict)} -> {_word(other.verdict)}"
    sizes = kept.recipe.global_batch_size, other.recipe.global_batch_size
    yield (
        f"time per step: {seconds(a.time.step_s)} of {sizes[0]} sequences -> {seconds(b.time.step_s)} of {sizes[1]}"
        f"{_share(kept, other)}"
    )
    if a.time.total_s is not None and b.time.total_s is not None:
        yield f"the whole run: {seconds(a.time.total_s)} -> {seconds(b.time.total_s)}"
    needed = f"{gib(a.gpu.needed_bytes)} -> {gib(b.gpu.needed_bytes)}"
    yield f"memory needed per GPU: {needed} of {gib(b.gpu.capacity_bytes)}"
    if not kept.recipe.precision.updates_survive_rounding and other.recipe.precision.updates_survive_rounding:
        yield f"precision: {kept.recipe.precision.label.value} -> {other.recipe.precision.label.value}"
    yield "leave a pin out of recipe.yaml and `recipegen new NAME --recipe recipe.yaml` to have it decided"


def _share(kept: Decision, other: Decision) -> str:
    """How much faster a sequence is; nothing where a sequence is a pack in one recipe and a row in the other."""
    if kept.recipe.packing != other.recipe.packing:
        packed = "the imported one" if kept.recipe.packing else "the decided one"
        return f" (only {packed} packs rows, so the run counts)"
    each = [d.estimate.time.step_s / d.recipe.global_batch_size for d in (kept, other)]
    share = each[1] / each[0] - 1 if each[0] else 0.0
    if abs(share) < _AS_FAST:
        return ", as fast"
    return f", {abs(share):.0%} {'less' if share < 0 else 'more'} per sequence"


def _word(verdict: Verdict) -> str:
    return verdict.value.replace("_", " ")


def _value(value: Any) -> str:
    text = "nothing" if value is None else json.dumps(value, ensure_ascii=False, default=str)
    text = "".join(c if c.isprintable() else "\ufffd" for c in text)
    return text if len(text) <= _SHORT else f"{text[: _SHORT - 3]}..."


# --- JSON


def _json(
    found: Imported, paths: tuple[str, ...], folder: Path, written: list[str], validation: list[str]
) -> dict[str, Any]:
    """The document of docs/schemas/import.schema.json."""
    from recipegen.cli.show import estimate_json, recipe_json
    from recipegen.formats import recipe_yaml
    from recipegen.formats.plain import to_plain

    decision, other = found.decision, found.otherwise
    return {
        "format_version": FORMAT_VERSION,
        "tool_version": __version__,
        "command": "import",
        "source": list(paths),
        "verdict": decision.verdict.value,
        "recommended": decision.recommended,
        "request": to_plain(recipe_yaml.values(decision.request), for_print=True),
        "recipe": recipe_json(decision.recipe),
        "estimate": estimate_json(decision.estimate),
        "pins": [to_plain(pin, for_print=True) for pin in found.pins],
        "changed": [to_plain(one, for_print=True) for one in found.changed],
        "files_only": dict(found.beyond),
        "otherwise": None if other is None else {
            "verdict": other.verdict.value,
            "recommended": other.recommended,
            "recipe": recipe_json(other.recipe),
            "estimate": estimate_json(other.estimate),
            "reasons": dict(other.reasons),
        },
        "why_not": found.why_not,
        "gain": None if other is None else _gain_json(decision, other),
        "findings": [to_plain(f) for f in decision.findings],
        "warnings": list(decision.warnings),
        "folder": str(folder) if written else None,
        "files": list(written),
        "backups": dict(getattr(written, "backups", {})),
        "validation": validation,
    }  # fmt: skip


def _gain_json(kept: Decision, other: Decision) -> dict[str, Any]:
    """Each number of the imported recipe and of the decided one."""

    def row(decision: Decision) -> dict[str, Any]:
        return {
            "verdict": decision.verdict.value,
            "global_batch_size": decision.recipe.global_batch_size,
            "step_s": decision.estimate.time.step_s,
            "tokens_per_s": decision.estimate.time.tokens_per_s,
            "total_s": decision.estimate.time.total_s,
            "needed_bytes": decision.estimate.gpu.needed_bytes,
            "host_peak_bytes": decision.estimate.host.peak_bytes,
        }

    return {"imported": row(kept), "otherwise": row(other)}
