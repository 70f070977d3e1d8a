"""Why each field of the chosen recipe is what it is: one line a field, with the numbers."""

from __future__ import annotations

from collections.abc import Sequence

from recipegen.catalog.defaults import training_defaults
from recipegen.decide.search import Scored
from recipegen.decide.setting import Setting
from recipegen.spec import Dtype, LossKernel, Method, PrecisionLabel, Strategy
from recipegen.spec.units import gb, gib


def reasons(s: Setting, chosen: Scored, others: Sequence[Scored]) -> dict[str, str]:
    """Recipe field path -> reason. A pinned field says so."""
    r, e = chosen.recipe, chosen.estimate
    d = training_defaults()
    kind = d["adapter" if r.method.is_adapter else "full"]
    out = {
        "method": _method(s, chosen, others),
        "parallelism.strategy": _strategy(chosen, others),
        "precision": _precision(chosen),
        "optimizer.name": _optimizer(s, chosen),
        "optimizer.beta2": f"{r.optimizer.beta2:g} suits {r.precision.states.value} states; never left to the class",
        "optimizer.weight_decay": "off: rarely wanted in a fine-tune"
        + ("" if r.precision.trainable is Dtype.FP32 else ", and a no-op on bf16 weights at these rates"),
        "optimizer.max_grad_norm": "written out; Axolotl passes none by default",
        "schedule.learning_rate": f"default for {r.method.value} at {s.total_parameters / 1e9:.1f}B parameters",
        "schedule.warmup_steps": "3% of the steps, at least 10, at most a fifth of a short run"
        if r.schedule.warmup_steps is not None
        else "",
        "schedule.warmup_ratio": "the number of steps is not known from here"
        if r.schedule.warmup_ratio is not None
        else "",
        "schedule.scheduler": "the usual shape; ends near zero",
        "sequence_len": s.sequence_reason,
        "micro_batch_size": _micro_batch(chosen),
        "gradient_accumulation": f"{r.micro_batch_size} x {r.gradient_accumulation} x "
        f"{r.parallelism.data_parallel_ranks} ranks = global batch of {r.global_batch_size} sequences"
        + _batch(s, chosen),
        "sync_each_batch": _sync(chosen),
        "packing": _packing(s, chosen),
        "attention": s.stack.attention(s.cluster.gpu, s.model, r.packing)[3],
        "excess_length_strategy": "rows that are longer are dropped; a warning counts them above 1%",
        "activation_checkpointing": "recomputes activations in backward: memory for about a third more compute"
        if r.activation_checkpointing
        else "everything fits without recomputing, which is faster",
        "activation_checkpointing_reentrant": "ZeRO-3 repartitions weights during recompute; the other form refuses"
        if r.activation_checkpointing_reentrant
        else "the non-reentrant form; Axolotl's default is the other",
        "loss_kernel": _loss(s, chosen),
        "torch_compile": "off: slower on PCIe cards in Axolotl's own numbers, and a failed compile is silent",
        "tf32": "the card has it" if r.tf32 else "the card does not have it",
        "epochs": f"default for {r.method.value}: {kind['epochs']}",
        "val_set_size": f"{r.val_set_size:g} rows held out" if r.val_set_size else "none under 1,000 rows",
        "saving.save_steps": "about once an hour of predicted time" if r.saving.save_steps else "once per epoch",
        "saving.save_total_limit": f"{e.disk.checkpoints_kept} x {gb(e.disk.checkpoint_bytes)} while one is written",
        "saving.logger": "local files; no key of any service is written",
        "loading.dataloader_workers": "explicit: unset, Axolotl uses one per GPU and 256 batches ahead of each",
        "loading.dataset_num_proc": "at most the physical cores",
        "seed": "fixes the data order, not an adapter's initial weights: Axolotl draws those before it seeds"
        if r.method.is_adapter
        else "fixes the data order",
    }
    if r.adapter is not None:
        out["adapter.r"] = f"alpha / r = {r.adapter.alpha / r.adapter.r:g} scales the update"
        out["adapter.target_modules"] = (
            "attention only: adapters on every expert would train nearly a billion parameters"
            if s.model.is_moe
            else "all linear layers, as an explicit list"
        )
        out["adapter.dropout"] = "the fused LoRA kernels want none"
        out["adapter.fused_kernels"] = (
            "explicit: unset, Axolotl switches them on by itself"
            if r.adapter.fused_kernels
            else "off, explicitly: unset, Axolotl switches them on by itself, and they cannot run here"
        )
    if r.fsdp is not None:
        out["fsdp.state_dict_type"] = (
            "an adapter saved with FULL_STATE_DICT is lost on resume"
            if r.method.is_adapter
            else "each rank writes its shard; resumes on another number of ranks too"
        )
        out["fsdp.reshard_after_forward"] = (
            "frees a layer's weights after its forward; the second all-gather is the price"
        )
        out["fsdp.cpu_ram_efficient_loading"] = (
            "only rank 0 reads the checkpoint into host RAM"
            if r.fsdp.cpu_ram_efficient_loading
            else "4-bit weights cannot be loaded this way"
            if r.method is Method.QLORA
            else "the other ranks would fill the whole model with zeros on the CPU; a mapped checkpoint costs no RAM"
        )
    for path in s.pins:
        out[path] = "pinned"
    out = {path: reason for path, reason in out.items() if reason}
    for name, path in (("sequence_len", "sequence_len"), ("learning_rate", "schedule.learning_rate"),
                       ("epochs", "epochs"), ("global_batch_size", "gradient_accumulation")):  # fmt: skip
        if getattr(s.request, name) is not None:
            out[path] = f"{out[path]}; as asked for" if path == "gradient_accumulation" else "as asked for"
    return out


