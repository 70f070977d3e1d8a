"""The exact peak of a recipe without a GPU: one training step of the real classes on tensors that have only a shape.

transformers' model, peft's adapters, torch's fully_shard, checkpointing, autograd and optimizers run under
FakeTensorMode with a fake process group, and every live storage is counted in the CUDA allocator's units. No weights,
no network, no GPU. docs/simulate.md says what is real, what is emulated, and what it was compared with.

Needs the extra `recipegen[simulate]`; importing this package does not.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from recipegen.simulate.options import Options
from recipegen.simulate.support import refuse_unsupported, versions
from recipegen.spec import ModelSpec, Recipe
from recipegen.spec.simulation import Simulation

if TYPE_CHECKING:
    from recipegen.catalog.stack import Stack

__all__ = ["Options", "Simulation", "refuse_unsupported", "simulate", "versions"]

_DEFAULTS = Options()


def simulate(
    model: ModelSpec,
    recipe: Recipe,
    stack: Stack,
    *,
    progress: Callable[[int, int], None] | None = None,
    options: Options = _DEFAULTS,
) -> Simulation:
    """Peak allocated bytes of rank 0, by phase and term.

    `progress` gets (layers done, layers in all). Raises RecipegenError for what is not simulated (DeepSpeed, offload,
    tensor and context parallelism) and where torch or transformers are missing.
    """
    refuse_unsupported(recipe)
    found = versions()
    from recipegen.simulate.run import run

    return run(model, recipe, stack, found, progress=progress, options=options)
