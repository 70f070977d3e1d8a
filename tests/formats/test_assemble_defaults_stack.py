"""What `assemble` fills in is what the real trainers do: every file is put through their own code and compared.

Axolotl: validate_config with the plugins of the file, normalize_config, prepare_optim_env, and the arguments that its
builder makes for Transformers (trainer_truth.py). Its examples where they are at hand, and files with keys left out.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from recipegen.catalog import load_cluster
from recipegen.check.axolotl_lite import capabilities, lite_axolotl
from recipegen.formats import axolotl_read, deepspeed_read
from recipegen.formats.assemble import assemble
from recipegen.formats.assembled import Assembled
from recipegen.spec import ModelSpec
from tests.formats.test_assemble_examples import FILES, FOLDER, NEEDED, STACK, from_catalogue, readings
from tests.formats.trainer_comparison import differences
from tests.recipes_for_tests import model

pytestmark = pytest.mark.stack
ROOT = Path(__file__).parents[2]
CLUSTER = load_cluster("8x-h100")
TARGET = capabilities(CLUSTER)
BASE = "base_model: m\nlearning_rate: 1e-5\noutput_dir: out\ndatasets: [{path: d.jsonl, type: alpaca}]\n"
LORA = "adapter: lora\nlora_r: 8\nlora_alpha: 16\nlora_target_linear: true\n"
QLORA = LORA.replace("adapter: lora", "adapter: qlora") + "load_in_4bit: true\n"
FSDP2 = "fsdp_version: 2\nfsdp_config: {transformer_layer_cls_to_wrap: LlamaDecoderLayer, auto_wrap_policy: TRANSFORMER_BASED_WRAP"
FSDP1 = "fsdp_version: 1\nfsdp_config: {transformer_layer_cls_to_wrap: LlamaDecoderLayer, auto_wrap_policy: TRANSFORMER_BASED_WRAP"
NO_VERSION = FSDP1.partition("\n")[2]
# What each leaves out is the point.
WRITTEN = {
    "nothing": "",
    "lora": LORA,
    "qlora": QLORA,
    "lora without a dtype of its own": LORA + "bf16: true\n",
    "int8": LORA + "load_in_8bit: true\n",
    "dropout": LORA + "lora_dropout: 0.05\n",
    "one kernel off": LORA + "lora_qkv_kernel: false\n",
    "one kernel on": LORA + "lora_o_kernel: true\n",
    "remote code": LORA + "trust_remote_code: true\n",
    "nvfp4 that is merged": LORA + "nvfp4_merge_aware: true\n",
    "rslora and dora": LORA + "peft_use_rslora: true\npeft_use_dora: true\n",
    "packing": "sample_packing: true\n",
    "packing without padding": "sample_packing: true\npad_to_sequence_len: false\n",
    "packing without eval packing": "sample_packing: true\neval_sample_packing: false\nval_set_size: 0.1\n",
    "padding without packing": "pad_to_sequence_len: true\n",
    "batch size": "batch_size: 8\nmicro_batch_size: 2\ngradient_accumulation_steps:\n",
    "batch size without accumulation": "batch_size: 8\nmicro_batch_size: 2\n",
    "empty micro batch": "gradient_accumulation_steps: 4\n",
    "empty keys": "weight_decay:\nlr_scheduler:\nseed:\nval_set_size:\nnum_epochs: 2\nsave_steps:\nlogging_steps:\n",
    "max_steps": "max_steps: 500\n",
    "few steps": "max_steps: 40\n",
    "very few steps": "max_steps: 10\n",
    "warm-up ratio": "warmup_ratio: 0.1\n",
    "warm-up ratio and steps": "warmup_ratio: 0.1\nmax_steps: 333\n",
    "one step of warm-up": "warmup_steps: 1\n",
    "no warm-up": "warmup_steps: 0\n",
    "one step of warm-up by default": "max_steps: 50\n",
    "workers only": "dataloader_num_workers: 4\n",
    "workers and prefetch": "dataloader_num_workers: 4\ndataloader_prefetch_factor: 2\n",
    "pin memory only": "dataloader_pin_memory: false\n",
    "checkpointing": "gradient_checkpointing: true\n",
    "checkpointing with empty words": "gradient_checkpointing: true\ngradient_checkpointing_kwargs: {}\n",
    "checkpointing without reentrance": "gradient_checkpointing: true\ngradient_checkpointing_kwargs: {use_reentrant: false}\n",
    "checkpointing of a part": "gradient_checkpointing: true\nunfrozen_parameters: ['^lm_head', 'model.*']\n",
    "checkpointing that offloads": "gradient_checkpointing: true\nactivation_offloading: true\n",
    "hidden states offloaded": LORA + "gradient_checkpointing: true\nactivation_offloading: hidden_states\n",
    "checkpointing: offload": "gradient_checkpointing: offload\n",
    "bf16 auto": "bf16: auto\n",
    "bf16 auto, fp16 off": "bf16: auto\nfp16: false\n",
    "bf16 off": "bf16: false\n",
    "bf16 off, bfloat16 on": "bf16: false\nbfloat16: true\n",
    "float32": "bf16: false\nfp16: false\ntf32: false\n",
    "tf32 auto": "tf32: auto\n",
    "tf32 on": "tf32: true\n",
    "saves per epoch": "saves_per_epoch: 1\nnum_epochs: 3\n",
    "saves per epoch, one epoch": "saves_per_epoch: 1\n",
    "save steps": "save_steps: 50\n",
    "save strategy steps": "save_strategy: steps\n",
    "no saves": "save_strategy: 'no'\n",
    "keep none": "save_total_limit: 0\n",
    "validation": "val_set_size: 0.05\n",
    "validation every": "val_set_size: 0.05\neval_steps: 20\n",
    "validation per epoch": "val_set_size: 0.05\nevals_per_epoch: 1\nnum_epochs: 2\n",
    "validation strategy": "val_set_size: 0.05\neval_strategy: epoch\n",
    "validation strategy steps": "val_set_size: 0.05\neval_strategy: steps\n",
    "adam numbers": "adam_beta1: 0.8\nadam_beta2: 0.95\nadam_epsilon: 1e-6\nweight_decay: 0.1\nmax_grad_norm: 0.3\n",
    "kahan": "optimizer: optimi_adamw\n",
    "kahan with one beta": "optimizer: optimi_adamw\nadam_beta2: 0.95\n",
    "kahan with both betas": "optimizer: optimi_adamw\nadam_beta1: 0.8\nadam_beta2: 0.95\n",
    "kahan with epsilon": "optimizer: optimi_adamw\nadam_epsilon: 1e-7\n",
    "muon": "optimizer: muon\n",
    "muon with one beta": "optimizer: muon\nadam_beta2: 0.95\n",
    "8 bit": "optimizer: adamw_bnb_8bit\n",
    "lion": "optimizer: lion_8bit\n",
    "rex": "lr_scheduler: rex\n",
    "constant": "lr_scheduler: constant\n",
    "compile": "torch_compile: true\n",
    "compile auto": "torch_compile: auto\n",
    "fsdp2": FSDP2 + "}\n",
    "fsdp2 with all": FSDP2 + ", reshard_after_forward: false, offload_params: true, cpu_ram_efficient_loading: true, state_dict_type: SHARDED_STATE_DICT}\n",
    "fsdp2 that checkpoints": FSDP2 + ", activation_checkpointing: true}\n",
    "fsdp2 lora": LORA + FSDP2 + "}\n",
    "fsdp2 qlora": QLORA + FSDP2 + "}\n",
    "fsdp2 hybrid": "dp_shard_size: 4\n" + FSDP2 + "}\n",
    "fsdp2 replicas": "dp_replicate_size: 2\n" + FSDP2 + "}\n",
    "fsdp2 tensor parallel": "tensor_parallel_size: 2\ndp_shard_size: 4\n" + FSDP2 + "}\n",
    "fsdp2 version within": NO_VERSION + ", version: 2}\n",
    "fsdp2 prefixed version": NO_VERSION + ", fsdp_version: 2}\n",
    "fsdp2 full_shard": "fsdp_version: 2\nfsdp: [full_shard]\nfsdp_config: {offload_params: false}\n",
    "fsdp2 shard_grad_op": "fsdp_version: 2\nfsdp: [shard_grad_op, offload]\nfsdp_config: {use_orig_params: true}\n",
    "fsdp1": FSDP1 + "}\n",
    "fsdp1 lora": LORA + FSDP1 + "}\n",
    "fsdp without a version": NO_VERSION + "}\n",
    "fsdp without a version, lora": LORA + NO_VERSION + "}\n",
    "fsdp list and offload": "fsdp: [full_shard, auto_wrap, offload]\nfsdp_config: {fsdp_state_dict_type: FULL_STATE_DICT}\n",
    "fsdp1 shard_grad_op": "fsdp: [shard_grad_op]\nfsdp_config: {fsdp_offload_params: true}\n",
    "fsdp1 no_shard": "fsdp: [no_shard]\nfsdp_config: {use_orig_params: true}\n",
    "fsdp1 hybrid_shard": "fsdp: [hybrid_shard]\nfsdp_config: {use_orig_params: true}\n",
    "zero": "deepspeed: {zero_optimization: {stage: 2}}\n",
    "zero and fsdp": "deepspeed: {zero_optimization: {stage: 2}}\n" + FSDP2 + "}\n",
    "cut": "plugins: [axolotl.integrations.cut_cross_entropy.CutCrossEntropyPlugin]\n",
}  # fmt: skip

# What validate_config accepts, and the run stops at before there is a trainer.
STOPS = {
    "fsdp list alone": ("fsdp: [full_shard, auto_wrap]\n", "'NoneType' object has no attribute 'activation_checkpointing'"),
    "fsdp1 with reshard": (FSDP1 + ", reshard_after_forward: true}\n", "KeyError: 'TRUE'"),
}


def ask(cases: Sequence[Mapping[str, Any]], folder: Path) -> list[dict[str, Any]]:
    """The trainers' own answers, from one child process."""
    work, answers = folder / "work.json", folder / "answers.json"
    work.write_text(json.dumps(cases, default=str))
    environment = {**os.environ, "AXOLOTL_DO_NOT_TRACK": "1", "HF_HUB_OFFLINE": "1", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "tests.formats.trainer_truth", str(work), str(answers)]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    found: list[dict[str, Any]] = json.loads(answers.read_text())
    return found


