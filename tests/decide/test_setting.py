"""What is settled before any candidate: length, template, steps."""

from collections.abc import Callable
from pathlib import Path

import pytest

from recipegen.catalog import load_model
from recipegen.dataset.measure import measure
from recipegen.spec import DatasetSpec, Decision, RecipegenError

Solve = Callable[..., Decision]
CHAT = Path(__file__).parents[2] / "examples/support-chat.jsonl"


@pytest.fixture
def chat() -> DatasetSpec:
    return measure(str(CHAT), model=load_model("Llama-3.1-8B-Instruct"))


def test_a_pinned_chat_template_reaches_the_data_set_too(solve: Solve, chat: DatasetSpec) -> None:
    d = solve("Llama-3.1-8B-Instruct", "kentino-8x-rtx-5090", datasets=(chat,), pins={"chat_template": "chatml"})
    assert d.recipe.chat_template == "chatml"
    assert dict(d.recipe.datasets[0].entry)["chat_template"] == "chatml"


def test_the_sequence_covers_99_percent_of_the_rows(solve: Solve, chat: DatasetSpec) -> None:
    d = solve("Llama-3.1-8B-Instruct", "kentino-8x-rtx-5090", datasets=(chat,))
    assert d.recipe.sequence_len == 2048
    assert "covers 100.0% of rows" in d.reasons["sequence_len"]


def test_a_small_data_set_gets_a_smaller_batch_and_no_packs(solve: Solve, chat: DatasetSpec) -> None:
    d = solve("Llama-3.1-8B-Instruct", "kentino-8x-rtx-5090", datasets=(chat,))
    assert not d.recipe.packing
    assert d.estimate.time.steps_per_epoch is not None
    assert d.estimate.time.steps_per_epoch >= 20


def test_lost_rows_are_reported_and_a_longer_sequence_is_asked_for(solve: Solve, chat: DatasetSpec) -> None:
    d = solve("Llama-3.1-8B-Instruct", "kentino-8x-rtx-5090", datasets=(chat,), sequence_len=128)
    said = next(f for f in d.findings if f.rule == "RG501")
    assert "are dropped" in said.reason
    assert said.fix.startswith("--sequence-len")


def test_the_end_of_the_turn_is_named(solve: Solve, chat: DatasetSpec) -> None:
    d = solve("Llama-3.1-8B-Instruct", "kentino-8x-rtx-5090", datasets=(chat,))
    assert d.recipe.eot_tokens == ("<|eot_id|>",)


def test_a_template_that_axolotl_does_not_know_is_refused(solve: Solve, chat: DatasetSpec) -> None:
    with pytest.raises(RecipegenError, match="chatml"):
        solve("Llama-3.1-8B-Instruct", "kentino-8x-rtx-5090", datasets=(chat,), pins={"chat_template": "chatlm"})
