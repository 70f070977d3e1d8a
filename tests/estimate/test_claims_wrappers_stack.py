"""What torch's DDP, FSDP1 and FSDP2 hold on one of two ranks, and what Accelerate puts around them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.run
HERE = Path(__file__).parent
SHIM = HERE.parent / "trainers" / "cpu_shim"
LAYERS = 6  # of claims_two_ranks.py


@cache
def reports(*cases: str, mode: str = "") -> dict[str, Any]:
    """One start for several cases; of two real ranks where `mode`, the CPU shim's, is given."""
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(HERE)}
    command = [sys.executable, "-W", "ignore"]
    if mode:
        environment |= {"RECIPEGEN_TEST_CPU": mode, "PYTHONPATH": f"{SHIM}{os.pathsep}{HERE}"}
        command += ["-m", "torch.distributed.run", "--nproc_per_node", "2", "--master_port", "29647"]
    done = subprocess.run(
        [*command, str(HERE / "claims_two_ranks.py"), *cases],
        capture_output=True,
        text=True,
        env=environment,
        timeout=600,
        check=False,
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("REPORT ")]
    assert len(lines) == len(cases), done.stderr[-3000:]
    found: dict[str, Any] = {}
    for line in lines:
        found |= json.loads(line.removeprefix("REPORT "))
    return found


def torch_itself(case: str) -> dict[str, Any]:
    found: dict[str, Any] = reports("fsdp1", "ddp", "fsdp2")[case]
    return found


# --- FSDP1, frozen weights and checkpoints; units: the input of one layer


@pytest.mark.parametrize("case", ["frozen plain outside", "trained reentrant outside", "trained plain outside"])
def test_backward_frees_the_inputs_of_layers_under_fsdp1(case: str) -> None:
    """What is left is the input of the model and its gradient."""
    assert torch_itself("fsdp1")[case]["end"] < 3


def test_frozen_fsdp1_units_that_reentrant_checkpoints_run_again_keep_inputs_and_gradients_until_backward_ends() -> (
    None
):
    found = torch_itself("fsdp1")["frozen reentrant outside"]
    assert found["end"] == pytest.approx(2 * LAYERS, abs=0.5)
    assert found["after"] < 0.1


def test_the_reshard_hook_on_a_leaf_is_what_keeps_them() -> None:
    """Its closure holds the input's AccumulateGrad node, which holds the input, which holds the hook."""
    found = torch_itself("fsdp1")
    freed = found["frozen reentrant outside"]["end"] - found["without the hook"]["end"]
    assert freed > 2 * LAYERS - 4


def test_a_checkpoint_inside_the_fsdp1_unit_keeps_none() -> None:
    """As the decoder layers of transformers 5.16.1 do it: the unit itself is not run again."""
    assert torch_itself("fsdp1")["frozen reentrant inside"]["end"] < 3


def test_transformers_checkpoints_inside_of_its_layers() -> None:
    from transformers.modeling_layers import GradientCheckpointingLayer
    from transformers.models.llama.modeling_llama import LlamaDecoderLayer

    assert issubclass(LlamaDecoderLayer, GradientCheckpointingLayer)
    assert "__call__" in vars(GradientCheckpointingLayer)


def test_fsdp2_keeps_none() -> None:
    assert torch_itself("fsdp1")["fsdp2"]["end"] < 3


# --- DDP; units: all parameters


def test_ddp_buckets_are_a_second_copy_of_the_gradients() -> None:
    found = torch_itself("ddp")["copy"]
    assert found == {key: pytest.approx(value, abs=0.01) for key, value in {"made": 1, "first": 2, "second": 2}.items()}


def test_with_gradient_as_bucket_view_there_is_one() -> None:
    found = torch_itself("ddp")["view"]
    assert found == {key: pytest.approx(1, abs=0.01) for key in found}


def test_gradient_as_bucket_view_is_off_by_default() -> None:
    import inspect

    import torch
    from accelerate import DistributedDataParallelKwargs

    assert (
        not inspect.signature(torch.nn.parallel.DistributedDataParallel).parameters["gradient_as_bucket_view"].default
    )
    assert not DistributedDataParallelKwargs().gradient_as_bucket_view


# --- FSDP2; bytes per parameter, two ranks


@pytest.mark.parametrize(("reduce", "width"), [("float32", 4), ("bfloat16", 2)])
def test_no_sync_keeps_whole_gradients_in_the_reduce_dtype(reduce: str, width: int) -> None:
    """Whole on each of the two ranks, though parameters are split; in bf16 as the gradient itself, added in place."""
    found = torch_itself("fsdp2")[f"{reduce} no_sync full"]
    assert found["after"] == pytest.approx(width, abs=0.05)
    assert found["accumulated"] == (["torch.float32"] if reduce == "float32" else [])


def test_hybrid_keeps_the_all_reduces_inputs_until_backward_ends_where_they_are_no_gradients() -> None:
    """bf16 inputs beside fp32 gradients: 2 B per parameter of the layers that are done. In fp32 they are one."""
    apart, same = (torch_itself("fsdp2")[f"{reduce} sync hybrid"] for reduce in ("bfloat16", "float32"))
    done = (LAYERS - 1) / LAYERS
    assert apart["inside"] - same["inside"] == pytest.approx(2 * done, abs=0.35)
    assert apart["after"] == pytest.approx(same["after"], abs=0.1)


# --- Accelerate


def test_accelerate_autocasts_under_ddp_and_copies_outputs_to_fp32() -> None:
    found = reports("accelerate", mode="ddp")["accelerate"]["ddp"]
    assert found == {
        "native_amp": True,
        "autocast": True,
        "logits": "torch.float32",
        "type": "DistributedType.MULTI_CPU",
    }


def test_accelerate_does_neither_under_fsdp2() -> None:
    """`native_amp` is set there as well; only the way that prepares FSDP2 models does not use it."""
    found = reports("accelerate", mode="sharded")["accelerate"]["fsdp2"]
    assert found["type"] == "DistributedType.FSDP"
    assert (found["autocast"], found["logits"]) == (False, "torch.bfloat16")


def test_accelerate_does_both_under_fsdp1() -> None:
    found = reports("accelerate", mode="sharded")["accelerate"]["fsdp1"]
    assert found["type"] == "DistributedType.FSDP"
    assert (found["autocast"], found["logits"]) == (True, "torch.float32")
