"""Kernels against cards, adapters against models, optimizers against batches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from recipegen.check.rules.registry import Said, in_place_of, rule
from recipegen.check.rules.view import View
from recipegen.estimate.parameters import is_pattern, unknown_targets
from recipegen.formats import documents
from recipegen.spec import LossKernel, Severity

_EMBEDDING, _HEAD = ("embed_tokens", "wte", "word_embeddings"), ("lm_head", "embed_out")
_LONG = 65_536  # tokens of one rank: where a T x V logit block alone outgrows a card (report MEM-09, MEM-10)
_TRANSFORMERS_5 = (5,)
_INDEX = "model.safetensors.index.json"
_FA3 = ("flash_attention_3", "kernels-community/flash-attn3", "kernels-community/vllm-flash-attn3")


def _sm(capability: str) -> int | None:
    """sm_120 -> 120; None for a CPU profile."""
    number = capability.removeprefix("sm_")
    return int(number) if number.isdecimal() else None


@in_place_of("RG205")
def kernels_run_on_the_card(view: View) -> Iterator[Said]:
    """As RG205, for attention."""
    gpu, attention = view.gpu, view.value("attention")
    if gpu is None or not isinstance(attention, str):
        return
    place = view.where("attention")
    if attention == "flash_attention_2" and not gpu.flash_attention:
        reason = f"flash_attention_2 has no build for {gpu.name} ({gpu.compute_capability}) in this stack"
        yield Said(reason, "attn_implementation: sdpa", place, "attention")
    if attention == "flash_attention_3" and gpu.compute_capability != "sm_90":
        reason = f"flash_attention_3 runs on sm_90; {gpu.name} is {gpu.compute_capability}"
        yield Said(reason, "attn_implementation: sdpa", place, "attention")


@in_place_of("RG209")
def an_adapter_has_a_target(view: View) -> Iterator[Said]:
    """As RG209, where no name is one of the model's: peft stops. Of families whose modules are all known here."""
    model, names = view.model, view.value("adapter.target_modules") or view.raw("lora_target_modules")
    if model is None or model.is_moe or model.is_multimodal or not isinstance(names, (list, tuple)) or not names:
        return
    names = tuple(str(name) for name in names)
    if view.has_adapter and not is_pattern(names) and set(unknown_targets(model, names)) == set(names):
        yield Said(
            f"{model.id} has no module called {', '.join(names)}: peft finds nothing to adapt, and stops",
            "lora_target_linear: true" if view.trainer == "axolotl" else "names of the model's own modules",
            view.where("adapter.target_modules", "lora_target_modules"),
            "adapter.target_modules",
        )


@rule("RG226", "compat", Severity.ERROR, source="https://github.com/Dao-AILab/flash-attention/issues/1785")
def hub_kernels_and_later_attention_run_on_the_card(view: View) -> Iterator[Said]:
    """FlashAttention 3 has kernels for sm_90 alone, under its own name (RG205) and as a kernel of the Hub;
    FlashAttention 4 for sm_90 and sm_100. On other cards there is no kernel image."""
    gpu, attention = view.gpu, view.value("attention")
    number = _sm(gpu.compute_capability) if gpu else None
    if gpu is None or number is None or not isinstance(attention, str):
        return
    if attention in _FA3[1:] and number != 90:
        wanted = "sm_90"
    elif attention == "flash_attention_4" and number not in (90, 100, 103):
        wanted = "sm_90 and sm_100"
    else:
        return
    reason = f"{attention} runs on {wanted}; {gpu.name} is {gpu.compute_capability}"
    yield Said(reason, "attn_implementation: sdpa", view.where("attention"), "attention")


@rule("RG230", "compat", Severity.WARNING, source="https://github.com/hiyouga/LlamaFactory/issues/6446")
def tied_embeddings_stay_tied(view: View) -> Iterator[Said]:
    """A model with tied embeddings has one matrix. With embed_tokens and lm_head both in modules_to_save peft trains
    two copies, and what is saved and reloaded is not what was trained: new tokens are never emitted."""
    model, saved = view.model, view.fact("lora_modules_to_save") or view.raw("modules_to_save") or ()
    if model is None or not model.tie_word_embeddings or not view.has_adapter or not isinstance(saved, (list, tuple)):
        return
    both = any(name in saved for name in _EMBEDDING) and any(name in saved for name in _HEAD)
    if both and not view.fact("peft_ensure_weight_tying"):
        yield Said(
            f"{model.id} ties lm_head to embed_tokens, and both are in modules_to_save: they come apart",
            "list embed_tokens only, or peft_ensure_weight_tying: true",
            view.where("lora_modules_to_save", "modules_to_save"),
            "lora_modules_to_save",
        )


@rule("RG231", "compat", Severity.WARNING, source="https://github.com/axolotl-ai-cloud/axolotl/issues/3374")
def experts_are_quantised_too(view: View) -> Iterator[Said]:
    """Transformers 5 fuses the experts of a layer into one 3-D parameter, which is no Linear: bitsandbytes leaves it in
    bf16, so that most of a 4-bit or 8-bit MoE model is not quantised at all. Axolotl's quantize_moe_experts does it."""
    model = view.model
    if model is None or not model.is_moe or view.bits is None or model.quantization is not None:
        return
    if view.version("transformers")[:1] < _TRANSFORMERS_5 or view.fact("quantize_moe_experts"):
        return
    if view.fact("llama4_linearized_experts"):
        return
    yield Said(
        f"{view.bits}-bit {model.id} on transformers 5: its experts stay bf16",
        "quantize_moe_experts: true" if view.trainer == "axolotl" else "transformers < 5, or count the experts as bf16",
        view.where("precision.parameters", "load_in_4bit", "load_in_8bit"),
        "quantize_moe_experts",
    )


