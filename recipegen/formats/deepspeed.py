"""deepspeed.json: ZeRO-2, ZeRO-3 with CPU offload, ZeRO-3 with NVMe offload (DeepSpeed 0.18).

`"auto"` or a number? A value that axolotl.yaml states already (batch, accumulation, clipping, learning rate, betas) is
"auto": the Transformers trainer fills it from there, so each number has one home and an edit cannot make the two files
disagree. A value that "auto" would guess from the hidden size (bucket sizes) is a number, because the memory estimate
depends on it. Under `--trainer accelerate` nothing fills "auto" in (bare Accelerate leaves betas and eps unresolved),
so there every value is a number.

An offloaded optimizer gets an `optimizer` section: DeepSpeed then builds its own CPU Adam. Without the section
Accelerate replaces the trainer's AdamW by CPU Adam and carries over only the learning rate and weight decay, betas and
epsilon are lost (accelerate/utils/deepspeed.py: map_pytorch_optim_to_deepspeed). Without offload Axolotl's optimizer is
used and there is no section; train.py leaves the optimizer to DeepSpeed, so its section asks for PyTorch's AdamW
(`torch_adam`): DeepSpeed's own would be compiled for the GPU at the first start, which needs the CUDA toolkit.
"""

from __future__ import annotations

from typing import Any

from recipegen.formats.passthrough import merge
from recipegen.formats.scalars import to_json
from recipegen.spec import DeepSpeed, Recipe, RecipegenError

_ADAMW = ("adamw_torch", "adamw_torch_fused")
_ADAM_TENSORS = 4  # parameter, gradient and two moments are swapped together
# Defaults of DeepSpeed's documentation for one NVMe drive; the block size is in bytes.
_AIO = {
    "block_size": 1048576,
    "queue_depth": 8,
    "intra_op_parallelism": 1,
    "single_submit": False,
    "overlap_events": True,
}


def write(recipe: Recipe) -> str:
    """The text of deepspeed.json. Raises RecipegenError for an optimizer that cannot be offloaded."""
    merged, _ = merge(values(recipe), recipe.passthrough.get("deepspeed", {}))
    return to_json(merged) + "\n"


def values(recipe: Recipe) -> dict[str, Any]:
    """deepspeed.json as a mapping, without passthrough."""
    zero = recipe.deepspeed
    if zero is None:
        raise RecipegenError(f"the strategy is {recipe.parallelism.strategy.label}, but deepspeed is not filled in")
    stated = recipe.trainer != "axolotl"
    result: dict[str, Any] = {
        "train_batch_size": recipe.global_batch_size if stated else "auto",
        "train_micro_batch_size_per_gpu": recipe.micro_batch_size if stated else "auto",
        "gradient_accumulation_steps": recipe.gradient_accumulation if stated else "auto",
        "gradient_clipping": recipe.optimizer.max_grad_norm if stated else "auto",
        "bf16": {"enabled": recipe.precision.compute.value == "bf16"},
        "zero_optimization": _zero(zero),
    }
    offloaded = zero.offload_optimizer != "none"
    if offloaded or stated:
        result["optimizer"] = _optimizer(recipe, stated, offloaded)
    if "nvme" in (zero.offload_optimizer, zero.offload_param):
        result["aio"] = dict(_AIO)
    return result


def _zero(zero: DeepSpeed) -> dict[str, Any]:
    """The zero_optimization section. Bucket sizes count elements, `sub_group_size` too."""
    result: dict[str, Any] = {
        "stage": zero.stage,
        "overlap_comm": True,
        "contiguous_gradients": True,
        "reduce_bucket_size": zero.reduce_bucket_size,
    }
    if zero.stage == 2:
        result["allgather_bucket_size"] = zero.reduce_bucket_size
        result["reduce_scatter"] = True
    else:
        result |= {
            "stage3_prefetch_bucket_size": zero.prefetch_bucket_size,
            "stage3_param_persistence_threshold": zero.param_persistence_threshold,
            "stage3_gather_16bit_weights_on_model_save": zero.save_16bit_model,
            "sub_group_size": zero.sub_group_size,
        }
    if zero.offload_optimizer != "none":
        result["offload_optimizer"] = _device(zero, zero.offload_optimizer)
    if zero.offload_param != "none":
        if zero.stage != 3:
            raise RecipegenError(f"parameters can be offloaded under ZeRO-3 only, but the stage is {zero.stage}")
        result["offload_param"] = _device(zero, zero.offload_param)
        if zero.offload_param == "nvme":
            # The buffers must hold the largest partition, else swapping fails at the first step.
            result["offload_param"] |= {"buffer_count": zero.buffer_count, "buffer_size": zero.buffer_size}
    if zero.offload_optimizer == "nvme":
        result["offload_optimizer"]["buffer_count"] = _ADAM_TENSORS
    return result


def _device(zero: DeepSpeed, device: str) -> dict[str, Any]:
    result: dict[str, Any] = {"device": device, "pin_memory": zero.pin_memory}
    if device == "nvme":
        if not zero.nvme_path:
            raise RecipegenError("NVMe offload needs a path", where="deepspeed.nvme_path")
        result["nvme_path"] = zero.nvme_path
    return result


def _optimizer(recipe: Recipe, stated: bool, offloaded: bool) -> dict[str, Any]:
    optimizer = recipe.optimizer
    if optimizer.name not in _ADAMW:
        raise RecipegenError(
            f"DeepSpeed builds the optimizer here, and it builds AdamW, not {optimizer.name}",
            where="optimizer.name",
            fix=f"Use {' or '.join(_ADAMW)}.",
        )
    params: dict[str, Any] = {
        "lr": recipe.schedule.learning_rate if stated else "auto",
        "betas": [optimizer.beta1, optimizer.beta2] if stated else "auto",
        "eps": optimizer.epsilon if stated else "auto",
        "weight_decay": optimizer.weight_decay if stated else "auto",
    }
    if not offloaded:
        params["torch_adam"] = True
    return {"type": "AdamW", "params": params}
