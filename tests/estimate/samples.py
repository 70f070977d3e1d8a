"""Recipes and models for the tests of the estimate, built by hand so that no other room is needed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from recipegen.catalog.stack import load_stack
from recipegen.spec import (
    Adapter,
    AttentionMemory,
    Cluster,
    DeepSpeed,
    Dtype,
    Fsdp,
    Gpu,
    Launch,
    Loading,
    LossKernel,
    Method,
    ModelSpec,
    MoeSpec,
    Network,
    Node,
    Optimizer,
    Parallelism,
    Precision,
    QkNorm,
    Recipe,
    Saving,
    Schedule,
    Strategy,
)

GIB = 2**30
ALL_LINEAR = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
ATTENTION = ALL_LINEAR[:4]


def _model(name: str, kind: str, V: int, H: int, F: int, L: int, A: int, KV: int, D: int, tied: bool = False,
           **more: Any) -> ModelSpec:  # fmt: skip
    return ModelSpec(
        id=name,
        model_type=kind,
        layer_class="DecoderLayer",
        hidden_size=H,
        intermediate_size=F,
        num_hidden_layers=L,
        num_attention_heads=A,
        num_key_value_heads=KV,
        head_dim=D,
        vocab_size=V,
        max_position_embeddings=131072,
        tie_word_embeddings=tied,
        **more,
    )


_HEAD = {"qk_norm": QkNorm.PER_HEAD}
#: the models of the simulated peaks, with their published parameter counts
MODELS: dict[str, tuple[ModelSpec, int]] = {
    m.id: (m, n)
    for m, n in (
        (_model("llama-3.2-1b", "llama", 128256, 2048, 8192, 16, 32, 8, 64, True), 1_235_814_400),
        (_model("llama-3.2-3b", "llama", 128256, 3072, 8192, 28, 24, 8, 128, True), 3_212_749_824),
        (_model("llama-2-7b", "llama", 32000, 4096, 11008, 32, 32, 32, 128), 6_738_415_616),
        (_model("llama-2-13b", "llama", 32000, 5120, 13824, 40, 40, 40, 128), 13_015_864_320),
        (_model("llama-3.1-8b", "llama", 128256, 4096, 14336, 32, 32, 8, 128), 8_030_261_248),
        (_model("llama-3.3-70b", "llama", 128256, 8192, 28672, 80, 64, 8, 128), 70_553_706_496),
        (_model("llama-3.1-405b", "llama", 128256, 16384, 53248, 126, 128, 8, 128), 405_853_388_800),
        (_model("qwen2.5-0.5b", "qwen2", 151936, 896, 4864, 24, 14, 2, 64, True, qkv_bias=True), 494_032_768),
        (_model("qwen2.5-1.5b", "qwen2", 151936, 1536, 8960, 28, 12, 2, 128, True, qkv_bias=True), 1_543_714_304),
        (_model("qwen2.5-7b", "qwen2", 152064, 3584, 18944, 28, 28, 4, 128, qkv_bias=True), 7_615_616_512),
        (_model("qwen3-0.6b", "qwen3", 151936, 1024, 3072, 28, 16, 8, 128, True, **_HEAD), 596_049_920),
        (_model("qwen3-8b", "qwen3", 151936, 4096, 12288, 36, 32, 8, 128, **_HEAD), 8_190_735_360),
        (_model("qwen3-14b", "qwen3", 151936, 5120, 17408, 40, 40, 8, 128, **_HEAD), 14_768_307_200),
        (_model("qwen3-32b", "qwen3", 151936, 5120, 25600, 64, 64, 8, 128, **_HEAD), 32_762_123_264),
        (_model("mistral-7b", "mistral", 32768, 4096, 14336, 32, 32, 8, 128), 7_248_023_552),
        (
            _model(
                "gemma-2-9b", "gemma2", 256000, 3584, 14336, 42, 16, 8, 256, True, norms_per_layer=4, logit_softcap=True
            ),
            9_241_705_984,
        ),
        (
            _model("gemma-3-12b", "gemma3_text", 262208, 3840, 15360, 48, 16, 8, 256, True, norms_per_layer=4, **_HEAD),
            11_766_034_176,
        ),
        (
            _model("mixtral-8x7b", "mixtral", 32000, 4096, 14336, 32, 32, 8, 128, moe=MoeSpec(8, 2, 14336)),
            46_702_792_704,
        ),
        (
            _model("qwen3-30b-a3b", "qwen3_moe", 151936, 2048, 6144, 48, 32, 4, 128, moe=MoeSpec(128, 8, 768), **_HEAD),
            30_532_122_624,
        ),
    )
}


def model(name: str) -> ModelSpec:
    return MODELS[name][0]


# --- machines


def gpu(name: str = "RTX 5090", gib: float = 31.37, tflops: float = 105.0, **more: Any) -> Gpu:
    base: dict[str, Any] = {
        "name": name,
        "memory_bytes": round(gib * GIB),
        "compute_capability": "sm_120",
        "spec_tflops": 209.5,
        "training_tflops": tflops,
        "memory_bandwidth_gb_s": 1700.0,
        "power_w": 575,
    }
    return Gpu(**(base | more))


def cluster(card: Gpu | None = None, gpus: int = 8, nodes: int = 1, network_gb_s: float = 23.0, **more: Any) -> Cluster:
    base: dict[str, Any] = {
        "host_ram_bytes": 768 * 10**9,
        "nvme_bytes": 8 * 10**12,
        "nvme_read_gb_s": 27.0,
        "nvme_write_gb_s": 11.0,
        "sockets": 2,
        "physical_cores": 64,
        "bus_bandwidth_gb_s": 20.0 if gpus > 1 else 0.0,
        "host_to_device_gb_s": 25.0,
        "cpu_adam_params_per_s": 5e9,
    }
    node = Node(gpu=card or gpu(), gpu_count=gpus, **(base | more))
    network = Network("ib-hdr", network_gb_s, True) if nodes > 1 else None
    return Cluster("test", node, nodes, network)


def rtx_5090(gpus: int = 8, nodes: int = 1) -> Cluster:
    return cluster(gpu(), gpus, nodes)


def pro_6000(gpus: int = 8, nodes: int = 1) -> Cluster:
    return cluster(gpu("RTX Pro 6000", 94.97, 185.0, spec_tflops=504.0), gpus, nodes)


# --- precision

PURE_BF16 = Precision(Dtype.BF16, Dtype.BF16, Dtype.BF16, Dtype.BF16, Dtype.BF16, Dtype.BF16)
KAHAN = replace(PURE_BF16, compensation=Dtype.BF16)
FP32 = Precision(Dtype.FP32, Dtype.FP32, Dtype.FP32, Dtype.BF16, Dtype.FP32, Dtype.BF16)
LORA = Precision(Dtype.BF16, Dtype.FP32, Dtype.FP32, Dtype.BF16, Dtype.FP32, Dtype.BF16)
QLORA = replace(LORA, parameters=Dtype.NF4)
MIXED = replace(PURE_BF16, fp32_modules=("embed_tokens", "lm_head", "norm"))
ZERO = Precision(Dtype.BF16, Dtype.BF16, Dtype.BF16, Dtype.BF16, Dtype.FP32, Dtype.BF16, master=Dtype.FP32)
DEEPSPEED = DeepSpeed(3, "cpu", "cpu", None, True, 200_000_000, 50_000_000, 100_000, 10**9, 5, 10**8, True)


def recipe(
    name: str = "llama-3.1-8b",
    method: Method = Method.FULL,
    strategy: Strategy = Strategy.FSDP2_FULL,
    gpus: int = 8,
    nodes: int = 1,
    *,
    shard: int | None = None,
    precision: Precision | None = None,
    optimizer: str = "adamw_torch_fused",
    r: int = 16,
    targets: tuple[str, ...] = ALL_LINEAR,
    **changes: Any,
) -> Recipe:
    """A complete recipe; `changes` are fields of Recipe."""
    adapter = None if method is Method.FULL else Adapter(r, 2 * r, 0.0, targets)
    default = {Method.FULL: PURE_BF16, Method.LORA: LORA, Method.QLORA: QLORA}[method]
    if strategy.is_deepspeed and method is Method.FULL:
        default = ZERO
    fsdp = Fsdp(True, False, False, "SHARDED_STATE_DICT", "DecoderLayer") if strategy.is_fsdp else None
    deepspeed = None
    if strategy is Strategy.ZERO2:
        deepspeed = replace(DEEPSPEED, stage=2, offload_optimizer="none", offload_param="none")
    elif strategy.is_deepspeed:
        deepspeed = replace(DEEPSPEED, offload_optimizer=strategy.offload_device)
    base = Recipe(
        model=name,
        model_revision=None,
        trust_remote_code=False,
        hardware="test",
        network="none",
        trainer="axolotl",
        stack="test",
        method=method,
        adapter=adapter,
        parallelism=Parallelism.of(strategy, nodes, gpus, shard),
        precision=precision or default,
        optimizer=Optimizer(optimizer, 0.9, 0.99, 1e-8, 0.0, 1.0),
        schedule=Schedule(1e-5, "cosine", 10, None),
        sequence_len=4096,
        micro_batch_size=1,
        gradient_accumulation=1,
        sync_each_batch=False,
        packing=True,
        pad_to_sequence_len=True,
        excess_length_strategy="drop",
        epochs=1.0,
        max_steps=None,
        activation_checkpointing=True,
        activation_checkpointing_reentrant=False,
        activation_offloading=False,
        loss_kernel=LossKernel.STOCK,
        attention="flash_attention_2",
        attention_memory=AttentionMemory.FLASH,
        torch_compile=False,
        tf32=True,
        fsdp=fsdp,
        deepspeed=deepspeed,
        datasets=(),
        val_set_size=0.0,
        chat_template=None,
        eot_tokens=(),
        saving=Saving(None, 2, None, 1, "none"),
        loading=Loading(2, 2, True, 8),
        launch=Launch(29500, 8, ()),
    )
    return replace(base, **changes)


STACK = load_stack("axolotl-0.19.0")
