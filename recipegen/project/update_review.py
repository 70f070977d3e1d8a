"""What an update does to the training run: the project as it is against the project as it would be."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from recipegen.check.checking import Checked, Options, check_projects
from recipegen.check.policy import Policy
from recipegen.project.update import Update
from recipegen.review import Review
from recipegen.review.compare import compare
from recipegen.source.projects import collect_given


def review(update: Update, shown: Path) -> Review | None:
    """The semantic difference, edits of people included; None where one side is no project of one trainer.

    `shown` is the folder as a person named it. Nothing is written.
    """
    before = {name: content for name, content in update.seen.items() if content is not None}
    gone = {*update.removals, *update.moves}
    after = {name: content for name, content in before.items() if name not in gone}
    after |= {name: content for name, content in update.files.items() if name in update.seen}
    sides = [_checked(shown, contents) for contents in (before, after)]
    if sides[0] is None or sides[1] is None:
        return None
    difference = compare(shown.name or str(shown), sides[0], sides[1])
    return Review("as it is", "updated", (difference,))


def _checked(folder: Path, contents: Mapping[str, bytes]) -> Checked | None:
    projects = [project for project in collect_given(folder, contents).projects if project.main]
    if len(projects) != 1:
        return None
    return check_projects(projects, Options(trainers=False), lambda _: Policy())[0]
