"""Which architectures the fused kernels know: asked of Axolotl and Liger themselves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from recipegen.catalog.reading import load_yaml
from recipegen.catalog.stack import load_stack

pytestmark = pytest.mark.stack
TABLE = load_yaml(load_stack().folder / "kernels.yaml")
# Architectures people fine-tune, known to the kernels or not.
ARCHITECTURES = (
    "cohere",
    "cohere2",
    "deepseek_v2",
    "deepseek_v3",
    "ernie4_5",
    "exaone4",
    "falcon",
    "gemma",
    "gemma2",
    "gemma3",
    "gemma3_text",
    "glm",
    "glm4",
    "glm4_moe",
    "gpt_oss",
    "granite",
    "granitemoe",
    "hunyuan_v1_dense",
    "llama",
    "ministral",
    "mistral",
    "mistral3",
    "mixtral",
    "nemotron",
    "olmo2",
    "olmo3",
    "phi",
    "phi3",
    "qwen2",
    "qwen2_moe",
    "qwen3",
    "qwen3_moe",
    "seed_oss",
    "smollm3",
    "stablelm",
    "starcoder2",
)


def test_liger_has_a_fused_linear_loss_for_exactly_these() -> None:
    import inspect

    from liger_kernel.transformers.monkey_patch import MODEL_TYPE_TO_APPLY_LIGER_FN as known

    found = {
        name
        for name in ARCHITECTURES
        if name in known and "fused_linear_cross_entropy" in inspect.signature(known[name]).parameters
    }
    assert found == set(TABLE["fused_linear_loss"]["model_types"])


def test_axolotl_can_patch_the_attention_of_exactly_these(tmp_path: Path) -> None:
    """Rewriting the attention source is all that `lora_qkv_kernel` and `lora_o_kernel` do before Triton is needed."""
    from axolotl.monkeypatch.lora_kernels import patch_self_attn_lora
    from axolotl.utils.dict import DictDefault
    from transformers import AutoConfig

    patched = set()
    for name in ARCHITECTURES:
        config: Any = AutoConfig.for_model(name)
        folder = tmp_path / name
        config.save_pretrained(folder)
        text = config.get_text_config()
        activation = getattr(text, "hidden_act", getattr(text, "hidden_activation", None))
        try:
            patch_self_attn_lora(DictDefault({"base_model": str(folder)}))
        except AssertionError as error:
            assert "code not found" in str(error)
            continue
        if activation in TABLE["lora_kernels"]["activations"]:
            patched.add(name)
    assert patched == set(TABLE["lora_kernels"]["model_types"])
