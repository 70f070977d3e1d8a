"""Sample objects for tests: a Recipe and a Decision for every strategy and method, without the catalogue.

    recipe(Strategy.FSDP2_FULL, Method.LORA, micro_batch_size=4)
    decision(recipe(Strategy.DDP, Method.LORA))

The numbers are plausible, not decided: tests of formats must not depend on decisions.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from recipegen.spec import (
    Adapter,
    Alternative,
    AttentionMemory,
    Cluster,
    Collective,
    DataFormat,
    DatasetSpec,
    Decision,
    DeepSpeed,
    Disk,
    Dtype,
    EnvVar,
    Estimate,
    Finding,
    Fsdp,
    Gpu,
    GpuMemory,
    HostMemory,
    Launch,
    Lengths,
    Loading,
    LossKernel,
    Method,
    ModelSpec,
    Network,
    Node,
    Optimizer,
    Parallelism,
    Phase,
    Precision,
    Recipe,
    Request,
    Saving,
    Schedule,
    Severity,
    Strategy,
    Term,
    Time,
    Traffic,
    Verdict,
    WayOut,
)
from recipegen.spec.units import GIB

LINEAR = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
PINS = {
    "torch": "2.13.0",
    "axolotl": "0.19.0",
    "transformers": "5.16.1",
    "accelerate": "1.13.0",
    "peft": "0.20.0",
    "bitsandbytes": "0.50.2",
    "torch-optimi": "0.2.1",
    "liger-kernel": "0.8.1",
    "deepspeed": "0.18.9",
    "tensorboard": "2.21.0",
    "datasets": "4.8.4",
}


def model(**changes: Any) -> ModelSpec:
    """Llama-3.1-8B's shape."""
    spec = ModelSpec(
        id="meta-llama/Llama-3.1-8B",
        model_type="llama",
        layer_class="LlamaDecoderLayer",
        hidden_size=4096,
        intermediate_size=14336,
        num_hidden_layers=32,
        num_attention_heads=32,
        num_key_value_heads=8,
        head_dim=128,
        vocab_size=128256,
        max_position_embeddings=131072,
        num_parameters=8_030_261_248,
        license="llama3.1",
        gated=True,
        chat_template="llama3",
        end_of_turn=("<|eot_id|>",),
        eos_token="<|end_of_text|>",
    )
    return dataclasses.replace(spec, **changes)


def cluster(nodes: int = 1, gpus: int = 8, **gpu: Any) -> Cluster:
    """`nodes` boxes of `gpus` RTX 5090."""
    card = Gpu(
        name="RTX 5090",
        memory_bytes=int(31.37 * GIB),
        compute_capability="sm_120",
        spec_tflops=209.5,
        training_tflops=120.0,
        memory_bandwidth_gb_s=1792.0,
        power_w=575,
    )
    node = Node(
        gpu=dataclasses.replace(card, **gpu),
        gpu_count=gpus,
        host_ram_bytes=768 * 10**9,
        nvme_bytes=4 * 10**12,
        nvme_read_gb_s=6.0,
        nvme_write_gb_s=4.0,
        sockets=2,
        physical_cores=64,
        bus_bandwidth_gb_s=28.0 if gpus > 1 else 0.0,
        host_to_device_gb_s=25.0,
        cpu_adam_params_per_s=2e9,
    )
    network = Network("roce-100", 10.0, rdma=True) if nodes > 1 else None
    return Cluster(name=f"kentino-{gpus}x-rtx-5090", node=node, nodes=nodes, network=network)


