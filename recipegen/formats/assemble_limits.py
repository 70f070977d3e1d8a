"""What a file asks for and a Recipe has no field for: it stops a recipe where memory depends on it, else it is said."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from recipegen.catalog.bounded_yaml import shown
from recipegen.formats.assemble_draft import Draft

_TRAININGS = ("sft", "pt")  # LLaMA-Factory's stages that are a plain fine-tune
_FINETUNINGS = ("full", "lora")


def _on(value: Any) -> bool:
    return bool(value)


def _several(value: Any) -> bool:
    return isinstance(value, int) and value > 1


# fact -> (Recipe field it belongs to, when, reason). {} stands for the fact's value.
_STOPS: Mapping[str, tuple[str, Callable[[Any], bool], str]] = {
    "rl": ("method", _on, "rl: {} keeps a second model or generates text, which no recipe describes"),
    "reward_model": ("method", _on, "a reward model has another head and pairs of rows, which no recipe describes"),
    "process_reward_model": ("method", _on, "a process reward model has another head, which no recipe describes"),
    "foreign_adapter": ("adapter", _on, "adapter {} is neither lora nor qlora: what it trains is not known"),
    "finetuning_type": ("method", lambda v: v not in _FINETUNINGS, "finetuning_type {}: what it trains is not known"),
    "stage": ("method", lambda v: v not in _TRAININGS, "stage {} is not a plain fine-tune, which a recipe describes"),
    "unfrozen_parameters": ("method", _on, "unfrozen_parameters trains a part of the model, which no recipe describes"),
    "lora_modules_to_save": ("adapter", _on, "lora_modules_to_save trains {} in full beside the adapter"),
    "lora_rank_pattern": ("adapter.r", _on, "lora_rank_pattern gives modules ranks of their own; a recipe has one"),
    "peft_layer_replication": ("adapter", _on, "peft_layer_replication repeats layers, which no recipe describes"),
    "quantize_moe_experts": ("precision", _on, "quantize_moe_experts: experts in 4 bits are not counted yet"),
    "gptq": ("precision", _on, "a GPTQ base: its sizes are not known"),
    "qat": ("precision", _on, "qat keeps fake-quantised copies of the weights, which no recipe describes"),
    "layer_offloading": ("activation_offloading", _on, "layer_offloading moves weights in and out; no recipe says so"),
    "ple_cpu_offload": (
        "activation_offloading",
        _on,
        "ple_cpu_offload keeps embeddings on the host; no recipe says so",
    ),
    "selective_checkpointing": ("activation_checkpointing", _on, "selective_checkpointing: a recipe recomputes all"),
    "expert_parallel_size": ("parallelism", _several, "expert_parallel_size {}: a recipe's mesh has no such axis"),
    "bnb_4bit_quant_type": ("precision", lambda v: v != "nf4", "a {} base: only nf4 is counted"),
}
# The same for what leaves memory within the estimate, or changes other numbers only.
_NOTES: Mapping[str, tuple[str, Callable[[Any], bool], str]] = {
    "streaming": ("datasets", _on, "data are streamed: how long an epoch is cannot be known from here"),
    "pretraining_entries": ("datasets", _on, "data are streamed: how long an epoch is cannot be known from here"),
    "fp8": ("precision", _on, "fp8: products in fp8 are counted as bf16"),
    "auto_find_batch_size": ("micro_batch_size", _on, "auto_find_batch_size halves the micro-batch until it fits"),
    "tiled_mlp": ("micro_batch_size", _on, "tiled_mlp needs less than is counted"),
    "peft_layers_to_transform": ("adapter", _on, "adapters on some layers only: fewer are trained than is counted"),
    "use_liger_kernel": ("loss_kernel", _on, "Liger's norms and MLP need less than is counted"),
    "liger_kernels": ("loss_kernel", _on, "Liger's kernels beside the loss need less than is counted"),
    "peft_autocast_adapter_dtype": (
        "precision.trainable",
        lambda v: v is False,
        "peft_autocast_adapter_dtype: false keeps adapters in the base's dtype: less than is counted",
    ),
    "fp32_norms": ("precision.fp32_modules", _on, "fp32_norms: norms in fp32 are counted in bf16"),
    "relora": ("adapter", _on, "ReLoRA: merging the adapter into the base is not counted"),
    "loftq_bits": ("adapter", _on, "LoftQ: fitting the adapter to a quantised base is not counted"),
    "activation_offloading_kind": (
        "activation_offloading",
        lambda v: v == "disk",
        "activation_offloading: disk is counted as memory of the host",
    ),
}


def limits(draft: Draft) -> None:
    """Say what no recipe can say of these files."""
    for table, tell in ((_STOPS, draft.block), (_NOTES, draft.note)):
        for name, (path, when, reason) in table.items():
            value = draft.fact(name)
            if value is not None and when(value):
                tell(path, reason.replace("{}", shown(value)), name)
    _plugins(draft)
    _images(draft)


def _plugins(draft: Draft) -> None:
    known = draft.rules.get("plugins", ())
    for entry in draft.fact("plugins") or ():
        words = entry.removeprefix("axolotl.integrations.").split(".")
        if f"{words[0]}.{words[-1]}" not in known:
            draft.note("passthrough", f"what plugin {shown(entry)} does is not counted", "plugins")


def _images(draft: Draft) -> None:
    """With a frozen vision tower its forward pass leaves nothing behind; trained, its activations stay."""
    if not draft.fact("processor_type"):
        return
    frozen = draft.values.get("method") is not None or draft.values.get("freeze_vision")
    if frozen:
        reason = "images: their tokens count within sequence_len, what passes through the vision tower is not counted"
        draft.note("datasets", reason, "processor_type")
    else:
        reason = "images with a trained vision tower: what it keeps for backward depends on the images"
        draft.block("freeze_vision", reason, "processor_type")
