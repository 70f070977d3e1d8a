"""What the search remembers of GPU memory is what the estimate says."""

from dataclasses import replace

import pytest

from recipegen.catalog import load_cluster, load_model, load_stack
from recipegen.decide import decide
from recipegen.decide.peaks import Peaks
from recipegen.estimate import estimate
from recipegen.estimate.memory import gpu_memory
from recipegen.estimate.symbols import symbols
from recipegen.spec import Request

CELLS = [
    ("Llama-3.1-8B", "kentino-8x-rtx-5090", 1, "none", "full"),
    ("Llama-3.1-8B", "kentino-4x-rtx-pro-6000", 2, "roce-100", "full"),
    ("Qwen3-30B-A3B", "8x-h100", 1, "none", "lora"),
    ("gemma-3-12b-it", "1x-rtx-4090", 1, "none", "qlora"),
]


@pytest.mark.parametrize(("model", "hardware", "nodes", "network", "method"), CELLS)
def test_memory_asks_only_whether_a_step_has_more_than_one_micro_batch(
    model: str, hardware: str, nodes: int, network: str, method: str
) -> None:
    stack, spec = load_stack(), load_model(model)
    cluster = load_cluster(hardware, nodes=nodes, network=network)
    request = Request(model, hardware, nodes=nodes, network=network, method=method)
    decision = decide(request, spec, cluster, stack)
    for recipe in (decision.recipe, *(a.recipe for a in decision.alternatives)):
        x = symbols(spec, recipe, stack)
        two = gpu_memory(replace(x, accumulation=2), cluster.gpu.memory_bytes)
        for micro_batches in (3, 16, 100):
            assert gpu_memory(replace(x, accumulation=micro_batches), cluster.gpu.memory_bytes) == two


@pytest.mark.parametrize(("model", "hardware", "nodes", "network", "method"), CELLS)
def test_a_decisions_estimates_are_those_of_the_recipes_alone(
    model: str, hardware: str, nodes: int, network: str, method: str
) -> None:
    stack, spec = load_stack(), load_model(model)
    cluster = load_cluster(hardware, nodes=nodes, network=network)
    decision = decide(Request(model, hardware, nodes=nodes, network=network, method=method), spec, cluster, stack)
    for found in (decision, *decision.alternatives):
        alone = estimate(spec, cluster, found.recipe, stack)
        assert replace(found.estimate, verdict=alone.verdict) == alone


def test_capacity_is_part_of_what_is_remembered() -> None:
    stack, spec, cluster = load_stack(), load_model("Llama-3.2-1B"), load_cluster("1x-rtx-4090")
    decision = decide(Request("Llama-3.2-1B", "1x-rtx-4090"), spec, cluster, stack)
    x, peaks = symbols(spec, decision.recipe, stack), Peaks()
    assert peaks(x, 2**30).capacity_bytes == 2**30
    assert peaks(x, 2**40).capacity_bytes == 2**40
    assert peaks(x, 2**30) == gpu_memory(x, 2**30)
