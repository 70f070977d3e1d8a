"""GPU memory: what the terms promise, and the three recipes that customers ask for."""

from __future__ import annotations

from dataclasses import replace

import pytest
import samples
from hypothesis import given, settings
from hypothesis import strategies as st
from samples import KAHAN, STACK, pro_6000, recipe, rtx_5090

from recipegen.estimate import estimate
from recipegen.estimate.lasting import LASTING
from recipegen.estimate.phases import BASIS
from recipegen.spec import (
    AttentionMemory,
    Cluster,
    Estimate,
    LossKernel,
    Method,
    Recipe,
    Strategy,
    Verdict,
)


def of(r: Recipe, where: Cluster) -> Estimate:
    return estimate(samples.model(r.model), where, r, STACK)


def hybrid_70b(method: Method = Method.FULL, **changes: object) -> Estimate:
    r = recipe("llama-3.3-70b", method, Strategy.FSDP2_HYBRID, 8, 2, **changes)  # type: ignore[arg-type]
    return of(r, pro_6000(8, 2))


# --- the customers' recipes


@pytest.mark.parametrize("accumulation", [1, 16])
def test_8b_full_fits_eight_5090_when_each_batch_is_synchronised(accumulation: int) -> None:
    e = of(recipe(gradient_accumulation=accumulation, sync_each_batch=True), rtx_5090())
    assert e.gpu.verdict is not Verdict.DOES_NOT_FIT
    expected = {1: 16.07e9, 16: 18.08e9}[accumulation]
    assert e.gpu.peak_allocated_bytes == pytest.approx(expected, rel=0.002)


def test_the_copied_8b_recipe_dies_of_unsharded_gradients() -> None:
    e = of(recipe(gradient_accumulation=16), rtx_5090())
    assert e.gpu.verdict is Verdict.DOES_NOT_FIT
    largest = max(e.gpu.terms, key=lambda term: term.bytes)
    assert largest.name == "unsharded_gradients"
    assert largest.bytes == 2 * 8_030_261_248


def test_70b_full_on_two_nodes_is_tight_and_nothing_more_fits() -> None:
    assert hybrid_70b().gpu.verdict is Verdict.TIGHT
    assert hybrid_70b(loss_kernel=LossKernel.CHUNKED_UPCAST).gpu.verdict is Verdict.TIGHT
    assert hybrid_70b(loss_kernel=LossKernel.FUSED_LINEAR).gpu.verdict is Verdict.TIGHT
    accumulating = hybrid_70b(gradient_accumulation=2, sync_each_batch=True)
    assert accumulating.gpu.verdict is Verdict.DOES_NOT_FIT
    kahan = hybrid_70b(precision=KAHAN, optimizer="optimi_adamw")
    assert kahan.gpu.verdict is Verdict.DOES_NOT_FIT
    assert kahan.gpu.peak_allocated_bytes - hybrid_70b().gpu.peak_allocated_bytes == 2 * 70_553_706_496 // 8


def test_70b_lora_fits_two_nodes() -> None:
    assert hybrid_70b(Method.LORA).gpu.verdict is Verdict.FITS


def test_405b_full_fits_nowhere() -> None:
    for nodes in (1, 2, 4):
        r = recipe("llama-3.1-405b", strategy=Strategy.FSDP2_FULL, nodes=nodes)
        assert of(r, pro_6000(8, nodes)).gpu.verdict is Verdict.DOES_NOT_FIT


def test_loading_counts_where_qlora_under_fsdp_arrives_whole_on_every_gpu() -> None:
    e = of(recipe("llama-3.3-70b", Method.QLORA), rtx_5090())
    assert e.gpu.phase == "load"
    assert e.gpu.verdict is Verdict.DOES_NOT_FIT


# --- sums and maxima

