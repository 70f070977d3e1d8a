"""Host memory and disk of one node."""

from __future__ import annotations

from dataclasses import replace

import pytest
import samples
from samples import FP32, KAHAN, STACK, pro_6000, recipe, rtx_5090

from recipegen.estimate import estimate
from recipegen.spec import Cluster, DataFormat, DatasetSpec, Estimate, Lengths, Method, Recipe, Strategy

N_8B, N_70B = 8_030_261_248, 70_553_706_496


def of(r: Recipe, where: Cluster) -> Estimate:
    return estimate(samples.model(r.model), where, r, STACK)


def load(e: Estimate) -> dict[str, int]:
    return {t.name: t.bytes for t in e.host.terms if t.phase == "load"}


def steady(e: Estimate) -> dict[str, int]:
    return {t.name: t.bytes for t in e.host.terms if t.phase == "steady"}


def efficient(r: Recipe) -> Recipe:
    assert r.fsdp is not None
    return replace(r, fsdp=replace(r.fsdp, cpu_ram_efficient_loading=True))


# --- loading


def test_a_mapped_checkpoint_costs_no_host_memory() -> None:
    assert "model_on_cpu" not in load(of(recipe("llama-3.3-70b"), pro_6000()))


def test_efficient_loading_fills_every_other_rank_with_zeros_in_a_full_fine_tune() -> None:
    e = of(efficient(recipe("llama-3.3-70b")), pro_6000())
    assert load(e)["model_on_cpu"] == 7 * 2 * N_70B
    assert e.host.peak_bytes > e.host.capacity_bytes


def test_efficient_loading_keeps_other_ranks_empty_for_adapters_in_axolotl_only() -> None:
    r = efficient(recipe("llama-3.3-70b", Method.LORA))
    assert "model_on_cpu" not in load(of(r, pro_6000()))
    assert load(of(replace(r, trainer="accelerate"), pro_6000()))["model_on_cpu"] == 7 * 2 * N_70B


def test_another_dtype_than_the_files_is_real_memory_in_every_rank() -> None:
    assert load(of(recipe(precision=FP32), rtx_5090()))["model_on_cpu"] == 8 * 4 * N_8B


def test_stacked_experts_are_real_memory_in_every_rank() -> None:
    on_cpu = load(of(recipe("qwen3-30b-a3b"), pro_6000()))["model_on_cpu"]
    assert 8 * 2 * 28e9 < on_cpu < 8 * 2 * 30e9


@pytest.mark.parametrize("method", list(Method))
def test_ddp_loads_one_tensor_at_a_time(method: Method) -> None:
    terms = load(of(recipe(method=method, strategy=Strategy.DDP), rtx_5090()))
    assert terms["largest_tensor"] == 8 * 2 * 128256 * 4096
    assert "model_on_cpu" not in terms


# --- offload


def test_zero_3_offload_of_70b_needs_more_than_one_box_has() -> None:
    """18 B per parameter are 1.27 TB, with buffers about 1.65 TB; between the published 1.3 and 1.9 TB."""
    e = of(recipe("llama-3.3-70b", strategy=Strategy.ZERO3_CPU), pro_6000())
    parts = steady(e)
    exact = parts["parameters"] + parts["master_weights"] + parts["optimizer_states"] + parts["gradients"]
    assert exact == 18 * N_70B
    assert parts["offload_buffers"] == round(0.3 * exact)
    assert 1.3e12 < e.host.steady_bytes < 1.9e12
    assert e.host.peak_bytes > e.host.capacity_bytes


def test_33b_with_offload_is_near_the_published_750_to_800_gb() -> None:
    """https://github.com/deepspeedai/DeepSpeed/issues/3448; Qwen3-32B stands for a 33B model."""
    e = of(recipe("qwen3-32b", strategy=Strategy.ZERO3_CPU), pro_6000())
    assert e.host.steady_bytes == pytest.approx(775e9, rel=0.08)


def test_nodes_share_what_is_offloaded() -> None:
    one, two = (
        steady(of(recipe("llama-3.3-70b", strategy=Strategy.ZERO3_CPU, nodes=n), pro_6000(8, n))) for n in (1, 2)
    )
    assert two["optimizer_states"] == pytest.approx(one["optimizer_states"] / 2, abs=1)