def _method(s: Setting, chosen: Scored, others: Sequence[Scored]) -> str:
    if s.request.method is not None:
        return "as asked for"
    r = chosen.recipe
    if r.method is Method.LORA:
        return "fits, and its fp32 adapters lose no update to rounding"
    if r.method is Method.QLORA:
        lora = [x for x in others if x.recipe.method is Method.LORA and x.errors]
        return f"LoRA does not fit: {lora[0].errors[0].reason}" if lora else "the base fits only in 4 bits"
    return "no adapter fits"


def _strategy(chosen: Scored, others: Sequence[Scored]) -> str:
    p = chosen.recipe.parallelism
    if p.strategy is Strategy.FSDP2_FULL and p.nodes == 1:
        replica = [
            x
            for x in others
            if x.recipe.parallelism.strategy is Strategy.DDP and x.recipe.method is chosen.recipe.method
        ]
        low = min((x.estimate.gpu.needed_low_bytes for x in replica if x.errors), default=0)
        if low:
            return f"a replica per GPU (DDP) needs {gib(low)} of {gib(chosen.estimate.gpu.capacity_bytes)}"
    return {
        Strategy.SINGLE: "one GPU",
        Strategy.DDP: "model, states and activations fit one GPU: replicas send least",
        Strategy.FSDP2_FULL: "shards parameters, gradients and states over the GPUs of the node"
        if p.nodes == 1
        else "fits only all nodes together; every all-gather crosses the network",
        Strategy.FSDP2_HYBRID: "fits one node: shard inside it, replicate across nodes",
        Strategy.ZERO2: "shards gradients and states, keeps fp32 master weights",
        Strategy.ZERO3_CPU: "keeps states in host RAM, with fp32 master weights",
        Strategy.ZERO3_NVME: "keeps states on NVMe; slow, and it wears the drives",
    }[p.strategy]


def _batch(s: Setting, chosen: Scored) -> str:
    """Why the global batch is not the default, when nobody asked for it."""
    r = chosen.recipe
    default = int(training_defaults()["adapter" if r.method.is_adapter else "full"]["global_batch_size"])
    if s.request.global_batch_size is not None or r.global_batch_size == default:
        return ""
    if r.global_batch_size > default:
        return f"; the default of {default} is less than one per rank"
    few = s.sequences_per_epoch()
    if few is not None and few < default * int(training_defaults()["batch"]["min_steps_per_epoch"]):
        return f"; less than the default of {default}, because the data have {few:,} sequences"
    return f"; the nearest to the default of {default} that divides and fits"


def _micro_batch(chosen: Scored) -> str:
    gpu = chosen.estimate.gpu
    room = f"{gib(gpu.needed_bytes)} of {gib(gpu.capacity_bytes)}"
    if chosen.errors:
        return f"the smallest; {room}"
    if chosen.recipe.gradient_accumulation == 1:
        return f"a rank's whole share of the global batch fits: {room}"
    return f"the largest that fits, or a smaller one that is faster: {room}"


def _precision(chosen: Scored) -> str:
    p = chosen.recipe.precision
    text = f"{p.label.value}: {p.parameters.value} parameters, {p.gradients.value} gradients, {p.states.value} states"
    if p.label is PrecisionLabel.PURE_BF16:
        return f"{text}; no fp32 master weights"
    if p.label is PrecisionLabel.MIXED:
        return f"{text}; {', '.join(p.fp32_modules)} in fp32"
    return text


def _optimizer(s: Setting, chosen: Scored) -> str:
    r = chosen.recipe
    facts = s.stack.optimizer(r.optimizer.name)
    if r.precision.compensation is not None:
        return f"compensated (Kahan) sums keep the updates that plain bf16 rounds away; {facts.note}".rstrip("; ")
    return facts.note or "fused kernels, no temporaries"


def _sync(chosen: Scored) -> str:
    r = chosen.recipe
    if not r.parallelism.strategy.is_fsdp or r.gradient_accumulation == 1:
        return "nothing accumulates" if r.gradient_accumulation == 1 else "gradients are not sharded here"
    if r.sync_each_batch:
        return "reduces every micro-batch; otherwise every GPU keeps the unsharded gradients between them"
    return "the unsharded gradients fit, and one reduction per step is faster"


def _packing(s: Setting, chosen: Scored) -> str:
    if not chosen.recipe.packing:
        if not s.wants_packing and s.lengths is not None:
            if s.lengths.mean > float(training_defaults()["batch"]["packing_max_fill"]) * s.sequence_len:
                return f"off: rows of {s.lengths.mean:.0f} tokens on average fill the sequence by themselves"
            return f"off: {s.lengths.total_tokens:,} tokens make too few packs for the steps of an epoch"
        return "off: " + s.stack.attention(s.cluster.gpu, s.model, True)[3]
    if s.lengths is None:
        return "fills every sequence with whole rows"
    return f"rows have {s.lengths.mean:.0f} tokens on average; packing fills every sequence with whole rows"


def _loss(s: Setting, chosen: Scored) -> str:
    r = chosen.recipe
    if r.loss_kernel is LossKernel.FUSED_LINEAR:
        return "never builds the logits"
    if r.loss_kernel is LossKernel.CHUNKED_UPCAST:
        return f"upcasts the logits in chunks; no fused linear loss was measured on {s.cluster.gpu.compute_capability}"
    return "the model's own loss"