def case(content: str, shape: ModelSpec) -> dict[str, Any]:
    return {
        "kind": "axolotl",
        "values": yaml.safe_load(content),
        "capabilities": TARGET,
        "torch": STACK.pins["torch"],
        "model_type": shape.model_type,
    }


@pytest.fixture(scope="module")
def truths(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("written")
    texts = {**WRITTEN, **{name: text for name, (text, _) in STOPS.items()}}
    answers = ask([case(BASE + text, model()) for text in texts.values()], folder)
    return dict(zip(texts, answers, strict=True))


@pytest.mark.parametrize("name", WRITTEN)
def test_a_written_file_is_what_axolotl_makes_of_it(name: str, truths: dict[str, dict[str, Any]]) -> None:
    truth = truths[name]
    assert "error" not in truth, truth["error"]
    answer = assemble(
        [axolotl_read.read((BASE + WRITTEN[name]).encode(), "axolotl.yaml")],
        STACK,
        cluster=CLUSTER,
        model=lambda _: model(),
    )
    assert answer.recipe is not None, answer.unknown
    assert differences(answer.recipe, truth) == {}


@pytest.mark.parametrize("name", STOPS)
def test_what_axolotl_accepts_and_stops_at(name: str, truths: dict[str, dict[str, Any]]) -> None:
    assert STOPS[name][1] in truths[name]["error"]
