"""Every field of Recipe has a class; what the table says of prepared data is what Axolotl's hash holds."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest

from recipegen.formats.axolotl_facts import FACTS
from recipegen.review.difference import Experiment
from recipegen.review.kinds import EXPERIMENT, PREPARED, STALE, experiment_of
from recipegen.spec import Recipe

FACT_NAMES = {fact.name for fact in FACTS}


def test_every_field_of_a_recipe_has_a_class() -> None:
    assert {field.name for field in fields(Recipe)} <= set(EXPERIMENT)


def test_every_path_of_the_table_is_one() -> None:
    known = {field.name for field in fields(Recipe)} | {"facts", "environment"}
    assert {path.split(".")[0] for path in EXPERIMENT} <= known
    assert {path.partition(".")[2] for path in EXPERIMENT if path.startswith("facts.")} <= FACT_NAMES


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("schedule.learning_rate", Experiment.COMPARABLE),
        ("adapter.target_modules", Experiment.DIFFERENT),
        ("adapter.alpha", Experiment.COMPARABLE),
        ("datasets.3.entry.roles_to_train", Experiment.DIFFERENT),
        ("facts.output_dir", Experiment.SAME_ORDER),
        ("facts.optim_args", Experiment.COMPARABLE),
        ("environment.NCCL_P2P_DISABLE", Experiment.SAME_ORDER),
        ("passthrough.axolotl.some_key", Experiment.COMPARABLE),
    ],
)
def test_the_longest_prefix_wins(path: str, expected: Experiment) -> None:
    assert experiment_of(path) is expected


# Recipe path -> a change of Axolotl's own keys.
CHANGES: dict[str, dict[str, Any]] = {
    "datasets": {"datasets": [{"path": "other.jsonl", "type": "chat_template"}]},
    "sequence_len": {"sequence_len": 8192},
    "packing": {"sample_packing": False},
    "excess_length_strategy": {"excess_length_strategy": "truncate"},
    "chat_template": {"chat_template": "chatml"},
    "eot_tokens": {"eot_tokens": ["<|end|>"]},
    "facts.train_on_inputs": {"train_on_inputs": True},
    "facts.chat_template_jinja": {"chat_template_jinja": "{{ x }}"},
    "facts.special_tokens": {"special_tokens": {"pad_token": "<pad>"}},
    "facts.group_by_length": {"group_by_length": True},
    "facts.eval_sample_packing": {"eval_sample_packing": True},
    "facts.dataset_exact_deduplication": {"dataset_exact_deduplication": True},
    "val_set_size": {"val_set_size": 0.1},
    "seed": {"seed": 7},
    "micro_batch_size": {"micro_batch_size": 8},
}


@pytest.mark.stack
@pytest.mark.parametrize("path", CHANGES)
def test_prepared_data_have_another_name_exactly_then(path: str) -> None:
    from axolotl.utils.data.shared import generate_dataset_hash_from_config
    from axolotl.utils.dict import DictDefault

    base: dict[str, Any] = {
        "datasets": [{"path": "data.jsonl", "type": "chat_template"}],
        "sequence_len": 4096,
        "sample_packing": True,
        "excess_length_strategy": "drop",
        "chat_template": "llama3",
        "eot_tokens": ["<|eot_id|>"],
        "seed": 42,
    }

    def name(values: dict[str, Any]) -> str:
        cfg = DictDefault(values)
        return generate_dataset_hash_from_config(cfg, cfg.datasets, "tokenizer")

    assert (name(base) != name({**base, **CHANGES[path]})) == (path in PREPARED)
    assert path not in STALE or path not in PREPARED
