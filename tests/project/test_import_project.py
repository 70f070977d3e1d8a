"""An imported project says what the original said: read again, every field is the same or listed with its reason."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from recipegen.check.gather import Target, gather
from recipegen.project import create
from recipegen.project.import_project import import_project, read
from recipegen.project.imported import Imported, differences, is_secret, shown
from recipegen.source import collect
from recipegen.spec import RecipegenError

BOX = "kentino-8x-rtx-pro-6000"
AXOLOTL = {
    "base_model": "Qwen/Qwen3-8B",
    "datasets": [{"path": "data.jsonl", "type": "alpaca"}],
    "adapter": "lora",
    "lora_r": 16,
    "lora_alpha": 32,
    "lora_target_linear": True,
    "sequence_len": 1024,
    "micro_batch_size": 2,
    "gradient_accumulation_steps": 2,
    "num_epochs": 2,
    "optimizer": "adamw_torch_fused",
    "learning_rate": 2e-4,
    "lr_scheduler": "cosine",
    "bf16": True,
    "gradient_checkpointing": True,
    "attn_implementation": "sdpa",
}
# Key -> values, each an existing setup may have.
CHOICES: dict[str, list[object]] = {
    "sample_packing": [True, False],
    "val_set_size": [0.05, 0.0, 100],
    "weight_decay": [0.0, 0.01],
    "adam_beta2": [0.95, 0.999],
    "warmup_steps": [10],
    "warmup_ratio": [0.1],
    "seed": [1, 42],
    "save_steps": [50],
    "save_total_limit": [1, 3],
    "saves_per_epoch": [2],
    "logging_steps": [1],
    "use_wandb": [True],
    "wandb_project": ["mine"],
    "output_dir": ["./out"],
    "dataloader_num_workers": [0, 4],
    "gradient_checkpointing": [False, "offload"],
    "tf32": [False, "auto"],
    "excess_length_strategy": ["truncate"],
    "max_steps": [30],
    "lora_dropout": [0.05],
    "peft_use_rslora": [True],
    "special_tokens": [{"pad_token": "<|endoftext|>"}],
    "neftune_noise_alpha": [5.0],
    "hf_use_auth_token": [True],
    "fsdp_version": [2],
    "chunked_cross_entropy": [True],
    "eval_sample_packing": [False],
    "shuffle_merged_datasets": [True],
    "train_on_inputs": [True],
    "learning_rte": [0.1],
    "hub_token": ["hf_abcdefgh"],
}
FSDP = {"fsdp_config": {"reshard_after_forward": True, "state_dict_type": "FULL_STATE_DICT", "offload_params": False}}


@pytest.fixture(autouse=True)
def _inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    row = json.dumps({"instruction": "a " * 60, "input": "", "output": "b " * 200})
    Path("data.jsonl").write_text((row + "\n") * 3000)


def imported(values: dict[str, object], name: str = "old", hardware: str = BOX) -> Imported:
    Path(name).mkdir(exist_ok=True)
    Path(name, "axolotl.yaml").write_text(json.dumps(values))
    target = Target(hardware=hardware)
    return import_project(read([name], target), Path("new").absolute(), target)


def said_again(found: Imported) -> set[str]:
    """The differences of the written project, read from the disk as `check` does; all must be listed."""
    create(found.decision, "new", force=True)
    (project,) = collect(["new"]).projects
    again = gather(project, Target()).subject.assembled
    return {path.removeprefix("fact:") for path, _, _ in differences(found.original.assembled, again)}


@pytest.mark.parametrize("seed", range(12))
def test_every_difference_is_listed_with_a_reason(seed: int) -> None:
    chosen = random.Random(seed)
    values: dict[str, object] = dict(AXOLOTL)
    for key in chosen.sample(sorted(CHOICES), 8):
        values[key] = chosen.choice(CHOICES[key])
    if "fsdp_version" in values:
        values |= FSDP
    if values.get("gradient_checkpointing") == "offload":
        values.pop("fsdp_config", None), values.pop("fsdp_version", None)
    found = imported(values)
    listed = {one.what.rpartition(": ")[2] for one in found.changed}
    assert all(one.reason for one in found.changed)
    other_words = {"dataset_entries", "datasets", "lora_target_linear", "hardware", "engine", "model"}
    passed = set(found.decision.recipe.passthrough.get("axolotl", {}))
    passed |= {key.partition(".")[0] for key in passed}
    # A profile may be named otherwise; what is the same in other words is no difference of the recipe.
    assert said_again(found) - listed - passed <= other_words | {"tf32_auto", "bf16_auto", "load_dtype"}
    for key in values:  # no key of the file goes without a word
        if key in CHOICES and key in ("learning_rte", "hub_token", "saves_per_epoch", "output_dir"):
            assert key in listed, key


@pytest.mark.parametrize("version", [1, 2])
def test_what_fsdp1_bears_and_fsdp2_does_not_is_changed_with_its_reason(version: int) -> None:
    config = {"state_dict_type": "FULL_STATE_DICT", "cpu_ram_efficient_loading": True, "offload_params": False}
    engine: dict[str, object] = {"fsdp_version": version, "fsdp_config": config}
    found = imported({**AXOLOTL, **engine, "adapter": "qlora", "load_in_4bit": True})
    fsdp = found.decision.recipe.fsdp
    assert fsdp is not None
    changed = {one.what: one.reason for one in found.changed}
    if version == 1:
        assert (fsdp.state_dict_type, fsdp.cpu_ram_efficient_loading) == ("SHARDED_STATE_DICT", False)
        assert "RG201" in changed["fsdp.state_dict_type"]
        assert "RG203" in changed["fsdp.cpu_ram_efficient_loading"]
    else:  # what a person has is kept, and its error is said
        assert (fsdp.state_dict_type, fsdp.cpu_ram_efficient_loading) == ("FULL_STATE_DICT", True)
        assert {"RG201", "RG203"} <= {f.rule for f in found.decision.findings}


def test_the_recipe_of_the_original_comes_back() -> None:
    values = {**AXOLOTL, "sample_packing": True, "weight_decay": 0.02, "save_steps": 40, "val_set_size": 0.1, "seed": 7}
    found = imported(values)
    pins = {pin.field: pin for pin in found.pins}
    assert (pins["optimizer.weight_decay"].value, pins["saving.save_steps"].value) == (0.02, 40)
    assert pins["saving.save_steps"].where == "axolotl.yaml:1"
    assert pins["loading.prefetch_factor"].where == ""  # Axolotl's own default, kept all the same
    assert "optimizer.name" not in pins  # decided so anyway
    request = found.decision.request
    assert (request.method, request.sequence_len, request.epochs, request.learning_rate) == ("lora", 1024, 2.0, 2e-4)
    assert request.global_batch_size == 32
    changed = {one.what for one in found.changed}
    assert {what for what in changed if not what.startswith("launch.environment.")} == set()


def test_keys_that_are_not_modelled_are_passed_through_and_secrets_are_not() -> None:
    extra = {"special_tokens": {"pad_token": "<|endoftext|>"}, "neftune_noise_alpha": 5.0, "hub_token": "hf_secret"}
    found = imported({**AXOLOTL, **extra, "hf_use_auth_token": True})
    assert found.decision.recipe.passthrough == {
        "axolotl": {"special_tokens.pad_token": "<|endoftext|>", "neftune_noise_alpha": 5.0, "hf_use_auth_token": True}
    }
    create(found.decision, "new")
    assert not any(b"hf_secret" in path.read_bytes() for path in Path("new").iterdir())
    assert "hf_secret" not in repr(found.changed)
    assert any(one.what.endswith("hub_token") for one in found.changed)


def test_what_is_dropped_by_the_trainer_is_said() -> None:
    found = imported({**AXOLOTL, "learning_rte": 0.1})
    (one,) = [one for one in found.changed if "learning_rte" in one.what]
    assert "accepted and dropped" in one.reason


def test_variables_of_a_script_come_along_and_secrets_do_not() -> None:
    Path("old").mkdir()
    Path("old/launch.sh").write_text(
        "#!/bin/bash\nexport NCCL_P2P_DISABLE=1\nexport HF_TOKEN=hf_secret\n"
        "accelerate launch -m axolotl.cli.train axolotl.yaml\n"
    )
    found = imported(dict(AXOLOTL))
    names = {v.name: v.value for v in found.decision.recipe.launch.environment}
    assert names["NCCL_P2P_DISABLE"] == "1"
    assert "HF_TOKEN" not in names
    assert "launch.environment" in found.beyond
    assert "hf_secret" not in repr(found.changed)
    assert any("HF_TOKEN" in one.what and "secret" in one.reason for one in found.changed)


def test_fsdp1_becomes_fsdp2_and_that_is_said() -> None:
    fsdp = {"fsdp": ["full_shard", "auto_wrap"], "fsdp_config": {"fsdp_state_dict_type": "FULL_STATE_DICT"}}
    found = imported({**AXOLOTL, **fsdp})
    assert any(one.what == "fsdp.version" and "FSDP2" in one.reason for one in found.changed)
    assert found.decision.recipe.fsdp is not None
    assert found.decision.recipe.fsdp.version == 2
    assert any(one.what == "fsdp.state_dict_type" and "RG201" in one.reason for one in found.changed)


def test_deepspeed_comes_along() -> None:
    zero = {"zero_optimization": {"stage": 2}, "bf16": {"enabled": True}, "gradient_clipping": 1.0}
    Path("old").mkdir()
    Path("old/zero.json").write_text(json.dumps(zero))
    full = {k: v for k, v in AXOLOTL.items() if not k.startswith(("lora", "adapter"))}
    found = imported({**full, "base_model": "Qwen/Qwen3-0.6B", "deepspeed": "zero.json"})
    assert found.decision.recipe.deepspeed is not None
    assert found.decision.recipe.deepspeed.stage == 2
    assert "parallelism.strategy" in {pin.field for pin in found.pins}


def test_otherwise_is_the_same_training_without_pins() -> None:
    found = imported({**AXOLOTL, "micro_batch_size": 1, "gradient_accumulation_steps": 8, "sequence_len": 4096})
    other = found.otherwise
    assert other is not None
    assert other.request.pins == {}
    assert other.recipe.global_batch_size == found.decision.recipe.global_batch_size == 64
    assert (other.recipe.method, other.recipe.sequence_len) == (found.decision.recipe.method, 4096)
    assert other.estimate.time.step_s < found.decision.estimate.time.step_s


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"rl": "dpo"}, "axolotl.yaml:1: rl: 'dpo' keeps a second model"),
        ({"base_model": "nobody/knows-this"}, "nobody/knows-this"),
        ({"unfrozen_parameters": ["a"]}, "unfrozen_parameters"),
        ({"datasets": None}, "--dataset"),
    ],
)
def test_what_cannot_be_imported_is_one_line(change: dict[str, object], said: str) -> None:
    with pytest.raises(RecipegenError) as error:
        imported({**AXOLOTL, **change})
    assert said in str(error.value)
    assert "\n" not in str(error.value)


def test_other_machines_are_refused() -> None:
    Path("old").mkdir()
    Path("old/accelerate.yaml").write_text(
        "compute_environment: LOCAL_MACHINE\ndistributed_type: MULTI_GPU\nnum_machines: 1\nnum_processes: 4\n"
    )
    with pytest.raises(RecipegenError, match="4 processes on each of 1 nodes"):
        imported(dict(AXOLOTL))
    with pytest.raises(RecipegenError, match="no machine is named"):
        import_project(read(["old"], Target()), Path("new").absolute(), Target())


def test_only_one_recipe_at_a_time() -> None:
    for name in ("one", "two"):
        Path("many", name).mkdir(parents=True)
        Path("many", name, "axolotl.yaml").write_text(json.dumps(AXOLOTL))
    with pytest.raises(RecipegenError, match="2 recipes"):
        read(["many"], Target())


@pytest.mark.parametrize(
    ("key", "secret"),
    [
        ("hub_token", True), ("HF_TOKEN", True), ("HUGGING_FACE_HUB_TOKEN", True), ("WANDB_API_KEY", True),
        ("AWS_SECRET_ACCESS_KEY", True), ("comet_api_key", True), ("special_tokens.pad_token", False),
        ("eot_tokens", False), ("bos_token", False), ("sort_key", False), ("max_tokens", False),
    ],
)  # fmt: skip
def test_what_is_a_secret(key: str, secret: bool) -> None:
    assert is_secret(key, "x") is secret
    assert not is_secret(key, True)
    assert ("x" in json.dumps(shown(key, "x"))) is not secret
