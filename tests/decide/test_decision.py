"""What every decision keeps to, whatever is asked."""

import dataclasses
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from recipegen.catalog import hardware_names
from recipegen.spec import Decision, Method, PrecisionLabel, RecipegenError, Severity, Strategy, Verdict

Solve = Callable[..., Decision]
MODELS = [
    "Llama-3.2-1B",
    "Llama-3.1-8B",
    "Qwen3-14B",
    "Qwen3-30B-A3B",
    "Llama-3.3-70B-Instruct",
    "gemma-3-12b-pt",
    "Qwen2.5-0.5B",
]

requests = st.fixed_dictionaries(
    {
        "model": st.sampled_from(MODELS),
        "hardware": st.sampled_from(hardware_names()),
        "method": st.sampled_from([None, "full", "lora", "qlora"]),
        "sequence_len": st.sampled_from([None, 512, 2048, 4096, 8192, 32768]),
        "global_batch_size": st.sampled_from([None, 1, 8, 16, 48, 128]),
        "nodes": st.sampled_from([1, 1, 2, 4]),
        "trainer": st.sampled_from(["axolotl", "axolotl", "accelerate"]),
    }
)


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(request=requests)
def test_a_decision_is_whole_and_consistent(solve: Solve, request: dict) -> None:
    network = "none" if request["nodes"] == 1 else "roce-100"
    try:
        d = solve(**request, network=network)
    except RecipegenError as error:
        assert "\n" not in str(error)
        return
    r, p = d.recipe, d.recipe.parallelism
    assert r.micro_batch_size * r.gradient_accumulation * p.data_parallel_ranks == r.global_batch_size
    if request["global_batch_size"]:
        assert r.global_batch_size == request["global_batch_size"]
    if request["method"]:
        assert r.method is Method(request["method"])
    assert (d.verdict is Verdict.DOES_NOT_FIT) == any(f.severity is Severity.ERROR for f in d.findings)
    peak = max(phase.bytes for phase in d.estimate.gpu.phases)
    assert d.estimate.gpu.peak_allocated_bytes == peak == sum(t.bytes for t in d.estimate.gpu.terms)
    if d.recommended:
        assert r.precision.updates_survive_rounding or r.schedule.learning_rate >= 5e-5
    for a in d.alternatives:
        assert a.reason
        if d.verdict is not Verdict.FITS:
            assert a.verdict is not Verdict.FITS
    for w in d.ways_out:
        assert w.alternative.verdict is Verdict.FITS
    for field in dataclasses.fields(r):
        assert getattr(r, field.name) is not dataclasses.MISSING


def test_pins_are_kept_and_said(solve: Solve) -> None:
    d = solve(
        "Llama-3.1-8B", "kentino-8x-rtx-5090", method="lora",
        pins={"strategy": "fsdp2_full", "adapter.r": 64, "learning_rate": 5e-5, "micro_batch_size": 2},
    )  # fmt: skip
    assert d.recipe.parallelism.strategy is Strategy.FSDP2_FULL
    assert d.recipe.adapter is not None
    assert d.recipe.adapter.r == 64
    assert d.recipe.schedule.learning_rate == 5e-5
    assert d.recipe.micro_batch_size == 2
    assert d.reasons["adapter.r"] == "pinned"


def test_an_adapter_under_fsdp2_with_a_full_state_dict_is_an_error_with_the_rescue(solve: Solve) -> None:
    d = solve(
        "Llama-3.1-8B", "kentino-8x-rtx-5090", method="lora",
        pins={"strategy": "fsdp2_full", "fsdp.state_dict_type": "FULL_STATE_DICT"},
    )  # fmt: skip
    assert d.verdict is Verdict.DOES_NOT_FIT
    assert [f.rule for f in d.findings if f.severity is Severity.ERROR] == ["RG201"]


def test_an_adapter_whose_base_fits_a_gpu_trains_under_ddp(solve: Solve) -> None:
    d = solve("Llama-3.1-8B", "kentino-8x-rtx-5090", method="lora")
    assert d.recipe.parallelism.strategy is Strategy.DDP


def test_an_adapter_whose_base_fits_only_the_node_is_sharded(solve: Solve) -> None:
    d = solve("Llama-3.3-70B-Instruct", "kentino-8x-rtx-5090", method="lora")
    assert d.recipe.parallelism.strategy is Strategy.FSDP2_FULL


def test_pure_bf16_at_a_small_rate_is_never_chosen_where_something_else_fits(solve: Solve) -> None:
    d = solve("Llama-3.1-8B", "kentino-8x-rtx-pro-6000", method="full")
    assert d.verdict is Verdict.FITS
    assert d.recipe.precision.updates_survive_rounding


def test_pure_bf16_at_a_large_rate_may_be_chosen(solve: Solve) -> None:
    d = solve("Llama-3.2-1B", "kentino-8x-rtx-5090", method="full", learning_rate=1e-3)
    assert d.recommended


def test_trainer_accelerate_keeps_an_fp32_master_unless_pinned(solve: Solve) -> None:
    d = solve("Llama-3.2-1B", "kentino-8x-rtx-5090", method="full", trainer="accelerate")
    assert d.recipe.precision.label is PrecisionLabel.FP32_MASTER
    pinned = solve(
        "Llama-3.2-1B", "kentino-8x-rtx-5090", method="full", trainer="accelerate",
        pins={"precision.parameters": "bf16", "optimizer": "adamw_torch_fused", "strategy": "fsdp2_full"},
    )  # fmt: skip
    assert pinned.recipe.precision.trainable.value == "bf16"


