"""From a Request to a Decision: candidates, rules, ranking, reasons."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import replace

from recipegen.catalog.defaults import training_defaults
from recipegen.catalog.stack import Stack
from recipegen.decide import pins as pin_fields
from recipegen.decide.candidates import enumerate_candidates
from recipegen.decide.reasons import reasons
from recipegen.decide.search import Scored, best_variant, ranked
from recipegen.decide.setting import Setting, settle
from recipegen.decide.ways_out import alternative, ways_out
from recipegen.estimate import estimate
from recipegen.estimate.parameters import total
from recipegen.rules import evaluate
from recipegen.spec import (
    Cluster,
    DatasetSpec,
    Decision,
    Method,
    ModelSpec,
    RecipegenError,
    Request,
    Severity,
    Strategy,
    Verdict,
)
from recipegen.spec.units import seconds


def decide(
    request: Request, model: ModelSpec, cluster: Cluster, stack: Stack, datasets: tuple[DatasetSpec, ...] = ()
) -> Decision:
    """The best recipe for a request, what else was looked at, and why not.

    Raises RecipegenError for a request that contradicts itself (pins, batch equation, impossible strategy).
    """
    pins = pin_fields.read_pins(request.pins)
    _reconcile(request, pins)
    setting = settle(request, model, cluster, stack, datasets, pins, total(model))
    method = Method(request.method) if request.method else pins.get("method")
    scored = ranked(_solve(setting, method), auto_method=method is None)
    chosen = _with_saving(setting, scored[0])
    strategy = chosen.recipe.parallelism.strategy
    recommended = chosen.survives and (strategy is not Strategy.ZERO3_NVME or "parallelism.strategy" in pins)
    verdict = chosen.verdict
    needs_ways = (
        verdict is not Verdict.FITS
        or not recommended
        or strategy.offload_device != "none"
        or (strategy is Strategy.FSDP2_FULL and chosen.recipe.parallelism.nodes > 1)
    )
    others = tuple(alternative(x, _why_not(x, chosen)) for x in scored[1:])
    return Decision(
        request=request,
        model=model,
        cluster=cluster,
        recipe=chosen.recipe,
        estimate=replace(chosen.estimate, verdict=verdict),
        verdict=verdict,
        recommended=recommended,
        reasons=reasons(setting, chosen, scored[1:]),
        findings=chosen.findings,
        alternatives=others,
        ways_out=ways_out(setting, chosen, _solve) if needs_ways else (),
        warnings=_warnings(setting, chosen),
    )


def _solve(setting: Setting, method: Method | None, strategies: Container[Strategy] = tuple(Strategy)) -> list[Scored]:
    """Every candidate at its best; of `strategies` alone where not all are of interest."""
    return [best_variant(setting, c) for c in enumerate_candidates(setting, method) if c.strategy in strategies]


def _reconcile(request: Request, pins: dict[str, object]) -> None:
    """An option and a pin of the same field must agree."""
    for option, path in (
        ("method", "method"),
        ("sequence_len", "sequence_len"),
        ("epochs", "epochs"),
        ("learning_rate", "schedule.learning_rate"),
    ):
        asked = getattr(request, option)
        if path in pins and asked is not None:
            pinned = pins[path]
            value = pinned.value if isinstance(pinned, Method) else pinned
            if value != asked:
                raise RecipegenError(f"{option} is given twice: {asked} and {value}", fix="Leave one of them out")


def _with_saving(setting: Setting, chosen: Scored) -> Scored:
    """Checkpoint about once an hour of predicted time, when an epoch takes longer than that."""
    time = chosen.estimate.time
    if "saving.save_steps" in setting.pins or time.step_s <= 0:
        return chosen
    interval_s = 60.0 * float(training_defaults()["saving"]["minutes_between_checkpoints"])
    steps = max(1, round(interval_s / time.step_s))
    if time.steps_per_epoch is not None and steps >= time.steps_per_epoch:
        return chosen
    saving = replace(chosen.recipe.saving, save_steps=steps)
    if chosen.recipe.val_set_size and "saving.eval_steps" not in setting.pins:
        saving = replace(saving, eval_steps=steps)
    recipe = replace(chosen.recipe, saving=saving)
    priced = estimate(setting.model, setting.cluster, recipe, setting.stack, memory=setting.peaks)
    findings = evaluate(recipe, setting.model, setting.cluster, priced, setting.stack)
    return Scored(chosen.candidate, recipe, priced, findings)


def _why_not(other: Scored, chosen: Scored) -> str:
    """The binding reason, with its number."""
    if other.errors:
        return other.errors[0].reason
    if other.verdict is Verdict.TIGHT and chosen.verdict is Verdict.FITS:
        return next(f.reason for f in other.findings if f.rule == "RG102")
    if not other.survives and chosen.survives:
        return next((f.reason for f in other.findings if f.rule == "RG401"), "most updates round to nothing")
    mine, theirs = chosen.time_per_sequence_s, other.time_per_sequence_s
    if theirs > 1.005 * mine:
        slower = f"{theirs / mine:.1f} times" if theirs > 1.5 * mine else f"{theirs / mine - 1:.0%}"
        return (
            f"{slower} slower: {seconds(other.estimate.time.step_s)} per step of "
            f"{other.recipe.global_batch_size} sequences, bound by {other.estimate.time.bound_by}"
        )
    if other.recipe.method is not chosen.recipe.method:
        return f"{mine / theirs - 1:.0%} faster by estimate, but {_METHOD_LOSS[other.recipe.method]}"
    if other.recipe.parallelism.strategy.offload_device != "none":
        return f"{mine / theirs - 1:.0%} faster by estimate, but offload is for what fits nowhere else"
    return f"{mine / theirs - 1:.0%} faster by estimate, within its error, and less simple"


_METHOD_LOSS = {
    Method.LORA: "only adapters are trained",
    Method.QLORA: "the base is rounded to 4 bits, which LoRA does not need here",
    Method.FULL: "all weights, their states and checkpoints are kept, which an adapter does not need",
}


def _warnings(setting: Setting, chosen: Scored) -> tuple[str, ...]:
    out = list(setting.notes)
    if not chosen.survives:
        out.append(f"not recommended: {chosen.recipe.precision.label.value} loses most updates to rounding")
    out += [
        f"{f.rule} {f.reason}" + (f" ({f.fix})" if f.fix else "")
        for f in chosen.findings
        if f.severity is Severity.WARNING
    ]
    return tuple(dict.fromkeys(out))
