"""From a recipe to a Simulation: build, shard, step, and read the ledger."""

from __future__ import annotations

import logging
import os
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext

from recipegen.catalog.stack import Stack
from recipegen.simulate.ledger import Ledger
from recipegen.simulate.options import Options
from recipegen.simulate.support import notes
from recipegen.spec import ModelSpec, Recipe, RecipegenError
from recipegen.spec.simulation import Simulation

_QUIET = {"TRANSFORMERS_VERBOSITY": "error", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}


@contextmanager
def _quietly() -> Iterator[None]:
    """No network, no chatter of the libraries on our streams."""
    for name, value in _QUIET.items():
        os.environ.setdefault(name, value)
    level = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)


def run(
    spec: ModelSpec,
    recipe: Recipe,
    stack: Stack,
    versions: tuple[tuple[str, str], ...],
    *,
    progress: Callable[[int, int], None] | None = None,
    options: Options,
) -> Simulation:
    """The Simulation of a recipe that `refuse_unsupported` let pass."""
    began = time.perf_counter()
    with _quietly():
        from torch._subclasses.fake_tensor import (
            DataDependentOutputException,
            DynamicOutputShapeException,
            FakeTensorMode,
            UnsupportedOperatorException,
        )

        from recipegen.simulate import build, sharding
        from recipegen.simulate.step import Step

        mode = nullcontext() if options.real_tensors else FakeTensorMode(allow_non_fake_inputs=True)
        try:
            with sharding.process_group(recipe.parallelism) as mesh, mode:
                model = build.build(spec, recipe, real=options.real_tensors)
                if mesh is not None:
                    sharding.shard(model, recipe, mesh, options)
                trainable = sum(p.numel() for p in model.trainable)
                ledger = Ledger()
                step = Step(model, spec, recipe, stack, options, ledger, progress)
                step.run()
                phases = ledger.phases()
                emulated_optimizer = step.stepper.emulated
        except (DataDependentOutputException, DynamicOutputShapeException, UnsupportedOperatorException) as error:
            raise RecipegenError(
                f"{spec.id} cannot be simulated: its code asks for values that a tensor without memory does not have "
                f"({error})"
            ) from None
    peak = max(phases, key=lambda phase: phase.bytes)
    return Simulation(
        peak_bytes=peak.bytes,
        phase=peak.name,
        phases=phases,
        total_parameters=model.total,
        trainable_parameters=trainable,
        seconds=time.perf_counter() - began,
        versions=versions,
        notes=notes(recipe, multimodal=spec.is_multimodal, emulated_optimizer=emulated_optimizer),
    )
