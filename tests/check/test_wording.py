"""A fix is said in the keys of the file that it is about."""

from __future__ import annotations

from dataclasses import replace

import pytest
import yaml

from recipegen.check.subject import Subject
from recipegen.check.wording import KEYS, in_file_words
from recipegen.formats import accelerate_read, arguments_read
from recipegen.spec import Finding, Severity
from tests.check.rules.subjects import subject
from tests.recipes_for_tests import recipe

AXOLOTL = subject({"axolotl.yaml": "base_model: m\nattn_implementation: eager\n"})
ARGUMENTS = subject({"args.yaml": "model_name_or_path: m\nlearning_rate: 1.0e-5\n"})
FSDP = "distributed_type: FSDP\nnum_processes: 2\nfsdp_config: {fsdp_state_dict_type: FULL_STATE_DICT}\n"
LAUNCHED = subject({"args.yaml": "model_name_or_path: m\n", "accelerate.yaml": FSDP})


def said(fix: str, about: Subject) -> str:
    return in_file_words(Finding("RG205", Severity.ERROR, "compat", "why", fix), about).fix


@pytest.mark.parametrize(
    ("fix", "about", "expected"),
    [
        ("--set attention=sdpa", AXOLOTL, "attn_implementation: sdpa"),
        ("--set fsdp.state_dict_type=SHARDED_STATE_DICT", AXOLOTL, "fsdp_config.state_dict_type: SHARDED_STATE_DICT"),
        ("--set optimizer=adamw_torch_fused", AXOLOTL, "optimizer: adamw_torch_fused"),
        ("--set optimizer=adamw_torch_fused", ARGUMENTS, "optim: adamw_torch_fused"),
        ("--set adapter.fused_kernels=false", AXOLOTL,
         "lora_mlp_kernel: false, lora_qkv_kernel: false, lora_o_kernel: false"),
        ("--set adapter.target_modules=q_proj,k_proj", AXOLOTL, "lora_target_modules: [q_proj, k_proj]"),
        ("--set eot_tokens=TOKEN, as the model's chat template writes it", AXOLOTL,
         "eot_tokens: [TOKEN], as the model's chat template writes it"),
        ("--set warmup_steps=0, or more epochs", ARGUMENTS, "warmup_steps: 0, or more epochs"),
        ("--learning-rate 1.0e-05, or --global-batch-size 16", AXOLOTL,
         "learning_rate: 1.0e-05, or a global batch of 16 sequences (more gradient_accumulation_steps)"),
        ("--sequence-len 4096", ARGUMENTS, "max_length: 4096"),
        ("--method lora", AXOLOTL, "lora on a base that is not quantised to 4 bits"),
        ("--set fsdp.state_dict_type=SHARDED_STATE_DICT", LAUNCHED, "fsdp_config.state_dict_type: SHARDED_STATE_DICT"),
        ("--set loss_kernel=stock", ARGUMENTS, "set loss kernel to stock"),
        ("measure the first steps", AXOLOTL, "measure the first steps"),
    ],
)  # fmt: skip
def test_the_fix_names_the_key(fix: str, about: Subject, expected: str) -> None:
    assert said(fix, about) == expected


def test_where_a_file_states_the_field_its_own_key_is_meant() -> None:
    placed = replace(LAUNCHED.assembled, provenance={"fsdp.state_dict_type": "accelerate.yaml:3"})
    fix = said("--set fsdp.state_dict_type=SHARDED_STATE_DICT", replace(LAUNCHED, assembled=placed))
    assert fix == "fsdp_config.fsdp_state_dict_type: SHARDED_STATE_DICT"


def test_the_loss_that_is_on_is_the_one_to_turn_off() -> None:
    chosen = replace(AXOLOTL, assembled=replace(AXOLOTL.assembled, recipe=recipe()))
    assert said("--set loss_kernel=stock", chosen) in ("chunked_cross_entropy: false", "chunked_cross_entropy: stock")


def test_a_project_of_recipegen_keeps_its_options() -> None:
    own = replace(AXOLOTL, files={**AXOLOTL.files, "recipe.yaml": b""})
    assert said("--set attention=sdpa", own) == "--set attention=sdpa"


def test_the_keys_are_those_of_the_readers() -> None:
    """Each key, written as a value that is not its default, is read as its field."""
    values = {"state_dict_type": "SHARDED_STATE_DICT", "attn_implementation": "sdpa", "optim": "adamw_torch"}

    def read(path: str, key: str) -> object:
        inside: object = values.get(key.rpartition(".")[2].removeprefix("fsdp_"), 1)
        for part in reversed(key.split(".")):
            inside = {part: inside}
        assert isinstance(inside, dict)
        base = {"fsdp": True} if key.startswith("fsdp_config.") else {}
        return arguments_read.read(yaml.safe_dump({**base, **inside}).encode(), "a.yaml").values.get(path)

    for path, key in KEYS["arguments"].items():
        assert read(path, key) is not None, path
    for path, key in KEYS["accelerate"].items():
        section, _, name = key.partition(".")
        value = "SHARDED_STATE_DICT" if "state_dict" in name else 2 if "size" in name else True
        content = {"distributed_type": "FSDP", "num_processes": 2, section: {name: value}}
        assert path in accelerate_read.read(yaml.safe_dump(content).encode(), "a.yaml").values, path
