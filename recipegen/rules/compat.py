"""What cannot run together: method, strategy, optimizer, kernels, card."""

from __future__ import annotations

import re
from collections.abc import Iterator

from recipegen.estimate.parameters import linear_modules, unknown_targets
from recipegen.rules.registry import Context, Milder, rule
from recipegen.spec import AttentionMemory, Dtype, LossKernel, Method, Recipe, Severity, Strategy

_AXOLOTL = "axolotl 0.19.0, axolotl/utils/schemas/validation.py"
_VERSION_2 = 2
# Rows of the stack's optimizer table that state no failure, only that nobody looked.
_UNTRIED = re.compile(r"\b(?:was|were) (?:not|never) run\b")


def _fsdp2(recipe: Recipe) -> bool:
    """FSDP1 keeps plain flat tensors, gathers an adapter whole, and loads 4-bit weights on one rank (PEFT's FSDP-QLoRA
    guide): what is said of DTensors does not hold there."""
    return recipe.fsdp is not None and recipe.fsdp.version == _VERSION_2


@rule(
    "RG201",
    "compat",
    Severity.ERROR,
    source="https://github.com/huggingface/accelerate/pull/4206",
    field="fsdp.state_dict_type",
)
def adapter_under_fsdp2_saves_sharded(context: Context) -> Iterator[tuple[str, str]]:
    """With FULL_STATE_DICT, Accelerate 1.13 writes only rank 0's slice of an adapter into the checkpoint that resume
    reads: the run exits 0 and the adapter is lost. SHARDED_STATE_DICT resumes to equal losses. To rescue such a run,
    start from the checkpoint's adapter_model.safetensors (Axolotl: lora_model_dir); the optimizer state is gone."""
    r = context.recipe
    if r.fsdp is not None and _fsdp2(r) and r.method.is_adapter and r.fsdp.state_dict_type == "FULL_STATE_DICT":
        yield (
            "an adapter under FSDP2 with FULL_STATE_DICT loses the adapter on resume",
            "--set fsdp.state_dict_type=SHARDED_STATE_DICT",
        )


@rule("RG202", "compat", Severity.ERROR, source="catalog/stacks/*/optimizers.yaml", field="optimizer.name")
def optimizer_works_with_the_strategy(context: Context) -> Iterator[tuple[str, str] | Milder]:
    """Some optimizers do not run on sharded parameters (DTensors) or under DeepSpeed; the stack's table says which,
    each with the run or the validator that showed it. FSDP1's parameters are plain tensors, so only what holds on one
    GPU holds there. What was only never run is a note on somebody else's file."""
    r = context.recipe
    facts, strategy = context.stack.optimizer(r.optimizer.name), r.parallelism.strategy
    first = r.fsdp is not None and not _fsdp2(r)
    problem = facts.problem_with(Strategy.SINGLE if first else strategy)
    if not problem:
        return
    under = "FSDP1" if first else strategy.label
    reason, fix = f"{r.optimizer.name} under {under}: {problem}", "--set optimizer=adamw_torch_fused"
    untried = not context.generated and _UNTRIED.search(problem)
    yield Milder(reason, fix, Severity.NOTE) if untried else (reason, fix)


@rule(
    "RG203",
    "compat",
    Severity.ERROR,
    source=f"{_AXOLOTL} check_fsdp2_cpu_ram_efficient_loading_w_4bit",
    field="fsdp.cpu_ram_efficient_loading",
)
def four_bit_weights_are_not_loaded_on_one_rank(context: Context) -> Iterator[tuple[str, str]]:
    """FSDP2 with 4-bit weights and cpu_ram_efficient_loading deadlocks in Axolotl (its validator refuses it) and dies
    on rank 0 in Accelerate 1.13."""
    r = context.recipe
    if r.fsdp is not None and _fsdp2(r) and r.method is Method.QLORA and r.fsdp.cpu_ram_efficient_loading:
        yield (
            "QLoRA under FSDP2 cannot use cpu_ram_efficient_loading",
            "--set fsdp.cpu_ram_efficient_loading=false",
        )