def test_nvme_moves_states_from_memory_to_disk() -> None:
    cpu = of(recipe("llama-3.3-70b", strategy=Strategy.ZERO3_CPU), pro_6000())
    nvme = of(recipe("llama-3.3-70b", strategy=Strategy.ZERO3_NVME), pro_6000())
    assert nvme.host.steady_bytes < 0.5 * cpu.host.steady_bytes
    assert nvme.disk.swap_bytes >= 12 * N_70B
    assert cpu.disk.swap_bytes == 0


def test_offloaded_activations_wait_in_host_memory() -> None:
    r = recipe("llama-3.3-70b", sequence_len=4096, activation_offloading=True)
    assert steady(of(r, pro_6000()))["offloaded_activations"] == 8 * 2 * 4096 * 8192 * 80


def test_the_prefetch_trap_of_axolotl_shows() -> None:
    """Unset, Axolotl takes a worker per GPU and 256 batches ahead in each."""
    r = recipe(micro_batch_size=4)
    trap = replace(r, loading=replace(r.loading, dataloader_workers=8, prefetch_factor=256))
    assert of(trap, rtx_5090()).host.steady_bytes > 2 * of(r, rtx_5090()).host.steady_bytes


# --- disk


def test_a_checkpoint_holds_parameters_and_states() -> None:
    assert of(recipe(), rtx_5090()).disk.checkpoint_bytes == 6 * N_8B
    kahan = recipe(precision=KAHAN, optimizer="optimi_adamw")
    assert of(kahan, rtx_5090()).disk.checkpoint_bytes == 8 * N_8B
    gathered = of(recipe(strategy=Strategy.ZERO3_CPU), rtx_5090()).disk.checkpoint_bytes
    assert gathered == (2 + 12) * N_8B
    twice = of(recipe(strategy=Strategy.ZERO2), rtx_5090()).disk.checkpoint_bytes
    assert twice == (2 + 2 + 12) * N_8B
    adapter = of(recipe(method=Method.LORA), rtx_5090()).disk.checkpoint_bytes
    assert adapter == 12 * 41_943_040


def test_saving_the_model_alone_leaves_the_states_out() -> None:
    r = recipe()
    only = replace(r, saving=replace(r.saving, save_only_model=True))
    assert of(only, rtx_5090()).disk.checkpoint_bytes == 2 * N_8B


def test_one_checkpoint_more_than_the_limit_is_on_the_disk() -> None:
    disk = of(recipe(), rtx_5090()).disk
    assert disk.checkpoints_kept == 3
    assert disk.total_bytes == disk.download_bytes + 3 * disk.checkpoint_bytes
    assert disk.download_bytes == 2 * N_8B


# --- how long an epoch is


def data(rows: int = 10_000, mean: float = 500.0, longest: int = 2000) -> DatasetSpec:
    tokens = round(rows * mean)
    lengths = Lengths(
        "tokenizer",
        rows,
        tokens,
        mean,
        480,
        1800,
        longest,
        ((2048, rows - 100, tokens - 600_000), (8192, 100, 600_000)),
    )
    return DatasetSpec("data.jsonl", DataFormat.ALPACA, rows, lengths, ())


def test_packing_counts_tokens_and_padding_counts_rows() -> None:
    packed = of(recipe(datasets=(data(),)), rtx_5090()).time
    padded = of(recipe(datasets=(data(),), packing=False), rtx_5090()).time
    assert packed.steps_per_epoch == -(-9_900 // 9 // 8)  # nine rows of 444 tokens fill a sequence of 4096
    assert padded.steps_per_epoch == -(-9_900 // 8)
    assert packed.epoch_s == pytest.approx(packed.steps_per_epoch * packed.step_s)


def test_rows_that_are_not_padded_to_the_sequence_cost_their_own_length() -> None:
    full = of(recipe(datasets=(data(),), packing=False), rtx_5090()).time
    short = of(recipe(datasets=(data(),), packing=False, pad_to_sequence_len=False), rtx_5090()).time
    assert short.step_s < full.step_s


def test_an_unmeasured_data_set_has_no_epoch() -> None:
    unknown = DatasetSpec("org/data", DataFormat.ALPACA, None, None, ())
    time = of(recipe(datasets=(data(), unknown)), rtx_5090()).time
    assert (time.steps_per_epoch, time.epoch_s, time.total_s) == (None, None, None)


def test_max_steps_bound_the_run() -> None:
    time = of(recipe(datasets=(data(),), max_steps=7), rtx_5090()).time
    assert time.total_s == pytest.approx(7 * time.step_s)
