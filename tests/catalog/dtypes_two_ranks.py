"""Started by torchrun with two ranks and the CPU shim: an optimizer step a case, dtypes as JSON on rank 0's stdout.

usage: dtypes_two_ranks.py "FRAMEWORK LOAD METHOD" ...   (accelerate | axolotl | ddp, fp32 | bf16, full | lora)
Axolotl's cases come last: its patch of Accelerate stays.
"""

from __future__ import annotations

import json
import os
import sys
from collections import defaultdict
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode


class Collectives(TorchDispatchMode):
    """Which dtypes gradients are reduced in. Small tensors (norms, flags) are left out."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: dict[str, set[str]] = defaultdict(set)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = str(func)
        if name.startswith("c10d.") and ("reduce" in name):
            for tensor in _tensors(args):
                if tensor.numel() > 256:
                    self.seen[name.split(".")[1]].add(str(tensor.dtype))
        return func(*args, **(kwargs or {}))


def _tensors(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, (list, tuple)):
        return [tensor for item in value for tensor in _tensors(item)]
    return []


def model(load: str, method: str) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    made = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=128,
            hidden_size=64,
            intermediate_size=128,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
        )
    ).to(torch.bfloat16 if load == "bf16" else torch.float32)
    if method == "lora":
        from peft import LoraConfig, get_peft_model

        made = get_peft_model(made, LoraConfig(r=8, target_modules=["q_proj", "down_proj"]))
    return made


def run(framework: str, load: str, method: str) -> dict[str, Any]:
    from accelerate import Accelerator, FullyShardedDataParallelPlugin
    from accelerate.state import AcceleratorState

    AcceleratorState._reset_state(reset_partial_state=True)  # the plugin is kept there; the process group stays
    plugin = None
    if framework != "ddp":
        plugin = FullyShardedDataParallelPlugin(
            fsdp_version=2,
            auto_wrap_policy="transformer_based_wrap",
            transformer_cls_names_to_wrap=["LlamaDecoderLayer"],
            cpu_ram_efficient_loading=False,
            reshard_after_forward=True,
        )
    if framework == "axolotl":
        from axolotl.monkeypatch.accelerate.fsdp2 import patch_accelerate_fsdp2

        patch_accelerate_fsdp2()
    accelerator = Accelerator(mixed_precision="bf16", fsdp_plugin=plugin)
    network = model(load, method)
    optimizer = torch.optim.AdamW([p for p in network.parameters() if p.requires_grad], lr=1e-3)
    network, optimizer = accelerator.prepare(network, optimizer)
    tokens = torch.randint(0, 128, (1, 32))
    with Collectives() as collectives:
        accelerator.backward(network(input_ids=tokens, labels=tokens).loss)
    gradients = sorted({str(p.grad.dtype) for p in network.parameters() if p.grad is not None})
    optimizer.step()
    states = {
        str(v.dtype) for s in optimizer.state.values() for k, v in s.items() if k != "step" and torch.is_tensor(v)
    }
    return {
        "distributed_type": str(accelerator.distributed_type),
        "world_size": accelerator.num_processes,
        "frozen": sorted({str(p.dtype) for p in network.parameters() if not p.requires_grad}),
        "trainable": sorted({str(p.dtype) for p in network.parameters() if p.requires_grad}),
        "gradients": gradients,
        "states": sorted(states),
        "reduction": sorted({dtype for seen in collectives.seen.values() for dtype in seen}),
        "collectives": sorted(collectives.seen),
    }


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    found = {case: run(*case.split()) for case in sys.argv[1:]}
    if os.environ["RANK"] == "0":
        print("REPORT " + json.dumps(found), flush=True)
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()
