"""Pins: any field by its path, typed, with an answer for every wrong spelling."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recipegen.decide import field_types, read_pins, resolve_path
from recipegen.decide.pins import apply
from recipegen.spec import LossKernel, Method, RecipegenError, Strategy
from tests.recipes_for_tests import recipe


def test_a_unique_last_name_is_enough() -> None:
    assert resolve_path("learning_rate") == "schedule.learning_rate"
    assert resolve_path("strategy") == "parallelism.strategy"
    assert resolve_path("optimizer") == "optimizer.name"
    assert resolve_path("schedule.learning_rate") == "schedule.learning_rate"


@pytest.mark.parametrize(
    ("spelling", "suggestion"),
    [
        ("gradient_accumulation_steps", "gradient_accumulation"),
        ("lora_r", "adapter.r"),
        ("quantize_moe_experts", "quantised_experts"),
        ("lora_modules_to_save", "adapter.modules_to_save"),
        ("sample_packing", "packing"),
        ("per_device_train_batch_size", "micro_batch_size"),
    ],
)
def test_a_trainers_spelling_gets_a_suggestion(spelling: str, suggestion: str) -> None:
    with pytest.raises(RecipegenError, match=f"`{suggestion}`"):
        resolve_path(spelling)


def test_a_misspelt_field_gets_the_nearest() -> None:
    with pytest.raises(RecipegenError, match=r"schedule\.learning_rate"):
        resolve_path("learning_rte")


def test_values_get_the_fields_type() -> None:
    assert read_pins(
        {
            "strategy": "fsdp2_hybrid",
            "loss_kernel": "stock",
            "learning_rate": "1e-3",
            "packing": "off",
            "target_modules": "q_proj, v_proj",
            "modules_to_save": "embed_tokens",
            "quantised_experts": "true",
            "max_steps": "none",
            "micro_batch_size": 2,
        }
    ) == {
        "parallelism.strategy": Strategy.FSDP2_HYBRID,
        "loss_kernel": LossKernel.STOCK,
        "schedule.learning_rate": 1e-3,
        "packing": False,
        "adapter.target_modules": ("q_proj", "v_proj"),
        "adapter.modules_to_save": ("embed_tokens",),
        "quantised_experts": True,
        "max_steps": None,
        "micro_batch_size": 2,
    }


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("micro_batch_size", "0"),
        ("micro_batch_size", "1.5"),
        ("micro_batch_size", "nan"),
        ("learning_rate", "-1"),
        ("learning_rate", "inf"),
        ("learning_rate", True),
        ("packing", "maybe"),
        ("strategy", "fsdp3"),
        ("state_dict_type", "LOCAL_STATE_DICT"),
        ("main_process_port", "80"),
        ("attention", "sdpa\nevil: true"),
        ("modules_to_save", "lm_head,score"),
    ],
)
def test_a_value_that_is_not_the_fields_is_refused_with_its_name(name: str, value: object) -> None:
    with pytest.raises(RecipegenError, match=resolve_path(name)):
        read_pins({name: value})


@pytest.mark.parametrize("name", ["precision.states", "attention_memory", "nodes", "model", "datasets"])
def test_what_follows_from_other_fields_cannot_be_set(name: str) -> None:
    with pytest.raises(RecipegenError):
        read_pins({name: "1"})


@given(
    st.sampled_from(sorted(field_types())), st.one_of(st.text(), st.integers(), st.floats(), st.booleans(), st.none())
)
def test_any_value_is_typed_or_refused_in_one_line(path: str, value: object) -> None:
    try:
        pins = read_pins({path: value})
    except RecipegenError as error:
        assert path in str(error) or "set" in str(error)
        return
    assert dataclasses.is_dataclass(pins[path]) is False


def test_quantised_experts_hold_for_a_quantised_base_only() -> None:
    for method, quantised in ((Method.QLORA, True), (Method.LORA, False), (Method.FULL, False)):
        assert apply(recipe(Strategy.DDP, method), {"quantised_experts": True}).quantised_experts is quantised
