"""Peaks that another program simulated: the small models here, the 70B ones in `make test-long`.

The other program left out some of what the trainers do; rows where that decides the peak are told apart by columns,
not by their error: an adapter without checkpointing (inputs that require gradients, copies of what adapters read) and
a full fine-tune with a fused loss (the head's gradient, see test_losses_stack.py).
"""

from __future__ import annotations

from pathlib import Path

import pytest
import tiny_recipes

from benchmarks.simulated_rows import Point, read_points, understand_point
from recipegen.simulate import simulate
from recipegen.spec import LossKernel

pytestmark = pytest.mark.stack

CORPUS = Path(__file__).parents[1] / "corpus"
FILES = ("simulated-peaks-as-trained.csv", "simulated-peaks.csv", "simulated-peaks-fitted.csv")
LARGEST_DIFFERENCE = 1e-4
SMALL, LARGE = 2e9, 60e9  # parameters


def comparable(point: Point) -> bool:
    r = point.recipe
    if r.method.is_adapter:
        return r.activation_checkpointing
    return r.loss_kernel is not LossKernel.FUSED_LINEAR


def points() -> dict[str, Point]:
    found = {}
    for name in FILES:
        for number, row in enumerate(read_points(CORPUS / name), 1):
            point = understand_point(row, number)
            if comparable(point):
                found[f"{name}:{point.id}"] = point
    return found


POINTS = points()
QUICK = {k: p for k, p in POINTS.items() if int(p.symbols.shape.N) < SMALL}
LONG = {k: p for k, p in POINTS.items() if int(p.symbols.shape.N) > LARGE}


def difference(point: Point) -> float:
    assert point.peak_bytes is not None
    found = simulate(point.model, point.recipe, tiny_recipes.stack(), options=point.options)
    return abs(found.peak_bytes / point.peak_bytes - 1)


@pytest.mark.parametrize("name", QUICK)
def test_the_peak_is_the_given_one(name: str) -> None:
    assert difference(QUICK[name]) < LARGEST_DIFFERENCE


@pytest.mark.long
@pytest.mark.parametrize("name", LONG)
def test_the_peak_of_a_large_model_is_the_given_one(name: str) -> None:
    assert difference(LONG[name]) < LARGEST_DIFFERENCE


def test_there_is_something_to_compare() -> None:
    assert len(QUICK) >= 10
    assert len(LONG) >= 5