def mesh(strategy: Strategy, nodes: int = 1, gpus: int = 8) -> Parallelism:
    """The usual layout of `strategy`; one GPU for `single`, two nodes at least for hybrid."""
    if strategy is Strategy.SINGLE:
        return Parallelism.of(strategy, 1, 1)
    if strategy is Strategy.FSDP2_HYBRID and nodes == 1:
        return Parallelism.of(strategy, nodes, gpus, dp_shard=gpus // 2)
    return Parallelism.of(strategy, nodes, gpus)


def precision(strategy: Strategy, method: Method, optimizer: str = "adamw_torch_fused") -> Precision:
    """What Axolotl 0.19 keeps in which dtype, roughly."""
    bf16, fp32 = Dtype.BF16, Dtype.FP32
    if method.is_adapter:
        base = Dtype.NF4 if method is Method.QLORA else bf16
        return Precision(base, trainable=fp32, gradients=fp32, reduction=bf16, states=fp32, compute=bf16)
    if strategy.is_deepspeed:
        return Precision(bf16, bf16, bf16, bf16, states=fp32, compute=bf16, master=fp32)
    kahan = bf16 if optimizer == "optimi_adamw" else None
    modules = () if strategy.is_fsdp else ("embed_tokens", "lm_head", "norm")
    return Precision(bf16, bf16, bf16, bf16, states=bf16, compute=bf16, fp32_modules=modules, compensation=kahan)


def dataset(path: str = "data.jsonl", **changes: Any) -> DatasetSpec:
    """A chat file as the data room describes it."""
    entry: tuple[tuple[str, object], ...] = (
        ("path", path),
        ("ds_type", "json"),
        ("split", "train"),
        ("type", "chat_template"),
        ("field_messages", "messages"),
        ("roles_to_train", ["assistant"]),
        ("train_on_eos", "turn"),
    )
    lengths = Lengths("tokenizer", 1000, 700_000, 700.0, 640, 3900, 4100, ((4096, 990, 690_000), (8192, 10, 10_000)))
    spec = DatasetSpec(path, DataFormat.MESSAGES, rows=1000, lengths=lengths, entry=entry)
    return dataclasses.replace(spec, **changes)


def _deepspeed(strategy: Strategy) -> DeepSpeed:
    device = {Strategy.ZERO2: "none", Strategy.ZERO3_CPU: "cpu", Strategy.ZERO3_NVME: "nvme"}[strategy]
    h = 4096
    return DeepSpeed(
        stage=2 if strategy is Strategy.ZERO2 else 3,
        offload_optimizer=device,
        offload_param=device,
        nvme_path="/nvme/swap" if device == "nvme" else None,
        pin_memory=True,
        reduce_bucket_size=h * h,
        prefetch_bucket_size=int(0.9 * h * h),
        param_persistence_threshold=10 * h,
        sub_group_size=10**9,
        buffer_count=5,
        buffer_size=600_000_000,
        save_16bit_model=True,
    )


def recipe(strategy: Strategy = Strategy.FSDP2_FULL, method: Method = Method.FULL, **changes: Any) -> Recipe:
    """A recipe of `strategy` and `method`; `changes` replace fields of Recipe.

    `nodes` and `gpus` may be among the changes; they shape the mesh.
    """
    layout = mesh(strategy, changes.pop("nodes", 1), changes.pop("gpus", 8))
    optimizer = changes.pop("optimizer_name", "adamw_torch_fused")
    adapter = Adapter(16, 32, 0.0, LINEAR) if method.is_adapter else None
    state_dict = "SHARDED_STATE_DICT"
    fsdp = Fsdp(True, method is not Method.QLORA, False, state_dict, "LlamaDecoderLayer") if strategy.is_fsdp else None
    values: dict[str, Any] = {
        "model": "meta-llama/Llama-3.1-8B",
        "model_revision": None,
        "trust_remote_code": False,
        "hardware": f"kentino-{layout.gpus_per_node}x-rtx-5090",
        "network": "roce-100" if layout.nodes > 1 else "none",
        "trainer": "axolotl",
        "stack": "axolotl-0.19.0",
        "method": method,
        "adapter": adapter,
        "parallelism": layout,
        "precision": precision(strategy, method, optimizer),
        "optimizer": Optimizer(optimizer, 0.9, 0.99 if method is Method.FULL else 0.999, 1e-8, 0.0, 1.0),
        "schedule": Schedule(2e-4 if adapter else 1e-5, "cosine", 10, None),
        "sequence_len": 4096,
        "micro_batch_size": 1,
        "gradient_accumulation": 4,
        "sync_each_batch": strategy.is_fsdp,
        "packing": False,
        "pad_to_sequence_len": False,
        "excess_length_strategy": "drop",
        "epochs": 2.0,
        "max_steps": None,
        "activation_checkpointing": True,
        "activation_checkpointing_reentrant": False,
        "activation_offloading": False,
        "loss_kernel": LossKernel.CHUNKED_UPCAST,
        "attention": "sdpa",
        "attention_memory": AttentionMemory.FLASH,
        "torch_compile": False,
        "tf32": True,
        "fsdp": fsdp,
        "deepspeed": _deepspeed(strategy) if strategy.is_deepspeed else None,
        "datasets": (dataset(),),
        "val_set_size": 0.0,
        "chat_template": "llama3",
        "eot_tokens": ("<|eot_id|>",),
        "saving": Saving(200, 2, None, 1, "tensorboard"),
        "loading": Loading(2, 4, True, 32),
        "launch": Launch(29500, 8, (EnvVar("NCCL_SOCKET_IFNAME", "eth0", "the network card that joins the nodes"),)),
    }
    return Recipe(**{**values, **changes})


def recipes() -> Iterator[tuple[str, Recipe]]:
    """(name, recipe) for every strategy and method, and for the options that bring keys of their own."""
    for strategy in Strategy:
        for method in Method:
            yield f"{strategy.value}-{method.value}", recipe(strategy, method)
            if strategy.is_fsdp:
                yield f"{strategy.value}-{method.value}-2-nodes", recipe(strategy, method, nodes=2)
    lora = Adapter(64, 16, 0.05, ("q_proj", "v_proj"), use_rslora=True, use_dora=True, fused_kernels=True)
    yield "lora-options", recipe(Strategy.DDP, Method.LORA, adapter=lora, activation_offloading=True)
    yield "kahan", recipe(Strategy.FSDP2_FULL, Method.FULL, optimizer_name="optimi_adamw")
    yield "packing", recipe(Strategy.DDP, Method.LORA, packing=True, pad_to_sequence_len=True, val_set_size=0.01)
    yield "validation", recipe(val_set_size=200.0, saving=Saving(None, 2, None, 10, "none"))
    yield "validation-steps", recipe(val_set_size=200.0, saving=Saving(100, 3, 50, 10, "trackio", True))
    yield "wandb", recipe(saving=Saving(100, 3, None, 10, "wandb"))
    yield "fused-linear", recipe(loss_kernel=LossKernel.FUSED_LINEAR)
    yield "stock", recipe(loss_kernel=LossKernel.STOCK, activation_checkpointing=False, gradient_accumulation=1)
    yield "offload-params", recipe(fsdp=Fsdp(True, True, True, "FULL_STATE_DICT", "LlamaDecoderLayer"))
    yield "flash-attention", recipe(attention="flash_attention_2", packing=True, pad_to_sequence_len=True)
    yield "revision", recipe(model_revision="0e9e39f", max_steps=100, schedule=Schedule(1e-5, "cosine", None, 0.03))
    yield "no-workers", recipe(loading=Loading(0, None, False, 4), chat_template=None, eot_tokens=())
    yield (
        "passthrough",
        recipe(
            passthrough={
                "axolotl": {
                    "neftune_noise_alpha": 5.0,
                    "learning_rate": 3e-5,
                    "fsdp_config.reshard_after_forward": False,
                },
                "accelerate": {"debug": True},
            }
        ),
    )


def estimate(world: Cluster) -> Estimate:
    """An estimate whose sums add up."""
    terms = (
        Term("parameters", "layer backward", 2 * GIB, "2 B x 8.03e9 / 8"),
        Term("gradients", "layer backward", 2 * GIB, "2 B x 8.03e9 / 8"),
        Term("optimizer states", "layer backward", 4 * GIB, "4 B x 8.03e9 / 8"),
        Term("logits", "layer backward", 7 * GIB, "chunked upcast"),
    )
    phases = (
        Phase("forward", terms[:2]),
        Phase("layer backward", terms),
        Phase("optimizer step", terms[:3]),
    )
    capacity = world.gpu.memory_bytes
    gpu = GpuMemory(
        phases,
        15 * GIB,
        17 * GIB,
        16 * GIB,
        19 * GIB,
        capacity,
        "layer backward",
        needed_low_bytes=16 * GIB,
        needed_high_bytes=19 * GIB,
    )
    host = HostMemory(
        40 * GIB, 20 * GIB, world.node.host_ram_bytes, (Term("model", "loading", 16 * GIB, "safetensors"),)
    )
    disk = Disk(16 * 10**9, 10**8, 64 * 10**9, 3, 0, world.node.nvme_bytes)
    traffic = Traffic((Collective("all_gather", "parameters", "node", 8, 14 * 10**9, 0.5),))
    time = Time(6.2, 21000.0, 31, 192.2, 384.4, "compute", 0.31, (("compute", 5.1), ("traffic", 1.1)))
    return Estimate(gpu, host, disk, traffic, time, Verdict.FITS, 8_030_261_248, 8_030_261_248)


REASONS = {
    "micro_batch_size": "the largest that fits is 4; 1 keeps the global batch at 32",
    "sync_each_batch": "without it every GPU keeps 15.0 GiB of unsharded gradients",
    "optimizer.name": "fp32 states of the adapter",
    "fsdp.reshard_after_forward": "keeping gathered parameters would cost 13.1 GiB",
    "schedule.learning_rate": "8B full fine-tune: 1e-5",
    "sequence_len": "covers 99% of the rows",
    "loss_kernel": "the fused linear loss is not measured on sm_120",
}


def decision(chosen: Recipe | None = None, **changes: Any) -> Decision:
    """A decision around `chosen` with every optional part filled in."""
    chosen = chosen or recipe()
    world = cluster(chosen.parallelism.nodes, chosen.parallelism.gpus_per_node)
    guess = estimate(world)
    rejected = Alternative(
        recipe(Strategy.DDP, Method.FULL), guess, Verdict.DOES_NOT_FIT, "64.1 GiB of states on a 31.37 GiB card"
    )
    values: dict[str, Any] = {
        "request": Request(
            model=chosen.model,
            hardware=chosen.hardware,
            dataset=tuple(spec.path for spec in chosen.datasets),
            nodes=chosen.parallelism.nodes,
            network=chosen.network,
            trainer=chosen.trainer,
        ),
        "model": model(),
        "cluster": world,
        "recipe": chosen,
        "estimate": guess,
        "verdict": Verdict.FITS,
        "recommended": True,
        "reasons": REASONS,
        "findings": (Finding("RG301", Severity.WARNING, "data", "10 of 1000 rows are longer", "Use 8192."),),
        "alternatives": (rejected,),
        "ways_out": (WayOut("--method lora", "LoRA, FSDP2 full shard: 9.1 GiB of 31.37 GiB", rejected),),
        "warnings": ("the end of the turn is learnt only with eot_tokens",),
    }
    return Decision(**{**values, **changes})
