"""What was decided, why, and what was not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from recipegen.spec.cluster import Cluster
from recipegen.spec.estimate import Estimate, Verdict
from recipegen.spec.finding import Finding
from recipegen.spec.model import ModelSpec
from recipegen.spec.recipe import Recipe
from recipegen.spec.request import Request


@dataclass(frozen=True)
class Alternative:
    """A candidate that was not chosen, with its binding reason and number."""

    recipe: Recipe
    estimate: Estimate
    verdict: Verdict
    reason: str
    findings: tuple[Finding, ...] = ()


@dataclass(frozen=True)
class WayOut:
    """A change that would make it fit: what to type, and what it would cost."""

    change: str  # "--method lora"
    effect: str  # "LoRA, FSDP2 full shard: 36.2 GiB of 94.97 GiB, 11.2 h per epoch"
    alternative: Alternative
    without: tuple[str, ...] = ()  # pins that the change leaves out

    @property
    def said(self) -> str:
        """The change with the pins it leaves out."""
        return f"{self.change}, without --set {', '.join(self.without)}" if self.without else self.change


@dataclass(frozen=True)
class Decision:
    """The answer to a Request. `recipe` is the best candidate even when it does not fit (then `verdict` says so)."""

    request: Request
    model: ModelSpec
    cluster: Cluster
    recipe: Recipe
    estimate: Estimate
    verdict: Verdict
    recommended: bool  # False: it may run, but it is not what should be run (pure bf16 at a small rate)
    reasons: Mapping[str, str]  # Recipe field path -> one line why
    findings: tuple[Finding, ...] = ()
    alternatives: tuple[Alternative, ...] = ()
    ways_out: tuple[WayOut, ...] = ()
    warnings: tuple[str, ...] = ()
    extra: Mapping[str, str] = field(default_factory=dict)
