"""`recipegen check --fix`: what the files would be with the safe fixes, and the diff that shows it. Writes nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from recipegen.formats import edits
from recipegen.spec import Edit, Finding, RecipegenError


@dataclass(frozen=True)
class Fixed:
    """`files` are those that change; `left` are findings whose fix could not be made after the others, and why."""

    files: Mapping[str, bytes]
    diff: str
    made: tuple[Finding, ...]
    left: tuple[tuple[Finding, str], ...] = ()


def fix(files: Mapping[str, bytes], findings: Iterable[Finding]) -> tuple[dict[str, bytes], str]:
    """The files that change, by name, and a unified diff of them. Both empty when nothing can be fixed safely."""
    found = attempt(files, findings)
    return dict(found.files), found.diff


def attempt(files: Mapping[str, bytes], findings: Iterable[Finding]) -> Fixed:
    """`fix`, with what was made and what was left. All edits of a finding are made, or none.

    Edits inside of a mapping are made before the key of the mapping is changed. The same edit of two findings (a
    plugin that two keys need) is made once.
    """
    with_edits = [finding for finding in findings if finding.edits]
    now, done = dict(files), set[tuple[Edit, str]]()
    made: list[Finding] = []
    left: list[tuple[Finding, str]] = []
    for finding in sorted(with_edits, key=lambda one: -max(len(edit.path) for edit in one.edits)):
        wanted = [edit for edit in finding.edits if (edit, repr(edit.value)) not in done]
        try:
            changed = _applied(now, wanted)
        except RecipegenError as error:
            left.append((finding, str(error)))
            continue
        now |= changed
        done |= {(edit, repr(edit.value)) for edit in wanted}
        made.append(finding)
    changes = {name: content for name, content in now.items() if content != files[name]}
    diff = "".join(edits.diff(files[name], content, name) for name, content in changes.items())
    return Fixed(changes, diff, tuple(made), tuple(left))


def _applied(files: Mapping[str, bytes], wanted: Iterable[Edit]) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    for edit in wanted:
        content = found.get(edit.file, files.get(edit.file))
        if content is None:
            raise RecipegenError("not one of the files", where=edit.file)
        found[edit.file] = edits.apply(content, edit.file, (edit,))
    return found
