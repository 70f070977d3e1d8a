"""The dtypes Axolotl's own model loader leaves behind in one process, against the precision table.

FSDP2 and DDP in real processes: test_stack_fsdp2.py; whole launched runs: tests/trainers.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from recipegen.catalog.stack import load_stack
from recipegen.spec import Dtype, Method, Precision, Strategy
from tests.trainers import tiny

pytestmark = pytest.mark.stack
HERE = Path(__file__).parent
TORCH = {Dtype.BF16: "torch.bfloat16", Dtype.FP32: "torch.float32"}
LINEAR_LAYERS = 7 * 2  # of the tiny model's two decoder layers


@pytest.fixture(scope="module")
def dtypes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """One start for all cases; in a process of its own, because Axolotl patches what it loads."""
    folder = tmp_path_factory.mktemp("precision")
    model = tiny.write_model("llama", folder / "llama")
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "AXOLOTL_DO_NOT_TRACK": "1", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        [sys.executable, str(HERE / "dtypes_one_process.py"), str(model), str(folder / "out")],
        capture_output=True,
        text=True,
        env=environment,
        timeout=600,
        check=False,
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("REPORT ")]
    assert lines, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(lines[0].removeprefix("REPORT "))
    return found


def precision(method: Method, load: Dtype, attention: str = "sdpa") -> Precision:
    return load_stack().precision("axolotl", Strategy.SINGLE, method, "adamw_torch_fused", load, attention=attention)


def test_full_on_one_gpu_keeps_embeddings_head_and_norms_in_fp32(dtypes: dict[str, Any]) -> None:
    p, seen = precision(Method.FULL, Dtype.BF16), dtypes["full sdpa"]["trainable"]
    kept = {name for name in seen if any(module in name for module in p.fp32_modules)}
    assert seen == {name: TORCH[Dtype.FP32 if name in kept else p.trainable] for name in seen}
    assert all(any(module in name for name in kept) for module in p.fp32_modules)
    assert 0 < len(kept) < len(seen)


def test_flash_attention_casts_everything_to_bf16(dtypes: dict[str, Any]) -> None:
    p, seen = precision(Method.FULL, Dtype.BF16, "flash_attention_2"), dtypes["full flash_attention_2"]["trainable"]
    assert set(seen.values()) == {TORCH[p.trainable]}
    assert p.fp32_modules == ()


def test_adapters_are_fp32_on_a_bf16_base(dtypes: dict[str, Any]) -> None:
    p, seen = precision(Method.LORA, Dtype.BF16), dtypes["lora"]
    assert set(seen["trainable"].values()) == {TORCH[p.trainable]}
    assert set(seen["frozen"].values()) == {TORCH[p.parameters]}


def test_adapters_are_fp32_on_an_nf4_base(dtypes: dict[str, Any]) -> None:
    p, seen = precision(Method.QLORA, Dtype.NF4), dtypes["qlora"]
    assert set(seen["trainable"].values()) == {TORCH[p.trainable]}
    assert seen["packed"] == LINEAR_LAYERS
    assert seen["quant_types"] == [p.parameters.value]
    unpacked = {name: dtype for name, dtype in seen["frozen"].items() if "_proj." not in name}
    assert unpacked
    assert set(unpacked.values()) == {"torch.bfloat16"}  # embeddings, head and norms