STRATEGIES = [s for s in Strategy if s is not Strategy.SINGLE]


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("method", list(Method))
@pytest.mark.parametrize("name", ["llama-3.2-1b", "qwen3-30b-a3b"])
def test_terms_sum_to_their_phase_and_the_peak_is_the_largest(strategy: Strategy, method: Method, name: str) -> None:
    nodes = 2 if strategy is Strategy.FSDP2_HYBRID else 1
    r = recipe(name, method, strategy, 4, nodes, gradient_accumulation=2, val_set_size=0.05)
    e = of(r, rtx_5090(4, nodes))
    for phase in e.gpu.phases:
        assert phase.bytes == sum(t.bytes for t in phase.terms)
        assert len({t.name for t in phase.terms}) == len(phase.terms)
        for term in phase.terms:
            assert isinstance(term.bytes, int)
            assert term.bytes > 0
            assert term.phase == phase.name
            assert term.basis == BASIS[term.name]
    assert e.gpu.peak_allocated_bytes == max(p.bytes for p in e.gpu.phases)
    assert e.gpu.allocated_low_bytes < e.gpu.peak_allocated_bytes < e.gpu.allocated_high_bytes
    assert e.gpu.needed_low_bytes <= e.gpu.needed_high_bytes
    assert e.gpu.reserved_low_bytes <= e.gpu.peak_reserved_bytes <= e.gpu.reserved_high_bytes
    names = [p.name for p in e.gpu.phases]
    assert {"load", "optimizer_step", "eval", "save"} <= set(names)
    assert len(names) == len(set(names))


def test_lasting_terms_are_named_terms() -> None:
    assert set(BASIS) >= LASTING


# --- what moves which way

PLAIN = st.fixed_dictionaries(
    {
        "name": st.sampled_from(["llama-3.2-1b", "qwen3-8b", "gemma-2-9b", "qwen3-30b-a3b"]),
        "method": st.sampled_from(list(Method)),
        "strategy": st.sampled_from([Strategy.DDP, Strategy.FSDP2_FULL, Strategy.ZERO2, Strategy.ZERO3_CPU]),
        "gradient_accumulation": st.sampled_from([1, 4]),
        "sync_each_batch": st.booleans(),
        "activation_checkpointing": st.booleans(),
        "loss_kernel": st.sampled_from(list(LossKernel)),
        "attention_memory": st.sampled_from(list(AttentionMemory)),
        "val_set_size": st.sampled_from([0.0, 0.05]),
    }
)


def allocated(r: Recipe) -> int:
    return of(r, rtx_5090(r.parallelism.gpus_per_node)).gpu.peak_allocated_bytes


@settings(max_examples=60, deadline=None)
@given(fields=PLAIN, micro=st.integers(1, 16), more=st.integers(1, 16))
def test_memory_never_falls_with_the_micro_batch(fields: dict[str, object], micro: int, more: int) -> None:
    small = recipe(**fields, micro_batch_size=micro)  # type: ignore[arg-type]
    assert allocated(small) <= allocated(replace(small, micro_batch_size=micro + more))


@settings(max_examples=60, deadline=None)
@given(fields=PLAIN, tokens=st.integers(64, 8192), more=st.integers(1, 8192))
def test_memory_never_falls_with_the_sequence(fields: dict[str, object], tokens: int, more: int) -> None:
    short = recipe(**fields, sequence_len=tokens)  # type: ignore[arg-type]
    assert allocated(short) <= allocated(replace(short, sequence_len=tokens + more))


@settings(max_examples=60, deadline=None)
@given(fields=PLAIN, power=st.integers(1, 5))
def test_memory_never_grows_with_the_shard_degree(fields: dict[str, object], power: int) -> None:
    fields = fields | {"strategy": Strategy.FSDP2_FULL}
    few = recipe(**fields, gpus=2**power)  # type: ignore[arg-type]
    many = recipe(**fields, gpus=2 ** (power + 1))  # type: ignore[arg-type]
    assert allocated(many) <= allocated(few)


@settings(max_examples=30, deadline=None)
@given(fields=PLAIN, replicas=st.sampled_from([2, 4]))
def test_hybrid_shard_needs_what_full_shard_of_one_node_needs(fields: dict[str, object], replicas: int) -> None:
    fields = fields | {"gradient_accumulation": 1}
    full = recipe(**fields | {"strategy": Strategy.FSDP2_FULL}, precision=samples.PURE_BF16)  # type: ignore[arg-type]
    hybrid = recipe(  # type: ignore[arg-type]
        **fields | {"strategy": Strategy.FSDP2_HYBRID}, nodes=replicas, precision=samples.PURE_BF16
    )
    one, many = of(full, rtx_5090()), of(hybrid, rtx_5090(8, replicas))
    assert many.gpu.peak_allocated_bytes == one.gpu.peak_allocated_bytes


