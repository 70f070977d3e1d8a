"""axolotl.yaml says the whole recipe, and says it once."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from recipegen.formats import axolotl, axolotl_read
from recipegen.formats.modelled import refuse_modelled_keys
from recipegen.formats.passthrough import merge
from recipegen.formats.reading import at
from recipegen.spec import LossKernel, Method, Recipe, RecipegenError, Saving, Strategy
from tests.recipes_for_tests import LINEAR, REASONS, dataset, model, recipe, recipes

SAMPLES = dict(recipes())
texts = st.text(max_size=30) | st.sampled_from(["a\nadapter: lora", "x: y", "no", "'\"", "#", "$(x)", "{{ 1 }}", "---"])


def reread(chosen: Recipe, reasons: dict[str, str] | None = None) -> dict[str, Any]:
    loaded = yaml.safe_load(axolotl.write(chosen, model(), reasons or {}))
    assert isinstance(loaded, dict)
    return loaded


@pytest.mark.parametrize("name", SAMPLES)
def test_every_key_is_printed_with_its_value(name: str) -> None:
    chosen = SAMPLES[name]
    expected, _ = merge(axolotl.values(chosen), chosen.passthrough.get("axolotl", {}))
    assert reread(chosen, REASONS) == expected


@given(texts, texts, texts, texts)
@settings(max_examples=50, deadline=None)
def test_no_text_can_add_a_key(name: str, path: str, template: str, reason: str) -> None:
    chosen = recipe(
        model=name, datasets=(dataset(path),), chat_template=template or None, eot_tokens=(reason,), hardware=name
    )
    expected = axolotl.values(chosen)
    loaded = reread(chosen, dict.fromkeys(REASONS, reason))
    assert loaded == expected
    assert loaded["base_model"] == name
    assert loaded["datasets"][0]["path"] == path


def test_a_decided_key_carries_its_reason() -> None:
    lines = axolotl.write(recipe(), model(), REASONS).splitlines()
    for key, reason in (("micro_batch_size", "the largest that fits"), ("    sync_each_batch", "unsharded gradients")):
        at = next(i for i, line in enumerate(lines) if line.startswith((f"{key}:", f"  {key}:")))
        assert reason in lines[at - 1]


def test_fields_name_keys_that_exist() -> None:
    """FIELDS maps real keys to real Recipe fields: a renamed field must be renamed here too."""
    flat: set[str] = set()
    for chosen in SAMPLES.values():
        flat |= set(_flat(axolotl.values(chosen)))
    assert set(axolotl.FIELDS) - flat <= {
        "trust_remote_code",
        "tensor_parallel_size",
        "context_parallel_size",
        "warmup_ratio",
        "lora_modules_to_save",
        "quantize_moe_experts",
    }
    lora = recipe(Strategy.FSDP2_FULL, Method.LORA, deepspeed=recipe(Strategy.ZERO2).deepspeed)
    for paths in axolotl.FIELDS.values():
        for path in paths:
            value: Any = lora
            for part in path.split("."):
                value = getattr(value, part)


def _flat(mapping: dict[str, Any], above: str = "") -> list[str]:
    names = []
    for key, value in mapping.items():
        names.append(above + key)
        if isinstance(value, dict):
            names += _flat(value, f"{above}{key}.")
    return names


@pytest.mark.parametrize("strategy", [s for s in Strategy if s.is_fsdp])
def test_fsdp2_is_written_in_full(strategy: Strategy) -> None:
    loaded = reread(recipe(strategy, nodes=2))
    assert loaded["fsdp_version"] == 2
    assert loaded["fsdp_config"] == {
        "auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
        "transformer_layer_cls_to_wrap": "LlamaDecoderLayer",
        "reshard_after_forward": True,
        "state_dict_type": "SHARDED_STATE_DICT",
        "final_state_dict_type": "FULL_STATE_DICT",
        "cpu_ram_efficient_loading": True,
        "offload_params": False,
    }
    sizes = (loaded.get("dp_shard_size"), loaded.get("dp_replicate_size"))
    assert sizes == ((8, 2) if strategy is Strategy.FSDP2_HYBRID else (None, None))
    assert "deepspeed" not in loaded


def test_pinned_memory_of_offloading_is_written_only_with_offloading() -> None:
    plain, offloaded = SAMPLES["fsdp2_full-full"], SAMPLES["offload-params"]
    assert "cpu_offload_pin_memory" not in reread(plain)["fsdp_config"]
    assert reread(offloaded)["fsdp_config"]["cpu_offload_pin_memory"] is True


@pytest.mark.parametrize("method", [Method.LORA, Method.QLORA])
def test_adapters_are_written_in_full(method: Method) -> None:
    loaded = reread(recipe(Strategy.DDP, method))
    assert loaded["adapter"] == method.value
    assert loaded["load_in_4bit"] is (method is Method.QLORA)
    assert loaded["lora_target_modules"] == list(LINEAR)
    kernels = [key for key in loaded if key.startswith("lora_") and key.endswith("_kernel")]
    assert sorted(kernels) == ["lora_embedding_kernel", "lora_mlp_kernel", "lora_o_kernel", "lora_qkv_kernel"]
    assert not any(loaded[key] for key in kernels)


def test_a_full_fine_tune_has_no_adapter_keys() -> None:
    assert not [key for key in reread(recipe()) if "lora" in key or key in ("adapter", "load_in_4bit")]


def test_an_adapter_and_a_method_must_agree() -> None:
    with pytest.raises(RecipegenError, match="adapter"):
        axolotl.values(recipe(adapter=recipe(method=Method.LORA).adapter))


def test_loss_kernels() -> None:
    chunked = reread(recipe(loss_kernel=LossKernel.CHUNKED_UPCAST))
    fused = reread(recipe(loss_kernel=LossKernel.FUSED_LINEAR))
    stock = reread(recipe(loss_kernel=LossKernel.STOCK))
    assert (chunked["chunked_cross_entropy"], "plugins" in chunked) == (True, False)
    assert (fused["chunked_cross_entropy"], fused["liger_fused_linear_cross_entropy"]) == (False, True)
    assert fused["plugins"] == ["axolotl.integrations.liger.LigerPlugin"]
    assert (stock["chunked_cross_entropy"], "plugins" in stock) == (False, False)
    assert not any("liger_kernel_impl" in written for written in (chunked, fused, stock))
    with pytest.raises(RecipegenError, match="cut cross entropy"):
        axolotl.values(recipe(loss_kernel=LossKernel.CUT))


def test_the_data_loader_is_never_left_to_axolotl() -> None:
    """With none of the three keys Axolotl takes 256 batches ahead per worker."""
    for name, chosen in SAMPLES.items():
        loaded = reread(chosen)
        assert {"dataloader_num_workers", "dataloader_pin_memory"} <= set(loaded), name
        assert ("dataloader_prefetch_factor" in loaded) == (loaded["dataloader_num_workers"] > 0), name


def test_saving_and_validation() -> None:
    by_epoch = reread(recipe(val_set_size=200.0, saving=Saving(None, 2, None, 10, "none")))
    by_steps = reread(recipe(val_set_size=0.01, saving=Saving(100, 2, 50, 10, "mlflow")))
    without = reread(recipe(val_set_size=0.0))
    assert (by_epoch["save_strategy"], by_epoch["eval_strategy"], by_epoch["val_set_size"]) == ("epoch", "epoch", 200)
    assert (by_steps["save_steps"], by_steps["eval_steps"], by_steps["val_set_size"]) == (100, 50, 0.01)
    assert not [key for key in without if key.startswith("eval_s") and key != "eval_sample_packing"]
    assert [by_epoch[f"use_{n}"] for n in ("tensorboard", "wandb", "trackio", "mlflow")] == [False] * 4
    assert by_steps["use_mlflow"] is True
    with pytest.raises(RecipegenError, match="logger"):
        axolotl.values(recipe(saving=Saving(None, 2, None, 1, "neptune")))


def test_optimizer_numbers_are_never_left_to_a_class() -> None:
    loaded = reread(recipe(optimizer_name="optimi_adamw"))
    assert (loaded["adam_beta1"], loaded["adam_beta2"], loaded["adam_epsilon"]) == (0.9, 0.99, 1e-8)
    assert isinstance(loaded["learning_rate"], float)


def test_sync_each_batch_is_written_when_it_matters() -> None:
    assert reread(recipe())["accelerator_config"] == {"gradient_accumulation_kwargs": {"sync_each_batch": True}}
    assert "accelerator_config" not in reread(recipe(gradient_accumulation=1))


def test_a_passthrough_key_replaces_ours_visibly() -> None:
    text = axolotl.write(recipe(passthrough={"axolotl": {"learning_rate": 3e-5, "new_key": [1]}}), model(), {})
    loaded = yaml.safe_load(text)
    assert (loaded["learning_rate"], loaded["new_key"]) == (3e-5, [1])
    assert "recipegen would have written 1.0e-05" in text
    assert text.count("learning_rate:") == 1


def test_passthrough_reaches_inside_without_wiping_neighbours() -> None:
    dotted, _ = merge({"a": {"b": 1, "c": 2}}, {"a.b": 3})
    nested, notes = merge({"a": {"b": 1, "c": 2}}, {"a": {"b": 3}})
    assert dotted == nested == {"a": {"b": 3, "c": 2}}
    assert list(notes) == ["a.b"]
    with pytest.raises(RecipegenError, match="no mapping"):
        merge({"a": 1}, {"a.b": 2})
    with pytest.raises(RecipegenError):
        merge({}, {"a": object()})


def test_a_slug_is_a_word() -> None:
    assert axolotl.slug("meta-llama/Llama-3.1-8B") == "Llama-3.1-8B"
    assert axolotl.slug("/models/my $(x) model/") == "my-x-model"
    assert axolotl.slug("///") == "model"


def test_values_do_not_share_state_with_the_recipe() -> None:
    chosen = recipe(passthrough={"axolotl": {"datasets": []}})
    before = dataclasses.replace(chosen)
    axolotl.write(chosen, model(), {})
    assert chosen == before


def test_what_is_rarely_trained_is_written_when_it_is_on_and_read_back() -> None:
    plain = recipe(Strategy.DDP, Method.QLORA)
    assert not {"quantize_moe_experts", "lora_modules_to_save", "expert_parallel_size"} & set(axolotl.values(plain))
    assert plain.adapter is not None
    saved = ("embed_tokens", "lm_head")
    chosen = dataclasses.replace(
        plain,
        quantised_experts=True,
        adapter=dataclasses.replace(plain.adapter, modules_to_save=saved),
        parallelism=dataclasses.replace(plain.parallelism, ep=plain.parallelism.world_size),
    )
    values = axolotl.values(chosen)
    assert values["quantize_moe_experts"] is True
    assert values["lora_modules_to_save"] == list(saved)
    assert values["expert_parallel_size"] == chosen.parallelism.ep
    back = axolotl_read.read(axolotl.write(chosen, model(), {}).encode(), "axolotl.yaml")
    assert back.problems == ()
    for path in ("quantised_experts", "adapter.modules_to_save", "parallelism.ep"):
        assert back.values[path] == at(chosen, path)


def test_they_are_set_as_fields_and_not_passed_on() -> None:
    for key, field in (
        ("quantize_moe_experts", "quantised_experts"),
        ("lora_modules_to_save", "adapter.modules_to_save"),
    ):
        passed = recipe(Strategy.DDP, Method.QLORA, passthrough={"axolotl": {key: True}})
        with pytest.raises(RecipegenError, match="decided by the recipe") as error:
            refuse_modelled_keys(passed)
        assert f"--set {field}=" in str(error.value)
