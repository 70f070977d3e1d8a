"""FSDP2 groups: ours against those that Accelerate's and Axolotl's own functions make of the same model."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import tiny_recipes

from recipegen.simulate import Options
from recipegen.spec import Method, ModelSpec, Recipe, Strategy

pytestmark = pytest.mark.stack


def groups(model: Any) -> list[tuple[str, bool]]:
    """Every module that has a group, and whether it is resharded after forward."""
    from torch.distributed.fsdp import FSDPModule

    found = []
    for name, module in model.named_modules():
        if isinstance(module, FSDPModule):
            for group in module._get_fsdp_state()._fsdp_param_groups:
                found.append((name, group.post_forward_mesh_info is not None))
    return found


def theirs(prepare: Any, model: Any, spec: ModelSpec, recipe: Recipe, mesh: Any) -> Any:
    """The model after a trainer's own preparation, its Accelerator reduced to what that reads."""
    from accelerate import FullyShardedDataParallelPlugin
    from torch.distributed.fsdp import MixedPrecisionPolicy

    assert recipe.fsdp is not None
    plugin = FullyShardedDataParallelPlugin(
        fsdp_version=2,
        auto_wrap_policy="transformer_based_wrap",
        transformer_cls_names_to_wrap=[spec.layer_class],
        reshard_after_forward=recipe.fsdp.reshard_after_forward,
        cpu_ram_efficient_loading=False,
        state_dict_type="SHARDED_STATE_DICT",
        mixed_precision_policy=MixedPrecisionPolicy(),
    )
    names = SimpleNamespace(fsdp_dim_names=("dp_shard",))
    state = SimpleNamespace(fsdp_plugin=plugin, device_mesh=mesh, parallelism_config=names)
    accelerator = SimpleNamespace(
        state=state, torch_device_mesh=mesh, parallelism_config=names, mixed_precision="no", is_main_process=True
    )
    return prepare(accelerator, model)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("trainer", ["accelerate", "axolotl"])
@pytest.mark.parametrize("reshard", [True, False])
@pytest.mark.parametrize("method", [Method.FULL, Method.LORA])
def test_the_groups_are_those_of_the_trainer(trainer: str, method: Method, reshard: bool) -> None:
    from dataclasses import replace

    from recipegen.simulate import build, sharding

    if trainer == "axolotl":
        prepare = pytest.importorskip("axolotl.monkeypatch.accelerate.fsdp2").fsdp2_prepare_model
    else:
        from accelerate.utils.fsdp_utils import fsdp2_prepare_model as prepare
    spec = tiny_recipes.tiny()
    recipe = tiny_recipes.recipe(spec, method, Strategy.FSDP2_FULL, 4, trainer=trainer)
    assert recipe.fsdp is not None
    recipe = replace(recipe, fsdp=replace(recipe.fsdp, reshard_after_forward=reshard))
    with sharding.process_group(recipe.parallelism) as mesh:
        ours = build.build(spec, recipe, real=True)
        sharding.shard(ours, recipe, mesh, Options())
        real = theirs(prepare, build.build(spec, recipe, real=True).outer, spec, recipe, mesh)
        assert groups(ours.outer) == groups(real)
        assert len(groups(real)) > spec.num_hidden_layers
