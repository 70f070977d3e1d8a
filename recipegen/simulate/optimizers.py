"""The optimizer step on this rank's shards: torch's and optimi's own classes, 8-bit states emulated.

FSDP2's parameters are DTensors; stepping them would first run sharding propagation on tensors of global shape, which
allocates nothing on a GPU. So the optimizer gets plain parameters over the same storages, and the same gradients.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from recipegen.catalog.stack import OptimizerFacts
from recipegen.simulate.tracker import Tracker, local
from recipegen.spec import Dtype, Recipe, RecipegenError

_BLOCK = 256  # elements per scale of an 8-bit state
_SMALLEST = 4096  # elements below which bitsandbytes keeps fp32 states (min_8bit_size)


class _States(torch.optim.Optimizer):
    """States of the size an optimizer's facts state, updated in place without temporaries."""

    def __init__(self, parameters: list[Any], facts: OptimizerFacts) -> None:
        super().__init__(parameters, {})
        self.facts = facts

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter not in self.state:
                    self.state[parameter] = dict(self._fresh(parameter))

    def _fresh(self, parameter: Any) -> Any:
        count = parameter.numel()
        dtype = parameter.dtype if self.facts.states == "parameter" else torch.float32
        for moment in range(self.facts.moments):
            if self.facts.states == "int8" and count >= _SMALLEST:
                yield f"state{moment}", torch.empty(count, dtype=torch.uint8)
                yield f"scale{moment}", torch.empty(math.ceil(count / _BLOCK), dtype=torch.float32)
            else:
                yield f"state{moment}", torch.empty(count, dtype=dtype)


class Stepper:
    """An optimizer over the local parts of `parameters`."""

    def __init__(self, parameters: list[Any], recipe: Recipe, facts: OptimizerFacts, tracker: Tracker) -> None:
        self.parameters = parameters
        self.local = [torch.nn.Parameter(local(p).detach()) for p in parameters]
        self.tracker = tracker
        self.max_grad_norm = recipe.optimizer.max_grad_norm
        self.optimizer, self.emulated = _make(self.local, recipe, facts)

    def make_states(self) -> None:
        """A first step with empty gradients, so that the measured one finds its states."""
        for parameter in self.local:
            parameter.grad = torch.empty_like(parameter)
        self.optimizer.step()
        for parameter in self.local:
            parameter.grad = None
        self._mark()

    def step(self) -> None:
        """Clip and step. Gradients are left to the caller."""
        with torch.no_grad():
            gradients = []
            for whole, part in zip(self.parameters, self.local, strict=True):
                part.grad = local(whole.grad) if whole.grad is not None else None
                if part.grad is not None:
                    gradients.append(part.grad)
            if self.max_grad_norm and gradients:
                norm = torch.nn.utils.get_total_norm(gradients)
                torch.nn.utils.clip_grads_with_norm_(
                    [p for p in self.local if p.grad is not None], self.max_grad_norm, norm
                )
                del norm
            del gradients
            self.optimizer.step()
        for part in self.local:
            part.grad = None
        self._mark()

    def _mark(self) -> None:
        for state in self.optimizer.state.values():
            for value in state.values():
                if isinstance(value, torch.Tensor):
                    self.tracker.mark(value, "optimizer_states")


def _make(parameters: list[Any], recipe: Recipe, facts: OptimizerFacts) -> tuple[Any, bool]:
    """The optimizer, and whether it is emulated."""
    o = recipe.optimizer
    options = {"lr": recipe.schedule.learning_rate, "betas": (o.beta1, o.beta2), "eps": o.epsilon}
    options["weight_decay"] = o.weight_decay
    states = recipe.precision.states
    if states is not Dtype.INT8 and facts.states == "parameter" and states is not recipe.precision.trainable:
        raise RecipegenError(f"{o.name} keeps states in the parameters' dtype, the recipe says {states.value}")
    if o.name in ("adamw_torch", "adamw_torch_fused"):
        fused = o.name == "adamw_torch_fused"
        return torch.optim.AdamW(parameters, fused=fused, foreach=not fused, **options), False
    if o.name == "sgd":
        return torch.optim.SGD(parameters, lr=recipe.schedule.learning_rate, foreach=True), False
    if o.name == "optimi_adamw":
        try:
            from optimi import AdamW
        except ImportError:
            raise RecipegenError("optimi_adamw needs torch-optimi", fix="pip install 'recipegen[simulate]'") from None
        return AdamW(parameters, foreach=False, **options), False
    return _States(parameters, facts), True
