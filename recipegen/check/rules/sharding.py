"""FSDP and DeepSpeed: what they cannot hold, wrap or hand over."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from recipegen.check.rules.registry import Said, in_place_of, rule
from recipegen.check.rules.view import EIGHT_BIT, FOUR_BIT, View
from recipegen.formats import documents
from recipegen.spec import Severity, Strategy

_AXOLOTL = "axolotl 0.19.0, utils/schemas/validation.py"
_HYBRID = ("HYBRID_SHARD", "HYBRID_SHARD_ZERO2")
_PTQ = ("fp8", "gptq", "awq", "compressed-tensors", "aqlm", "hqq", "quanto", "fbgemm_fp8", "eetq", "mxfp4")
_LIKE_ADAMW = ("adamw_torch", "adamw_torch_fused", "adamw_torch_xla", "adamw_apex_fused", "adamw_hf")
_GPU_ONLY = ("8bit", "4bit", "bnb", "paged")


@rule("RG221", "compat", Severity.ERROR, source="https://github.com/axolotl-ai-cloud/axolotl/issues/2250")
def fsdp_does_not_flatten_int8(view: View) -> Iterator[Said]:
    """FSDP1 flattens the parameters of a layer into one tensor of one float type; int8 weights of bitsandbytes cannot
    join, and it stops. 4-bit weights can: they are stored in a float type. FSDP2 has no report of it working."""
    if view.engine == "fsdp" and view.bits == EIGHT_BIT:
        yield Said(
            f"FSDP{view.fsdp_version} with an int8 base (load_in_8bit)",
            "adapter: qlora with load_in_4bit: true, or a bf16 base",
            view.where("load_in_8bit", "precision.parameters"),
            "load_in_8bit",
            None if view.fsdp_version == 1 else Severity.WARNING,
        )


@rule("RG222", "compat", Severity.ERROR, source="https://github.com/hiyouga/LlamaFactory/issues/6898")
def a_quantised_checkpoint_is_not_sharded(view: View) -> Iterator[Said]:
    """Weights that were quantised after training (FP8, GPTQ, AWQ) are refused under ZeRO-3 and cannot be sharded by
    FSDP. Train a bf16 conversion of the model, or let the trainer dequantise it while loading."""
    if not (view.is_zero3 or view.engine == "fsdp") or view.value("dequantize"):
        return
    if view.fact("model_quantization_config"):
        return  # dequantised while loading
    kind, place = _published_in(view)
    if kind:
        engine = "ZeRO-3" if view.is_zero3 else "FSDP"
        reason = f"the checkpoint itself is quantised ({kind}), and {engine} cannot partition it"
        yield Said(reason, "use a bf16 conversion of the model", place, "model")


def _published_in(view: View) -> tuple[str, str]:
    if view.fact("gptq") is True:
        return "gptq", view.where("gptq")
    for name in sorted(view.subject.files):
        if name.rpartition("/")[2] == "config.json":
            values = (documents.read_json(view.subject.files[name], name).values) or {}
            section = values.get("quantization_config")
            kind = section.get("quant_method") if isinstance(section, Mapping) else None
            if kind in _PTQ:
                return str(kind), name
    kind = view.model.quantization if view.model else None
    return (kind, view.where("model")) if kind in _PTQ else ("", "")


@rule("RG223", "compat", Severity.WARNING, source="https://github.com/axolotl-ai-cloud/axolotl/issues/1563")
def four_bits_are_qlora(view: View) -> Iterator[Said]:
    """Axolotl accepts `adapter: lora` with load_in_4bit, but prepares the quantised base for sharding only for
    `adapter: qlora`: under FSDP the run hangs where the trainer starts."""
    if view.trainer != "axolotl" or view.raw("adapter") != "lora" or view.raw("load_in_4bit") is not True:
        return
    under = " under FSDP, which hangs" if view.engine == "fsdp" else ""
    yield Said(
        f"adapter: lora with load_in_4bit{under}",
        "adapter: qlora",
        view.where("adapter", "load_in_4bit", "method"),
        "adapter",
        Severity.ERROR if under else None,
    )


@in_place_of("RG203")
def four_bit_weights_are_not_loaded_on_one_rank(view: View) -> Iterator[Said]:
    """As RG203."""
    if view.fsdp_version == 2 and view.bits == FOUR_BIT and view.value("fsdp.cpu_ram_efficient_loading"):
        yield Said(
            "4-bit weights under FSDP2 cannot use cpu_ram_efficient_loading",
            "cpu_ram_efficient_loading: false",
            view.where("fsdp.cpu_ram_efficient_loading"),
            "fsdp.cpu_ram_efficient_loading",
        )


@in_place_of("RG202")
def optimizer_works_with_the_strategy(view: View) -> Iterator[Said]:
    """As RG202."""
    name = view.value("optimizer.name")
    if not isinstance(name, str) or name not in view.subject.stack.optimizer_names():
        return
    strategies = {"fsdp": Strategy.FSDP2_FULL, "deepspeed": Strategy.ZERO3_CPU if view.is_zero3 else Strategy.ZERO2}
    strategy = strategies.get(view.engine)
    if strategy is None or view.fsdp_version == 1 or (view.engine == "deepspeed" and not view.zero_stage):
        return
    problem = view.subject.stack.optimizer(name).problem_with(strategy)
    if problem:
        yield Said(f"{name}: {problem}", "adamw_torch_fused", view.where("optimizer.name"), "optimizer.name")


@rule("RG224", "compat", Severity.ERROR, source="https://github.com/axolotl-ai-cloud/axolotl/pull/2910")
def offloaded_parameters_have_a_cpu_optimizer(view: View) -> Iterator[Said]:
    """FSDP1 with offload_params steps on the CPU; bitsandbytes' 8-bit optimizers run on GPUs only."""
    name = view.value("optimizer.name")
    if view.fsdp_version == 1 and view.value("fsdp.offload_params") and isinstance(name, str) and "8bit" in name:
        reason = f"FSDP1 offloads the parameters, and {name} has no CPU step"
        yield Said(reason, "adamw_torch_fused, or fsdp_version: 2", view.where("optimizer.name"), "optimizer.name")


