"""Tiny models and data once per session, and one launch per strategy, shared by every test that reads it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.trainers import tiny
from tests.trainers.harness import Project, Run, launch, make_project, resume
from tests.trainers.strategies import CASES, CHECKPOINT, GLOBAL_BATCH_SIZE, Case


@dataclass(frozen=True)
class Tiny:
    """Folders of the tiny models by family, and data files by format."""

    models: dict[str, Path]
    data: dict[str, Path]


@pytest.fixture(scope="session")
def tiny_world(tmp_path_factory: pytest.TempPathFactory) -> Tiny:
    """Models and data sets, written once."""
    folder = tmp_path_factory.mktemp("tiny-world")
    models = {family: tiny.write_model(family, folder / family) for family in tiny.FAMILIES}
    return Tiny(models, tiny.write_data(folder))


@pytest.fixture(scope="session")
def new_project(tiny_world: Tiny, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Project]:
    """`recipegen new` for a case; keyword arguments are further settings."""
    folder = tmp_path_factory.mktemp("projects")

    def make(case: Case, name: str | None = None, **settings: object) -> Project:
        return make_project(
            folder / (name or case.name),
            model=tiny_world.models[case.family],
            dataset=tiny_world.data[case.data],
            hardware=case.hardware,
            method=case.method,
            settings={**case.all_settings(), **settings},
            options=["--global-batch-size", str(GLOBAL_BATCH_SIZE)],
        )

    return make


@pytest.fixture(scope="session")
def run_of(new_project: Callable[..., Project]) -> Callable[[str], Run]:
    """The finished run of a case, launched when first asked for; a failed launch is not tried again."""
    finished: dict[str, Run | BaseException] = {}

    def get(name: str) -> Run:
        if name not in finished:
            try:
                finished[name] = launch(new_project(CASES[name]))
            except (AssertionError, OSError) as error:
                finished[name] = error
        found = finished[name]
        if isinstance(found, BaseException):
            raise found
        return found

    return get


@pytest.fixture(scope="session")
def resumed(run_of: Callable[[str], Run]) -> Callable[[str], Run]:
    """The run of a case gone on with from its middle checkpoint, in a copy of its folder."""
    return lambda name: resume(run_of(name), CHECKPOINT)
