"""Every architecture of the catalogue: the configuration written from a ModelSpec makes the class that it describes."""

from __future__ import annotations

from dataclasses import replace

import pytest
import tiny_recipes

from recipegen.catalog import all_models
from recipegen.estimate import parameters
from recipegen.simulate import simulate
from recipegen.spec import AttentionMemory, Method, ModelSpec

pytestmark = pytest.mark.stack

LAYERS = 2


def smallest_of_each_type() -> dict[str, ModelSpec]:
    found: dict[str, ModelSpec] = {}
    for spec in all_models():
        known = found.get(spec.model_type)
        if known is None or parameters.total(spec) < parameters.total(known):
            found[spec.model_type] = spec
    return {name: replace(spec, num_hidden_layers=LAYERS) for name, spec in sorted(found.items())}


MODELS = smallest_of_each_type()


@pytest.mark.parametrize("model_type", MODELS)
def test_a_step_of_the_real_class_has_the_parameters_that_we_count(model_type: str) -> None:
    spec = MODELS[model_type]
    attention = AttentionMemory.EAGER if spec.attention_sinks else AttentionMemory.FLASH
    recipe = tiny_recipes.recipe(spec, sequence_len=64, micro_batch_size=1, attention_memory=attention)
    found = simulate(spec, recipe, tiny_recipes.stack())
    assert found.total_parameters == found.trainable_parameters == parameters.total(spec)
    lasting = {term.name: term.bytes for term in found.phases[-1].terms}
    assert lasting["parameters"] == pytest.approx(2 * found.total_parameters, rel=0.01)
    assert lasting["optimizer_states"] == pytest.approx(4 * found.total_parameters, rel=0.01)


@pytest.mark.parametrize("model_type", MODELS)
def test_an_adapter_on_it_trains_what_we_count(model_type: str) -> None:
    spec = MODELS[model_type]
    targets = parameters.default_targets(spec)
    attention = AttentionMemory.EAGER if spec.attention_sinks else AttentionMemory.FLASH
    recipe = tiny_recipes.recipe(
        spec, Method.LORA, targets=targets, sequence_len=64, micro_batch_size=1, attention_memory=attention
    )
    found = simulate(spec, recipe, tiny_recipes.stack())
    assert found.trainable_parameters == parameters.lora(spec, targets, 8)
