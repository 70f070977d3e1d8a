"""What a file asks for and a Recipe has no field for: it stops a recipe where memory depends on it, else it is said."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from recipegen.catalog.bounded_yaml import shown
from recipegen.formats.assemble_draft import Draft
from recipegen.spec import Dtype

_TRAININGS = ("sft", "pt")  # LLaMA-Factory's stages that are a plain fine-tune
_FINETUNINGS = ("full", "lora")


def _on(value: Any) -> bool:
    return bool(value)


# fact -> (Recipe field it belongs to, when, reason). {} stands for the fact's value.
_STOPS: Mapping[str, tuple[str, Callable[[Any], bool], str]] = {
    "rl": ("method", _on, "rl: {} keeps a second model or generates text, which no recipe describes"),
    "reward_model": ("method", _on, "a reward model has another head and pairs of rows, which no recipe describes"),
    "process_reward_model": ("method", _on, "a process reward model has another head, which no recipe describes"),
    "foreign_adapter": ("adapter", _on, "adapter {} is neither lora nor qlora: what it trains is not known"),
    "finetuning_type": ("method", lambda v: v not in _FINETUNINGS, "finetuning_type {}: what it trains is not known"),
    "stage": ("method", lambda v: v not in _TRAININGS, "stage {} is not a plain fine-tune, which a recipe describes"),
    "lora_rank_pattern": ("adapter.r", _on, "lora_rank_pattern gives modules ranks of their own; a recipe has one"),
    "peft_layer_replication": ("adapter", _on, "peft_layer_replication repeats layers, which no recipe describes"),
    "gptq": ("precision", _on, "a GPTQ base: its sizes are not known"),
    "qat": ("precision", _on, "qat keeps fake-quantised copies of the weights, which no recipe describes"),
    "layer_offloading": ("activation_offloading", _on, "layer_offloading moves weights in and out; no recipe says so"),
    "ple_cpu_offload": (
        "activation_offloading",
        _on,
        "ple_cpu_offload keeps embeddings on the host; no recipe says so",
    ),
    "selective_checkpointing": ("activation_checkpointing", _on, "selective_checkpointing: a recipe recomputes all"),
    "every_n_layers": (
        "activation_checkpointing",
        lambda v: v > 1,
        "gradient_checkpointing_kwargs.every_n_layers {}: a recipe recomputes every layer or none",
    ),
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


_ROWS = re.compile(r"\[[0-9]*(?::[0-9]*)?\]$")
# No groups and few repetitions: what a file says must not make the match of a name of fifty characters slow.
_PLAIN = re.compile(r"[\w.^$\[\]-]{0,100}(?:[*+?][\w.^$\[\]-]{0,100}){0,3}")
_TEXT = ("self_attn.q_proj", "mlp.down_proj", "input_layernorm")  # of every layer; one stands for its neighbours
_TOWERS = (
    "model.visual.blocks.0.attn.proj.weight",
    "model.vision_tower.encoder.layers.0.self_attn.q_proj.weight",
    "model.vision_embedder.proj.weight",
    "model.audio_tower.layers.0.self_attn.q_proj.weight",
    "model.multi_modal_projector.linear_1.weight",
)


def limits(draft: Draft) -> None:
    """Say what no recipe can say of these files."""
    for table, tell in ((_STOPS, draft.block), (_NOTES, draft.note)):
        for name, (path, when, reason) in table.items():
            value = draft.fact(name)
            if value is not None and when(value):
                tell(path, reason.replace("{}", shown(value)), name)
    _trl(draft)
    _plugins(draft)
    _unfrozen(draft)
    _images(draft)


def _trl(draft: Draft) -> None:
    """What TRL 1.9.0 does beside its arguments (sft_config.py, sft_trainer.py)."""
    if draft.format != "trl":
        return
    words = ", ".join(draft.fact("trl") or ("trl starts it",))
    draft.note("trainer", f"read as TRL's arguments ({words}): what they leave out is SFTConfig's", "trl")
    if draft.left.get("loss_type") in (None, "chunked_nll") and not draft.fact("use_liger_kernel"):
        draft.note("loss_kernel", "TRL's chunked loss needs less than is counted", "loss_type")
    if draft.values.get("precision.parameters") is Dtype.NF4 or draft.fact("load_in_8bit"):
        reason = "TRL keeps adapters over a quantised base in bf16: less than is counted"
        draft.note("precision.trainable", reason, "precision.parameters")


def _unfrozen(draft: Draft) -> None:
    """Patterns that name the whole text decoder and nothing else train what `freeze_vision` leaves.

    Axolotl matches them from the start of a parameter's name, with dots taken literally but for `.+` (utils/freeze.py);
    a range of rows behind a pattern (`[:32000]`) trains a part of what it names.
    """
    patterns, model = draft.fact("unfrozen_parameters"), draft.model_spec
    if not patterns or model is None:
        return
    above = model.layers_path.rpartition(".")[0]
    ends = (0, model.num_hidden_layers - 1)
    text = [f"{model.layers_path}.{layer}.{part}.weight" for layer in ends for part in _TEXT]
    text += [f"{above}.embed_tokens.weight", f"{above}.norm.weight"]
    text += [] if model.tie_word_embeddings else ["lm_head.weight"]
    trained = _matches(patterns, text)
    if not all(trained):
        reason = "unfrozen_parameters trains a part of the text model, which no recipe describes"
        draft.block("method", reason, "unfrozen_parameters")
    elif model.is_multimodal and any(_matches(patterns, _TOWERS)):
        reason = "unfrozen_parameters reaches into the vision tower: how much of it is trained is not known"
        draft.block("freeze_vision", reason, "unfrozen_parameters")
    elif model.is_multimodal and draft.values.get("method") is None:
        draft.values["freeze_vision"] = True
        draft.provenance["freeze_vision"] = draft.where("unfrozen_parameters")


def _matches(patterns: Sequence[str], names: Sequence[str]) -> list[bool]:
    found: list[re.Pattern[str]] = []
    for pattern in patterns:
        try:
            if _PLAIN.fullmatch(pattern) and not _ROWS.search(pattern):
                found.append(re.compile(re.sub(r"\.(?!\+)", r"\\.", pattern)))
        except (re.error, RecursionError, OverflowError):
            continue
    return [any(pattern.match(name) for pattern in found) for name in names]


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
