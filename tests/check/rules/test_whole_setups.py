"""Setups that people really have: what the rules say of them, and what they must not say."""

from __future__ import annotations

import json

import pytest

from recipegen.spec import Severity
from tests.check.rules.subjects import said

AXOLOTL = "base_model: some/model\nmicro_batch_size: 1\ngradient_accumulation_steps: 4\nlearning_rate: 2.0e-5\n"
FSDP2 = "distributed_type: FSDP\nnum_machines: 1\nnum_processes: 8\nfsdp_config:\n  fsdp_version: 2\n"
SBATCH = """#!/bin/bash
#SBATCH --nodes=2
#SBATCH --gpus-per-node=8
HEAD=$(scontrol show hostnames $SLURM_JOB_NODELIST | head -n 1)
srun torchrun --nnodes=$SLURM_NNODES --nproc_per_node=8 {options} -m axolotl.cli.train axolotl.yaml
"""
RENDEZVOUS = "--rdzv_id=$SLURM_JOB_ID --rdzv_backend=c10d --rdzv_endpoint=$HEAD:29500"
TRAINER = "accelerate launch --config_file accelerate.yaml {options} train.py --model_name_or_path some/model "


@pytest.mark.parametrize("options", [RENDEZVOUS, RENDEZVOUS.replace("_", "-"), RENDEZVOUS.replace("=", " ")])
def test_torchrun_under_slurm_meets_at_its_endpoint(options: str) -> None:
    found = said({"axolotl.yaml": AXOLOTL, "job.slurm": SBATCH.format(options=options)})
    assert not {"RG302", "RG304"} & found.keys()


def test_torchrun_under_slurm_without_an_endpoint_does_not() -> None:
    found = said({"axolotl.yaml": AXOLOTL, "job.slurm": SBATCH.format(options="--rdzv_id=$SLURM_JOB_ID")})
    assert {"RG302", "RG304"} <= found.keys()


@pytest.mark.parametrize(
    ("hardware", "severity"),
    [("8x-h100", Severity.WARNING), ("8x-rtx-pro-6000", Severity.NOTE), ("8x-rtx-4090", None), ("1x-h100", None)],
)
def test_peer_to_peer_is_turned_off(hardware: str, severity: Severity | None) -> None:
    script = "#!/bin/bash\n# NCCL_P2P_DISABLE=0\nexport NCCL_P2P_DISABLE=1\naccelerate launch train.py\n"
    found = said({"run.sh": script}, hardware=hardware).get("RG317")
    assert (found and found.severity) == severity
    assert found is None or found.where == "run.sh:3"


@pytest.mark.parametrize(
    ("model", "hardware", "severity"),
    [
        ("google/gemma-3-12b-it", "8x-h100", Severity.WARNING),
        ("meta-llama/Llama-3.1-8B", "8x-h100", Severity.NOTE),
        ("google/gemma-3-12b-it", None, None),
    ],
)
def test_fp16_for_a_model_of_bf16(model: str, hardware: str | None, severity: Severity | None) -> None:
    text = AXOLOTL.replace("some/model", model)
    found = said({"axolotl.yaml": text + "fp16: true\nbf16: false\n"}, hardware=hardware, model=model).get("RG413")
    assert (found and found.severity) == severity
    assert "RG413" not in said({"axolotl.yaml": text + "bf16: true\n"}, hardware=hardware, model=model)


@pytest.mark.parametrize(
    ("model", "chat", "warns"),
    [
        ("meta-llama/Llama-3.1-8B", "", True),
        ("meta-llama/Llama-3.1-8B", "chat_template: tokenizer_default\n", True),
        ("meta-llama/Llama-3.1-8B", "chat_template: llama3\n", False),
        ("meta-llama/Llama-3.1-8B", "tokenizer_config: mine\n", False),
        ("meta-llama/Llama-3.1-8B-Instruct", "", False),
        ("Qwen/Qwen3-8B", "", False),
    ],
)
def test_a_base_model_has_no_chat_template(model: str, chat: str, warns: bool) -> None:
    text = AXOLOTL.replace("some/model", model) + chat + "datasets:\n  - path: a.jsonl\n    type: chat_template\n"
    assert ("RG414" in said({"axolotl.yaml": text}, model=model)) is warns
    assert "RG414" not in said({"axolotl.yaml": text.replace("type: chat_template", "type: alpaca")}, model=model)


