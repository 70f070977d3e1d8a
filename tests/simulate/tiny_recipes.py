"""Tiny models and recipes for the simulation, planned as a user would."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

from benchmarks.layout import Layout
from benchmarks.recipe import recipe_for
from recipegen.catalog import load_stack
from recipegen.catalog.stack import Stack
from recipegen.spec import (
    AttentionMemory,
    Dtype,
    LossKernel,
    Method,
    ModelSpec,
    MoeSpec,
    Parallelism,
    Precision,
    QkNorm,
    Recipe,
    Strategy,
)

LINEAR = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
BF16 = Precision(Dtype.BF16, Dtype.BF16, Dtype.BF16, Dtype.BF16, Dtype.BF16, Dtype.BF16)
FP32 = Precision(Dtype.FP32, Dtype.FP32, Dtype.FP32, Dtype.FP32, Dtype.FP32, Dtype.BF16)
ADAPTER = Precision(Dtype.BF16, Dtype.FP32, Dtype.FP32, Dtype.BF16, Dtype.FP32, Dtype.BF16)


@cache
def stack() -> Stack:
    return load_stack("axolotl-0.19.0")


def tiny(kind: str = "llama", *, tied: bool = False, layers: int = 4) -> ModelSpec:
    """A model of a few million parameters; its vocabulary is large beside it, as in real ones."""
    more: dict[str, Any] = {}
    layer_class = "LlamaDecoderLayer"
    if kind == "qwen3":
        layer_class, more["qk_norm"] = "Qwen3DecoderLayer", QkNorm.PER_HEAD
    if kind == "qwen3_moe":
        layer_class, more["qk_norm"], more["moe"] = "Qwen3MoeDecoderLayer", QkNorm.PER_HEAD, MoeSpec(6, 2, 64)
    return ModelSpec(
        id=f"tiny-{kind}",
        model_type=kind,
        layer_class=layer_class,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        vocab_size=4096,
        max_position_embeddings=1024,
        tie_word_embeddings=tied,
        **more,
    )


def recipe(
    model: ModelSpec,
    method: Method = Method.FULL,
    strategy: Strategy = Strategy.SINGLE,
    gpus: int = 1,
    *,
    nodes: int = 1,
    precision: Precision | None = None,
    optimizer: str = "adamw_torch_fused",
    targets: tuple[str, ...] = LINEAR,
    trainer: str = "axolotl",
    **fields: Any,
) -> Recipe:
    """`fields` are fields of Recipe."""
    if precision is None:
        precision = BF16 if method is Method.FULL else ADAPTER
        if method is Method.QLORA:
            precision = replace(precision, parameters=Dtype.NF4)
    plain: dict[str, Any] = {
        "sequence_len": 128,
        "micro_batch_size": 2,
        "gradient_accumulation": 1,
        "packing": True,
        "activation_checkpointing": True,
        "activation_offloading": False,
        "loss_kernel": LossKernel.STOCK,
        "attention_memory": AttentionMemory.FLASH,
        "torch_compile": False,
    }
    made = recipe_for(
        model,
        method,
        Layout(strategy.value, Parallelism.of(strategy, nodes, gpus), False, False),
        precision=precision,
        optimizer=optimizer,
        r=8,
        targets=targets,
        **(plain | {k: v for k, v in fields.items() if k in plain}),
    )
    rest = {k: v for k, v in fields.items() if k not in plain}
    return replace(made, trainer=trainer, **rest)
