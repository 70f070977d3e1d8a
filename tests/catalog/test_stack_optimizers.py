"""What the optimizers really keep, and how the trainers really build them."""

from __future__ import annotations

import inspect
import os
from collections.abc import Iterator
from typing import Any

import pytest

from recipegen.catalog.stack import load_stack
from recipegen.spec import Dtype

pytestmark = pytest.mark.stack
STACK = load_stack()


@pytest.fixture
def own_environment() -> Iterator[None]:
    """TrainingArguments leaves variables and Accelerate's state behind."""
    before = dict(os.environ)
    yield
    from accelerate.state import AcceleratorState

    AcceleratorState._reset_state(reset_partial_state=True)
    os.environ.clear()
    os.environ.update(before)


def stepped(build: Any, dtype: str) -> Any:
    """The state of one parameter after one step."""
    import torch

    parameter = torch.nn.Parameter(torch.randn(64, 128).to(getattr(torch, dtype)))
    parameter.grad = torch.randn_like(parameter)
    made = build([parameter])
    made.step()
    return made.state[parameter]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("fused", [True, False])
def test_torch_adamw_keeps_two_moments_in_the_parameters_dtype(dtype: str, fused: bool) -> None:
    import torch

    state = stepped(lambda p: torch.optim.AdamW(p, lr=1e-3, fused=fused), dtype)
    moments = {key: str(value.dtype) for key, value in state.items() if key != "step"}
    assert moments == {"exp_avg": f"torch.{dtype}", "exp_avg_sq": f"torch.{dtype}"}
    facts = STACK.optimizer("adamw_torch_fused")
    assert (facts.moments, facts.states, facts.compensation) == (2, "parameter", False)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_optimi_compensates_bf16_parameters_on_its_own(dtype: str) -> None:
    import optimi

    state = stepped(lambda p: optimi.AdamW(p, lr=1e-3, foreach=False), dtype)
    kept = {key: str(value.dtype) for key, value in state.items() if value is not None and key != "step"}
    expected = {"exp_avg": f"torch.{dtype}", "exp_avg_sq": f"torch.{dtype}"}
    if dtype == "bfloat16":
        expected["kahan_comp"] = "torch.bfloat16"
    assert {key: value for key, value in kept.items() if key in (*expected, "kahan_comp")} == expected
    facts = STACK.optimizer("optimi_adamw")
    assert (facts.moments, facts.states, facts.compensation) == (2, "parameter", True)


def test_optimi_has_other_defaults_than_adamw() -> None:
    """Why betas and eps are always written out: changing `optimizer` alone would change them."""
    import optimi

    defaults = {name: p.default for name, p in inspect.signature(optimi.AdamW).parameters.items()}
    assert defaults["betas"] == (0.9, 0.99)
    assert defaults["eps"] == 1e-6
    assert defaults["kahan_sum"] is None


def test_eight_bit_adamw_keeps_one_byte_a_moment_and_a_scale_a_block() -> None:
    import bitsandbytes
    import torch

    parameter = torch.nn.Parameter(torch.randn(256, 256).bfloat16())
    parameter.grad = torch.randn_like(parameter)
    made = bitsandbytes.optim.AdamW8bit([parameter], lr=1e-3)
    made.step()
    state = made.state[parameter]
    assert {str(state[key].dtype) for key in ("state1", "state2")} == {"torch.uint8"}
    per_parameter = (
        sum(state[key].numel() * state[key].element_size() for key in ("state1", "state2", "absmax1", "absmax2"))
        / parameter.numel()
    )
    assert per_parameter == pytest.approx(STACK.optimizer("adamw_bnb_8bit").state_bytes_per_parameter(Dtype.INT8))


def axolotl_optimizer(**settings: Any) -> tuple[Any, dict[str, Any]]:
    """The class and arguments that Axolotl's builder hands to the trainer for `optimizer: optimi_adamw`."""
    from axolotl.core.builders.base import TrainerBuilderBase
    from axolotl.utils.dict import DictDefault

    class Builder(TrainerBuilderBase):
        def __init__(self, cfg: Any) -> None:
            self.cfg = cfg

        def build(self, total_num_steps: int) -> None: ...

    trainer: dict[str, Any] = {}
    arguments = {"learning_rate": 1e-5, "weight_decay": 0.0, **{k: v for k, v in settings.items() if k != "optim_args"}}
    config = DictDefault({"optimizer": "optimi_adamw", "optim_args": settings.get("optim_args")})
    Builder(config)._configure_optimizer(arguments, trainer)
    found: tuple[Any, dict[str, Any]] = trainer["optimizer_cls_and_kwargs"]
    return found


def test_axolotl_passes_betas_only_when_both_are_set_and_eps_only_when_it_is() -> None:
    import optimi

    cls, arguments = axolotl_optimizer()
    assert cls is optimi.AdamW
    assert arguments == {"lr": 1e-5, "weight_decay": 0.0, "foreach": False}
    assert "betas" not in axolotl_optimizer(adam_beta2=0.99)[1]
    full = axolotl_optimizer(adam_beta1=0.9, adam_beta2=0.99, adam_epsilon=1e-8)[1]
    assert (full["betas"], full["eps"]) == ((0.9, 0.99), 1e-8)


def test_a_switch_in_an_optim_args_string_is_always_on() -> None:
    """Why `optim_args` is written as a mapping: the string form gives 'False', which is truthy."""
    assert axolotl_optimizer(optim_args="kahan_sum=False")[1]["kahan_sum"] == "False"
    assert axolotl_optimizer(optim_args={"kahan_sum": False})[1]["kahan_sum"] is False


def test_names_that_axolotl_lists_and_cannot_build() -> None:
    from axolotl.core.builders.base import TrainerBuilderBase
    from axolotl.utils.dict import DictDefault

    class Builder(TrainerBuilderBase):
        def __init__(self, cfg: Any) -> None:
            self.cfg = cfg

        def build(self, total_num_steps: int) -> None: ...

    for name in ("ao_adamw_8bit", "ao_adamw_4bit"):
        with pytest.raises(ValueError, match="Unhandled optimizer"):
            Builder(DictDefault({"optimizer": name}))._configure_optimizer(
                {"learning_rate": 1e-5, "weight_decay": 0.0}, {}
            )


@pytest.mark.usefixtures("own_environment")
@pytest.mark.parametrize(
    ("name", "expected"), [("adamw_torch_fused", {"fused": True}), ("adamw_torch", {}), ("sgd", {})]
)
def test_transformers_builds_what_the_table_assumes(name: str, expected: dict[str, Any], tmp_path: Any) -> None:
    import torch
    from transformers import Trainer, TrainingArguments

    arguments = TrainingArguments(
        output_dir=str(tmp_path), optim=name, adam_beta1=0.9, adam_beta2=0.98, adam_epsilon=1e-7, use_cpu=True
    )
    cls, kwargs = Trainer.get_optimizer_cls_and_kwargs(arguments)
    assert issubclass(cls, torch.optim.Optimizer)
    assert expected.items() <= kwargs.items()
    if name.startswith("adamw"):
        assert (kwargs["betas"], kwargs["eps"]) == ((0.9, 0.98), 1e-7)
