"""A model with random weights, as the trainers have it in memory: real transformers, peft and bitsandbytes classes.

Written apart from recipegen/simulate, so that a mistake there does not hide itself here.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from recipegen.estimate.parameters import target_modules_value
from recipegen.simulate.config import config_values
from recipegen.spec import Dtype, LossKernel, Method, ModelSpec, Recipe

DTYPES = {Dtype.FP32: torch.float32, Dtype.BF16: torch.bfloat16, Dtype.NF4: torch.bfloat16}
_SPREAD = 0.02  # standard deviation of random weights, as transformers initialises them


def build(spec: ModelSpec, recipe: Recipe, device: torch.device) -> tuple[Any, Any]:
    """The model that is trained (peft's around it for an adapter) and the transformers model inside, on `device`."""
    _patch_loss(spec, recipe)
    base = _shapes(spec, recipe)
    if recipe.method is Method.QLORA:
        _quantise(base, spec, device)
    _fill(base, device)
    _keep_in_fp32(base, recipe)
    if recipe.activation_checkpointing:
        base.gradient_checkpointing_enable({"use_reentrant": recipe.activation_checkpointing_reentrant})
    outer = base
    if recipe.adapter is not None:
        from peft import LoraConfig, get_peft_model

        base.enable_input_require_grads()
        config = LoraConfig(
            task_type="CAUSAL_LM",
            r=recipe.adapter.r,
            lora_alpha=recipe.adapter.alpha,
            lora_dropout=recipe.adapter.dropout,
            target_modules=target_modules_value(recipe.adapter.target_modules),
        )
        outer = get_peft_model(base, config)  # its own default makes adapters of a bf16 base fp32
    outer.train()
    return outer, base


def _patch_loss(spec: ModelSpec, recipe: Recipe) -> None:
    """The trainers' patches of transformers' classes; before the model is built, as they do it."""
    if recipe.loss_kernel is LossKernel.CHUNKED_UPCAST:
        from axolotl.monkeypatch.loss.chunked import patch_chunked_ce_loss_fn

        patch_chunked_ce_loss_fn()
    if recipe.loss_kernel is LossKernel.FUSED_LINEAR:
        from liger_kernel.transformers.monkey_patch import MODEL_TYPE_TO_APPLY_LIGER_FN

        off = dict.fromkeys(("rope", "rms_norm", "swiglu", "cross_entropy"), False)
        MODEL_TYPE_TO_APPLY_LIGER_FN[spec.model_type](fused_linear_cross_entropy=True, **off)


def _shapes(spec: ModelSpec, recipe: Recipe) -> Any:
    """The class with untouched memory on the host; its buffers are real."""
    from transformers import AutoModelForCausalLM, initialization
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    config = CONFIG_MAPPING[spec.model_type](**config_values(spec))
    with initialization.no_init_weights():
        dtype = DTYPES[recipe.precision.parameters]
        model = AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation=recipe.attention)
    model.config.use_cache = False
    return model


def _quantise(base: Any, spec: ModelSpec, device: torch.device) -> None:
    """Every linear module of the decoder layers in NF4 with double quantisation, as `load_in_4bit` makes it."""
    from bitsandbytes.nn import Linear4bit, Params4bit

    for layer in base.get_submodule(spec.layers_path):
        for path, old in [(p, m) for p, m in layer.named_modules() if isinstance(m, nn.Linear)]:
            new = Linear4bit(
                old.in_features, old.out_features, bias=old.bias is not None, compute_dtype=torch.bfloat16,
                compress_statistics=True, quant_type="nf4", device="meta",
            )  # fmt: skip
            weight = torch.empty(old.weight.shape, dtype=torch.bfloat16, device=device).normal_(std=_SPREAD)
            new.weight = Params4bit(weight.cpu(), requires_grad=False, compress_statistics=True, quant_type="nf4").to(
                device
            )
            if old.bias is not None:
                new.bias = old.bias
            parent, _, name = path.rpartition(".")
            setattr(layer.get_submodule(parent), name, new)
    base.is_loaded_in_4bit = True  # how peft recognises it


def _fill(base: Any, device: torch.device) -> None:
    """Random weights on the device, one parameter at a time; norms are one."""
    for parameter in base.parameters():
        if parameter.dtype is torch.uint8:  # quantised already
            continue
        fresh = torch.empty(parameter.shape, dtype=parameter.dtype, device=device)
        parameter.data = fresh.normal_(std=_SPREAD) if parameter.dim() > 1 else fresh.fill_(1.0)
    base.tie_weights()
    base.to(device)  # buffers


def _keep_in_fp32(base: Any, recipe: Recipe) -> None:
    """What the trainer keeps in fp32 beside bf16 weights; `norm` is every module with that in its name."""
    names = recipe.precision.fp32_modules
    for path, module in base.named_modules():
        last = path.rpartition(".")[2]
        if last in names or ("norm" in names and "norm" in last):
            module.to(torch.float32)
