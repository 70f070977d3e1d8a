"""What would make it fit, or make it worth running: the cheapest changes first, each of them solved for real."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator
from dataclasses import replace

from recipegen.catalog import load_cluster
from recipegen.catalog.defaults import training_defaults
from recipegen.decide.candidates import enumerate_candidates
from recipegen.decide.search import Scored, best_variant, ranked
from recipegen.decide.setting import Setting
from recipegen.spec import Alternative, Cluster, LossKernel, Method, RecipegenError, Strategy, Verdict, WayOut
from recipegen.spec.units import GIB, gib, seconds

_WANTED = 3
# Field paths whose pins can be what makes a recipe too large.
_SHAPING = (
    "parallelism.", "optimizer.name", "precision.", "micro_batch_size", "gradient_accumulation", "sync_each_batch",
    "loss_kernel", "activation_checkpointing", "attention", "packing", "fsdp.", "deepspeed.",
)  # fmt: skip
Solve = Callable[[Setting, Method | None, Container[Strategy]], list[Scored]]


def ways_out(s: Setting, chosen: Scored, solve: Solve) -> tuple[WayOut, ...]:
    """At most three changes, cheapest first: method, host RAM, sequence, hardware."""
    found: list[WayOut] = []
    for change, setting, method in _changes(s, chosen):
        try:
            best = next(iter(ranked(solve(setting, method, _usable(setting)), auto_method=False)), None)
        except RecipegenError:
            continue
        if best is None or best.verdict is not Verdict.FITS or not best.survives or best.recipe == chosen.recipe:
            continue
        released = () if change.startswith("without ") else tuple(p for p in s.pins if p not in setting.pins)
        found.append(WayOut(change, _effect(best), alternative(best, "a way out"), released))
        if len(found) == _WANTED:
            break
    return tuple(found)


def alternative(scored: Scored, reason: str) -> Alternative:
    return Alternative(scored.recipe, scored.estimate, scored.verdict, reason, scored.findings)


def _usable(setting: Setting) -> tuple[Strategy, ...]:
    """Minutes per step are no way out, unless that is what the change is about."""
    asked = setting.pins.get("parallelism.strategy")
    return tuple(x for x in Strategy if x is asked or x is not Strategy.ZERO3_NVME)


def _effect(scored: Scored) -> str:
    r, e = scored.recipe, scored.estimate
    epoch = f", {seconds(e.time.epoch_s)} per epoch" if e.time.epoch_s else ""
    return (
        f"{r.method.value}, {r.parallelism.strategy.label}: {gib(e.gpu.needed_bytes)} of "
        f"{gib(e.gpu.capacity_bytes)} per GPU, {seconds(e.time.step_s)} per step{epoch}"
    )


def _changes(s: Setting, chosen: Scored) -> Iterator[tuple[str, Setting, Method | None]]:
    method = chosen.recipe.method
    largest = max(chosen.estimate.gpu.terms, key=lambda t: t.bytes).name
    gpu = s.cluster.gpu
    if largest == "logits_and_loss" and gpu.triton and s.stack.supports_fused_linear(s.model):
        yield (
            "--set loss_kernel=fused_linear",
            replace(s, pins={**s.pins, "loss_kernel": LossKernel.FUSED_LINEAR}),
            method,
        )
    if largest == "saved_activations" and gpu.pinned_memory:
        yield "--set activation_offloading=true", replace(s, pins={**s.pins, "activation_offloading": True}), method
    free = _without_pins(s, "parallelism.", "optimizer.", "precision.", "micro_batch_size", "gradient_accumulation")
    if method is Method.FULL:
        yield "--method lora", free, Method.LORA
    for pins in _releasable(s):
        yield (
            f"without --set {', '.join(pins)}",
            replace(s, pins={k: v for k, v in s.pins.items() if k not in pins}),
            method,
        )
    if method is not Method.QLORA:
        yield "--method qlora", free, Method.QLORA
    needed = _host_ram_needed(s, chosen)
    if needed is not None:
        ram_gib, cluster = needed
        yield (
            f"{ram_gib} GiB of host RAM per node (--hardware-override host_ram_gib={ram_gib})",
            replace(free, cluster=cluster, pins={**free.pins, "parallelism.strategy": Strategy.ZERO3_CPU}),
            method,
        )
    shorter = max(
        (int(c) for c in training_defaults()["sequence_len"]["choices"] if int(c) < s.sequence_len), default=0
    )
    if shorter and chosen.estimate.gpu.verdict is not Verdict.FITS:
        kept = {k: v for k, v in s.pins.items() if k != "sequence_len"}
        yield f"--sequence-len {shorter}", replace(s, sequence_len=shorter, pins=kept), method
    for name, nodes in _larger_boxes():
        if name == s.request.hardware and nodes <= s.cluster.nodes:
            continue
        cluster = load_cluster(name, nodes=nodes, network="ib-hdr" if nodes > 1 else "none")
        if cluster.world_size * cluster.gpu.memory_bytes <= s.cluster.world_size * s.cluster.gpu.memory_bytes:
            continue
        for m in dict.fromkeys((method, Method.LORA, Method.QLORA)):
            network = " --network ib-hdr" if nodes > 1 else ""
            yield (
                f"--hardware {name}{f' --nodes {nodes}{network}' if nodes > 1 else ''} --method {m.value}",
                replace(free, cluster=cluster),
                m,
            )


def _releasable(s: Setting) -> list[tuple[str, ...]]:
    """Pins to try without: each alone, then all that shape the run's memory."""
    shaping = tuple(k for k in s.pins if k.startswith(_SHAPING))
    return [*((k,) for k in shaping), *([shaping] if len(shaping) > 1 else [])]


def _larger_boxes() -> tuple[tuple[str, int], ...]:
    rows = training_defaults()["ways_out"]["hardware"]
    return tuple((str(row["name"]), int(row["nodes"])) for row in rows)


def _without_pins(s: Setting, *prefixes: str) -> Setting:
    """The same request with what the change has to re-solve released."""
    return replace(s, pins={k: v for k, v in s.pins.items() if not k.startswith(prefixes)})


def _host_ram_needed(s: Setting, chosen: Scored) -> tuple[int, Cluster] | None:
    """Host RAM that ZeRO-3 CPU offload would need, when RAM is all that stands against it."""
    if chosen.recipe.method is not Method.FULL:
        return None
    free = _without_pins(s, "parallelism.", "optimizer.", "precision.", "micro_batch_size", "gradient_accumulation")
    for candidate in enumerate_candidates(free, Method.FULL):
        if candidate.strategy is not Strategy.ZERO3_CPU:
            continue
        scored = best_variant(free, candidate)
        if {f.rule for f in scored.errors} != {"RG110"}:
            return None
        step = int(training_defaults()["ways_out"]["host_ram_step_gib"])
        ram = -(-scored.estimate.host.peak_bytes // (step * GIB)) * step
        return ram, replace(s.cluster, node=replace(s.cluster.node, host_ram_bytes=ram * GIB))
    return None
