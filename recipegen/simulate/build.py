"""The model that a trainer would have in memory, of real classes: transformers, peft, checkpointing, dtypes.

Weights have shapes only. What is cast to which dtype follows `recipe.precision`, which the catalogue's tests compare
with real runs of the trainers.
"""

from __future__ import annotations

from types import MethodType
from typing import Any

import torch
from torch import nn

from recipegen.estimate import parameters
from recipegen.simulate import attention, dropout, quantised
from recipegen.simulate.config import config_values
from recipegen.spec import Dtype, Method, ModelSpec, Recipe, RecipegenError

TORCH = {Dtype.FP32: torch.float32, Dtype.BF16: torch.bfloat16, Dtype.NF4: torch.bfloat16}
_TOWER_WIDTH = 1024  # columns of the block that stands for a vision tower


class Model:
    """`outer` is what the trainer calls (the peft wrapper of an adapter run), `base` the transformers class."""

    def __init__(self, outer: Any, base: Any, layers: Any, total: int) -> None:
        self.outer = outer
        self.base = base
        self.layers = layers
        self.total = total  # parameters before adapters and quantisation

    @property
    def trainable(self) -> list[Any]:
        return [p for p in self.outer.parameters() if p.requires_grad]


def build(spec: ModelSpec, recipe: Recipe, *, real: bool = False) -> Model:
    """The model as the trainer hands it to Accelerate, of fake tensors or `real` ones."""
    attention.register(real)
    base = _transformers_model(spec, recipe)
    base.tie_weights()
    if spec.is_multimodal:
        _stand_in_for_vision(base, spec, recipe)
    total = sum(p.numel() for p in base.parameters())
    if recipe.method is Method.QLORA:
        quantised.quantise(base)
    _fp32_modules(base, recipe)
    if recipe.activation_checkpointing:
        base.gradient_checkpointing_enable({"use_reentrant": recipe.activation_checkpointing_reentrant})
    outer = base
    if recipe.method.is_adapter:
        if recipe.activation_checkpointing or recipe.trainer == "axolotl":
            base.enable_input_require_grads()  # Axolotl: always; peft: for a model that checkpoints
        outer = _adapted(base, recipe)
    outer.train()
    return Model(outer, base, base.get_submodule(spec.layers_path), total)


def _transformers_model(spec: ModelSpec, recipe: Recipe) -> Any:
    from transformers import AutoModelForCausalLM, AutoModelForImageTextToText, initialization
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    config = CONFIG_MAPPING[spec.model_type](**config_values(spec))
    options: dict[str, Any] = {"attn_implementation": attention.IMPLEMENTATION[recipe.attention_memory]}
    if spec.is_moe:
        options["experts_implementation"] = "grouped_mm"  # static shapes
    loader = AutoModelForImageTextToText if spec.is_multimodal else AutoModelForCausalLM
    with torch.device("cpu"), initialization.no_init_weights():
        return loader.from_config(config, dtype=TORCH[recipe.precision.parameters], **options)


def _stand_in_for_vision(base: Any, spec: ModelSpec, recipe: Recipe) -> None:
    """One block with the parameters of tower and projector; text never runs it. Its linears are packed for QLoRA."""
    inner = base.model
    for name in ("vision_tower", "multi_modal_projector"):
        if hasattr(inner, name):
            setattr(inner, name, nn.Module())
    count = spec.extra_parameters
    holder = nn.Module()
    trained = recipe.method is Method.FULL and not recipe.freeze_vision
    if recipe.method is Method.QLORA:
        packed = sum(g.count * g.in_features * g.out_features for g in spec.extra_linear)
        count -= packed
        holder.packed = nn.Parameter(torch.empty(packed // 4, 1, dtype=quantised.STORAGE), requires_grad=False)
    dtype = TORCH[recipe.precision.parameters]
    rows, rest = divmod(count, _TOWER_WIDTH)
    holder.weight = nn.Parameter(torch.empty(rows, _TOWER_WIDTH, dtype=dtype), requires_grad=trained)
    if rest:
        holder.rest = nn.Parameter(torch.empty(rest, dtype=dtype), requires_grad=trained)
    inner.vision_stand_in = holder


def _fp32_modules(base: Any, recipe: Recipe) -> None:
    """Modules that the trainer keeps in fp32 beside bf16 ones; `norm` is every module with that in its name."""
    names = recipe.precision.fp32_modules
    if not names or recipe.precision.parameters is Dtype.FP32:
        return
    for path, module in base.named_modules():
        last = path.rpartition(".")[2]
        if last in names or ("norm" in names and "norm" in last):
            for parameter in module.parameters(recurse=False):
                parameter.data = parameter.data.to(torch.float32)
    base.tie_weights()


def _adapted(base: Any, recipe: Recipe) -> Any:
    """The real peft model, its adapters in the recipe's dtype.

    `Module.to` cannot swap fake tensors and has nothing to move here, so it rests while peft builds.
    """
    from peft import LoraConfig, get_peft_model

    adapter = recipe.adapter
    assert adapter is not None
    if recipe.method is Method.QLORA and adapter.use_dora:
        raise RecipegenError("DoRA over a 4-bit base is not simulated (its weight norms need real weights)")
    config = LoraConfig(
        task_type="CAUSAL_LM",
        r=adapter.r,
        lora_alpha=adapter.alpha,
        lora_dropout=adapter.dropout,
        target_modules=parameters.target_modules_value(adapter.target_modules),
        use_rslora=adapter.use_rslora,
        use_dora=adapter.use_dora,
    )
    moved = nn.Module.to
    nn.Module.to = lambda self, *_, **__: self
    try:
        outer = get_peft_model(base, config, autocast_adapter_dtype=False)
    except ValueError as error:
        raise RecipegenError(f"peft refuses this adapter: {error}") from None
    finally:
        nn.Module.to = moved
    dtype = TORCH[recipe.precision.trainable]
    for parameter in outer.parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.to(dtype)
    dropout.replace_in(outer)
    if recipe.method is Method.QLORA:
        _use_4bit_forward(outer)
    return outer


def _use_4bit_forward(outer: Any) -> None:
    from peft.tuners.lora.layer import LoraLayer

    for module in outer.modules():
        if isinstance(module, LoraLayer) and isinstance(getattr(module, "base_layer", None), quantised.Linear4bit):
            module.forward = MethodType(quantised.lora_forward, module)
