"""Each strategy once: which tiny model takes which way through the trainers."""

from __future__ import annotations

from dataclasses import dataclass, field

STEPS = 20
CHECKPOINT = 10  # resumed from here
LEARNING_RATE = 1e-3
# All runs see the same 8 sequences a step, whatever the number of ranks.
GLOBAL_BATCH_SIZE = 8


@dataclass(frozen=True)
class Case:
    """One project. `shard` and `replicate` are the mesh that must really have been built."""

    name: str
    family: str
    data: str
    method: str
    hardware: str
    strategy: str
    distributed_type: str
    shard: int = 1
    replicate: int = 1
    settings: dict[str, object] = field(default_factory=dict)

    def all_settings(self) -> dict[str, object]:
        return {
            "strategy": self.strategy,
            "learning_rate": LEARNING_RATE,
            "max_steps": STEPS,
            "warmup_steps": 2,
            "save_steps": CHECKPOINT,
            "logging_steps": 1,
            "sequence_len": 256,
            "micro_batch_size": 2,
            **self.settings,
        }


# Packing composes other batches for another number of ranks: runs that are compared with each other do without.
UNPACKED: dict[str, object] = {"packing": False}
CASES = {
    case.name: case
    for case in (
        Case("llama-single-full", "llama", "alpaca", "full", "cpu-1x", "single", "NO", settings=UNPACKED),
        Case("llama-single-qlora", "llama", "alpaca", "qlora", "cpu-1x", "single", "NO"),
        # The optimizer that is chosen at the rates of a real full fine-tune (at 1e-3 it would be the plain one).
        Case(
            "llama-fsdp2-full", "llama", "alpaca", "full", "cpu-2x", "fsdp2_full", "FSDP",
            shard=2, settings={"optimizer": "optimi_adamw", "activation_checkpointing": True, **UNPACKED},
        ),
        Case(
            "llama-hybrid-full", "llama", "alpaca", "full", "cpu-4x", "fsdp2_hybrid", "FSDP",
            shard=2, replicate=2,
            settings={"dp_shard": 2, "dp_replicate": 2, "reshard_after_forward": False, **UNPACKED},
        ),
        Case(
            "qwen3-single-lora", "qwen3", "chat", "lora", "cpu-1x", "single", "NO",
            settings={"activation_checkpointing": True},
        ),
        Case(
            "qwen3-ddp-lora", "qwen3", "chat", "lora", "cpu-2x", "ddp", "MULTI_CPU",
            replicate=2, settings=UNPACKED,
        ),
        Case(
            "qwen3-fsdp2-lora", "qwen3", "chat", "lora", "cpu-2x", "fsdp2_full", "FSDP",
            shard=2, settings={"activation_checkpointing": True, **UNPACKED},
        ),
    )
}  # fmt: skip
