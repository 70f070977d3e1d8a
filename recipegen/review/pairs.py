"""Which recipe of one side is which of the other, and what became of each; what cannot be read is a row, too."""

from __future__ import annotations

import posixpath
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from recipegen.catalog.bounded_yaml import shown_path
from recipegen.check.checking import ORDER, Checked, Options, check_projects
from recipegen.check.policy import Policy
from recipegen.review.difference import RecipeDifference, Review, Status
from recipegen.review.sides import PolicyOf, Side
from recipegen.source import Project
from recipegen.spec import Finding

_UNKNOWN = "none of the formats that are known here"
_MOST_RENAMES = 4000  # pairs of a removed and an added recipe whose meanings are compared


def _no_policy(_: str) -> Policy:
    return Policy()


@dataclass(frozen=True)
class ReviewOptions:
    """`check` holds for both sides. `everything`: recipes whose files are the same, too."""

    check: Options = field(default_factory=lambda: Options(trainers=False))
    policy_of: PolicyOf = _no_policy
    everything: bool = False


@dataclass(frozen=True)
class _Pair:
    """One recipe, by the name it is shown with. `same`: nothing of it can differ."""

    before: Project | None
    after: Project | None
    same: bool = False

    @property
    def name(self) -> str:
        project = self.after or self.before
        assert project is not None
        return project.name


def review(base: Side, head: Side, options: ReviewOptions | None = None) -> Review:
    """What changed between two sides. Nothing of what the files hold raises: what cannot be read is a row."""
    options = options or ReviewOptions()
    pairs = [pair for pair in _paired(base, head) if options.everything or not pair.same]
    before = _checked(base, [pair.before for pair in pairs if not pair.same], options)
    after = _checked(head, [pair.after for pair in pairs], options)
    rows = list(_rows(base, head, pairs, before, after))
    rows += _unread(base, head, pairs)
    return Review(base.label, head.label, tuple(sorted(rows, key=lambda row: row.name)))


_Results = Callable[["Project | None"], "Checked | None"]


def _checked(side: Side, projects: Iterable[Project | None], options: ReviewOptions) -> _Results:
    wanted = [project for project in projects if project is not None]

    def policy_of(folder: Path) -> Policy:
        return options.policy_of(folder.relative_to(side.root).as_posix())

    results = check_projects(wanted, options.check, policy_of)
    found = {id(project): result for project, result in zip(wanted, results, strict=True)}
    return lambda project: found.get(id(project))


# --- pairs


def _paired(base: Side, head: Side) -> list[_Pair]:
    """By the path of the main file; then by name, for a main file that was renamed in its folder; then by folder."""
    old, new = list(base.projects), list(head.projects)
    if not (base.in_git or head.in_git) and len(old) == len(new) == 1:
        return [_Pair(old[0], new[0], _same(base, head, old[0], new[0]))]
    pairs = []
    for key in (Side.path_of, _name, Side.folder_of):
        there = _unique(base, old, key)
        for value, project in _unique(head, new, key).items():
            partner = there.get(value)
            if partner is not None:
                pairs.append(_Pair(partner, project, _same(base, head, partner, project)))
                old = [one for one in old if one is not partner]
                new = [one for one in new if one is not project]
    return [*pairs, *(_Pair(one, None) for one in old), *(_Pair(None, one) for one in new)]


def _name(side: Side, project: Project) -> str:
    return project.name if side.in_git else side.path_of(project)


def _unique(side: Side, projects: Iterable[Project], key: Callable[[Side, Project], str]) -> dict[str, Project]:
    keyed = [(key(side, project), project) for project in projects]
    counts = Counter(value for value, _ in keyed)
    return {value: project for value, project in keyed if counts[value] == 1}


def _same(base: Side, head: Side, before: Project, after: Project) -> bool:
    return (
        before.main == after.main
        and before.files == after.files
        and base.in_git
        and base.folder_of(before) == head.folder_of(after)
        and head.folder_of(after) not in {folder or "." for folder in head.reached}
    )


# --- rows


@dataclass(frozen=True)
class _Single:
    """A recipe of one side. `why` the other side has none though the file is there."""

    checked: Checked
    path: str
    why: str

    @property
    def name(self) -> str:
        return self.checked.project.name


def _rows(
    base: Side, head: Side, pairs: Iterable[_Pair], before: _Results, after: _Results
) -> Iterator[RecipeDifference]:
    from recipegen.review.compare import compare

    gone, new = [], []
    for pair in pairs:
        old, now = before(pair.before), after(pair.after)
        old = now if pair.same else old
        now = None if now is None else _unsilenced(old, now)
        if pair.before is not None and pair.after is not None:
            row = compare(pair.name, old, now)
            said = () if pair.same else (*_said("before", base, head, pair), *_said("after", head, base, pair))
            yield _with(row, list(said))
        elif old is not None and pair.before is not None and not _claimed(base, head, pair.before):
            gone.append(_Single(old, base.path_of(pair.before), _why(base, head, pair.before)))
        elif now is not None and pair.after is not None and not _claimed(head, base, pair.after):
            new.append(_Single(now, head.path_of(pair.after), _why(head, base, pair.after)))
    for old_one, new_one in _renamed(gone, new):
        row = compare(new_one.name, old_one.checked, new_one.checked)
        yield replace(row, status=Status.RENAMED, before_name=old_one.name)
        gone.remove(old_one)
        new.remove(new_one)
    for one in gone:
        yield _with(compare(one.name, one.checked, None), [f"after: {one.why}"] if one.why else [])
    for one in new:
        problems = [f"before: {one.why}"] if one.why else []
        yield _with(compare(one.name, None, one.checked), [*problems, *_broken("after", one.checked.project)])


