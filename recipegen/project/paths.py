"""Names of projects, and where local files lie as seen from a project.

Where: launch.sh runs inside the project folder, so a relative path of the command line would mean something else
there. A path inside the project stays relative (the folder can be moved); any other becomes absolute.
"""

from __future__ import annotations

import dataclasses
import os
import re
from pathlib import Path

from recipegen.spec import DatasetSpec, Decision, RecipegenError

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*\Z")
_RULE = re.compile(r"[A-Z]{2}\d{3} ")
MAX_NAME = 100


def check_name(name: str) -> str:
    """`name`, if it can name a project: letters, digits, dots, dashes, underscores; at most 100; no leading . or -."""
    if len(name) > MAX_NAME:
        raise RecipegenError(f"the project name has {len(name)} characters", fix=f"At most {MAX_NAME}.")
    if not _NAME.match(name):
        raise RecipegenError(
            f"{name!r:.120} cannot name a project",
            fix="Use letters, digits, dots, dashes and underscores, starting with a letter, digit or underscore.",
        )
    return name


def seen_from(folder: Path, path: str, base: Path | None = None) -> str:
    """`path`, relative to `base` (the current folder), as it must be written into a file of `folder`."""
    absolute = Path(os.path.abspath((base or Path.cwd()) / Path(path).expanduser()))
    home = Path(os.path.abspath((base or Path.cwd()) / folder))
    if absolute.is_relative_to(home):
        return f"./{absolute.relative_to(home).as_posix()}"
    return str(absolute)


def localize(decision: Decision, folder: Path, base: Path | None = None) -> Decision:
    """The decision with its local paths (data files, a model folder, a hardware profile) as seen from `folder`, so that
    what is written does not depend on where it was decided."""
    base = base or Path.cwd()
    recipe, request = decision.recipe, decision.request
    moved = {
        spec.path: seen_from(folder, spec.path, base)
        for spec in recipe.datasets
        if spec.local and not _is_url(spec.path)
    }
    for path in (recipe.model, request.model, recipe.hardware, request.hardware, *request.dataset):
        if path not in moved and _is_local(path, base):
            moved[path] = seen_from(folder, path, base)
    named = moved.get(decision.model.id)
    return dataclasses.replace(
        decision,
        model=dataclasses.replace(decision.model, id=named) if named else decision.model,
        recipe=dataclasses.replace(
            recipe,
            model=moved.get(recipe.model, recipe.model),
            hardware=moved.get(recipe.hardware, recipe.hardware),
            datasets=tuple(_moved(spec, moved) for spec in recipe.datasets),
        ),
        request=dataclasses.replace(
            request,
            model=moved.get(request.model, request.model),
            hardware=moved.get(request.hardware, request.hardware),
            dataset=tuple(moved.get(path, path) for path in request.dataset),
        ),
        findings=tuple(dataclasses.replace(f, reason=_said(f.reason, moved)) for f in decision.findings),
        warnings=tuple(_said(text, moved) for text in decision.warnings),
    )


def _said(text: str, moved: dict[str, str]) -> str:
    """A message that begins with the place that it is about, a rule's id before it or not: `RG501 data.jsonl: ...`."""
    for old, new in moved.items():
        head, separator, rest = text.partition(f"{old}: ")
        if separator and (not head or _RULE.fullmatch(head)):
            return f"{head}{new}: {rest}"
    return text


def _is_url(path: str) -> bool:
    return re.match(r"[a-z][a-z0-9+.-]*://", path) is not None


def _is_local(path: str, base: Path) -> bool:
    """A catalogue name or Hub id wins over a file of that name only when there is no such file."""
    if not path or "\0" in path or _is_url(path):
        return False
    try:
        return (base / Path(path).expanduser()).exists()
    except (OSError, RuntimeError, ValueError):
        return False


def _moved(spec: DatasetSpec, moved: dict[str, str]) -> DatasetSpec:
    if spec.path not in moved:
        return spec

    def value(old: object) -> object:
        if isinstance(old, str):
            return moved[spec.path] if old == spec.path else old
        return [value(item) for item in old] if isinstance(old, (list, tuple)) else old

    entry = tuple((key, value(old) if key in ("path", "data_files") else old) for key, old in spec.entry)
    return dataclasses.replace(spec, path=moved[spec.path], entry=entry)
