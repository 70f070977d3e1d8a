"""What a recipe costs: pure functions of (model, cluster, recipe, stack). No I/O beyond the catalogue's constants.

`estimate` gives GPU memory by phase and term, host memory, disk, traffic and time; docs/estimates.md explains the
formulas, what they were checked against and what they leave out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from recipegen.estimate.dataset_size import training_data
from recipegen.estimate.disk import disk
from recipegen.estimate.host import host_memory
from recipegen.estimate.memory import gpu_memory
from recipegen.estimate.symbols import Symbols, symbols
from recipegen.estimate.time import step_time
from recipegen.estimate.traffic import moves
from recipegen.spec import Estimate, GpuMemory, RecipegenError, Traffic

if TYPE_CHECKING:
    from recipegen.catalog.stack import Stack
    from recipegen.spec import Cluster, ModelSpec, Recipe

__all__ = ["estimate"]


def estimate(
    model: ModelSpec,
    cluster: Cluster,
    recipe: Recipe,
    stack: Stack,
    *,
    memory: Callable[[Symbols, int], GpuMemory] = gpu_memory,
) -> Estimate:
    """Everything a recipe costs on a cluster.

    Bytes are per GPU (memory, traffic) or per node (host, disk); seconds are of one optimizer step. The verdict is the
    GPU's; host memory and disk have capacities beside them, and rules of their own. `memory` is `gpu_memory`, or one
    that remembers, for a search that asks for the same more than once. Raises RecipegenError for a recipe of more
    machines than the cluster has: what travels between them is not known.
    """
    nodes = recipe.parallelism.nodes
    if nodes > cluster.nodes:
        verb = "is" if cluster.nodes == 1 else "are"
        raise RecipegenError(
            f"the recipe is for {nodes} nodes, and {cluster.nodes} of {cluster.name} {verb} given",
            fix=f"Give --nodes {nodes} and --network.",
        )
    x = symbols(model, recipe, stack, triton=cluster.gpu.triton)
    whole = x
    if recipe.parallelism.ep > 1:  # every host reads all experts, and a checkpoint has them all
        whole = symbols(model, replace(recipe, parallelism=replace(recipe.parallelism, ep=1)), stack)
    gpu = memory(x, cluster.gpu.memory_bytes)
    data = training_data(recipe)
    travel = moves(x, cluster)
    return Estimate(
        gpu=gpu,
        host=host_memory(whole, recipe, model, cluster),
        disk=disk(whole, recipe, model, cluster, data),
        traffic=Traffic(tuple(m for m in travel.all if m.bytes_per_step)),
        time=step_time(x, recipe, cluster, travel, data),
        verdict=gpu.verdict,
        total_parameters=whole.shape.N,
        trainable_parameters=whole.n_t + whole.narrow,
    )