@rule("RG225", "compat", Severity.WARNING, source="https://github.com/axolotl-ai-cloud/axolotl/issues/3077")
def fp8_under_fsdp2_loads_efficiently(view: View) -> Iterator[Said]:
    """Under FSDP2 with fp8 and cpu_ram_efficient_loading off, losses of NaN were reported; the maintainers point at the
    loading. The cause is not established."""
    fp8 = view.fact("fp8") is True or view.fact("mixed_precision") == "fp8"
    if view.fsdp_version == 2 and fp8 and view.value("fsdp.cpu_ram_efficient_loading") is not True:
        yield Said(
            "fp8 under FSDP2 without cpu_ram_efficient_loading: NaN losses were reported",
            "cpu_ram_efficient_loading: true",
            view.where("fsdp.cpu_ram_efficient_loading", "fp8"),
            "fsdp.cpu_ram_efficient_loading",
        )


@rule("RG233", "compat", Severity.ERROR, source="https://github.com/netease-youdao/BCEmbedding/issues/66")
def the_wrapped_class_is_of_the_model(view: View) -> Iterator[Said]:
    """FSDP stops when transformer_layer_cls_to_wrap names a class that the model does not have (a recipe copied from
    another family). Not every class of a model is known here: one right name is enough, and a name that begins as the
    model's own layers do (MixtralSparseMoeBlock) passes."""
    stated, model = view.value("fsdp.layer_class"), view.model
    if not view.states("fsdp.layer_class"):
        return
    if view.engine != "fsdp" or not isinstance(stated, str) or not stated or model is None:
        return
    names = [name.strip() for name in stated.split(",") if name.strip()]
    family = re.sub(r"(Decoder)?(Layer|Block)\Z", "", model.layer_class)
    if not any(name == model.layer_class or name.startswith(family) for name in names):
        yield Said(
            f"{model.id} has no {', '.join(names)}; its layers are {model.layer_class}",
            f"transformer_layer_cls_to_wrap: {model.layer_class}",
            view.where("fsdp.layer_class"),
            "fsdp.layer_class",
        )


@rule("RG235", "compat", Severity.WARNING, source="https://github.com/huggingface/transformers/issues/37672")
def a_multimodal_model_names_its_layers(view: View) -> Iterator[Said]:
    """Without transformer_layer_cls_to_wrap FSDP takes the model's own list, which for multimodal families names layers
    of the vision tower; where the text class alone is loaded they are missing, and it stops."""
    model, policy = view.model, view.fact("fsdp_auto_wrap_policy")
    if view.engine != "fsdp" or view.states("fsdp.layer_class") or policy not in (None, "TRANSFORMER_BASED_WRAP"):
        return
    if model is not None and model.is_multimodal:
        fix = f"transformer_layer_cls_to_wrap: {model.layer_class}"
        reason = f"{model.id} is multimodal and the class to wrap is not named"
        yield Said(reason, fix, view.where("fsdp_auto_wrap_policy", "fsdp.version"), "fsdp.layer_class")


