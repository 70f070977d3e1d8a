"""What crosses the network, and what could not be verified on this stack."""

from __future__ import annotations

from collections.abc import Iterator

from recipegen.rules.registry import Context, rule
from recipegen.spec import Severity, Strategy
from recipegen.spec.units import gb, seconds


@rule("RG601", "network", Severity.WARNING, source="docs/estimates.md", needs_estimate=True)
def parameters_do_not_cross_a_slow_network(context: Context) -> Iterator[tuple[str, str]]:
    """Full shard across nodes gathers every parameter over the network for every micro-batch, not once per step. It
    buys capacity; an adapter on one node, or hybrid shard where one node is enough, avoids it."""
    p = context.recipe.parallelism
    if p.strategy is Strategy.FSDP2_FULL and p.nodes > 1 and not context.recipe.method.is_adapter:
        network = context.cluster.network.name if context.cluster.network else "the network"
        crossing = sum(c.seconds for c in context.costs.traffic.collectives if c.group in ("network", "world"))
        yield (
            f"every all-gather crosses {network}: {crossing:.0f} s of transfers in {context.costs.time.step_s:.0f} s",
            "an adapter on one node does without",
        )


@rule("RG602", "checkpoint", Severity.WARNING, source="catalog/stacks/*/optimizers.yaml", field="optimizer.name")
def resume_of_the_optimizer_was_tested(context: Context) -> Iterator[tuple[str, str]]:
    """Resuming is proven by equal losses and gradient norms against an uninterrupted run; the stack's table says for
    which optimizers that was done."""
    r = context.recipe
    facts = context.stack.optimizer(r.optimizer.name)
    if not facts.resume_verified:
        yield (
            f"save and resume of {r.optimizer.name} was not verified on {context.stack.name}",
            "test a resume before relying on it",
        )


@rule(
    "RG603",
    "offload",
    Severity.WARNING,
    source="https://arxiv.org/abs/2104.07857",
    needs_estimate=True,
)
def nvme_offload_is_a_last_resort(context: Context) -> Iterator[tuple[str, str]]:
    """ZeRO-Infinity reads and writes all optimizer states every step: minutes per step, and a wear that uses a drive up
    in thousands of steps. No published run calibrates its time or memory here."""
    if context.recipe.parallelism.strategy is Strategy.ZERO3_NVME:
        written = (
            sum(c.bytes_per_step for c in context.costs.traffic.collectives if c.operation == "nvme_write")
            * context.recipe.parallelism.world_size
        )
        yield (
            f"states on NVMe: about {gb(written)} written per step, {seconds(context.costs.time.step_s)} per step, and "
            "neither is calibrated by a measured run",
            "an adapter, or host RAM for the states",
        )


@rule(
    "RG604",
    "safety",
    Severity.WARNING,
    source="https://huggingface.co/docs/transformers/custom_models",
    field="trust_remote_code",
)
def code_of_the_model_is_not_run(context: Context) -> Iterator[tuple[str, str]]:
    """trust_remote_code runs Python from the model's repository on every rank, with your rights."""
    if context.recipe.trust_remote_code:
        yield "trust_remote_code runs the model repository's own Python", "pin model_revision, and read that code first"
