"""Solve a request without the command line."""

from collections.abc import Callable
from typing import Any

import pytest

from recipegen.catalog import load_cluster, load_model, load_stack
from recipegen.decide import decide
from recipegen.spec import Decision, Request

Solve = Callable[..., Decision]


@pytest.fixture(scope="session")
def solve() -> Solve:
    def solve(
        model: str, hardware: str, *, pins: dict[str, Any] | None = None, datasets: tuple = (), **more: Any
    ) -> Decision:
        request = Request(model=model, hardware=hardware, pins=pins or {}, **more)
        cluster = load_cluster(
            hardware, nodes=request.nodes, network=request.network, overrides=request.hardware_overrides
        )
        return decide(request, load_model(model), cluster, load_stack(request.stack), datasets)

    return solve