def test_a_republication_with_a_name_of_its_own_may_have_one() -> None:
    text = AXOLOTL.replace("some/model", "me/Llama-3.1-8B-chatty") + "datasets:\n  - {path: a, type: chat_template}\n"
    assert "RG414" not in said({"axolotl.yaml": text}, model="meta-llama/Llama-3.1-8B")


def test_arguments_of_a_command_line_are_the_trainers() -> None:
    engine = "distributed_type: DEEPSPEED\nnum_processes: 8\ndeepspeed_config:\n  zero_stage: 3\n"
    script = TRAINER.format(options="") + "--per_device_train_batch_size 1 --gradient_accumulation_steps {}\n"
    section = engine + "  gradient_accumulation_steps: 8\n"
    found = said({"accelerate.yaml": section, "run.sh": script.format(4)})["RG731"]
    assert (found.severity, found.where) == (Severity.ERROR, "accelerate.yaml:5")
    assert "gradient_accumulation_steps is 8 here, but run.sh sets it to 4" in found.reason
    assert "RG731" not in said({"accelerate.yaml": section, "run.sh": script.format(8)})
    assert "RG731" not in said({"accelerate.yaml": engine, "run.sh": script.format(4)})


@pytest.mark.parametrize(("rate", "error"), [(1e-5, True), (2e-5, False), ("auto", False)])
def test_axolotls_rate_is_compared_with_the_json(rate: object, error: bool) -> None:
    engine = {"zero_optimization": {"stage": 2}, "optimizer": {"type": "AdamW", "params": {"lr": rate}}}
    found = said({"axolotl.yaml": AXOLOTL + "deepspeed: ds.json\n", "ds.json": json.dumps(engine)})
    assert ("RG731" in found) is error


def test_activations_are_recomputed_twice() -> None:
    twice = FSDP2 + "  fsdp_activation_checkpointing: true\n"
    script = TRAINER.format(options="") + "--per_device_train_batch_size 1 --gradient_checkpointing {}\n"
    found = said({"accelerate.yaml": twice, "run.sh": script.format("true")})["RG737"]
    assert (found.severity, found.where) == (Severity.ERROR, "accelerate.yaml:6")
    arguments = "model_name_or_path: some/model\nper_device_train_batch_size: 1\ngradient_checkpointing: true\n"
    assert "RG737" in said({"accelerate.yaml": twice, "args.yaml": arguments})
    assert "RG737" not in said({"accelerate.yaml": twice, "run.sh": script.format("false")})
    assert "RG737" not in said({"accelerate.yaml": FSDP2, "run.sh": script.format("true")})


def test_a_file_that_cannot_be_read_has_no_silent_defaults() -> None:
    assert "RG743" not in said({"axolotl.yaml": "base_model: a\ndatasets:\n\t- path: x\n"})


@pytest.mark.parametrize(
    ("kind", "severity"),
    [
        ("alpacca", Severity.ERROR),
        ("chat_templte", Severity.ERROR),
        ("my_rows", Severity.WARNING),
        ("alpaca", None),
        ("alpaca:phi", None),
        ("mine.prompts", None),
        ("chat_template.default", None),
    ],
)
def test_a_type_of_data_that_nobody_handles(kind: str, severity: Severity | None) -> None:
    text = AXOLOTL + f"datasets:\n  - path: a.jsonl\n    type: {kind}\n"
    found = said({"axolotl.yaml": text}).get("RG514")
    assert (found and found.severity) == severity
    assert found is None or found.where == "axolotl.yaml:7"
    assert "RG514" not in said({"axolotl.yaml": text + "rl: dpo\n"})


@pytest.mark.parametrize(("names", "stops"), [("[c_attn, c_proj]", True), ("[q_proj, c_proj]", False), ("q_.*", False)])
def test_an_adapter_without_a_target(names: str, stops: bool) -> None:
    adapter = f"adapter: lora\nlora_r: 8\nlora_alpha: 8\nlora_target_modules: {names}\n"
    found = said({"axolotl.yaml": AXOLOTL + adapter}, model="meta-llama/Llama-3.1-8B").get("RG209")
    assert (found is not None) is stops
    assert found is None or (found.severity, found.where) == (Severity.ERROR, "axolotl.yaml:8")
