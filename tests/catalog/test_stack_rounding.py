"""What bf16 rounds away, with the real optimizers of the stack on plain CPU tensors."""

from __future__ import annotations

from typing import Any

import pytest

pytestmark = pytest.mark.stack

WEIGHTS = 20_000
STEPS = 50


def optimizer(name: str, parameter: Any, rate: float, *, decay: float = 0.0, beta2: float = 0.999) -> Any:
    import optimi
    import torch

    if name == "optimi_adamw":  # as Axolotl builds it: foreach off, betas and eps written out
        return optimi.AdamW([parameter], lr=rate, weight_decay=decay, betas=(0.9, beta2), eps=1e-8, foreach=False)
    return torch.optim.AdamW([parameter], lr=rate, weight_decay=decay, betas=(0.9, beta2), eps=1e-8)


def moved_along_the_drift(name: str, dtype: str, rate: float) -> tuple[float, float]:
    """Mean movement along a persistent gradient direction after STEPS steps, and the share of weights unchanged."""
    import torch

    torch.manual_seed(0)
    start = torch.randn(WEIGHTS) * 0.02
    direction = torch.sign(torch.randn(WEIGHTS))
    parameter = torch.nn.Parameter(start.to(getattr(torch, dtype)))
    before = parameter.detach().clone()
    made = optimizer(name, parameter, rate)
    for _ in range(STEPS):
        parameter.grad = (direction + torch.randn(WEIGHTS)).to(parameter.dtype)
        made.step()
    carried = torch.zeros(WEIGHTS)
    state = made.state[parameter]
    if state.get("kahan_comp") is not None:
        carried = state["kahan_comp"].float()
    change = parameter.detach().float() + carried - before.float()
    return float(-(change * direction).mean()), float((parameter.detach() == before).float().mean())


@pytest.mark.parametrize(
    ("rate", "moves_at_most", "unchanged_at_least"), [(1e-6, 0.05, 0.95), (1e-5, 0.25, 0.75), (2e-5, 0.40, 0.55)]
)
def test_pure_bf16_loses_most_of_a_fine_tuning_rate(
    rate: float, moves_at_most: float, unchanged_at_least: float
) -> None:
    exact, _ = moved_along_the_drift("adamw", "float32", rate)
    rounded, unchanged = moved_along_the_drift("adamw", "bfloat16", rate)
    assert rounded / exact < moves_at_most
    assert unchanged > unchanged_at_least


@pytest.mark.parametrize("rate", [1e-6, 1e-5, 1e-4])
def test_compensated_sums_carry_every_update(rate: float) -> None:
    exact, _ = moved_along_the_drift("adamw", "float32", rate)
    compensated, _ = moved_along_the_drift("optimi_adamw", "bfloat16", rate)
    assert compensated / exact == pytest.approx(1.0, abs=0.08)  # moments are bf16: a few per cent


def test_pure_bf16_is_nearly_whole_at_an_adapters_rate() -> None:
    exact, _ = moved_along_the_drift("adamw", "float32", 1e-4)
    rounded, _ = moved_along_the_drift("adamw", "bfloat16", 1e-4)
    assert rounded / exact > 0.85


@pytest.mark.parametrize("name", ["adamw", "optimi_adamw"])
def test_weight_decay_does_nothing_in_bf16_at_a_fine_tuning_rate(name: str) -> None:
    import torch

    torch.manual_seed(0)
    parameter = torch.nn.Parameter((torch.randn(WEIGHTS) * 0.02).bfloat16())
    before = parameter.detach().clone()
    made = optimizer(name, parameter, 1e-5, decay=0.1)  # lr x wd = 1e-6, far below 2^-9
    for _ in range(STEPS):
        parameter.grad = torch.zeros_like(parameter)
        made.step()
    assert torch.equal(parameter.detach(), before)


def test_weight_decay_of_two_thousandths_is_seen() -> None:
    import torch

    parameter = torch.nn.Parameter(torch.full((1000,), 0.0123).bfloat16())
    before = parameter.detach().clone()
    made = optimizer("adamw", parameter, 1.0, decay=4e-3)
    parameter.grad = torch.zeros_like(parameter)
    made.step()
    assert not torch.equal(parameter.detach(), before)


def second_moment_after_a_fall(name: str, beta2: float, dtype: str) -> float:
    """exp_avg_sq 500 steps after the gradient fell tenfold, relative to fp32's."""
    import torch

    torch.manual_seed(0)
    parameter = torch.nn.Parameter(torch.randn(2000).to(getattr(torch, dtype)))
    made = optimizer(name, parameter, 1e-6, beta2=beta2)
    for step in range(1000):
        scale = 1e-2 if step < 500 else 1e-3
        generator = torch.Generator().manual_seed(step)
        parameter.grad = (torch.randn(2000, generator=generator) * scale).to(parameter.dtype)
        made.step()
    return float(made.state[parameter]["exp_avg_sq"].float().mean())


@pytest.mark.parametrize(
    ("name", "beta2", "low", "high"),
    [
        ("optimi_adamw", 0.999, 1.3, 6.0),
        ("adamw", 0.999, 1.2, 3.0),
        ("optimi_adamw", 0.99, 0.9, 1.25),
        ("optimi_adamw", 0.95, 0.9, 1.1),
    ],
)
def test_bf16_second_moments_drift_at_beta2_0_999_and_not_at_0_99(
    name: str, beta2: float, low: float, high: float
) -> None:
    exact = second_moment_after_a_fall("adamw", beta2, "float32")
    ratio = second_moment_after_a_fall(name, beta2, "bfloat16") / exact
    assert low < ratio < high