@rule("RG236", "compat", Severity.WARNING, source="transformers 5.16.1, training_args.py (fsdp)")
def fsdp_has_several_processes(view: View) -> Iterator[Said]:
    """With one process there is nothing to shard; the Transformers trainer refuses it ("Using fsdp only works in
    distributed training"), and other loops pay for wrapping without a gain."""
    if view.engine == "fsdp" and view.world == 1 and not view.is_plain_python:
        yield Said(
            "FSDP with one process shards nothing",
            "remove FSDP, or start several processes",
            view.where("num_processes"),
        )


@rule("RG237", "compat", Severity.ERROR, source="https://github.com/pytorch/pytorch/issues/154888")
def shards_are_of_two_or_more(view: View) -> Iterator[Said]:
    """HYBRID_SHARD over groups of one rank silently becomes NO_SHARD in a world of one: gradients are no longer reduced
    and the replicas drift apart. dp_shard_size 1 leaves FSDP2 no dimension to shard over."""
    if view.engine != "fsdp" or (view.world or 1) < 2:
        return
    shard, cp, tp = (view.value(f"parallelism.{name}") for name in ("dp_shard", "cp", "tp"))
    if view.trainer == "axolotl" and view.states("parallelism.dp_shard") and shard == 1 and (cp or 1) == 1:
        yield Said(
            "dp_shard_size 1: FSDP has nothing to shard over",
            f"dp_shard_size {view.world}" if not tp or tp == 1 else "a dp_shard_size of 2 or more",
            view.where("parallelism.dp_shard"),
            "parallelism.dp_shard",
        )
    hybrid = view.fact("fsdp_sharding_strategy") in _HYBRID
    if hybrid and (view.machines or 1) > 1 and view.per_machine == 1:
        yield Said(
            "HYBRID_SHARD shards inside a machine, and each machine has one process: replicas would drift apart",
            "FULL_SHARD",
            view.where("fsdp_sharding_strategy"),
            "fsdp_sharding_strategy",
        )


@rule("RG239", "compat", Severity.WARNING, source="https://github.com/huggingface/trl/issues/1268")
def parameters_are_offloaded_by_stage_three_only(view: View) -> Iterator[Said]:
    """offload_param is read by ZeRO-3 alone: below it every GPU keeps all parameters, whatever the file says."""
    stage = view.zero_stage
    if stage is not None and not view.is_zero3 and view.offload("param") != "none":
        yield Said(
            f"offload_param with stage {stage} does nothing: the parameters stay whole on every GPU",
            "stage 3, or remove offload_param",
            view.where("deepspeed.offload_param"),
            "deepspeed.offload_param",
        )


@rule(
    "RG240", "compat", Severity.WARNING, source="accelerate 1.13.0, utils/deepspeed.py (map_pytorch_optim_to_deepspeed)"
)
def an_offloaded_optimizer_is_deepspeeds_own(view: View) -> Iterator[Said]:
    """With offload_optimizer and no `optimizer` section in the JSON, Accelerate replaces the trainer's optimizer by
    DeepSpeedCPUAdam, as AdamW for AdamW, as plain Adam (decay in the gradient) for most others, and says nothing. With
    zero_force_ds_cpu_optimizer false the optimizer itself must be able to step on the CPU."""
    name = view.value("optimizer.name")
    if view.offload("optimizer") == "none" or not isinstance(name, str) or view.fact("optimizer_type") is not None:
        return
    forced = _force_flag(view) is not False
    place, fix = view.where("optimizer.name"), 'put {"optimizer": {"type": "AdamW", ...}} into the DeepSpeed JSON'
    if not forced and any(word in name for word in _GPU_ONLY):
        reason = f"zero_force_ds_cpu_optimizer is false, and {name} cannot step on the CPU"
        yield Said(reason, fix, place, "optimizer.name", Severity.ERROR)
    elif forced:
        like = name in _LIKE_ADAMW
        reason = f"offload_optimizer replaces {name} by DeepSpeedCPUAdam{'' if like else ' (not the same optimizer)'}"
        yield Said(reason, fix, place, "optimizer.name", Severity.NOTE if like else None)


def _force_flag(view: View) -> Any:
    for reading in view.of("deepspeed"):
        if "zero_force_ds_cpu_optimizer" in reading.passthrough:
            return reading.passthrough["zero_force_ds_cpu_optimizer"]
    return None


