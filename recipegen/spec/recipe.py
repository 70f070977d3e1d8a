"""The complete recipe: everything that the files will say. Nothing is decided again while rendering."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from recipegen.spec.cluster import EnvVar
from recipegen.spec.data import DatasetSpec
from recipegen.spec.kinds import AttentionMemory, LossKernel, Method
from recipegen.spec.parallelism import Parallelism
from recipegen.spec.precision import Precision


@dataclass(frozen=True)
class Adapter:
    """LoRA. `alpha / r` scales the update; `target_modules` is an explicit list of module names."""

    r: int
    alpha: int
    dropout: float
    target_modules: tuple[str, ...]
    use_rslora: bool = False
    use_dora: bool = False
    fused_kernels: bool = False  # Axolotl's lora_*_kernel (Triton)
    modules_to_save: tuple[str, ...] = ()  # trained whole beside the adapter, in copies: embed_tokens, lm_head


@dataclass(frozen=True)
class Optimizer:
    """`name` is the trainer's spelling. All numbers are written out, never left to a class."""

    name: str
    beta1: float
    beta2: float
    epsilon: float
    weight_decay: float
    max_grad_norm: float


@dataclass(frozen=True)
class Schedule:
    """Learning rate over the run. `warmup_steps` when the steps are known, else `warmup_ratio`."""

    learning_rate: float
    scheduler: str
    warmup_steps: int | None
    warmup_ratio: float | None


@dataclass(frozen=True)
class Fsdp:
    """FSDP settings; meaningful for the fsdp2 strategies only. `version` 1 is read, never generated."""

    reshard_after_forward: bool
    cpu_ram_efficient_loading: bool
    offload_params: bool
    state_dict_type: str  # SHARDED_STATE_DICT or FULL_STATE_DICT
    layer_class: str  # transformer_layer_cls_to_wrap
    version: int = 2


@dataclass(frozen=True)
class DeepSpeed:
    """ZeRO settings; sizes in elements as DeepSpeed counts them, buffers in pieces."""

    stage: int
    offload_optimizer: str  # none, cpu, nvme
    offload_param: str
    nvme_path: str | None
    pin_memory: bool
    reduce_bucket_size: int
    prefetch_bucket_size: int
    param_persistence_threshold: int
    sub_group_size: int
    buffer_count: int
    buffer_size: int
    save_16bit_model: bool


@dataclass(frozen=True)
class Saving:
    """Checkpoints and logs. `save_steps` None: once per epoch."""

    save_steps: int | None
    save_total_limit: int
    eval_steps: int | None
    logging_steps: int
    logger: str  # tensorboard, wandb, trackio, mlflow, none
    save_only_model: bool = False


@dataclass(frozen=True)
class Loading:
    """Host side of a run. Counts of processes, batches ahead, and whether pages are pinned."""

    dataloader_workers: int  # per rank
    prefetch_factor: int | None
    pin_memory: bool
    dataset_num_proc: int


@dataclass(frozen=True)
class Launch:
    """How the processes start. `environment` is exported in this order by the launcher."""

    main_process_port: int
    omp_num_threads: int
    environment: tuple[EnvVar, ...]
    bf16_capable: bool = True


@dataclass(frozen=True)
class Recipe:
    """One complete fine-tune. Global batch size = micro_batch_size x gradient_accumulation x data-parallel ranks."""

    model: str
    model_revision: str | None
    trust_remote_code: bool
    hardware: str
    network: str
    trainer: str  # axolotl, accelerate
    stack: str
    method: Method
    adapter: Adapter | None
    parallelism: Parallelism
    precision: Precision
    optimizer: Optimizer
    schedule: Schedule
    # --- the batch
    sequence_len: int
    micro_batch_size: int
    gradient_accumulation: int
    sync_each_batch: bool
    packing: bool
    pad_to_sequence_len: bool
    excess_length_strategy: str  # drop, truncate
    epochs: float
    max_steps: int | None
    # --- the working set
    activation_checkpointing: bool
    activation_checkpointing_reentrant: bool
    activation_offloading: bool
    loss_kernel: LossKernel
    attention: str  # the trainer's spelling: sdpa, flash_attention_2, eager
    attention_memory: AttentionMemory
    torch_compile: bool
    tf32: bool
    # --- engines
    fsdp: Fsdp | None
    deepspeed: DeepSpeed | None
    # --- data
    datasets: tuple[DatasetSpec, ...]
    val_set_size: float  # 0: none; a share below 1, or rows
    chat_template: str | None
    eot_tokens: tuple[str, ...]
    # --- host
    saving: Saving
    loading: Loading
    launch: Launch
    seed: int = 42
    dequantize: str | None = None  # how the published weights are quantised; they are loaded in bf16 (mxfp4)
    freeze_vision: bool = False  # a full fine-tune of a multimodal model trains the text decoder only
    quantised_experts: bool = False  # the fused experts of a 4-bit base are 4-bit too (Axolotl's quantize_moe_experts)
    passthrough: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @property
    def global_batch_size(self) -> int:
        """Sequences per optimizer step over all ranks."""
        return self.micro_batch_size * self.gradient_accumulation * self.parallelism.data_parallel_ranks

    @property
    def tokens_per_micro_batch(self) -> int:
        """T: tokens per GPU and forward pass."""
        return self.micro_batch_size * self.sequence_len