def _unsilenced(before: Checked | None, after: Checked) -> Checked:
    """With the findings that only a comment of the change itself ignores: who reviews sees them once."""
    there = {_silenced(found) for found in (before.ignored if before else ())}
    back = [found for found in after.ignored if _silenced(found) not in there]
    if not back:
        return after
    findings = sorted((*after.findings, *back), key=lambda found: ORDER[found.severity])
    return replace(after, findings=tuple(findings), ignored=tuple(f for f in after.ignored if f not in back))


def _silenced(found: Finding) -> tuple[str, str, str]:
    """What a comment is about, whatever the numbers and the line."""
    return found.rule, posixpath.basename(found.where.partition(":")[0]), found.field


def _with(row: RecipeDifference, problems: list[str]) -> RecipeDifference:
    """A row that has something unread is never one without a change, nor one of a recipe that is simply gone."""
    if not problems:
        return row
    status = row.status if row.status is Status.CHANGED else Status.UNREADABLE
    return replace(row, status=status, problems=(*problems, *row.problems))


def _said(which: str, side: Side, other: Side, pair: _Pair) -> Iterator[str]:
    """Troubles of a side with files that the recipe has on the other one, and files of it that are broken."""
    mine, theirs = (pair.before, pair.after) if which == "before" else (pair.after, pair.before)
    assert mine is not None
    assert theirs is not None
    for path in sorted({other.inside(theirs, name) for name in theirs.files} & side.troubles.keys()):
        yield f"{which}: {shown_path(path)}: {side.troubles[path]}"
    yield from _broken(which, mine)


def _broken(which: str, project: Project) -> Iterator[str]:
    for name, document in project.documents.items():
        if document.values is None and document.problem is not None:
            _, _, line = document.problem.where.rpartition(":")
            place = project.shown.get(name, name) + (f":{line}" if line.isdigit() else "")
            yield f"{which}: {place}: {document.problem.reason}"


def _why(side: Side, other: Side, project: Project) -> str:
    path = side.path_of(project)
    if not other.has(path) and path not in other.troubles:
        return ""
    return f"{shown_path(path)}: {other.troubles.get(path, _UNKNOWN)}"


def _claimed(side: Side, other: Side, project: Project) -> bool:
    """Whether files without a trainer's own are part of a recipe on the other side, whose row says all."""
    if project.main:
        return False
    theirs = {other.inside(one, name) for one in other.projects for name in one.files}
    return all(side.inside(project, name) in theirs for name in project.files)


def _unread(base: Side, head: Side, pairs: Iterable[_Pair]) -> Iterator[RecipeDifference]:
    """Rows for what is a recipe on neither side, for it cannot be read."""
    known = {
        side.inside(project, name)
        for pair in pairs
        for side, project in ((base, pair.before), (head, pair.after))
        if project is not None
        for name in project.files
    }
    for path in sorted((base.missed & base.troubles.keys()) | (head.missed & head.troubles.keys())):
        if path not in known:
            problems = [
                f"{which}: {shown_path(path)}: {side.troubles[path]}"
                for which, side in (("before", base), ("after", head))
                if path in side.troubles
            ]
            yield RecipeDifference(shown_path(path), Status.UNREADABLE, problems=tuple(problems))


def _renamed(gone: list[_Single], new: list[_Single]) -> list[tuple[_Single, _Single]]:
    """Recipes of the same meaning, the same name of the file first. Of very many none."""
    from recipegen.review.fields import changes, meaning

    old_ones = [one for one in gone if not one.why]
    new_ones = [one for one in new if not one.why]
    if len(old_ones) * len(new_ones) > _MOST_RENAMES:
        return []
    found = []
    stated_only = any(one.checked.subject.assembled.recipe is None for one in (*old_ones, *new_ones))
    meanings = {id(one): meaning(one.checked, stated_only=stated_only) for one in (*old_ones, *new_ones)}
    for old in old_ones:
        same = [
            one for one in new_ones if meanings[id(old)].values and not changes(meanings[id(old)], meanings[id(one)])
        ]
        if same:
            name = posixpath.basename(old.path)
            partner = min(same, key=lambda one: (posixpath.basename(one.path) != name, one.path))
            new_ones = [one for one in new_ones if one is not partner]
            found.append((old, partner))
    return found
