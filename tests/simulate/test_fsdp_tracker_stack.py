"""The bookkeeping under FSDP2 against torch's own FSDPMemTracker, which follows tensors by other means."""

import pytest
import tiny_recipes

from recipegen.simulate import Options
from recipegen.simulate.ledger import Ledger
from recipegen.spec import Method, ModelSpec, Strategy

pytestmark = pytest.mark.stack

LARGEST_DIFFERENCE = 0.003  # it neither rounds to 512 B nor sees the batch


def peaks(model: ModelSpec, method: Method, checkpointing: bool) -> tuple[int, int]:
    """The peak by FSDPMemTracker and by ours, of the same step."""
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.distributed._tools.fsdp2_mem_tracker import FSDPMemTracker

    from recipegen.simulate import build, sharding
    from recipegen.simulate.step import Step

    recipe = tiny_recipes.recipe(
        model, method, Strategy.FSDP2_FULL, 4, activation_checkpointing=checkpointing, micro_batch_size=4
    )
    with sharding.process_group(recipe.parallelism) as mesh, FakeTensorMode(allow_non_fake_inputs=True):
        built = build.build(model, recipe)
        sharding.shard(built, recipe, mesh, Options())
        ledger = Ledger()
        step = Step(built, model, recipe, tiny_recipes.stack(), Options(), ledger)
        tracker = FSDPMemTracker(built.outer, step.stepper.optimizer)
        with tracker:
            step.run()
        (device,) = tracker.get_tracker_snapshot("peak").values()
    return device["Total"], max(phase.bytes for phase in ledger.phases())


@pytest.mark.parametrize("checkpointing", [True, False])
@pytest.mark.parametrize("method", [Method.FULL, Method.LORA])
def test_torchs_own_tracker_agrees(method: Method, checkpointing: bool) -> None:
    theirs, ours = peaks(tiny_recipes.tiny(layers=3), method, checkpointing)
    assert ours == pytest.approx(theirs, rel=LARGEST_DIFFERENCE)


def test_torchs_own_tracker_agrees_on_tied_embeddings() -> None:
    theirs, ours = peaks(tiny_recipes.tiny("qwen3", tied=True), Method.FULL, True)
    assert ours == pytest.approx(theirs, rel=LARGEST_DIFFERENCE)
