"""Started by torchrun with two ranks: one ZeRO step, then the dtypes as JSON on rank 0's stdout.

usage: dtypes_zero.py STAGE OFFLOAD LOAD   (2 | 3, none | cpu, bf16 | fp32)
"""

from __future__ import annotations

import json
import sys
from typing import Any

import torch


def dtypes(value: Any, depth: int = 0) -> set[str]:
    """Dtypes of the floating tensors anywhere in a structure of DeepSpeed's."""
    if isinstance(value, torch.Tensor):
        return {str(value.dtype)} if value.is_floating_point() and value.numel() else set()
    if isinstance(value, dict):
        return {found for item in value.values() for found in dtypes(item, depth + 1)}
    if isinstance(value, (list, tuple)):
        return {found for item in value for found in dtypes(item, depth + 1)}
    return dtypes(vars(value), depth + 1) if hasattr(value, "__dict__") and depth < 3 else set()


def main(stage: int, offload: str, load: str) -> None:
    import deepspeed
    from transformers import LlamaConfig, LlamaForCausalLM

    zero: dict[str, Any] = {"stage": stage, "overlap_comm": False}
    if offload != "none":
        zero["offload_optimizer"] = {"device": offload, "pin_memory": False}
        zero["offload_param"] = {"device": offload, "pin_memory": False}
    torch.manual_seed(0)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=128,
            hidden_size=64,
            intermediate_size=128,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
        )
    ).to(torch.bfloat16 if load == "bf16" else torch.float32)
    model.model.embed_tokens.float()  # as Axolotl leaves it before the engine takes over
    if offload == "cpu":
        from deepspeed.ops.adam import DeepSpeedCPUAdam

        optimizer: Any = DeepSpeedCPUAdam(model.parameters(), lr=1e-3)
    else:
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 1,
        "bf16": {"enabled": True},
        "zero_optimization": zero,
        "zero_allow_untested_optimizer": True,
    }
    engine, wrapped, _, _ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
    tokens = torch.randint(0, 128, (1, 32))
    engine.backward(engine(input_ids=tokens, labels=tokens).loss)
    gradients = dtypes(wrapped.averaged_gradients)
    if stage == 3:
        gradients |= dtypes(wrapped._DeepSpeedZeroOptimizer_Stage3__param_id_to_grad_partition)
    master = wrapped.single_partition_of_fp32_groups if stage == 2 else wrapped.fp32_partitioned_groups_flat
    with torch.no_grad():  # gloo's all_gather writes into views that autograd tracks
        engine.step()
    state = [s for s in wrapped.optimizer.state.values() if s]
    if torch.distributed.get_rank() == 0:
        report = {
            "world_size": torch.distributed.get_world_size(),
            "parameters": sorted({str(p.dtype) for p in engine.module.parameters()}),
            "gradients": sorted(gradients),
            "reduction": str(engine.communication_data_type),
            "master": sorted(dtypes(list(master))),
            "states": sorted({str(s[key].dtype) for s in state for key in ("exp_avg", "exp_avg_sq")}),
        }
        print("REPORT " + json.dumps(report), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3])