@rule("RG204", "compat", Severity.ERROR, source="https://github.com/InternLM/xtuner/issues/88", field="method")
def deepspeed_trains_full_weights_only(context: Context) -> Iterator[tuple[str, str] | Milder]:
    """An adapter's states are small, so ZeRO buys nothing over DDP, and ZeRO-3 shards 4-bit weights only where storage
    and compute dtype agree; no adapter under DeepSpeed has been run on the tested stack."""
    r = context.recipe
    if r.parallelism.strategy.is_deepspeed and r.method.is_adapter:
        reason = f"{r.method.value} under {r.parallelism.strategy.label} has not been run on {context.stack.name}"
        fix = "--set strategy=ddp, or fsdp2_full"
        yield (reason, fix) if context.generated else Milder(reason, "", Severity.NOTE)


@rule(
    "RG217",
    "compat",
    Severity.ERROR,
    source="transformers 5.16.1 modeling_gemma3.py; axolotl 0.19.0 loss/chunked",
    field="loss_kernel",
)
def the_loss_reaches_the_model(context: Context) -> Iterator[tuple[str, str] | Milder]:
    """Axolotl's chunked loss takes the place of the loss that Transformers gives to its text models. A class that makes
    its own loss is not reached by it: the whole of the logits is raised to fp32, and copied."""
    r = context.recipe
    if context.model.own_loss and r.trainer == "axolotl" and r.loss_kernel is LossKernel.CHUNKED_UPCAST:
        reason = f"{context.model.id} makes its own loss, so the chunked one has no effect"
        fix = "--set loss_kernel=stock"
        yield (reason, fix) if context.generated else Milder(reason, fix, Severity.WARNING)


@rule("RG205", "compat", Severity.ERROR, source="recipegen/catalog/hardware: capabilities of the profile")
def kernels_run_on_the_card(context: Context) -> Iterator[tuple[str, str]]:
    """Fused kernels need Triton, bf16 needs the card's support, pinned buffers need page locking: each is a capability
    of the hardware profile, not of a name."""
    r, gpu = context.recipe, context.cluster.gpu
    if r.adapter is not None and r.adapter.fused_kernels and not gpu.triton:
        yield f"the fused LoRA kernels need Triton, which {gpu.name} does not have", "--set adapter.fused_kernels=false"
    if r.loss_kernel is LossKernel.FUSED_LINEAR and not gpu.triton:
        yield f"the fused linear loss needs Triton, which {gpu.name} does not have", "--set loss_kernel=stock"
    if r.loss_kernel is LossKernel.CUT and context.generated:
        yield "cut cross entropy needs a fork installed from git; it is not generated", "--set loss_kernel=fused_linear"
    if r.torch_compile and not gpu.triton:
        yield f"torch_compile needs Triton, which {gpu.name} does not have", "--set torch_compile=false"
    if r.attention == "flash_attention_2" and not gpu.flash_attention:
        yield (
            f"flash_attention_2 has no build for {gpu.name} ({gpu.compute_capability}) in this stack",
            "--set attention=sdpa",
        )
    if r.attention == "flash_attention_3" and gpu.compute_capability != "sm_90":
        yield f"flash_attention_3 runs on sm_90; {gpu.name} is {gpu.compute_capability}", "--set attention=sdpa"
    if not gpu.bf16 and r.precision.compute is Dtype.BF16 and context.generated:
        # Of a file that was read it cannot be told from fp16, which Dtype has no word for; RG227 looks at the file.
        yield f"{gpu.name} has no bf16, which every recipe here computes in", "choose a card of sm_80 or newer"
    if r.loading.pin_memory and not gpu.pinned_memory:
        yield "this profile has no pinned memory", "--set loading.pin_memory=false"
    if r.activation_offloading and not gpu.pinned_memory:
        yield "activation offloading needs pinned memory, which this profile lacks", "--set activation_offloading=false"


