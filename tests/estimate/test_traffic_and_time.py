"""Traffic by strategy, and the time it takes, against arithmetic that a person can redo.

N = 70,553,706,496; bf16 gradients of 70B are 141.1 GB. Ring factors: (n-1)/n for all-gather and reduce-scatter.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import samples
from hypothesis import given, settings
from hypothesis import strategies as st
from samples import STACK, cluster, gpu, recipe, rtx_5090

from recipegen.catalog import load_cluster
from recipegen.catalog.planning import planning
from recipegen.estimate import estimate
from recipegen.spec import Cluster, Collective, Dtype, Estimate, Method, Recipe, Strategy

N_70B = 70_553_706_496
GB = 1e9


def of(r: Recipe, where: Cluster) -> Estimate:
    return estimate(samples.model(r.model), where, r, STACK)


def found(e: Estimate, operation: str, group: str | None = None) -> list[Collective]:
    return [c for c in e.traffic.collectives if c.operation == operation and group in (None, c.group)]


def two_nodes(network_gb_s: float = 24.0) -> Cluster:
    card = gpu("RTX Pro 6000", 94.97, 180.0, spec_tflops=504.0)
    return cluster(card, 8, 2, network_gb_s, bus_bandwidth_gb_s=24.0)


def hybrid(**changes: object) -> Recipe:
    return recipe("llama-3.3-70b", Method.FULL, Strategy.FSDP2_HYBRID, 8, 2, **changes)  # type: ignore[arg-type]


def test_hybrid_shard_sends_bf16_gradients_once_over_one_nic() -> None:
    """Two replicas: 2 (R-1)/R = 1 pass of 141 GB, whatever the number of GPUs; 5.9 s at 24 GB/s."""
    (move,) = found(of(hybrid(), two_nodes()), "all_reduce", "network")
    assert move.bytes_per_step == 2 * N_70B
    assert move.seconds == pytest.approx(5.9, abs=0.05)


@pytest.mark.parametrize(("gb_s", "seconds"), [(15.5, 9.1), (11.5, 12.3), (2.8, 50.4)])
def test_slower_networks_take_the_seconds_of_one_pass(gb_s: float, seconds: float) -> None:
    (move,) = found(of(hybrid(), two_nodes(gb_s)), "all_reduce", "network")
    assert move.seconds == pytest.approx(seconds, abs=0.1)


def test_accumulation_amortises_the_reduction_but_not_the_gathering() -> None:
    one, many = of(hybrid(), two_nodes()), of(hybrid(gradient_accumulation=32), two_nodes())
    assert found(one, "all_reduce")[0].bytes_per_step == found(many, "all_reduce")[0].bytes_per_step
    gathered = [sum(c.bytes_per_step for c in found(e, "all_gather")) for e in (one, many)]
    assert gathered[1] == pytest.approx(32 * gathered[0])
    synced = of(hybrid(gradient_accumulation=32, sync_each_batch=True), two_nodes())
    assert found(synced, "all_reduce")[0].bytes_per_step == 32 * 2 * N_70B


def test_the_bottleneck_of_the_70b_recipe_is_inside_the_box() -> None:
    """16 GPUs x 1 x 4096 x 32 tokens: about 370 GB of all-gather and reduce-scatter per micro-batch at 24 GB/s, 15.4 s
    each, against 12.8 s of compute. When accumulation reduces once, the all-reduce between nodes is a few percent."""
    synced = of(hybrid(gradient_accumulation=32, sync_each_batch=True), two_nodes())
    inside = sum(c.seconds for c in synced.traffic.collectives if c.group == "node")
    assert inside / 32 == pytest.approx(15.4, rel=0.02)
    assert "all-gather over PCIe" in synced.time.bound_by
    once = of(hybrid(gradient_accumulation=32), two_nodes())
    between = sum(c.seconds for c in once.traffic.collectives if c.group == "network")
    assert 0.005 < between / once.time.step_s < 0.06


def test_compute_of_the_70b_recipe_is_about_400_seconds() -> None:
    """8 FLOP x 70.55e9 x 2.1e6 tokens / (16 x 180 TFLOPS) = 411 s, attention and the looked-up embedding aside."""
    parts = dict(
        of(hybrid(gradient_accumulation=32), cluster(gpu(tflops=180.0), 8, 2, 1e6, bus_bandwidth_gb_s=1e6)).time.parts_s
    )
    assert parts["compute"] == pytest.approx(411, rel=0.08)


def test_full_shard_across_nodes_pays_the_network_for_every_micro_batch() -> None:
    full = recipe("llama-3.3-70b", strategy=Strategy.FSDP2_FULL, nodes=2, gradient_accumulation=32)
    slow = two_nodes(11.5)
    across, inside = of(full, slow), of(hybrid(gradient_accumulation=32), slow)
    world = sum(c.bytes_per_step for c in across.traffic.collectives if c.group == "world")
    assert world > 32 * 2 * 2 * N_70B * 15 / 16 * 0.98
    assert across.time.step_s > 1.5 * inside.time.step_s


def test_communication_equals_compute_at_the_known_number_of_tokens() -> None:
    """Break-even of full sharding on PCIe: 7/8 x 6 B / 8 FLOP x TFLOPS / GB/s; 200 TFLOPS and 24 GB/s give 5.5k."""
    where = cluster(gpu("RTX Pro 6000", 94.97, 200.0), 8, bus_bandwidth_gb_s=24.0)

    def communication_over_compute(tokens: int) -> float:
        e = of(recipe("llama-3.3-70b", sequence_len=tokens, sync_each_batch=True), where)
        moved = sum(c.seconds for c in e.traffic.collectives)
        compute_s = 8 * N_70B * tokens / 200e12
        return moved / compute_s

    assert communication_over_compute(5500) == pytest.approx(1.0, rel=0.03)


def test_ddp_reduces_adapter_gradients_once() -> None:
    e = of(recipe(method=Method.LORA, strategy=Strategy.DDP, gradient_accumulation=4), rtx_5090())
    (move,) = e.traffic.collectives
    assert (move.operation, move.group, move.count_per_step) == ("all_reduce", "node", 1)
    assert move.bytes_per_step == round(2 * 7 / 8 * 4 * 41_943_040)


def test_not_resharding_saves_the_second_gathering() -> None:
    r = recipe()
    assert r.fsdp is not None
    kept = replace(r, fsdp=replace(r.fsdp, reshard_after_forward=False))
    gathered = [sum(c.bytes_per_step for c in found(of(x, rtx_5090()), "all_gather")) for x in (r, kept)]
    assert gathered[1] < 0.55 * gathered[0]


def test_zero_3_offload_waits_for_cpu_adam_and_nvme() -> None:
    where = replace(rtx_5090())
    cpu = of(recipe("qwen3-32b", strategy=Strategy.ZERO3_CPU), where)
    nvme = of(recipe("qwen3-32b", strategy=Strategy.ZERO3_NVME), where)
    assert dict(cpu.time.parts_s)["CPU Adam"] == pytest.approx(32_762_123_264 / 5e9)
    (read,), (write,) = found(nvme, "nvme_read"), found(nvme, "nvme_write")
    assert read.bytes_per_step == write.bytes_per_step == 12 * 32_762_123_264
    assert nvme.time.step_s > cpu.time.step_s


def test_frozen_weights_need_no_weight_gradients() -> None:
    full, lora, qlora = (
        dict(of(recipe(method=m, strategy=Strategy.SINGLE, gpus=1), rtx_5090(1)).time.parts_s)["compute"]
        for m in Method
    )
    assert lora / full == pytest.approx(6 / 8, rel=0.04)
    assert qlora == lora  # at a stated training rate only operations count


def test_experts_that_are_not_chosen_cost_no_compute() -> None:
    dense, sparse = (
        dict(of(recipe(n, strategy=Strategy.SINGLE, gpus=1), rtx_5090(1)).time.parts_s)["compute"]
        for n in ("qwen3-32b", "qwen3-30b-a3b")
    )
    assert sparse < 0.2 * dense


@settings(max_examples=40, deadline=None)
@given(
    strategy=st.sampled_from([s for s in Strategy if s is not Strategy.SINGLE]),
    method=st.sampled_from(list(Method)),
    micro=st.integers(1, 8),
    accumulation=st.integers(1, 8),
    sync=st.booleans(),
)
def test_parts_sum_to_the_step_and_name_what_bounds_it(
    strategy: Strategy, method: Method, micro: int, accumulation: int, sync: bool
) -> None:
    nodes = 2 if strategy is Strategy.FSDP2_HYBRID else 1
    r = recipe(
        method=method,
        strategy=strategy,
        nodes=nodes,
        micro_batch_size=micro,
        gradient_accumulation=accumulation,
        sync_each_batch=sync,
    )
    t = of(r, rtx_5090(8, nodes)).time
    assert t.step_s == pytest.approx(sum(s for _, s in t.parts_s))
    assert all(s >= 0 for _, s in t.parts_s)
    assert t.tokens_per_s * t.step_s == pytest.approx(r.global_batch_size * r.sequence_len)
    name, largest = max(t.parts_s, key=lambda p: p[1])
    assert t.bound_by == f"{name}, {largest / t.step_s:.0%} of the step"
    assert 0 < t.mfu < 1


def test_published_throughput_is_met() -> None:
    """Llama-2-7B QLoRA over two RTX 4090 trains 2,250 tokens/s and GPU with FSDP, 2,330 with DDP (seq 2048, micro-batch
    10 and 8; https://github.com/AnswerDotAI/fsdp_qlora benchmarks_03_2024.md)."""

    def tokens(strategy: Strategy, micro: int) -> float:
        r = recipe(
            "llama-2-7b",
            Method.QLORA,
            strategy,
            2,
            r=64,
            targets=("q_proj", "k_proj", "v_proj", "up_proj", "down_proj", "gate_proj"),
            precision=replace(samples.PURE_BF16, parameters=Dtype.NF4),
            sequence_len=2048,
            micro_batch_size=micro,
        )
        return of(r, load_cluster("2x-rtx-4090")).time.tokens_per_s / 2

    fsdp, ddp = tokens(Strategy.FSDP2_FULL, 10), tokens(Strategy.DDP, 8)
    assert fsdp == pytest.approx(2250, rel=0.15)
    assert ddp == pytest.approx(2330, rel=0.15)
    assert 0.9 < fsdp / ddp < 1.0


# --- what DeepSpeed does


def zero2(**changes: object) -> Recipe:
    return recipe(strategy=Strategy.ZERO2, gradient_accumulation=4, **changes)  # type: ignore[arg-type]


def test_zero_2_all_reduces_after_every_micro_batch() -> None:
    """DeepSpeed joins the slices of all ranks in a bucket and all-reduces it: 2 (n-1)/n of all gradients, 4 times."""
    e = of(zero2(), rtx_5090())
    (reduce,), (gather,) = found(e, "all_reduce"), found(e, "all_gather")
    assert not found(e, "reduce_scatter")
    assert reduce.count_per_step == 4
    assert reduce.bytes_per_step == round(4 * 2 * 2 * 7 / 8 * e.total_parameters)
    assert gather.bytes_per_step == round(2 * 7 / 8 * e.total_parameters)


def test_zero_1_reduces_once() -> None:
    r = zero2()
    assert r.deepspeed is not None
    one = of(replace(r, deepspeed=replace(r.deepspeed, stage=1)), rtx_5090())
    assert found(one, "all_reduce")[0].bytes_per_step * 4 == found(of(r, rtx_5090()), "all_reduce")[0].bytes_per_step


def test_zero_2_with_the_optimizer_on_the_host_brings_sums_back() -> None:
    """From the second micro-batch on a gradient's sum so far comes to the GPU, grows and goes back."""
    r = zero2()
    assert r.deepspeed is not None
    e = of(replace(r, deepspeed=replace(r.deepspeed, offload_optimizer="cpu")), rtx_5090())
    own = 2 * e.total_parameters / 8
    moved = {(c.operation, c.what): c.bytes_per_step for c in e.traffic.collectives if c.group == "host"}
    assert moved[("device_to_host", "gradients")] == round(4 * own)
    assert moved[("host_to_device", "gradients")] == round(3 * own)
    assert moved[("host_to_device", "parameters")] == round(own)


def test_zero_3_keeps_the_last_layers_between_forward_and_backward() -> None:
    """A small model is used again within max_reuse_distance, so it is gathered once; a large one nearly twice."""
    small, large = (
        sum(c.bytes_per_step for c in found(of(recipe(n, strategy=Strategy.ZERO3_CPU), rtx_5090()), "all_gather"))
        / (2 * 7 / 8 * samples.MODELS[n][1])
        for n in ("qwen2.5-0.5b", "llama-3.3-70b")
    )
    assert small == pytest.approx(1.0)
    assert large == pytest.approx(2.0, abs=0.01)


# --- overlap


def test_one_layer_of_a_pass_shows_and_the_rest_is_partly_hidden() -> None:
    """pass = c + m - overlap (L - 1) / L min(c, m), forward with the gathering, backward with both."""
    r = recipe(method=Method.LORA)
    slow = cluster(gpu(tflops=100.0), 8, bus_bandwidth_gb_s=5.0)
    free = cluster(gpu(tflops=100.0), 8, bus_bandwidth_gb_s=1e9)
    parts, alone = dict(of(r, slow).time.parts_s), dict(of(r, free).time.parts_s)
    moved = sum(c.seconds for c in of(r, slow).traffic.collectives)
    whole, compute_s = sum(parts.values()), sum(alone.values())
    assert whole < compute_s + moved
    assert whole > max(compute_s, moved)
    assert whole >= compute_s + moved - planning().overlap * (31 / 32) * min(compute_s, moved) - 1e-9


def test_a_stated_bandwidth_replaces_the_catalogues() -> None:
    r = recipe("llama-3.3-70b", method=Method.LORA, gpus=4)
    slow, fast = (load_cluster("4x-rtx-pro-6000", overrides={"bus_bandwidth_gb_s": rate}).node for rate in (10.0, 40.0))
    known = load_cluster("4x-rtx-pro-6000")
    seconds = [found(of(r, replace(known, node=node)), "all_gather")[0].seconds for node in (slow, known.node, fast)]
    assert seconds[0] == pytest.approx(4 * seconds[2])
    assert seconds[1] == pytest.approx(seconds[0] * 10.0 / 23.4)  # all-gather has a rate of its own there


def test_gloo_pays_an_all_reduce_for_a_reduce_scatter() -> None:
    cpu, card = (cluster(gpu(compute_capability=kind), 4) for kind in ("cpu", "sm_120"))
    r = recipe("qwen2.5-0.5b", gpus=4)
    slow, fast = (sum(c.bytes_per_step for c in found(of(r, c), "reduce_scatter")) for c in (cpu, card))
    assert slow == pytest.approx(2 * fast)
    assert "gloo" in " ".join(name for name, _ in of(r, cpu).time.parts_s)
