"""The time of arithmetic on one GPU: what bounds it, and what each mechanism adds."""

from __future__ import annotations

from dataclasses import replace

import pytest
import samples
from samples import STACK, recipe

from recipegen.catalog import load_cluster
from recipegen.catalog.planning import planning
from recipegen.estimate import flops
from recipegen.estimate.compute import Compute, compute
from recipegen.estimate.kernels import Kernels, kernels_of, launches
from recipegen.estimate.symbols import Symbols, symbols
from recipegen.spec import AttentionMemory, Dtype, Gpu, LossKernel, Method, Recipe, Strategy

A100 = load_cluster("1x-a100-80gb").gpu


def one_gpu(name: str = "mistral-7b", method: Method = Method.LORA, **changes: object) -> Recipe:
    return recipe(name, method, Strategy.SINGLE, 1, **changes)  # type: ignore[arg-type]


def x_of(r: Recipe) -> Symbols:
    return symbols(samples.model(r.model), r, STACK)


def seconds(r: Recipe, gpu: Gpu = A100, kernels: Kernels | None = None, **changes: object) -> Compute:
    x = replace(x_of(r), **changes)  # type: ignore[arg-type]
    return compute(x, gpu, kernels or kernels_of(r), r.tokens_per_micro_batch, tf32=r.tf32)


def test_operations_per_token_are_those_of_the_shapes() -> None:
    """Mistral-7B: 2 N forward without the embedding, causal attention 2 s q L, 6 N in all for a full fine-tune."""
    full, lora = x_of(one_gpu(method=Method.FULL)), x_of(one_gpu())
    matmul = 7_248_023_552 - 32768 * 4096
    attention = 2 * 4096 * 4096 * 32
    assert flops.forward(full).all == pytest.approx(2 * matmul + attention)
    assert flops.model_flops(full) == pytest.approx(6 * matmul + 3.5 * attention)
    assert flops.backward(lora).layers == flops.forward(lora).layers
    assert flops.recompute(full).all == pytest.approx(2 * (matmul - 32768 * 4096) + attention)


def test_a_long_micro_batch_is_bound_by_the_gpu_and_a_short_one_by_its_host() -> None:
    long, longer, short, shorter = (seconds(one_gpu(sequence_len=s)).all for s in (4096, 8192, 128, 64))
    assert longer > 1.9 * long
    assert shorter > 0.95 * short
    x = x_of(one_gpu(sequence_len=64))
    kernels = kernels_of(one_gpu())
    assert shorter == pytest.approx(32 * 4 * launches(x, kernels) * planning().kernel_launch_s, rel=0.05)


def test_published_rates_of_one_a100_are_met() -> None:
    """Mistral-7B, 8 x 4096 tokens, Liger layers: 3,517 tokens/s full, 3,943 with LoRA on attention
    (https://github.com/foundation-model-stack/fms-acceleration a100_80gb_liger.csv)."""
    full = one_gpu(method=Method.FULL, micro_batch_size=8, loss_kernel=LossKernel.FUSED_LINEAR)
    lora = one_gpu(micro_batch_size=8, loss_kernel=LossKernel.FUSED_LINEAR, targets=samples.ATTENTION)
    for r, published in ((full, 3517), (lora, 3943)):
        kernels = replace(kernels_of(r), fused_layers=True)
        assert r.tokens_per_micro_batch / seconds(r, kernels=kernels).all == pytest.approx(published, rel=0.08)


def test_unpacking_4_bit_weights_costs_their_bytes_whatever_the_tokens() -> None:
    """Three passes read half a byte and write two for every quantised weight."""
    unpacked = 3 * 2.5 * x_of(one_gpu(method=Method.QLORA)).shape.Q / (2039e9 * planning().memory_share)
    for tokens in (8192, 32768):
        lora, qlora = (seconds(one_gpu(method=m, sequence_len=tokens)).all for m in (Method.LORA, Method.QLORA))
        assert qlora - lora == pytest.approx(unpacked, rel=0.01)


def test_fused_layers_save_bytes_and_launches() -> None:
    r = one_gpu()
    assert seconds(r, kernels=replace(kernels_of(r), fused_layers=True)).forward < 0.95 * seconds(r).forward
    compiled = one_gpu(torch_compile=True)
    assert launches(x_of(compiled), kernels_of(compiled)) < launches(x_of(r), kernels_of(r))


def test_attention_that_skips_nothing_costs_more_and_eager_attention_most() -> None:
    flash, masked, eager = (
        seconds(one_gpu(attention_memory=kind, sequence_len=8192)).all
        for kind in (AttentionMemory.FLASH, AttentionMemory.MASKED, AttentionMemory.EAGER)
    )
    assert 1.05 * flash < masked < eager


def test_wider_arithmetic_is_slower() -> None:
    r = one_gpu(method=Method.FULL, tf32=True)
    half, tf32 = seconds(r).all, seconds(r, c=Dtype.FP32.bytes).all
    plain = seconds(replace(r, tf32=False), c=Dtype.FP32.bytes).all
    assert 1.5 * half < tf32 < 2.1 * half
    assert plain > 4 * tf32  # A100: 19.5 TFLOPS outside the tensor cores


def test_adapters_left_in_fp32_are_slower() -> None:
    r = one_gpu(tf32=False, r=64)
    assert seconds(r, kernels=replace(kernels_of(r), fp32_adapters=True)).all > 1.03 * seconds(r).all


def test_a_person_s_own_training_rate_replaces_ours() -> None:
    r = one_gpu(method=Method.FULL)
    x = x_of(r)
    stated = load_cluster("1x-a100-80gb", overrides={"gpu_training_tflops": 100}).gpu
    operations = flops.forward(x).all + flops.backward(x).all + flops.recompute(x).all
    assert seconds(r, gpu=stated).all == pytest.approx(4096 * operations / 100e12)
    faster = load_cluster("1x-a100-80gb", overrides={"gpu_matmul_tflops": 300}).gpu
    assert seconds(r, gpu=faster).all < seconds(r).all


def test_few_tokens_cannot_be_faster_than_reading_the_weights() -> None:
    gpu = replace(A100, matmul_tflops=1e6)
    whole = seconds(one_gpu("llama-3.3-70b", sequence_len=16), gpu=gpu)
    read = 2 * 80 * x_of(one_gpu("llama-3.3-70b")).shape.P_l / (2039e9 * planning().memory_share)
    assert whole.forward >= read


def test_dora_pays_for_the_norms_of_the_adapted_weights() -> None:
    r = one_gpu()
    assert r.adapter is not None
    dora = replace(r, adapter=replace(r.adapter, use_dora=True))
    assert seconds(dora).all > seconds(r).all


@pytest.mark.parametrize("gpu", ["rtx-4090", "rtx-5090", "rtx-pro-6000", "h100", "l4"])
def test_a_training_step_reaches_between_a_third_and_all_of_a_matrix_product(gpu: str) -> None:
    card = load_cluster(f"1x-{gpu}").gpu
    assert card.matmul_tflops is not None
    r = one_gpu("llama-3.1-8b", micro_batch_size=2)
    x = x_of(r)
    operations = flops.forward(x).all + flops.backward(x).all + flops.recompute(x).all
    reached = operations * r.tokens_per_micro_batch / seconds(r, gpu=card).all / (card.matmul_tflops * 1e12)
    assert 0.33 < reached < planning().matmul_share