@rule(
    "RG206",
    "compat",
    Severity.ERROR,
    source="https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html",
    field="parallelism.dp_shard",
)
def hybrid_shard_stays_inside_a_node(context: Context) -> Iterator[tuple[str, str] | Milder]:
    """Hybrid shard gathers parameters inside the shard group for every micro-batch; a group that crosses nodes sends
    that over the network, which is what it is meant to avoid. Groups must also divide a node evenly."""
    p = context.recipe.parallelism
    if p.strategy is Strategy.FSDP2_HYBRID and p.gpus_per_node % p.dp_shard:
        reason = f"hybrid shard groups of {p.dp_shard} do not divide a node of {p.gpus_per_node} GPUs"
        fix = f"--set dp_shard={p.gpus_per_node}"
        yield (reason, fix) if context.generated else Milder(reason, fix, Severity.WARNING)


@rule("RG207", "compat", Severity.ERROR, source="config.json max_position_embeddings", field="sequence_len")
def sequence_is_within_the_model(context: Context) -> Iterator[tuple[str, str] | Milder]:
    """Positions beyond the context of the model were never trained; rope scaling is not written by default. Rotary ones
    have a value everywhere, so the run works, and a file may scale them or mean to extend the context."""
    r, m = context.recipe, context.model
    if r.sequence_len > m.max_position_embeddings:
        reason = f"sequence_len {r.sequence_len} is longer than the {m.max_position_embeddings} positions of {m.id}"
        fix = f"--sequence-len {m.max_position_embeddings}"
        yield (reason, fix) if context.generated else Milder(reason, fix, Severity.WARNING)


@rule(
    "RG208",
    "compat",
    Severity.ERROR,
    source="axolotl 0.19.0, axolotl/monkeypatch; transformers 5.16.1, masking_utils.py",
    field="attention",
)
def packing_keeps_documents_apart(context: Context) -> Iterator[tuple[str, str] | Milder]:
    """Packed documents must not see one another: a variable-length kernel does that without a mask, otherwise a
    block-diagonal S x S mask does, at a cost that the estimate shows. Eager attention with packing keeps every
    S x S probability."""
    r = context.recipe
    if r.packing and r.attention_memory is AttentionMemory.EAGER:
        reason, fix = "packing with eager attention keeps S x S probabilities of whole packs", "--set attention=sdpa"
        yield (reason, fix) if context.generated else Milder(reason, fix, Severity.WARNING)


@rule(
    "RG209",
    "compat",
    Severity.ERROR,
    source="transformers 5.16.1 Trainer; peft 0.20.0 LoraConfig",
    field="adapter.target_modules",
)
def adapter_targets_exist(context: Context) -> Iterator[tuple[str, str] | Milder]:
    """A target that names no module of the model trains nothing; peft refuses only when none matches."""
    r = context.recipe
    if r.adapter is None:
        return
    known = linear_modules(context.model)
    missing = unknown_targets(context.model, r.adapter.target_modules)
    if missing:
        reason = f"{context.model.id} has no module {', '.join(missing)}; it has {', '.join(known)}"
        fix = "--set adapter.target_modules=" + ",".join(known)
        some = not context.generated and len(missing) < len(r.adapter.target_modules)
        yield Milder(reason, fix, Severity.WARNING) if some else (reason, fix)
    if not r.adapter.target_modules:
        yield "the adapter has no target modules", "--set adapter.target_modules=" + ",".join(known)


@rule(
    "RG210",
    "compat",
    Severity.ERROR,
    source="axolotl 0.19.0, axolotl/core/builders/base.py: one data-parallel axis pair",
    generated_only=True,
)
def tensor_and_context_parallel_are_not_generated(context: Context) -> Iterator[tuple[str, str]]:
    """Tensor parallel wants NVLink and context parallel ring-flash-attn; on PCIe boxes neither is generated."""
    p = context.recipe.parallelism
    if p.tp > 1 or p.cp > 1:
        yield f"tp {p.tp} and cp {p.cp} are not generated yet; both must be 1", "--set tp=1 --set cp=1"


