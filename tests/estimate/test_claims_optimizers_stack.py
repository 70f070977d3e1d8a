"""Bytes that optimizers and bitsandbytes' packed weights take; more in tests/catalog/test_stack_optimizers.py."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from cpu_allocations import measured

from recipegen.estimate.symbols import ABSMAX_BYTES_PER_PARAMETER, symbols
from recipegen.spec import Dtype, Method
from tests.simulate import tiny_recipes

pytestmark = pytest.mark.stack

COUNT, WIDTH = 8, 512
PARAMETERS = COUNT * WIDTH * WIDTH


def temporaries(dtype: str, **arguments: Any) -> float:
    """Bytes per parameter that a later step takes beside parameters, gradients and states."""
    import torch

    made = [torch.nn.Parameter(torch.zeros(WIDTH, WIDTH, dtype=getattr(torch, dtype))) for _ in range(COUNT)]
    for parameter in made:
        parameter.grad = torch.ones_like(parameter)
    optimizer = torch.optim.AdamW(made, lr=1e-3, **arguments)
    optimizer.step()
    (moment,) = measured(optimizer.step)
    assert moment.left < 0.01 * PARAMETERS
    return moment.peak / PARAMETERS


@pytest.mark.parametrize("dtype", [Dtype.FP32, Dtype.BF16])
def test_foreach_adamw_holds_one_more_copy_of_the_trainable_parameters(dtype: Dtype) -> None:
    name = {Dtype.FP32: "float32", Dtype.BF16: "bfloat16"}[dtype]
    facts = tiny_recipes.stack().optimizer("adamw_torch")
    assert facts.temporary_bytes_per_parameter(dtype) == dtype.bytes
    assert temporaries(name, foreach=True) == pytest.approx(dtype.bytes, rel=0.02)


@pytest.mark.parametrize("dtype", [Dtype.FP32, Dtype.BF16])
def test_fused_adamw_holds_none(dtype: Dtype) -> None:
    name = {Dtype.FP32: "float32", Dtype.BF16: "bfloat16"}[dtype]
    assert tiny_recipes.stack().optimizer("adamw_torch_fused").temporary_bytes_per_parameter(dtype) == 0
    assert temporaries(name, fused=True) == pytest.approx(0, abs=0.01)


def test_optimi_one_by_one_holds_a_few_copies_of_one_tensor() -> None:
    import optimi
    import torch

    made = [torch.nn.Parameter(torch.zeros(WIDTH, WIDTH, dtype=torch.bfloat16)) for _ in range(COUNT)]
    for parameter in made:
        parameter.grad = torch.ones_like(parameter)
    optimizer = optimi.AdamW(made, lr=1e-3, foreach=False)
    optimizer.step()
    (moment,) = measured(optimizer.step)
    assert moment.peak <= 3 * 2 * WIDTH * WIDTH


# --- bitsandbytes: optimizer states


def state_bytes(cls: str, elements: int) -> tuple[float, set[str]]:
    import bitsandbytes
    import torch

    parameter = torch.nn.Parameter(torch.randn(elements).bfloat16())
    parameter.grad = torch.randn_like(parameter)
    optimizer = getattr(bitsandbytes.optim, cls)([parameter], lr=1e-3)
    optimizer.step()
    state = optimizer.state[parameter]
    # the two maps from codes to values belong to the optimizer, not to a parameter
    own = {k: v for k, v in state.items() if torch.is_tensor(v) and not k.startswith("qmap")}
    dtypes = {str(own[k].dtype) for k in ("state1", "state2")}
    return sum(v.numel() * v.element_size() for v in own.values()) / elements, dtypes


@pytest.mark.filterwarnings("ignore:Paged optimizers")
@pytest.mark.parametrize("cls", ["AdamW8bit", "PagedAdamW8bit"])
def test_eight_bit_states_are_two_bytes_and_two_scales_per_256(cls: str) -> None:
    taken, dtypes = state_bytes(cls, 256 * 256)
    assert dtypes == {"torch.uint8"}
    name = {"AdamW8bit": "adamw_bnb_8bit", "PagedAdamW8bit": "paged_adamw_8bit"}[cls]
    facts = tiny_recipes.stack().optimizer(name)
    assert taken == pytest.approx(facts.state_bytes_per_parameter(Dtype.INT8), rel=1e-3)


@pytest.mark.parametrize(("elements", "dtype"), [(4095, "torch.float32"), (4096, "torch.uint8")])
def test_eight_bit_states_of_less_than_4096_elements_stay_fp32(elements: int, dtype: str) -> None:
    assert state_bytes("AdamW8bit", elements)[1] == {dtype}


@pytest.mark.filterwarnings("ignore:Paged optimizers")
def test_the_paged_32_bit_states_are_fp32_whatever_the_parameters() -> None:
    taken, dtypes = state_bytes("PagedAdamW32bit", 256 * 256)
    assert dtypes == {"torch.float32"}
    assert taken == pytest.approx(8, rel=1e-3)


def test_paged_states_are_managed_memory_and_not_torchs() -> None:
    """On a GPU they come from F.get_paged, that is cudaMallocManaged; those of less than 1e5 elements do not."""
    import inspect

    from bitsandbytes import functional
    from bitsandbytes.optim.optimizer import Optimizer8bit

    source = inspect.getsource(Optimizer8bit.get_state_buffer)
    assert "F.get_paged(" in source
    assert "1e5" in source
    assert "cget_managed_ptr" in inspect.getsource(functional.get_paged)


# --- bitsandbytes: packed weights


def test_a_4_bit_weight_is_half_a_byte_and_its_constants_are_what_the_estimate_says() -> None:
    import bitsandbytes as bnb
    import torch

    linear = bnb.nn.Linear4bit(1024, 4096, bias=False, compute_dtype=torch.bfloat16, quant_type="nf4").to("cpu")
    weights = 1024 * 4096
    state = linear.weight.quant_state
    assert linear.weight.numel() * linear.weight.element_size() == Dtype.NF4.bytes * weights
    constants = sum(x.numel() * x.element_size() for x in (state.absmax, state.state2.absmax))
    assert constants == pytest.approx(ABSMAX_BYTES_PER_PARAMETER * weights)
    tables = sum(x.numel() * x.element_size() for x in (state.code, state.state2.code, state.offset))
    assert tables < 2048


def test_constants_of_a_4_bit_weight_are_no_parameters_so_fsdp_does_not_split_them() -> None:
    import bitsandbytes as bnb

    linear = bnb.nn.Linear4bit(256, 256, bias=False, quant_type="nf4").to("cpu")
    assert [name for name, _ in linear.named_parameters()] == ["weight"]
    assert not list(linear.named_buffers())
    assert linear.weight.quant_state.absmax is not None


def test_an_8_bit_weight_has_one_fp32_scale_per_row() -> None:
    import bitsandbytes as bnb

    linear = bnb.nn.Linear8bitLt(1024, 4096, bias=False, has_fp16_weights=False).to("cpu")
    assert linear.weight.numel() * linear.weight.element_size() == Dtype.INT8.bytes * 1024 * 4096
    scales = linear.weight.SCB
    assert scales.numel() * scales.element_size() == 4 * 4096
    spec = replace(tiny_recipes.tiny(), hidden_size=1024)
    recipe = tiny_recipes.recipe(spec, Method.QLORA, precision=replace(tiny_recipes.ADAPTER, parameters=Dtype.INT8))
    x = symbols(spec, recipe, tiny_recipes.stack())
    assert x.packed == Dtype.INT8.bytes
    assert x.packed_constants * 1024 * 4096 == 4 * 4096


def test_a_4_bit_product_keeps_no_input_and_unpacks_one_weight_at_a_time() -> None:
    """bitsandbytes 0.50.2; before 0.43 the input stayed (`kept_graphs`)."""
    import bitsandbytes as bnb
    import torch

    width, tokens = 512, 4096
    layers = [
        bnb.nn.Linear4bit(width, width, bias=False, compute_dtype=torch.bfloat16, quant_type="nf4") for _ in "abc"
    ]
    layers = [layer.to("cpu") for layer in layers]
    source = torch.zeros(tokens, width, dtype=torch.bfloat16, requires_grad=True)
    held: list[Any] = []

    def forward() -> None:
        x = source
        for layer in layers:
            x = layer(x)
        held.append(x)

    forward()
    held.clear()
    ahead, back = measured(forward, lambda: held.pop().sum().backward())
    activation = 2 * tokens * width
    assert ahead.left == pytest.approx(activation, rel=0.05)  # the output alone
    assert back.peak < 4 * activation + 2 * 4 * width * width


# --- gradients


def test_gradients_of_adapters_stay_over_micro_batches_and_are_added_in_place() -> None:
    import torch

    linear = torch.nn.Linear(512, 512, bias=False)

    def backward() -> None:
        linear(torch.ones(1, 512)).sum().backward()

    first, second = measured(backward, backward)
    assert first.left == pytest.approx(4 * 512 * 512, rel=0.05)
    assert second.left == pytest.approx(first.left, rel=0.05)
    assert second.peak == pytest.approx(2 * first.left, rel=0.05)
