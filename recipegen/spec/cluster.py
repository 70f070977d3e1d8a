"""The machines: GPUs, nodes and what joins them. Capabilities are fields; nothing is decided by a name."""

from __future__ import annotations

from dataclasses import dataclass

from recipegen.spec.units import GB, GIB


@dataclass(frozen=True)
class Gpu:
    """One accelerator.

    `memory_bytes` is what PyTorch sees (torch.cuda.get_device_properties().total_memory), less what a display or other
    programs hold.
    Rates: TFLOPS are dense bf16 with fp32 accumulation; GB/s are 10^9 bytes per second.
    `matmul_tflops` is a large matrix product, measured; `training_tflops` is what a person's own training step executes
    and then replaces what would be worked out from it. One of the two is given.
    """

    name: str
    memory_bytes: int
    compute_capability: str  # "sm_120"; "cpu" for a test profile
    spec_tflops: float
    training_tflops: float | None
    memory_bandwidth_gb_s: float
    power_w: int
    matmul_tflops: float | None = None
    fp32_tflops: float | None = None  # outside the tensor cores
    nvlink: bool = False  # between all GPUs of the node
    # --- capabilities
    bf16: bool = True
    fp8: bool = False
    tf32: bool = True
    triton: bool = True  # fused Triton kernels can run (LoRA kernels, Liger, torch.compile)
    flash_attention: bool = False  # a flash-attn 2 build is pinned for this card in the stack
    fused_linear_loss: bool = False  # Liger's fused linear loss is measured to run on this card
    pinned_memory: bool = True
    peer_to_peer: bool = False  # with the vendor's own driver
    gpudirect_rdma: bool = False
    source: str = ""


@dataclass(frozen=True)
class Node:
    """One machine: `gpu_count` equal GPUs, host memory, disk and the paths between them.

    `bus_bandwidth_gb_s` is nccl-tests' bus bandwidth of an all-reduce over all GPUs of the node (large
    messages, default settings of the profile); 0 for one GPU. `host_to_device_gb_s` is per GPU with all
    GPUs copying at once.
    """

    gpu: Gpu
    gpu_count: int
    host_ram_bytes: int
    nvme_bytes: int
    nvme_read_gb_s: float
    nvme_write_gb_s: float
    sockets: int
    physical_cores: int
    bus_bandwidth_gb_s: float
    host_to_device_gb_s: float
    cpu_adam_params_per_s: float  # parameters per second and node, DeepSpeed CPU Adam
    environment: tuple[EnvVar, ...] = ()  # what launch.sh exports on this machine
    all_gather_gb_s: float | None = None  # bus bandwidth of that collective; None: as bus_bandwidth_gb_s
    reduce_scatter_gb_s: float | None = None


@dataclass(frozen=True)
class EnvVar:
    """An environment variable of the launcher, with its reason. `value` None means: comment only."""

    name: str
    value: str | None
    reason: str


@dataclass(frozen=True)
class Network:
    """What joins the nodes. `bus_bandwidth_gb_s` is the ring bus bandwidth NCCL reaches per node."""

    name: str  # none, tcp-25, roce-25, roce-100, ib-hdr, ib-ndr
    bus_bandwidth_gb_s: float
    rdma: bool
    environment: tuple[EnvVar, ...] = ()
    source: str = ""


@dataclass(frozen=True)
class Cluster:
    """`nodes` equal machines. `name` is the profile's name or the path of the user's own YAML."""

    name: str
    node: Node
    nodes: int = 1
    network: Network | None = None
    description: str = ""
    source: str = ""

    def __post_init__(self) -> None:
        if self.nodes < 1:
            raise ValueError(f"nodes is {self.nodes}; it must be 1 or more")
        if self.node.gpu_count < 1:
            raise ValueError(f"gpu_count is {self.node.gpu_count}; it must be 1 or more")
        if self.nodes > 1 and self.network is None:
            raise ValueError(f"{self.nodes} nodes need a network")

    @property
    def gpu(self) -> Gpu:
        return self.node.gpu

    @property
    def world_size(self) -> int:
        """GPUs in all: nodes x GPUs per node."""
        return self.nodes * self.node.gpu_count

    def summary(self) -> str:
        """`2 x 8 RTX 5090 (31.37 GiB each), 768 GB host RAM per node, roce-100`."""
        count = f"{self.nodes} x {self.node.gpu_count}" if self.nodes > 1 else f"{self.node.gpu_count}"
        text = (
            f"{count} {self.gpu.name} ({self.gpu.memory_bytes / GIB:.2f} GiB each), "
            f"{self.node.host_ram_bytes / GB:.0f} GB host RAM per node"
        )
        return f"{text}, {self.network.name}" if self.network and self.nodes > 1 else text