def test_hybrid_shard_keeps_reduced_shards_while_it_accumulates() -> None:
    fields = {"gradient_accumulation": 2, "sync_each_batch": True, "loss_kernel": LossKernel.FUSED_LINEAR}
    full = of(recipe(**fields), rtx_5090())  # type: ignore[arg-type]
    hybrid = of(recipe(strategy=Strategy.FSDP2_HYBRID, nodes=2, **fields), rtx_5090(8, 2))  # type: ignore[arg-type]
    last = {e: next(p for p in e.gpu.phases if p.name == "layer_backward_last") for e in (full, hybrid)}
    assert "reduced_shards" in {t.name for t in last[hybrid].terms}
    assert last[hybrid].bytes > last[full].bytes


def test_uneven_experts_cost_the_rank_that_has_more() -> None:
    """8 experts over 16 ranks: rank 0 holds an eighth of them and gathers twice their bytes."""
    on_8 = of(recipe("mixtral-8x7b", gpus=8), pro_6000(8))
    on_16 = of(recipe("mixtral-8x7b", gpus=16), pro_6000(16))
    parameters = [next(t.bytes for t in e.gpu.terms if t.name == "parameters") for e in (on_8, on_16)]
    assert parameters[1] > 0.95 * parameters[0]


def test_fused_loss_removes_the_logits_and_evaluation_brings_them_back() -> None:
    stock, fused = recipe(), recipe(loss_kernel=LossKernel.FUSED_LINEAR, val_set_size=0.05)
    logits = {
        phase.name: next((t.bytes for t in phase.terms if t.name == "logits_and_loss"), 0)
        for phase in of(fused, rtx_5090()).gpu.phases
    }
    assert logits["loss_backward"] < 0.5 * 12 * 4096 * 128256
    assert logits["eval"] == 10 * 4096 * 128256
    assert allocated(replace(fused, val_set_size=0.0)) < allocated(stock)


def test_chunked_upcast_keeps_the_log_softmax_where_it_cannot_be_compiled() -> None:
    r = recipe(loss_kernel=LossKernel.CHUNKED_UPCAST)
    without_triton = samples.cluster(samples.gpu(triton=False))

    def backward(where: Cluster) -> int:
        phase = next(p for p in of(r, where).gpu.phases if p.name == "loss_backward")
        return next(t.bytes for t in phase.terms if t.name == "logits_and_loss")

    TV = 4096 * 128256
    assert 2 * TV <= backward(rtx_5090()) <= 4 * TV
    assert 4 * TV <= backward(without_triton) < 12 * TV
    assert allocated(r) < allocated(recipe())


def test_foreach_needs_a_copy_in_the_optimizer_step_and_fused_does_not() -> None:
    def step(optimizer: str) -> dict[str, int]:
        r = recipe(optimizer=optimizer, strategy=Strategy.SINGLE, gpus=1)
        phase = next(p for p in of(r, pro_6000(1)).gpu.phases if p.name == "optimizer_step")
        return {t.name: t.bytes for t in phase.terms}

    assert "optimizer_temporaries" not in step("adamw_torch_fused")
    assert step("adamw_torch")["optimizer_temporaries"] == 2 * 8_030_261_248


def test_offload_empties_the_gpu() -> None:
    r = recipe("llama-3.3-70b", strategy=Strategy.ZERO3_CPU)
    terms = {t.name for phase in of(r, pro_6000()).gpu.phases for t in phase.terms}
    assert not terms & {"parameters", "optimizer_states", "master_weights", "gradients"}


def test_activation_offloading_leaves_two_layers_on_the_gpu() -> None:
    def saved(offloading: bool) -> int:
        e = of(recipe(sequence_len=32768, activation_offloading=offloading), rtx_5090())
        phase = next(p for p in e.gpu.phases if p.name == "loss_backward")
        return next(t.bytes for t in phase.terms if t.name == "saved_activations")

    assert saved(False) - saved(True) == 2 * 32768 * 4096 * (32 - 2)


# --- the largest micro-batch


def test_dora_trains_a_magnitude_for_every_output() -> None:
    """As many as the simulation of peft 0.20 finds (tests/corpus/simulated-peaks-hard.csv, n_trainable)."""
    r = recipe("llama-3.1-8b", Method.LORA, Strategy.DDP)
    assert r.adapter is not None
    plain, dora = (replace(r, adapter=replace(r.adapter, use_dora=on)) for on in (False, True))
    assert of(plain, pro_6000()).trainable_parameters == 41_943_040
    assert of(dora, pro_6000()).trainable_parameters == 43_319_296