@rule("RG211", "compat", Severity.ERROR, source="Axolotl 0.19.0: an accelerate file or the YAML decides, never both")
def groups_match_the_strategy(context: Context) -> Iterator[str]:
    """FSDP settings under a strategy that is not FSDP (or DeepSpeed settings under one that is not DeepSpeed) would be
    read by one tool and ignored by another."""
    r = context.recipe
    if (r.fsdp is not None) != r.parallelism.strategy.is_fsdp:
        yield f"FSDP settings under {r.parallelism.strategy.label}"
    if (r.deepspeed is not None) != r.parallelism.strategy.is_deepspeed:
        yield f"DeepSpeed settings under {r.parallelism.strategy.label}"
    if (r.adapter is not None) != r.method.is_adapter:
        yield f"adapter settings under method {r.method.value}"


@rule("RG213", "compat", Severity.ERROR, source="transformers 5.16.1, quantizers/quantizer_mxfp4.py", field="method")
def quantised_weights_are_loaded_in_bf16(context: Context) -> Iterator[tuple[str, str]]:
    """A model published in MXFP4 trains only after its weights are dequantised on loading; 4-bit NF4 on top of it is
    not possible."""
    r, m = context.recipe, context.model
    if m.quantization is not None and r.method is Method.QLORA:
        yield f"{m.id} is published in {m.quantization}; it cannot be quantised again to NF4", "--method lora"


@rule(
    "RG214", "compat", Severity.ERROR, source=f"{_AXOLOTL} check_activation_offloading", field="activation_offloading"
)
def offloaded_activations_are_checkpointed(context: Context) -> Iterator[tuple[str, str]]:
    """Activation offloading moves the boundaries that checkpointing keeps; Axolotl refuses it alone."""
    r = context.recipe
    if r.activation_offloading and not r.activation_checkpointing:
        yield "activation offloading needs activation checkpointing", "--set activation_checkpointing=true"


@rule("RG215", "compat", Severity.ERROR, source="deepspeed 0.18.9, runtime/zero/config.py", generated_only=True)
def offload_is_what_the_strategy_says(context: Context) -> Iterator[tuple[str, str]]:
    """The strategy names where the states are kept; settings that say otherwise would make its name, its estimate and
    its launcher wrong."""
    r = context.recipe
    if r.deepspeed is None:
        return
    device = r.parallelism.strategy.offload_device
    if r.deepspeed.offload_optimizer != device:
        yield (
            f"{r.parallelism.strategy.label} with offload_optimizer {r.deepspeed.offload_optimizer}",
            "--set strategy=zero2, zero3_cpu or zero3_nvme",
        )
    if r.deepspeed.stage != (2 if r.parallelism.strategy is Strategy.ZERO2 else 3):
        yield f"{r.parallelism.strategy.label} with stage {r.deepspeed.stage}", "--set strategy=..."


@rule("RG216", "compat", Severity.ERROR, source="templates/train.py", generated_only=True)
def train_py_can_do_it(context: Context) -> Iterator[tuple[str, str]]:
    """The train.py of --trainer accelerate is short on purpose: it has no offloaded activations, no fused LoRA kernels
    and no checkpoints without states."""
    r = context.recipe
    if r.trainer != "accelerate":
        return
    if r.activation_offloading:
        yield "train.py does not offload activations", "--trainer axolotl"
    if r.saving.save_only_model:
        yield "train.py writes whole checkpoints", "--set saving.save_only_model=false"
    if r.adapter is not None and r.adapter.fused_kernels:
        yield "train.py has no fused LoRA kernels", "--set adapter.fused_kernels=false"


@rule(
    "RG212",
    "compat",
    Severity.ERROR,
    source="axolotl 0.19.0 LoRA kernels: axolotl/kernels/lora.py; peft 0.20.0",
    generated_only=True,
    field="adapter.dropout",
)
def lora_kernels_want_plain_lora(context: Context) -> Iterator[tuple[str, str]]:
    """The fused LoRA kernels are for gate, up and down projections with separate q, k, v. With dropout, which they
    know since Axolotl 0.19, they keep one more copy of every input; that was not measured, so it is not generated."""
    a = context.recipe.adapter
    if a is not None and a.fused_kernels and a.dropout > 0:
        yield f"the fused LoRA kernels want dropout 0, it is {a.dropout:g}", "--set adapter.fused_kernels=false"
