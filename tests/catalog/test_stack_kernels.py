"""Which architectures the fused kernels know: asked of Axolotl and Liger themselves."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

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
    script = Path(__file__).with_name("patched_architectures.py")
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "AXOLOTL_DO_NOT_TRACK": "1"}
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path), *ARCHITECTURES],
        capture_output=True,
        text=True,
        env=environment,
        timeout=300,
        check=False,
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("REPORT ")]
    assert lines, done.stderr[-3000:]
    answers = json.loads(lines[0].removeprefix("REPORT "))
    problems = {name: answer["problem"] for name, answer in answers.items() if answer["problem"]}
    assert all("code not found" in problem for problem in problems.values()), problems
    known = TABLE["lora_kernels"]
    patched = {n for n, a in answers.items() if n not in problems and a["activation"] in known["activations"]}
    assert patched == set(known["model_types"])
