"""What loading on the CPU really costs, with the pinned transformers: a small checkpoint, one process a case.

estimate/host.py rests on these four facts; the day one changes, its formula must.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.stack

_MAKE = """
import sys, torch
from transformers import LlamaConfig, LlamaForCausalLM
config = LlamaConfig(vocab_size=32000, hidden_size=1024, intermediate_size=4096, num_hidden_layers=8,
                     num_attention_heads=16, num_key_value_heads=8)
model = LlamaForCausalLM(config).to(torch.bfloat16)
model.save_pretrained(sys.argv[1])
print(2 * model.num_parameters())
"""

_LOAD = """
import os, sys, torch
folder, dtype, rank = sys.argv[1], getattr(torch, sys.argv[2]), sys.argv[3]
arguments = {}
if rank != "none":
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="0", RANK="0", WORLD_SIZE="1", LOCAL_RANK=rank,
                      ACCELERATE_USE_FSDP="true", FSDP_CPU_RAM_EFFICIENT_LOADING="true")
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    arguments["device_map"] = "cpu" if rank == "0" else "meta"  # what Axolotl asks for
from transformers import AutoModelForCausalLM

def anonymous():
    line = next(l for l in open("/proc/self/status") if l.startswith("RssAnon"))
    return int(line.split()[1]) * 1024

before = anonymous()
model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, **arguments)
print(anonymous() - before)
"""


def _run(code: str, *arguments: str) -> int:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code, *arguments],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return int(done.stdout.strip().splitlines()[-1])


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, int]:
    folder: Path = tmp_path_factory.mktemp("checkpoint")
    return str(folder), _run(_MAKE, str(folder))


def test_a_checkpoint_in_its_own_dtype_is_only_mapped(checkpoint: tuple[str, int]) -> None:
    folder, size = checkpoint
    assert _run(_LOAD, folder, "bfloat16", "none") < 0.1 * size


def test_another_dtype_is_converted_into_memory(checkpoint: tuple[str, int]) -> None:
    folder, size = checkpoint
    assert _run(_LOAD, folder, "float32", "none") == pytest.approx(2 * size, rel=0.15)


def test_efficient_loading_maps_on_local_rank_0(checkpoint: tuple[str, int]) -> None:
    folder, size = checkpoint
    assert _run(_LOAD, folder, "bfloat16", "0") < 0.1 * size


def test_efficient_loading_fills_the_other_ranks_with_zeros(checkpoint: tuple[str, int]) -> None:
    folder, size = checkpoint
    assert _run(_LOAD, folder, "bfloat16", "1") == pytest.approx(size, rel=0.15)