def test_an_option_and_a_pin_of_the_same_field_must_agree(solve: Solve) -> None:
    with pytest.raises(RecipegenError, match="given twice"):
        solve("Llama-3.2-1B", "kentino-1x-rtx-5090", learning_rate=1e-4, pins={"learning_rate": 2e-4})
    with pytest.raises(RecipegenError, match=r"micro_batch_size\(2\).*= 64, but global_batch_size is 32"):
        solve(
            "Llama-3.2-1B", "kentino-8x-rtx-5090", global_batch_size=32,
            pins={"micro_batch_size": 2, "gradient_accumulation": 4},
        )  # fmt: skip


def test_pinned_sizes_choose_the_layout_or_are_refused_with_the_equation(solve: Solve) -> None:
    d = solve("Qwen3-14B", "kentino-8x-rtx-pro-6000", method="full", pins={"dp_shard": 4})
    assert d.recipe.parallelism.strategy is Strategy.FSDP2_HYBRID
    assert (d.recipe.parallelism.dp_shard, d.recipe.parallelism.dp_replicate) == (4, 2)
    with pytest.raises(RecipegenError, match=r"dp_shard\(3\).* but world_size is 8"):
        solve("Qwen3-14B", "kentino-8x-rtx-pro-6000", method="full", pins={"dp_shard": 3})
    with pytest.raises(RecipegenError, match=r"tp\(2\).* but world_size is 1"):
        solve("Qwen3-14B", "kentino-1x-rtx-pro-6000", pins={"tp": 2})


def test_a_pin_of_an_engine_chooses_that_engine(solve: Solve) -> None:
    d = solve("Llama-3.1-8B", "kentino-8x-rtx-5090", pins={"fsdp.reshard_after_forward": False})
    assert d.recipe.fsdp is not None
    assert not d.recipe.fsdp.reshard_after_forward
    with pytest.raises(RecipegenError, match="adapter"):
        solve("Llama-3.1-8B", "kentino-8x-rtx-5090", method="full", pins={"adapter.r": 8})


def test_lora_is_preferred_to_qlora_where_both_fit(solve: Solve) -> None:
    for hardware in ("kentino-8x-rtx-5090", "kentino-1x-rtx-4090", "8x-h100"):
        assert solve("Llama-3.1-8B", hardware).recipe.method is Method.LORA


def test_qlora_says_what_lora_lacks(solve: Solve) -> None:
    d = solve("Qwen3-32B", "kentino-1x-rtx-5090")
    assert d.recipe.method is Method.QLORA
    assert d.reasons["method"].startswith("LoRA does not fit: GPU memory")


def test_offload_is_for_what_fits_nowhere_else(solve: Solve) -> None:
    d = solve("Llama-3.1-8B", "kentino-8x-rtx-4090", method="full")
    assert d.recipe.parallelism.strategy is Strategy.FSDP2_FULL
    assert solve("Llama-3.3-70B-Instruct", "kentino-4x-rtx-4090").verdict is Verdict.DOES_NOT_FIT


def test_a_batch_is_never_shrunk_to_nothing_to_make_it_fit(solve: Solve) -> None:
    for model, hardware in (("Llama-3.1-8B", "kentino-1x-rtx-pro-6000"), ("Qwen3-32B", "kentino-4x-rtx-4090")):
        assert solve(model, hardware, method="full", sequence_len=8192).recipe.global_batch_size >= 16


def test_more_host_ram_is_a_way_out_only_for_offload(solve: Solve) -> None:
    d = solve("Llama-3.3-70B-Instruct", "kentino-8x-rtx-pro-6000", nodes=2, network="roce-100", method="full")
    ram = [w for w in d.ways_out if "host_ram_gib" in w.change]
    assert all(w.alternative.recipe.parallelism.strategy is Strategy.ZERO3_CPU for w in ram)
    assert all(w.alternative.recipe != d.recipe for w in d.ways_out)


def test_the_host_is_blamed_for_what_the_host_lacks(solve: Solve) -> None:
    d = solve("Llama-3.3-70B-Instruct", "kentino-8x-rtx-pro-6000", method="full")
    offload = next(a for a in d.alternatives if a.recipe.parallelism.strategy is Strategy.ZERO3_CPU)
    assert offload.reason.startswith("host RAM: ")


def test_pinning_what_was_decided_changes_nothing(solve: Solve) -> None:
    free = solve("Llama-3.1-8B", "kentino-8x-rtx-5090", method="lora", pins={"packing": False})
    held = solve("Llama-3.1-8B", "kentino-8x-rtx-5090", method="lora", pins={"packing": False, "attention": "sdpa"})
    assert free.estimate == held.estimate


def test_a_pinned_warm_up_is_the_only_warm_up(solve: Solve) -> None:
    d = solve("Llama-3.1-8B", "kentino-8x-rtx-5090", pins={"warmup_ratio": 0.1})
    assert (d.recipe.schedule.warmup_ratio, d.recipe.schedule.warmup_steps) == (0.1, None)


def test_activation_offloading_comes_with_checkpointing(solve: Solve) -> None:
    d = solve("Llama-3.1-8B", "kentino-8x-rtx-5090", method="full", pins={"activation_offloading": True})
    assert d.recipe.activation_checkpointing


def test_a_multimodal_model_is_fine_tuned_in_its_text_decoder(solve: Solve) -> None:
    assert solve("gemma-3-4b-it", "kentino-8x-rtx-pro-6000", method="full").recipe.freeze_vision
