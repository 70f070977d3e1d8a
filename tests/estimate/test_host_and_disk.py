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


def test_zero_3_offload_holds_22_bytes_per_parameter_and_the_rounding_of_pinned_blocks() -> None:
    """Master 4, moments 8, gradients 4 + 2, parameters 2 + 2; 70.6e9 parameters over 8 ranks are 17.6 GB in bf16, which
    a pinned block of 2^35 bytes holds."""
    e = of(recipe("llama-3.3-70b", strategy=Strategy.ZERO3_CPU), pro_6000())
    parts = steady(e)
    assert parts["master_weights"] == 4 * N_70B
    assert parts["optimizer_states"] == 8 * N_70B
    assert parts["parameters"] == parts["gradient_buffer"] == 8 * 2**35
    assert 4 * N_70B < parts["gradients"] < 1.15 * 4 * N_70B
    assert 2 * N_70B < parts["parameters_as_they_arrived"] < 1.2 * 2 * N_70B
    assert e.host.peak_bytes > e.host.capacity_bytes


def test_pageable_buffers_are_not_rounded() -> None:
    r = recipe("llama-3.3-70b", strategy=Strategy.ZERO3_CPU)
    assert r.deepspeed is not None
    parts = steady(of(replace(r, deepspeed=replace(r.deepspeed, pin_memory=False)), pro_6000()))
    assert parts["gradients"] == pytest.approx(4 * N_70B)
    assert "parameters_as_they_arrived" not in parts


@pytest.mark.parametrize(("gpus", "least", "most"), [(1, 744e9, 800e9), (4, 500e9, 800e9), (8, 750e9, 830e9)])
def test_published_host_memory_of_offloading_a_32b_model(gpus: int, least: float, most: float) -> None:
    """One GPU: killed with 744 GB (https://github.com/hiyouga/LlamaFactory/issues/6755). Four: 500 GB were not enough
    (https://github.com/IST-DASLab/llmq benchmarks/4090x4.md). 33B used 750 to 800 GB, its GPUs not printed
    (https://github.com/deepspeedai/DeepSpeed/issues/3448)."""
    e = of(recipe("qwen3-32b", strategy=Strategy.ZERO3_CPU, gpus=gpus), pro_6000(gpus))
    assert least < e.host.steady_bytes < most


def test_zero_2_with_the_optimizer_on_the_host_keeps_states_there() -> None:
    r = recipe(strategy=Strategy.ZERO2)
    assert r.deepspeed is not None
    assert "optimizer_states" not in steady(of(r, rtx_5090()))
    parts = steady(of(replace(r, deepspeed=replace(r.deepspeed, offload_optimizer="cpu")), rtx_5090()))
    assert parts["optimizer_states"] == 8 * N_8B
    assert parts["master_weights"] == 4 * N_8B


def offloaded_fsdp(name: str, method: Method, gpus: int) -> Estimate:
    r = recipe(name, method, gpus=gpus)
    assert r.fsdp is not None
    return of(replace(r, fsdp=replace(r.fsdp, offload_params=True)), rtx_5090(gpus))


def test_sharded_parameters_are_pinned_tensor_by_tensor() -> None:
    """Llama-2-13B over two ranks: an MLP slice of 70.8 MB takes a block of 2^27 bytes, a square one of 26.2 MB 2^25."""
    e = offloaded_fsdp("llama-2-13b", Method.LORA, 2)
    one_rank = 40 * (4 * 2**25 + 3 * 2**27) + 2 * 2**28
    exact = samples.MODELS["llama-2-13b"][1] * 2
    assert steady(e)["parameters"] == pytest.approx(2 * one_rank, rel=0.01)
    assert steady(e)["parameters"] > 1.6 * exact
    assert load(e)["parameters"] == steady(e)["parameters"]


def test_70b_qlora_with_offload_is_within_what_people_saw_when_file_pages_count() -> None:
    """125 to 250 GB (https://github.com/axolotl-ai-cloud/axolotl/pull/1742): packed weights, and the files that were
    read, which the system can drop."""
    host = offloaded_fsdp("llama-3.3-70b", Method.QLORA, 2).host
    assert host.page_cache_bytes == 2 * N_70B
    assert host.peak_bytes < 107e9
    assert 125e9 < host.peak_bytes + host.page_cache_bytes < 250e9


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


def test_saving_gathers_the_model_on_the_first_rank() -> None:
    r = recipe(strategy=Strategy.FSDP2_FULL)
    host = of(r, pro_6000()).host
    assert host.save_peak_bytes - host.steady_bytes == pytest.approx(r.precision.parameters.bytes * N_8B, rel=0.01)
    alone = of(recipe(strategy=Strategy.DDP), pro_6000()).host
    assert alone.save_peak_bytes == alone.steady_bytes


def test_full_state_dicts_gather_the_states_as_well() -> None:
    r = recipe(strategy=Strategy.FSDP2_FULL)
    assert r.fsdp is not None
    full = replace(r, fsdp=replace(r.fsdp, state_dict_type="FULL_STATE_DICT"))
    more = of(full, pro_6000()).host.save_peak_bytes - of(r, pro_6000()).host.save_peak_bytes
    assert more == pytest.approx(2 * r.precision.states.bytes * N_8B, rel=0.01)


def test_paged_states_are_on_the_host() -> None:
    r = recipe(strategy=Strategy.SINGLE, gpus=1)
    plain, paged = (
        replace(r, optimizer=replace(r.optimizer, name=name)) for name in ("adamw_bnb_8bit", "paged_adamw_8bit")
    )
    saved = of(plain, pro_6000(1)).gpu.peak_allocated_bytes - of(paged, pro_6000(1)).gpu.peak_allocated_bytes
    assert saved == pytest.approx(steady(of(paged, pro_6000(1)))["paged_states"], rel=0.01)


def test_one_checkpoint_more_than_the_limit_is_on_the_disk() -> None:
    disk = of(recipe(), rtx_5090()).disk
    assert disk.checkpoints_kept == 3
    assert disk.total_bytes == disk.download_bytes + 3 * disk.checkpoint_bytes + disk.result_bytes
    assert disk.download_bytes == 2 * N_8B


def test_an_adapter_run_ends_with_a_merged_model_on_the_disk() -> None:
    full, adapter, qlora = (of(recipe(method=m), rtx_5090()).disk.result_bytes for m in Method)
    assert full == 2 * N_8B
    assert adapter == qlora == 2 * N_8B + 4 * 41_943_040
    gathered = of(recipe(strategy=Strategy.ZERO3_CPU), rtx_5090()).disk.result_bytes
    assert gathered == 2 * N_8B


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
