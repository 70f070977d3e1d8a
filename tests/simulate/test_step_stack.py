"""What a simulated step knows: phases by name, terms by purpose, and the trainers' habits that decide a peak."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import tiny_recipes

from recipegen.estimate.memory import gpu_memory
from recipegen.estimate.symbols import symbols
from recipegen.simulate import Options, simulate
from recipegen.spec import GpuMemory, LossKernel, Method, ModelSpec, Recipe, RecipegenError, Strategy, Term
from recipegen.spec.simulation import Simulation

pytestmark = pytest.mark.stack

MODEL = tiny_recipes.tiny()
NARROW = replace(MODEL, vocab_size=256)  # its layers weigh more than its embeddings
#: bytes of one T x V matrix of bf16, for one sequence of tiny_recipes
LOGITS = 2 * 128 * MODEL.vocab_size
STEP_COUNTERS = 0.1  # share that one 512 B counter per tensor adds to the states of a tiny model


def run(recipe: Recipe, model: ModelSpec = MODEL, **options: Any) -> Simulation:
    return simulate(model, recipe, tiny_recipes.stack(), options=Options(**options))


def terms(found: Simulation, phase: str) -> dict[str, int]:
    return {t.name: t.bytes for t in next(p for p in found.phases if p.name == phase).terms}


def test_phases_come_in_the_order_of_a_step() -> None:
    recipe = replace(tiny_recipes.recipe(MODEL, Method.FULL, Strategy.FSDP2_FULL, 4), val_set_size=0.1)
    names = [phase.name for phase in run(recipe).phases]
    wanted = ["forward", "loss_forward", "loss_backward", "layer_backward_first", "layer_backward_last",
              "embedding_backward", "root_reduce_scatter", "optimizer_step", "eval"]  # fmt: skip
    assert [name for name in names if name in wanted] == wanted


def test_what_lasts_has_its_size_in_every_phase() -> None:
    found = run(tiny_recipes.recipe(MODEL, Method.LORA, Strategy.DDP, 2))
    for phase in found.phases:
        held = terms(found, phase.name)
        assert held["adapters"] == pytest.approx(4 * found.trainable_parameters, rel=0.02)
        assert held["optimizer_states"] == pytest.approx(8 * found.trainable_parameters, rel=STEP_COUNTERS)
        assert held["ddp_buckets"] == pytest.approx(4 * found.trainable_parameters, rel=0.02)


def test_accelerate_turns_the_logits_into_fp32_on_one_gpu_and_not_under_fsdp2() -> None:
    """Two bytes of logits and four of their copy, against two; the compiled chunks add nothing."""
    fields: dict[str, Any] = {"loss_kernel": LossKernel.CHUNKED_UPCAST, "micro_batch_size": 1}
    alone = terms(run(tiny_recipes.recipe(MODEL, Method.LORA, **fields)), "loss_forward")
    sharded = terms(run(tiny_recipes.recipe(MODEL, Method.LORA, Strategy.FSDP2_FULL, 4, **fields)), "loss_forward")
    assert alone["logits_and_loss"] == pytest.approx(3 * LOGITS, rel=0.02)
    assert sharded["logits_and_loss"] == pytest.approx(LOGITS, rel=0.02)


def test_chunks_of_several_sequences_are_copies() -> None:
    """Axolotl cuts (batch, rows, vocabulary) along the rows and flattens: contiguous for one sequence only."""
    recipe = tiny_recipes.recipe(MODEL, Method.LORA, Strategy.FSDP2_FULL, 4, loss_kernel=LossKernel.CHUNKED_UPCAST)
    one, two = (terms(run(replace(recipe, micro_batch_size=n)), "loss_forward")["logits_and_loss"] for n in (1, 2))
    assert two == pytest.approx(2 * one + 2 * LOGITS, rel=0.02)


@pytest.mark.parametrize("method", [Method.LORA, Method.QLORA])
def test_dropout_keeps_a_byte_per_element_as_on_cuda(method: Method) -> None:
    recipe = tiny_recipes.recipe(NARROW, method, activation_checkpointing=False)
    assert recipe.adapter is not None
    dropping = replace(recipe, adapter=replace(recipe.adapter, dropout=0.1))
    estimates = [gpu_memory(symbols(NARROW, r, tiny_recipes.stack()), 2**40) for r in (recipe, dropping)]
    kept, more = (terms(run(r, NARROW), "loss_backward")["saved_activations"] for r in (recipe, dropping))
    wanted = [next(t.bytes for t in saved(e) if t.name == "saved_activations") for e in estimates]
    assert more - kept == pytest.approx(wanted[1] - wanted[0], rel=0.05)


def saved(memory: GpuMemory) -> tuple[Term, ...]:
    return next(phase.terms for phase in memory.phases if phase.name == "loss_backward")


def test_flash_attention_packs_a_micro_batch_into_one_row() -> None:
    """So its chunks are no copies."""
    fields: dict[str, Any] = {"loss_kernel": LossKernel.CHUNKED_UPCAST, "attention": "flash_attention_2"}
    found = run(tiny_recipes.recipe(MODEL, Method.LORA, Strategy.FSDP2_FULL, 4, **fields))
    assert terms(found, "loss_forward")["logits_and_loss"] == pytest.approx(2 * LOGITS, rel=0.02)


def test_evaluation_is_a_phase_of_its_own_with_logits_whatever_the_loss() -> None:
    recipe = tiny_recipes.recipe(MODEL, Method.LORA, loss_kernel=LossKernel.FUSED_LINEAR)
    found = run(replace(recipe, val_set_size=0.1))
    assert "eval" not in {phase.name for phase in run(recipe).phases}
    assert terms(found, "eval")["logits_and_loss"] >= 2 * LOGITS
    assert "gradients" not in terms(found, "eval")


def test_whole_gradients_wait_only_without_synchronisation() -> None:
    fields = {"gradient_accumulation": 2, "micro_batch_size": 1}
    waiting = tiny_recipes.recipe(MODEL, Method.FULL, Strategy.FSDP2_FULL, 4, **fields)
    found, synced = run(waiting), run(replace(waiting, sync_each_batch=True))
    whole = terms(found, "loss_backward")["unsharded_gradients"]
    assert whole == pytest.approx(2 * found.total_parameters, rel=0.02)
    assert "unsharded_gradients" not in terms(synced, "loss_backward")
    assert synced.peak_bytes < found.peak_bytes


def test_foreach_makes_temporaries_and_fused_none() -> None:
    fused, foreach = (run(tiny_recipes.recipe(MODEL, optimizer=name)) for name in ("adamw_torch_fused", "adamw_torch"))
    assert terms(foreach, "optimizer_step").get("optimizer_temporaries", 0) > foreach.total_parameters
    assert terms(fused, "optimizer_step").get("optimizer_temporaries", 0) < 0.05 * fused.total_parameters


def test_axolotls_groups_gather_fewer_layers_than_plain_ones() -> None:
    recipe = tiny_recipes.recipe(NARROW, Method.LORA, Strategy.FSDP2_FULL, 4, micro_batch_size=1)
    grouped, plain = run(recipe, NARROW), run(recipe, NARROW, adapter_groups=False)
    gathered = [terms(found, "forward")["gathered_layers"] for found in (grouped, plain)]
    assert gathered[0] < 0.8 * gathered[1]


def test_a_stored_recipe_is_told_apart_by_what_it_shards() -> None:
    """More ranks, less on each; the parameters are all there."""
    small, large = (run(tiny_recipes.recipe(MODEL, Method.FULL, Strategy.FSDP2_FULL, n)) for n in (2, 8))
    assert small.total_parameters == large.total_parameters
    shares = [terms(found, "forward")["parameters"] for found in (small, large)]
    assert shares[0] == pytest.approx(4 * shares[1], rel=0.05)


def test_progress_reaches_its_end() -> None:
    seen: list[tuple[int, int]] = []
    recipe = tiny_recipes.recipe(MODEL, gradient_accumulation=2)
    simulate(MODEL, recipe, tiny_recipes.stack(), progress=lambda done, total: seen.append((done, total)))
    assert seen[-1][0] == seen[-1][1] == 4 * MODEL.num_hidden_layers
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)


def test_the_same_recipe_gives_the_same_bytes() -> None:
    recipe = tiny_recipes.recipe(MODEL, Method.LORA, activation_checkpointing=False)
    assert run(recipe).phases == run(recipe).phases


def test_dora_over_four_bits_is_refused() -> None:
    recipe = tiny_recipes.recipe(MODEL, Method.QLORA)
    assert recipe.adapter is not None
    with pytest.raises(RecipegenError, match="DoRA"):
        run(replace(recipe, adapter=replace(recipe.adapter, use_dora=True)))
