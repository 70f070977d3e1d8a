"""Eight recipes for a card of any size: what each is about, and the largest shape of it that the estimate says fits.

Weights are random, so a model is a shape of the catalogue, with fewer layers where the card is small.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass, replace

from recipegen.catalog import load_cluster, load_model, load_stack
from recipegen.decide import read_pins
from recipegen.decide.build import Choice, build
from recipegen.decide.setting import settle
from recipegen.estimate.memory import gpu_memory
from recipegen.estimate.parameters import total
from recipegen.estimate.symbols import symbols
from recipegen.spec import (
    AttentionMemory,
    Cluster,
    GpuMemory,
    LossKernel,
    Method,
    ModelSpec,
    Parallelism,
    Recipe,
    Request,
    Strategy,
)

Shape = tuple[str, int]
"""A model of the catalogue and how many of its layers."""

_SHAPES: tuple[Shape, ...] = (
    ("Llama-3.1-8B", 32), ("Llama-3.1-8B", 16), ("Llama-3.2-3B", 28), ("Llama-3.2-3B", 14), ("Llama-3.2-1B", 16),
    ("Qwen2.5-0.5B", 24), ("SmolLM2-135M", 30),
)  # fmt: skip
_LARGE_VOCABULARY: tuple[Shape, ...] = (("Qwen2.5-1.5B", 28), ("Qwen2.5-0.5B", 24), ("Qwen2.5-0.5B", 6))
_BATCHES = ((4096, 4), (4096, 2), (2048, 2), (2048, 1), (1024, 1))
"""Sequence length in tokens and micro-batch, largest first."""
# Part of the free memory that the estimate's upper bound may take: the estimate is what is being tested.
_SHARE = 0.9
NOT_STEPS = ("load", "save", "eval")  # phases that a measurement of steps does not see


@dataclass(frozen=True)
class Point:
    """One measurement: what is special about it, and the shapes to choose from."""

    name: str
    method: Method
    shapes: tuple[Shape, ...] = _SHAPES
    batches: tuple[tuple[int, int], ...] = _BATCHES
    strategy: Strategy = Strategy.SINGLE
    checkpointing: bool = True
    kernel: LossKernel = LossKernel.STOCK
    needs: tuple[str, ...] = ()  # packages beside torch, transformers and accelerate


POINTS = (
    Point("full", Method.FULL),
    Point("lora", Method.LORA, needs=("peft",)),
    Point("qlora", Method.QLORA, needs=("peft", "bitsandbytes")),
    Point("no-checkpointing", Method.LORA, checkpointing=False, needs=("peft",)),
    Point("large-vocabulary", Method.LORA, _LARGE_VOCABULARY, ((8192, 4), (8192, 2), *_BATCHES), needs=("peft",)),
    Point("chunked-loss", Method.LORA, kernel=LossKernel.CHUNKED_UPCAST, needs=("peft", "axolotl")),
    Point("fsdp2-one-rank", Method.FULL, strategy=Strategy.FSDP2_FULL),
    Point("liger", Method.FULL, kernel=LossKernel.FUSED_LINEAR, needs=("liger_kernel",)),
)


@dataclass(frozen=True)
class Chosen:
    """A point with its model and recipe for one card, and what the estimate says of it."""

    point: Point
    model: ModelSpec
    layers_of: int  # layers of the catalogue's model
    recipe: Recipe
    memory: GpuMemory

    @property
    def estimated_bytes(self) -> int:
        """Peak allocated bytes over the phases of a step; loading and saving are not measured."""
        return max(phase.bytes for phase in self.memory.phases if phase.name not in NOT_STEPS)

    @property
    def label(self) -> str:
        part = "" if self.model.num_hidden_layers == self.layers_of else f" ({self.model.num_hidden_layers} layers)"
        return f"{self.model.id.rpartition('/')[2]}{part}, {self.recipe.micro_batch_size} x {self.recipe.sequence_len}"


def choose(point: Point, free_bytes: int, *, triton: bool = True) -> Chosen | None:
    """The largest shape of a point whose upper bound is within 0.9 of `free_bytes`; None when not even the smallest."""
    return next((c for c in _tries(point, free_bytes, triton) if _is_small_enough(c.memory, free_bytes)), None)


def _is_small_enough(memory: GpuMemory, free_bytes: int) -> bool:
    """Room also for what the allocator reserves only because there is room: the card must not shape the measurement."""
    return max(memory.needed_high_bytes, memory.reserved_high_bytes + memory.outside_bytes) <= _SHARE * free_bytes


def _tries(point: Point, free_bytes: int, triton: bool) -> Iterator[Chosen]:
    stack = load_stack()
    for name, layers in point.shapes:
        whole = load_model(name)
        model = replace(whole, num_hidden_layers=layers, num_parameters=0)
        for sequence_len, micro_batch_size in point.batches:
            recipe = recipe_of(point, model, sequence_len, micro_batch_size)
            memory = gpu_memory(symbols(model, recipe, stack, triton=triton), free_bytes)
            yield Chosen(point, model, whole.num_hidden_layers, recipe, memory)


def recipe_of(point: Point, model: ModelSpec, sequence_len: int, micro_batch_size: int) -> Recipe:
    """What `decide` would write for such a run on one card, with a batch of rows that need no padding."""
    cluster, stack = _two_cards(), load_stack()
    if point.strategy is Strategy.SINGLE:
        cluster = replace(cluster, node=replace(cluster.node, gpu_count=1))
    request = Request(model.id, cluster.name, method=point.method.value, sequence_len=sequence_len)
    pins = read_pins({"packing": False, "attention": "sdpa"})
    setting = settle(request, model, cluster, stack, (), pins, total(model))
    choice = Choice(
        point.method,
        point.strategy,
        None,
        "adamw_torch_fused",
        stack.load_dtype(request.trainer, point.strategy, point.method),
        micro_batch_size=micro_batch_size,
        activation_checkpointing=point.checkpointing,
        loss_kernel=point.kernel,
    )
    recipe = build(setting, choice)
    if recipe.adapter is not None:  # peft's own forward is what runs
        recipe = replace(recipe, adapter=replace(recipe.adapter, fused_kernels=False))
    # a batch without padding has no mask, so sdpa takes its flash kernel
    recipe = replace(recipe, attention_memory=AttentionMemory.FLASH)
    return recipe if point.strategy is Strategy.SINGLE else replace(recipe, parallelism=_one_rank(recipe.parallelism))


def _two_cards() -> Cluster:
    return load_cluster("2x-rtx-4090")


def _one_rank(parallelism: Parallelism) -> Parallelism:
    """FSDP2 over one rank is no plan, so `Parallelism` refuses it; as a measurement it shows gathered layers and
    reductions on a single card."""
    alone = copy.copy(parallelism)
    object.__setattr__(alone, "gpus_per_node", 1)
    object.__setattr__(alone, "dp_shard", 1)
    return alone