@rule("RG232", "compat", Severity.ERROR, source="https://github.com/axolotl-ai-cloud/axolotl/issues/1448")
def layerwise_optimizers_do_not_accumulate(view: View) -> Iterator[Said]:
    """A layer-wise optimizer (galore_*_layerwise) steps inside the backward pass and frees each gradient at once, so
    there is nothing to accumulate; Transformers refuses it, and several processes as well."""
    name, steps = view.value("optimizer.name"), view.value("gradient_accumulation")
    if not isinstance(name, str) or not name.endswith("_layerwise"):
        return
    if isinstance(steps, int) and steps > 1:
        reason = f"{name} with {steps} accumulation steps"
        yield Said(
            reason, "gradient_accumulation_steps: 1", view.where("gradient_accumulation"), "gradient_accumulation"
        )
    if view.processes is not None and view.processes > 1:
        reason = f"{name} with {view.processes} processes: layer-wise steps are for one GPU"
        yield Said(
            reason, f"optimizer: {name.removesuffix('_layerwise')}", view.where("optimizer.name"), "optimizer.name"
        )


@rule("RG244", "compat", Severity.ERROR, source="https://github.com/axolotl-ai-cloud/axolotl/issues/3608")
def ring_attention_keeps_documents_apart(view: View) -> Iterator[Said]:
    """batch_ring attends over the whole row. Packed rows hold several documents, whose boundaries only varlen_llama3
    keeps: with batch_ring the loss is too high and the model learns across them. It is right for one document a row.
    Rows that come tokenized may be packed already."""
    cp = view.value("parallelism.cp")
    if not isinstance(cp, int) or cp < 2 or view.trainer != "axolotl":
        return
    stated, packing = view.fact("ring_attn_func"), bool(view.value("packing"))
    ring = stated or ("varlen_llama3" if packing else "batch_ring")  # Axolotl's choice
    if ring != "batch_ring":
        return
    place = view.where("ring_attn_func", "parallelism.cp")
    if packing:
        yield Said(
            "batch_ring attends across packed documents", "ring_attn_func: varlen_llama3", place, "ring_attn_func"
        )
        return
    entries = view.raw("datasets")
    tokenized = isinstance(entries, list) and any(isinstance(e, Mapping) and not e.get("type") for e in entries)
    if tokenized or stated:
        yield Said(
            "batch_ring attends over whole rows: right for one document a row, not for rows packed beforehand",
            "ring_attn_func: varlen_llama3 where rows are packed",
            place,
            "ring_attn_func",
            Severity.WARNING if tokenized else Severity.NOTE,
        )


@rule("RG245", "compat", Severity.WARNING, source="https://github.com/meta-pytorch/torchtune/issues/1516")
def compiled_adapters_under_fsdp2_are_untested(view: View) -> Iterator[Said]:
    """FSDP2 with LoRA and torch_compile of the whole model broke runs that work without; Axolotl also sets
    suppress_errors, so that a failed compile is silent."""
    if view.fsdp_version == 2 and view.has_adapter and view.value("torch_compile"):
        reason = "torch_compile with an adapter under FSDP2"
        yield Said(reason, "torch_compile: false", view.where("torch_compile"), "torch_compile")


@rule("RG247", "compat", Severity.WARNING, source="https://github.com/huggingface/accelerate/issues/3870")
def the_tie_flag_agrees_with_the_weights(view: View) -> Iterator[Said]:
    """A checkpoint that holds both embeddings and lm_head while config.json says tie_word_embeddings was trained
    untied; FSDP2's preparation then misses the key of lm_head, and elsewhere the head's weights are dropped."""
    for name in sorted(view.subject.files):
        folder, _, base = name.rpartition("/")
        config = f"{folder}/config.json" if folder else "config.json"
        if base != _INDEX or config not in view.subject.files:
            continue
        index = documents.read_json(view.subject.files[name], name).values or {}
        values = documents.read_json(view.subject.files[config], config).values or {}
        keys = index.get("weight_map")
        if not isinstance(keys, Mapping) or values.get("tie_word_embeddings") is not True:
            continue
        both = any(k.endswith("lm_head.weight") for k in keys) and any("embed_tokens.weight" in k for k in keys)
        if both:
            reason = "config.json ties lm_head to the embeddings, and the weights hold both"
            yield Said(reason, "tie_word_embeddings: false in config.json", config, "tie_word_embeddings")


@rule("RG250", "memory", Severity.WARNING, source="https://github.com/hiyouga/LlamaFactory/issues/5024")
def one_long_sequence_is_not_sharded(view: View) -> Iterator[Said]:
    """FSDP and ZeRO divide weights and states, not a sequence: all activations and the logits of a row are on the rank
    that holds it. Above 64 Ki tokens that needs context parallelism or a loss that makes no logits."""
    tokens, cp = view.value("sequence_len"), view.value("parallelism.cp") or 1
    if view.engine == "none" or not isinstance(tokens, int) or not isinstance(cp, int) or tokens // cp < _LONG:
        return
    if view.value("loss_kernel") not in (LossKernel.FUSED_LINEAR, LossKernel.CUT):
        yield Said(
            f"{tokens} tokens on one rank: sharding does not divide a sequence",
            "context_parallel_size, a fused linear loss, and offloaded activations",
            view.where("sequence_len"),
            "sequence_len",
        )
