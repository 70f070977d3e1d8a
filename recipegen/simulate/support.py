"""What can be simulated here: the recipe's strategy, and the libraries that are installed."""

from __future__ import annotations

from importlib import metadata
from importlib.util import find_spec

from recipegen.spec import Recipe, RecipegenError

NEEDED = ("torch", "transformers", "peft", "accelerate")
_INSTALL = "pip install 'recipegen[simulate]' (torch's CPU build is enough)."


def versions() -> tuple[tuple[str, str], ...]:
    """The libraries that will run, with their versions. Raises RecipegenError where one is missing."""
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        raise RecipegenError(
            f"the simulation runs {', '.join(NEEDED)}; not installed: {', '.join(missing)}", fix=_INSTALL
        )
    return tuple((name, metadata.version(name)) for name in NEEDED)


def refuse_unsupported(recipe: Recipe) -> None:
    """Raise RecipegenError, with the reason, for a recipe whose step is not simulated."""
    reason = _unsupported(recipe)
    if reason:
        raise RecipegenError(f"not simulated: {reason}", fix="`recipegen plan` estimates it.")


def _unsupported(recipe: Recipe) -> str:
    ranks = recipe.parallelism
    if ranks.strategy.is_deepspeed:
        return f"{ranks.strategy.label} (DeepSpeed's engine needs real devices)"
    if ranks.tp > 1 or ranks.cp > 1:
        return f"tensor and context parallelism (tp {ranks.tp}, cp {ranks.cp})"
    if ranks.ep > 1:
        return f"expert parallelism (ep {ranks.ep})"
    if recipe.quantised_experts:
        return "experts in 4 bits"
    if recipe.adapter and recipe.adapter.modules_to_save:
        return f"{', '.join(recipe.adapter.modules_to_save)} trained whole beside the adapter"
    if recipe.fsdp and recipe.fsdp.offload_params:
        return "FSDP2 with parameters offloaded to the host"
    if recipe.activation_offloading:
        return "activation offloading"
    return ""


def notes(recipe: Recipe, *, multimodal: bool, emulated_optimizer: bool) -> tuple[str, ...]:
    """What of this recipe was emulated or left out, one sentence each."""
    found = []
    if recipe.parallelism.strategy.value == "ddp":
        found.append("DDP's gradient buckets are emulated")
    if recipe.method.value == "qlora":
        found.append("NF4 storage and matmul are emulated")
    if recipe.loss_kernel.value in ("fused_linear", "cut"):
        found.append(f"the {recipe.loss_kernel.value} loss is emulated with plain operators")
    if emulated_optimizer:
        found.append(f"the states of {recipe.optimizer.name} are emulated")
    if recipe.adapter is not None and recipe.adapter.dropout:
        found.append("dropout is emulated: CUDA's keeps a mask of one byte, the CPU's fp32 noise")
    if recipe.torch_compile:
        found.append("torch.compile is left out: layers run eagerly")
    if recipe.adapter is not None and recipe.adapter.fused_kernels:
        found.append("Axolotl's fused LoRA kernels are left out: peft's own forward runs")
    if multimodal:
        found.append("the vision tower is stored as one block and not run: the batch is text")
    return tuple(found)
