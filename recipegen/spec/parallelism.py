"""How the ranks divide the work. A layout that does not multiply to the world size cannot be built."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Strategy(str, Enum):
    """The way replicas are kept in step."""

    SINGLE = "single"
    DDP = "ddp"
    FSDP2_FULL = "fsdp2_full"
    FSDP2_HYBRID = "fsdp2_hybrid"
    ZERO2 = "zero2"
    ZERO3_CPU = "zero3_cpu"
    ZERO3_NVME = "zero3_nvme"

    @property
    def label(self) -> str:
        """The name people use."""
        return _LABELS[self]

    @property
    def is_fsdp(self) -> bool:
        return self in (Strategy.FSDP2_FULL, Strategy.FSDP2_HYBRID)

    @property
    def is_deepspeed(self) -> bool:
        return self in (Strategy.ZERO2, Strategy.ZERO3_CPU, Strategy.ZERO3_NVME)

    @property
    def offload_device(self) -> str:
        """Where optimizer states (and parameters under ZeRO-3) are kept: `none`, `cpu` or `nvme`."""
        return {Strategy.ZERO3_CPU: "cpu", Strategy.ZERO3_NVME: "nvme"}.get(self, "none")


_LABELS = {
    Strategy.SINGLE: "one GPU",
    Strategy.DDP: "DDP",
    Strategy.FSDP2_FULL: "FSDP2 full shard",
    Strategy.FSDP2_HYBRID: "FSDP2 hybrid shard",
    Strategy.ZERO2: "DeepSpeed ZeRO-2",
    Strategy.ZERO3_CPU: "DeepSpeed ZeRO-3 + CPU offload",
    Strategy.ZERO3_NVME: "DeepSpeed ZeRO-3 + NVMe offload",
}


@dataclass(frozen=True)
class Parallelism:
    """The mesh: dp_replicate x dp_shard x tp x cp ranks.

    *replicate*: groups that hold the same shards and reduce gradients among themselves; *shard*: ranks that
    split parameters, gradients and states (for ZeRO: the data-parallel group that partitions them).

    Raises ValueError, with the numbers, when the product is not the world size or a strategy contradicts it.
    """

    strategy: Strategy
    nodes: int
    gpus_per_node: int
    dp_replicate: int = 1
    dp_shard: int = 1
    tp: int = 1
    cp: int = 1
    ep: int = 1  # expert parallelism: DDP ranks among which the experts are split; it multiplies to no world size

    def __post_init__(self) -> None:
        for name in ("nodes", "gpus_per_node", "dp_replicate", "dp_shard", "tp", "cp", "ep"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ValueError(f"{name} is {value!r}; it must be a whole number of 1 or more")
        product = self.dp_replicate * self.dp_shard * self.tp * self.cp
        if product != self.world_size:
            raise ValueError(
                f"dp_replicate({self.dp_replicate}) * dp_shard({self.dp_shard}) * tp({self.tp}) * cp({self.cp})"
                f" = {product}, but world_size is {self.world_size}"
                f" ({self.nodes} nodes x {self.gpus_per_node} GPUs)"
            )
        s = self.strategy
        if s is Strategy.SINGLE and self.world_size != 1:
            raise ValueError(f"one GPU was asked for, but world_size is {self.world_size}")
        if s is not Strategy.SINGLE and s not in (Strategy.ZERO3_CPU, Strategy.ZERO3_NVME) and self.world_size < 2:
            raise ValueError(f"{s.label} needs 2 or more GPUs, but world_size is {self.world_size}")
        if s in (Strategy.SINGLE, Strategy.DDP) and self.dp_shard != 1:
            raise ValueError(f"{s.label} does not shard, but dp_shard is {self.dp_shard}")
        if s is Strategy.FSDP2_FULL and self.dp_replicate != 1:
            raise ValueError(f"FSDP2 full shard has no replicas, but dp_replicate is {self.dp_replicate}")
        if s is Strategy.FSDP2_HYBRID and (self.dp_replicate < 2 or self.dp_shard < 2):
            raise ValueError(
                "FSDP2 hybrid shard needs dp_replicate and dp_shard of 2 or more, "
                f"but they are {self.dp_replicate} and {self.dp_shard}"
            )
        if self.ep > 1 and (s is not Strategy.DDP or self.ep != self.world_size):
            raise ValueError(f"experts are split over all ranks of DDP, but ep is {self.ep} of {self.world_size} ranks")
        if s.is_deepspeed and self.dp_replicate != 1:
            raise ValueError(f"{s.label} partitions over all ranks, but dp_replicate is {self.dp_replicate}")

    @property
    def world_size(self) -> int:
        return self.nodes * self.gpus_per_node

    @property
    def data_parallel_ranks(self) -> int:
        """Ranks that see different data; the factor of the global batch size."""
        return self.dp_replicate * self.dp_shard

    @classmethod
    def of(cls, strategy: Strategy, nodes: int, gpus_per_node: int, dp_shard: int | None = None) -> Parallelism:
        """The usual layout of a strategy: hybrid shards inside a node and replicates across nodes."""
        world = nodes * gpus_per_node
        if strategy in (Strategy.SINGLE, Strategy.DDP):
            return cls(strategy, nodes, gpus_per_node, dp_replicate=world)
        if strategy is Strategy.FSDP2_HYBRID:
            shard = dp_shard or gpus_per_node
            return cls(strategy, nodes, gpus_per_node, dp_replicate=max(world // shard, 1), dp_shard=shard)
        return cls(strategy, nodes, gpus_per_node, dp_shard=dp_shard or world)
