"""The attention table's claims about architectures, asked of Transformers and Axolotl."""

from __future__ import annotations

import importlib
import inspect

import pytest

from recipegen.catalog.reading import load_yaml
from recipegen.catalog.stack import load_stack

pytestmark = pytest.mark.stack
ROWS = {row["id"]: row for row in load_yaml(load_stack().folder / "attention.yaml")["rules"]}
LANGUAGE_MODELS = (
    "llama",
    "qwen2",
    "qwen3",
    "qwen3_moe",
    "mistral",
    "mixtral",
    "gemma2",
    "gemma3",
    "phi3",
    "olmo2",
    "glm4",
)


def has_sdpa(model_type: str) -> bool:
    from transformers import PreTrainedModel

    module = importlib.import_module(f"transformers.models.{model_type}.modeling_{model_type}")
    classes = [
        cls
        for _, cls in inspect.getmembers(module, inspect.isclass)
        if issubclass(cls, PreTrainedModel)
        and cls.__module__ == module.__name__
        and cls.__name__.endswith("PreTrainedModel")
    ]
    return bool(classes[0]._supports_sdpa)


def test_only_the_listed_architectures_have_no_sdpa() -> None:
    listed = ROWS["sinks-need-eager"]["model_types"]
    assert not any(has_sdpa(name) for name in listed)
    assert all(has_sdpa(name) for name in LANGUAGE_MODELS)


def test_sdpa_ignores_the_soft_cap_that_eager_applies() -> None:
    from transformers.integrations import sdpa_attention
    from transformers.models.gemma2 import modeling_gemma2

    assert "softcap" not in inspect.getsource(sdpa_attention)
    assert "softcap" in inspect.signature(modeling_gemma2.eager_attention_forward).parameters
    assert ROWS["softcap-needs-eager"]["implementation"] == "eager"


def test_the_varlen_path_has_the_limits_the_table_states() -> None:
    from axolotl.monkeypatch.attention import sdpa_varlen

    assert ROWS["wide-heads"]["head_dim_above"] == sdpa_varlen._VARLEN_MAX_HEAD_DIM
    assert sdpa_varlen.varlen_available()  # torch 2.13 has the kernel; only the device is missing here


def test_packed_rows_do_not_see_each_other_through_the_block_diagonal_mask() -> None:
    """Isolation on the masked path: changing the first document leaves the second one's logits as they were."""
    import torch
    from axolotl.monkeypatch.attention import sdpa_varlen
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=64,
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
        )
    ).eval()
    positions = torch.cat([torch.arange(6), torch.arange(10)])[None]
    first = torch.randint(0, 64, (1, 16))
    second = first.clone()
    second[0, :6] = torch.randint(0, 64, (6,))
    assert sdpa_varlen.patch_sdpa_varlen()
    try:
        with torch.no_grad():
            one, two = (model(input_ids=x, position_ids=positions, use_cache=False).logits for x in (first, second))
    finally:
        sdpa_varlen.unpatch_sdpa_varlen()
    assert torch.allclose(one[0, 6:], two[0, 6:], atol=1e-5)
    assert not torch.allclose(one[0, :6], two[0, :6], atol=1e-3)
