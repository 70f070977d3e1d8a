"""The candidates of a request: method x strategy x optimizer, before batch and kernels."""

from __future__ import annotations

from dataclasses import dataclass, replace

from recipegen.decide.setting import Setting
from recipegen.spec import Dtype, Method, Parallelism, RecipegenError, Strategy

# Simplest first: the order in which ties are broken.
SIMPLICITY = (
    Strategy.SINGLE,
    Strategy.DDP,
    Strategy.FSDP2_FULL,
    Strategy.FSDP2_HYBRID,
    Strategy.ZERO2,
    Strategy.ZERO3_CPU,
    Strategy.ZERO3_NVME,
)
METHODS = (Method.LORA, Method.QLORA, Method.FULL)


@dataclass(frozen=True)
class Candidate:
    """A method, a layout and an optimizer with what it loads. `dp_shard` None: the usual shard degree."""

    method: Method
    strategy: Strategy
    dp_shard: int | None
    optimizer: str
    load_dtype: Dtype


def enumerate_candidates(s: Setting, method: Method | None) -> list[Candidate]:
    """Every candidate that pins and cluster allow; methods in METHODS order when `method` is None.

    Adapters under DeepSpeed were never run on a tested stack, so they are not offered. Offload is for those who ask for
    a full fine-tune: left to itself, a plan does not answer "how should I train" with minutes per step.
    Raises RecipegenError when the pinned strategy cannot exist on this cluster.
    """
    methods = METHODS if method is None else (method,)
    strategies = _strategies(s)
    found = [
        Candidate(m, strategy, _shard(s, strategy), optimizer, dtype)
        for m in methods
        for strategy in strategies
        if _is_offered(s, m, strategy, method is None)
        if _takes_every_pin(s, m, strategy) and not _layout_error(s, strategy)
        for optimizer, dtype in _optimizers(s, m, strategy)
    ]
    if not found:
        layouts = [error for error in (_layout_error(s, x) for x in strategies) if error]
        if len(layouts) == len(strategies):
            raise RecipegenError(layouts[0], fix="Change --set dp_shard, dp_replicate, tp or cp")
        groups = sorted({p.partition(".")[0] for p in s.pins if p.startswith(_GROUPS)})
        raise RecipegenError(
            f"no {'/'.join(m.value for m in methods)} candidate under {', '.join(x.value for x in strategies)} has the "
            f"pinned fields ({', '.join(groups) or 'sync_each_batch=false'})",
            fix="Leave out the pins of the engine or method that is not used",
        )
    return found


def _is_offered(s: Setting, method: Method, strategy: Strategy, auto: bool) -> bool:
    pinned = "parallelism.strategy" in s.pins
    if method.is_adapter and strategy.is_deepspeed:
        return pinned and not auto
    return pinned or not auto or strategy.offload_device == "none"


_GROUPS = ("adapter.", "fsdp.", "deepspeed.")
_TP_CP = ("parallelism.tp", "parallelism.cp")


def _takes_every_pin(s: Setting, method: Method, strategy: Strategy) -> bool:
    """A pin into a group that a recipe does not have would be dropped in silence: such a candidate is left out."""
    groups = {p.partition(".")[0] for p in s.pins}
    return (
        ("adapter" not in groups or method.is_adapter)
        and ("fsdp" not in groups or strategy.is_fsdp)
        and ("deepspeed" not in groups or strategy.is_deepspeed)
        and (strategy.is_fsdp or s.pins.get("sync_each_batch") is not False)
    )


def _layout_error(s: Setting, strategy: Strategy) -> str:
    """Why the pinned sizes do not multiply out under a strategy; empty when they do."""
    sizes = {p.rpartition(".")[2]: v for p, v in s.pins.items() if p.startswith("parallelism.dp_") or p in _TP_CP}
    try:
        replace(Parallelism.of(strategy, s.cluster.nodes, s.cluster.node.gpu_count, _shard(s, strategy)), **sizes)
    except ValueError as error:
        return str(error)
    return ""


def _strategies(s: Setting) -> tuple[Strategy, ...]:
    world, nodes = s.cluster.world_size, s.cluster.nodes
    if world == 1:
        possible: tuple[Strategy, ...] = (Strategy.SINGLE, Strategy.ZERO3_CPU, Strategy.ZERO3_NVME)
    else:
        possible = tuple(
            x for x in SIMPLICITY if x is not Strategy.SINGLE and (x is not Strategy.FSDP2_HYBRID or _can_be_hybrid(s))
        )
    pinned = s.pins.get("parallelism.strategy")
    if pinned is None:
        # Hybrid shard inside one node is only for those who ask: it halves capacity for nothing the node needs.
        asked = nodes > 1 or any(p.startswith("parallelism.dp_") for p in s.pins)
        return tuple(x for x in possible if x is not Strategy.FSDP2_HYBRID or asked)
    if pinned not in possible:
        raise RecipegenError(
            f"{pinned.label} is not possible on {world} GPU{'s'[: world - 1]} ({nodes} node{'s'[: nodes - 1]})",
            fix="Possible: " + ", ".join(x.value for x in possible),
        )
    return (pinned,)


def _can_be_hybrid(s: Setting) -> bool:
    shard: int | None = s.pins.get("parallelism.dp_shard")
    world, per_node = s.cluster.world_size, s.cluster.node.gpu_count
    if shard is not None or "parallelism.dp_replicate" in s.pins:
        shard = shard or world // s.pins["parallelism.dp_replicate"]
        return 1 < shard < world and world % shard == 0
    return s.cluster.nodes > 1 and per_node > 1


def _shard(s: Setting, strategy: Strategy) -> int | None:
    if strategy is not Strategy.FSDP2_HYBRID:
        return None
    shard = s.pins.get("parallelism.dp_shard")
    if shard is None and "parallelism.dp_replicate" in s.pins:
        shard = s.cluster.world_size // s.pins["parallelism.dp_replicate"]
    return shard


def _optimizers(s: Setting, method: Method, strategy: Strategy) -> tuple[tuple[str, Dtype], ...]:
    """Optimizer and load dtype: what the stack recommends for a method under a strategy, or the pinned one."""
    load = s.pins.get("precision.parameters")
    if load is None:
        load = s.stack.load_dtype(s.request.trainer, strategy, method)
    names = s.stack.optimizers_for(s.request.trainer, strategy, method, load)
    if "optimizer.name" in s.pins:
        names = (s.pins["optimizer.name"],)
    return tuple((name, load) for name in names)