@rule("RG241", "compat", Severity.WARNING, source="https://github.com/deepspeedai/DeepSpeed/issues/5124")
def the_nvme_block_is_complete(view: View) -> Iterator[Said]:
    """NVMe offload needs what CPU offload does not: an aio block, and for parameters buffer_count and buffer_size, a
    buffer at least as large as the largest tensor. The defaults (5 buffers of 1e8 elements) stop the run."""
    if view.engine != "deepspeed":
        return
    missing = []
    if "nvme" in (view.offload("optimizer"), view.offload("param")) and view.fact("aio") is None:
        missing.append("aio")
    if view.offload("param") == "nvme":
        missing += [
            f"offload_param.{key}" for key in ("buffer_count", "buffer_size") if not view.states(f"deepspeed.{key}")
        ]
    if view.offload("optimizer") == "nvme" and view.fact("offload_optimizer_buffer_count") is None:
        missing.append("offload_optimizer.buffer_count")
    if missing:
        yield Said(
            f"offload to NVMe without {', '.join(missing)}",
            "write them: aio, buffer_count, and a buffer_size of the largest tensor's elements",
            view.where("deepspeed.offload_optimizer", "deepspeed.offload_param"),
            "zero_optimization",
        )


@rule("RG242", "compat", Severity.ERROR, source="https://github.com/huggingface/transformers/issues/47254")
def frozen_weights_under_zero3_are_recomputed_reentrant(view: View) -> Iterator[Said]:
    """While a layer is recomputed, ZeRO-3 has partitioned its frozen weights again; the non-reentrant checkpoint (the
    default of Transformers 5) compares shapes and stops at size 0. Axolotl's default is reentrant. This holds for an
    adapter under ZeRO-3 alone: elsewhere non-reentrant is the better choice."""
    if not (view.is_zero3 and view.has_adapter and view.value("activation_checkpointing")):
        return
    reentrant = view.value("activation_checkpointing_reentrant")
    if reentrant is None:
        reentrant = view.trainer == "axolotl"
    if reentrant is False:
        yield Said(
            "ZeRO-3 with frozen weights and use_reentrant false: recomputed tensors have size 0",
            "gradient_checkpointing_kwargs: {use_reentrant: true}, or ZeRO-2",
            view.where("activation_checkpointing_reentrant", "activation_checkpointing"),
            "activation_checkpointing_reentrant",
        )


@rule("RG243", "compat", Severity.WARNING, source="https://github.com/huggingface/peft/issues/1702")
def fsdp1_adapters_keep_their_own_parameters(view: View) -> Iterator[Said]:
    """FSDP1 with use_orig_params false flattens frozen and trained parameters of a layer together and stops, unless
    peft's wrap policy parts them. Axolotl and the Transformers trainer install that policy; a loop of your own must.
    FSDP2 does not flatten."""
    if view.fsdp_version != 1 or view.fact("fsdp_use_orig_params") is not False or view.trainer == "axolotl":
        return
    if view.has_adapter:
        yield Said(
            "FSDP1 with an adapter and use_orig_params false",
            "use_orig_params: true, or peft.utils.other.fsdp_auto_wrap_policy",
            view.where("fsdp_use_orig_params"),
            "fsdp_use_orig_params",
        )


@rule("RG249", "compat", Severity.WARNING, source="https://github.com/axolotl-ai-cloud/axolotl/issues/1717")
def zero3_does_not_shard_four_bits_while_loading(view: View) -> Iterator[Said]:
    """Under ZeRO-3 every rank loads and quantises the whole base before it is partitioned: the peak is at loading, not
    in training, and it does not shrink with the number of GPUs."""
    if view.is_zero3 and view.bits == FOUR_BIT:
        reason = "a 4-bit base under ZeRO-3: each GPU holds the whole of it while loading"
        yield Said(reason, "FSDP2 with qlora, or a bf16 base", view.where("precision.parameters", "load_in_4bit"))


@rule("RG251", "compat", Severity.WARNING, source="https://github.com/huggingface/trl/issues/1268")
def experts_under_zero3_are_one_leaf(view: View) -> Iterator[Said]:
    """ZeRO-3 gathers module by module; where each expert is a module, ranks route to different ones and wait for one
    another. The sparse block must be one leaf: Axolotl and accelerate's deepspeed_moe_layer_cls_names do it. From
    Transformers 5 on the experts of a layer are one parameter, and there is nothing to declare."""
    if not (view.is_zero3 and view.model is not None and view.model.is_moe) or view.trainer == "axolotl":
        return
    if view.version("transformers")[:1] >= (5,):
        return
    listed = any("moe_layer_cls_names" in key or "leaf_module" in key for r in view.readings for key in r.passthrough)
    if not listed:
        yield Said(
            f"{view.model.id} is a mixture of experts, and its sparse block is not declared a leaf",
            "accelerate: deepspeed_moe_layer_cls_names; else deepspeed.utils.set_z3_leaf_modules",
            view.where("deepspeed.stage", "zero_stage"),
            "deepspeed.stage",
        )
