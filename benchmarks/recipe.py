"""A complete Recipe for a measured row: what the row says, and neutral values for what memory and time do not see."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from benchmarks.layout import Layout
from recipegen.spec import (
    Adapter,
    DeepSpeed,
    Fsdp,
    Launch,
    Loading,
    Method,
    ModelSpec,
    Optimizer,
    Precision,
    Recipe,
    Saving,
    Schedule,
)

# DeepSpeed's own defaults (runtime/zero/config.py): buckets of 5e8 elements, prefetch 5e7
_DEEPSPEED = DeepSpeed(
    stage=3,
    offload_optimizer="none",
    offload_param="none",
    nvme_path=None,
    pin_memory=True,
    reduce_bucket_size=500_000_000,
    prefetch_bucket_size=50_000_000,
    param_persistence_threshold=100_000,
    sub_group_size=10**9,
    buffer_count=5,
    buffer_size=10**8,
    save_16bit_model=True,
)


def recipe_for(
    model: ModelSpec,
    method: Method,
    layout: Layout,
    *,
    precision: Precision,
    optimizer: str,
    r: int,
    targets: tuple[str, ...],
    dora: bool = False,
    fsdp_version: int = 2,
    sync_each_batch: bool = False,
    reduce_bucket: int = 0,
    **fields: Any,
) -> Recipe:
    """The recipe of one measured run; `fields` are fields of Recipe."""
    adapter = Adapter(r, 2 * r, 0.0, targets, use_dora=dora) if method.is_adapter else None
    strategy = layout.parallelism.strategy
    fsdp = None
    if strategy.is_fsdp:
        fsdp = Fsdp(True, False, layout.offload_parameters, "SHARDED_STATE_DICT", model.layer_class)
        fsdp = replace(fsdp, version=fsdp_version)
    deepspeed = None
    if strategy.is_deepspeed:
        deepspeed = replace(
            _DEEPSPEED,
            stage=int(layout.engine[-1]),
            reduce_bucket_size=reduce_bucket or _DEEPSPEED.reduce_bucket_size,
            offload_optimizer="cpu" if layout.offload_states else "none",
            offload_param="cpu" if layout.offload_parameters else "none",
        )
    return Recipe(
        model=model.id,
        model_revision=None,
        trust_remote_code=False,
        hardware="measured",
        network="none",
        trainer="axolotl",
        stack="axolotl-0.19.0",
        method=method,
        adapter=adapter,
        parallelism=layout.parallelism,
        precision=precision,
        optimizer=Optimizer(optimizer, 0.9, 0.999, 1e-8, 0.0, 1.0),
        schedule=Schedule(1e-5, "cosine", 10, None),
        sync_each_batch=sync_each_batch,
        pad_to_sequence_len=False,
        excess_length_strategy="drop",
        epochs=1.0,
        max_steps=None,
        activation_checkpointing_reentrant=False,
        attention="sdpa",
        tf32=False,
        fsdp=fsdp,
        deepspeed=deepspeed,
        datasets=(),
        val_set_size=0.0,
        chat_template=None,
        eot_tokens=(),
        saving=Saving(None, 1, None, 10, "none"),
        loading=Loading(1, None, True, 1),
        launch=Launch(29500, 8, ()),
        **fields,
    )
