"""One candidate, written out as a complete Recipe: every field that the files will need."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass

from recipegen.catalog.defaults import learning_rate, training_defaults
from recipegen.decide import pins as pin_fields
from recipegen.decide.setting import Setting
from recipegen.estimate.parameters import default_targets
from recipegen.spec import (
    Adapter,
    AttentionMemory,
    DeepSpeed,
    Dtype,
    Fsdp,
    Launch,
    Loading,
    LossKernel,
    Method,
    Optimizer,
    Parallelism,
    Recipe,
    Saving,
    Schedule,
    Strategy,
)


@dataclass(frozen=True)
class Choice:
    """What distinguishes one candidate from another."""

    method: Method
    strategy: Strategy
    dp_shard: int | None
    optimizer: str
    load_dtype: Dtype
    micro_batch_size: int = 1
    gradient_accumulation: int = 1
    sync_each_batch: bool = False
    activation_checkpointing: bool = True
    activation_offloading: bool = False
    loss_kernel: LossKernel = LossKernel.STOCK


def build(s: Setting, c: Choice) -> Recipe:
    """The recipe of a choice, with every pin in force."""
    defaults = training_defaults()
    request, gpu = s.request, s.cluster.gpu
    kind = defaults["adapter" if c.method.is_adapter else "full"]
    p = Parallelism.of(c.strategy, s.cluster.nodes, s.cluster.node.gpu_count, c.dp_shard)
    attention, memory, packing_ok, _ = s.stack.attention(gpu, s.model, s.pins.get("packing", s.wants_packing))
    if "attention" in s.pins:
        memory = s.stack.attention_memory(s.pins["attention"], gpu, s.model, s.pins.get("packing", s.wants_packing))
        attention = s.pins["attention"]
    # eager attention would keep the S x S probabilities of whole packs
    packing = packing_ok and s.wants_packing and memory is not AttentionMemory.EAGER
    if "packing" in s.pins:
        packing = s.pins["packing"]
    precision = s.stack.precision(request.trainer, c.strategy, c.method, c.optimizer, c.load_dtype, attention)
    global_batch = c.micro_batch_size * c.gradient_accumulation * p.data_parallel_ranks
    epochs = request.epochs or s.pins.get("epochs") or float(kind["epochs"])
    steps = s.pins.get("max_steps") or _total_steps(s, global_batch, packing, epochs)
    recipe = Recipe(
        model=request.model if s.model.id != request.model and _is_path(request.model) else s.model.id,
        model_revision=request.model_revision,
        trust_remote_code=s.model.trust_remote_code,
        hardware=request.hardware,
        network=request.network if s.cluster.nodes > 1 else "none",
        trainer=request.trainer,
        stack=s.stack.name,
        method=c.method,
        adapter=_adapter(s) if c.method.is_adapter else None,
        parallelism=p,
        precision=precision,
        optimizer=Optimizer(
            name=c.optimizer,
            beta1=float(defaults["optimizer"]["beta1"]),
            beta2=float(defaults["optimizer"]["beta2_by_state_dtype"][precision.states.value]),
            epsilon=float(defaults["optimizer"]["epsilon"]),
            weight_decay=float(defaults["optimizer"]["weight_decay"]),
            max_grad_norm=float(defaults["optimizer"]["max_grad_norm"]),
        ),
        schedule=_schedule(s, c.method, steps),
        sequence_len=s.sequence_len,
        micro_batch_size=c.micro_batch_size,
        gradient_accumulation=c.gradient_accumulation,
        sync_each_batch=c.sync_each_batch,
        packing=packing,
        pad_to_sequence_len=packing,
        excess_length_strategy=str(defaults["sequence_len"]["excess_length_strategy"]),
        epochs=float(epochs),
        max_steps=None,
        activation_checkpointing=c.activation_checkpointing,
        activation_checkpointing_reentrant=_reentrant(c.strategy),
        activation_offloading=c.activation_offloading,
        loss_kernel=c.loss_kernel,
        attention=attention,
        attention_memory=memory,
        torch_compile=False,
        tf32=gpu.tf32,
        fsdp=_fsdp(s, c) if c.strategy.is_fsdp else None,
        deepspeed=_deepspeed(s, c, p) if c.strategy.is_deepspeed else None,
        datasets=s.datasets,
        val_set_size=float(s.validation),
        chat_template=s.chat_template,
        eot_tokens=s.eot_tokens,
        saving=_saving(steps),
        loading=_loading(s),
        launch=_launch(s),
        passthrough=request.passthrough,
        dequantize=s.model.quantization,
        freeze_vision=s.model.is_multimodal and c.method is Method.FULL,
    )
    return pin_fields.apply(recipe, s.pins)


def _is_path(model: str) -> bool:
    return os.path.isdir(model)


def _total_steps(s: Setting, global_batch: int, packing: bool, epochs: float) -> int | None:
    per_epoch = s.steps_per_epoch(global_batch, packing)
    return None if per_epoch is None else max(1, round(per_epoch * epochs))


def _adapter(s: Setting) -> Adapter:
    d = training_defaults()["adapter"]
    dropout = s.pins.get("adapter.dropout", float(d["dropout"]))
    return Adapter(
        r=int(d["r"]),
        alpha=int(d["alpha"]),
        dropout=float(d["dropout"]),
        target_modules=default_targets(s.model),
        fused_kernels=s.request.trainer == "axolotl"
        and s.cluster.gpu.triton
        and dropout == 0
        and s.stack.supports_lora_kernels(s.model),
    )


def _schedule(s: Setting, method: Method, steps: int | None) -> Schedule:
    d = training_defaults()["schedule"]
    rate = s.request.learning_rate or learning_rate(method, s.total_parameters)
    if "schedule.warmup_ratio" in s.pins:
        return Schedule(float(rate), str(d["scheduler"]), None, s.pins["schedule.warmup_ratio"])
    if "schedule.warmup_steps" in s.pins:
        return Schedule(float(rate), str(d["scheduler"]), s.pins["schedule.warmup_steps"], None)
    if steps is None:
        return Schedule(float(rate), str(d["scheduler"]), None, float(d["warmup_ratio"]))
    warmup = max(int(d["warmup_steps_min"]), math.ceil(float(d["warmup_ratio"]) * steps))
    return Schedule(float(rate), str(d["scheduler"]), min(warmup, int(float(d["warmup_share_max"]) * steps)), None)


def _reentrant(strategy: Strategy) -> bool:
    """ZeRO-3 partitions weights again during recompute, which the non-reentrant checker refuses
    (https://github.com/huggingface/transformers/issues/47254)."""
    return strategy in (Strategy.ZERO3_CPU, Strategy.ZERO3_NVME)


def _fsdp(s: Setting, c: Choice) -> Fsdp:
    """Efficient loading saves host RAM for Axolotl's LoRA only: elsewhere transformers 5.16 fills the whole model with
    zeros in every other rank, while a mapped bf16 checkpoint costs nothing (tests/estimate/test_host_loading.py)."""
    return Fsdp(
        reshard_after_forward=True,
        cpu_ram_efficient_loading=c.method is Method.LORA
        and s.request.trainer == "axolotl"
        and s.model.quantization is None,
        offload_params=False,
        state_dict_type="SHARDED_STATE_DICT",
        layer_class=s.model.layer_class,
    )


def _deepspeed(s: Setting, c: Choice, p: Parallelism) -> DeepSpeed:
    """Bucket sizes as transformers fills in its own "auto" values: h^2, 0.9 h^2 and 10 h
    (transformers 5.16.1, integrations/deepspeed.py)."""
    h = s.model.hidden_size
    largest = s.model.vocab_size * h
    d = training_defaults()["deepspeed"]
    device = c.strategy.offload_device
    return DeepSpeed(
        stage=2 if c.strategy is Strategy.ZERO2 else 3,
        offload_optimizer=device,
        offload_param="none" if c.strategy is Strategy.ZERO2 else "cpu",
        nvme_path=str(d["nvme_path"]) if device == "nvme" else None,
        pin_memory=s.cluster.gpu.pinned_memory and device == "cpu",
        reduce_bucket_size=h * h,
        prefetch_bucket_size=int(0.9 * h * h),
        param_persistence_threshold=10 * h,
        sub_group_size=int(d["sub_group_size"]),
        buffer_count=int(d["buffer_count"]),
        buffer_size=max(int(d["buffer_size_min"]), -(-largest // p.dp_shard)),
        save_16bit_model=c.strategy is not Strategy.ZERO2,
    )


def _saving(steps: int | None) -> Saving:
    d = training_defaults()["saving"]
    every = steps is not None and steps < int(d["logging_every_step_below_steps"])
    return Saving(
        save_steps=None,
        save_total_limit=int(d["save_total_limit"]),
        eval_steps=None,
        logging_steps=1 if every else int(d["logging_steps_above"]),
        logger=str(d["logger"]),
    )


def _loading(s: Setting) -> Loading:
    """Workers only where a core is left for them: cores per rank, less the rank itself."""
    d = training_defaults()["loading"]
    node = s.cluster.node
    spare = max(node.physical_cores // node.gpu_count - 1, 0)
    workers = min(int(d["dataloader_workers"]), spare)
    if "loading.dataloader_workers" in s.pins:
        workers = s.pins["loading.dataloader_workers"]
    return Loading(
        dataloader_workers=workers,
        prefetch_factor=int(d["prefetch_factor"]) if workers else None,
        pin_memory=node.gpu.pinned_memory,
        dataset_num_proc=max(1, min(node.physical_cores, int(d["dataset_num_proc_max"]))),
    )


def _launch(s: Setting) -> Launch:
    node, network = s.cluster.node, s.cluster.network
    extra = network.environment if network is not None and s.cluster.nodes > 1 else ()
    return Launch(
        main_process_port=int(training_defaults()["launch"]["main_process_port"]),
        omp_num_threads=max(1, node.physical_cores // node.gpu_count),
        environment=(*node.environment, *extra),
        bf16_capable=node.gpu.bf16,
    )
