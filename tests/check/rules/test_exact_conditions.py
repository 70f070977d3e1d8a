"""Where a rule must speak, and next to it where it must not: one global answer would be wrong."""

from __future__ import annotations

import json

import pytest
from subjects import said, subject

from recipegen.check.rules import View, all_file_rules, find_file_rule, findings
from recipegen.check.rules.view import version_number
from recipegen.spec import Severity

LORA = "adapter: lora\nlora_r: 8\nlora_alpha: 16\nlora_target_modules: [q_proj]\n"
QLORA = "adapter: qlora\nload_in_4bit: true\nlora_r: 8\nlora_alpha: 16\nlora_target_modules: [q_proj]\n"
FSDP2 = "fsdp_version: 2\nfsdp_config: {reshard_after_forward: true, %s}\n"
ARGS = "model_name_or_path: m\nper_device_train_batch_size: 1\ngradient_accumulation_steps: 1\n"


def zero(stage: int, **more: object) -> str:
    return json.dumps({"zero_optimization": {"stage": stage, **more}})


def accelerate(text: str, processes: int = 4) -> str:
    return f"compute_environment: LOCAL_MACHINE\nnum_machines: 1\nnum_processes: {processes}\n{text}"


def axolotl(text: str) -> dict[str, str]:
    return {"axolotl.yaml": f"base_model: m\nmicro_batch_size: 1\n{text}"}


def zero3(adapter: str, text: str, stage: int = 3) -> dict[str, str]:
    body = f"{adapter}deepspeed: ds.json\ngradient_checkpointing: true\n{text}"
    return {**axolotl(body), "ds.json": zero(stage)}


REENTRANT = "gradient_checkpointing_kwargs: {use_reentrant: %s}\n"
SHARDED = "distributed_type: FSDP\nfsdp_config: {fsdp_version: 2, fsdp_state_dict_type: %s}\n"
CPU = {"offload_optimizer": {"device": "cpu"}}

RING = "context_parallel_size: 2\nsample_packing: true\nring_attn_func: batch_ring\n"
PARTS = accelerate(SHARDED % "SHARDED_STATE_DICT")
DDP = "distributed_type: MULTI_GPU\n"
LAYERWISE = "optimizer: galore_adamw_layerwise\ngradient_accumulation_steps: 2\n"
TWO = "accelerate launch --num_machines 2 --num_processes 4"
BATCH = "#!/bin/bash\n#SBATCH --nodes=2\n"
AXOLOTL = "axolotl train a.yaml --launcher torchrun -- --nnodes 2 --nproc_per_node 8"

# (rule, files where it speaks, files where it must not)
PAIRS = [
    # reentrant checkpointing: wrong under ZeRO-3 with frozen weights only
    ("RG242", zero3(LORA, REENTRANT % "false"), zero3(LORA, REENTRANT % "true")),
    ("RG242", zero3(LORA, REENTRANT % "false"), zero3("", REENTRANT % "false")),
    ("RG242", zero3(LORA, REENTRANT % "false"), zero3(LORA, REENTRANT % "false", stage=2)),
    ("RG242", zero3(LORA, REENTRANT % "false"), zero3(LORA, "")),  # Axolotl's default is reentrant
    # sharded state dict: right for resuming, wrong for an adapter saved whole, no model without a merge
    (
        "RG201",
        axolotl(LORA + FSDP2 % "state_dict_type: FULL_STATE_DICT"),
        axolotl(LORA + FSDP2 % "state_dict_type: SHARDED_STATE_DICT"),
    ),
    (
        "RG201",
        axolotl(LORA + FSDP2 % "state_dict_type: FULL_STATE_DICT"),
        axolotl(FSDP2 % "state_dict_type: FULL_STATE_DICT"),
    ),
    ("RG451", {"accelerate.yaml": PARTS}, {"accelerate.yaml": accelerate(SHARDED % "FULL_STATE_DICT")}),
    ("RG451", {"accelerate.yaml": PARTS}, axolotl(FSDP2 % "state_dict_type: SHARDED_STATE_DICT")),
    (
        "RG451",
        {"accelerate.yaml": PARTS},
        {"accelerate.yaml": PARTS, "launch.sh": "accelerate merge-weights a b\n"},
    ),
    (
        "RG203",
        axolotl(QLORA + FSDP2 % "cpu_ram_efficient_loading: true"),
        axolotl(QLORA + FSDP2 % "cpu_ram_efficient_loading: false"),
    ),
    (
        "RG203",
        axolotl(QLORA + FSDP2 % "cpu_ram_efficient_loading: true"),
        axolotl(LORA + FSDP2 % "cpu_ram_efficient_loading: true"),
    ),
    ("RG221", axolotl(LORA + "load_in_8bit: true\nfsdp: [full_shard]\n"), axolotl(LORA + "load_in_8bit: true\n")),
    ("RG221", axolotl(LORA + "load_in_8bit: true\nfsdp: [full_shard]\n"), axolotl(QLORA + "fsdp: [full_shard]\n")),
    ("RG223", axolotl(LORA + "load_in_4bit: true\n"), axolotl(QLORA)),
    (
        "RG224",
        axolotl("optimizer: adamw_bnb_8bit\nfsdp_config: {fsdp_version: 1, offload_params: true}\n"),
        axolotl("optimizer: adamw_bnb_8bit\nfsdp_config: {fsdp_version: 1, offload_params: false}\n"),
    ),
    (
        "RG225",
        axolotl("fp8: true\n" + FSDP2 % "cpu_ram_efficient_loading: false"),
        axolotl("fp8: true\n" + FSDP2 % "cpu_ram_efficient_loading: true"),
    ),
    ("RG232", axolotl(LAYERWISE), axolotl("optimizer: galore_adamw_layerwise\ngradient_accumulation_steps: 1\n")),
    ("RG232", axolotl(LAYERWISE), axolotl("optimizer: galore_adamw\ngradient_accumulation_steps: 2\n")),
    (
        "RG237",
        {**axolotl("dp_shard_size: 1\ndp_replicate_size: 4\n" + FSDP2 % ""), "accelerate.yaml": accelerate(DDP)},
        {**axolotl("dp_shard_size: 2\ndp_replicate_size: 2\n" + FSDP2 % ""), "accelerate.yaml": accelerate(DDP)},
    ),
    (
        "RG239",
        zero3("", "") | {"ds.json": zero(2, offload_param={"device": "cpu"})},
        zero3("", "") | {"ds.json": zero(3, offload_param={"device": "cpu"})},
    ),
    (
        "RG244",
        axolotl(RING),
        axolotl("context_parallel_size: 2\nsample_packing: true\nring_attn_func: varlen_llama3\n"),
    ),
    ("RG244", axolotl(RING), axolotl("context_parallel_size: 2\nsample_packing: true\n")),
    ("RG244", axolotl(RING), axolotl("sample_packing: true\nring_attn_func: batch_ring\n")),
    ("RG245", axolotl(LORA + "torch_compile: true\n" + FSDP2 % ""), axolotl("torch_compile: true\n" + FSDP2 % "")),
    (
        "RG454",
        zero3("", "") | {"ds.json": zero(3)},
        zero3("", "") | {"ds.json": zero(3, stage3_gather_16bit_weights_on_model_save=True)},
    ),
    ("RG454", zero3("", "") | {"ds.json": zero(3)}, zero3("", "") | {"ds.json": zero(2)}),
    ("RG742", axolotl(LORA), axolotl(LORA + "lora_qkv_kernel: false\n")),
    ("RG742", axolotl(LORA), axolotl(LORA + "rl: dpo\n")),
    ("RG743", axolotl(LORA), axolotl(LORA + "dataloader_num_workers: 2\n")),
    ("RG744", axolotl("sample_packing: true\n"), axolotl("sample_packing: true\npad_to_sequence_len: false\n")),
    (
        "RG745",
        {"args.yaml": ARGS + "eval_strategy: steps\n"},
        {"args.yaml": ARGS + "eval_strategy: steps\nper_device_eval_batch_size: 1\n"},
    ),
    ("RG745", {"args.yaml": ARGS + "eval_strategy: steps\n"}, {"args.yaml": ARGS + 'eval_strategy: "no"\n'}),
    ("RG745", axolotl("val_set_size: 0.1\neval_batch_size: 4\n"), axolotl("val_set_size: 0.1\n")),
    ("RG747", axolotl("fsdp: [full_shard]\n"), axolotl("fsdp_version: 1\nfsdp: [full_shard]\n")),
    (
        "RG412",
        axolotl(LORA + "tokens: [a]\n"),
        axolotl(LORA + "tokens: [a]\nlora_modules_to_save: [embed_tokens, lm_head]\n"),
    ),
    (
        "RG229",
        axolotl(LORA + "fp16: true\nlora_modules_to_save: [lm_head]\n"),
        axolotl(LORA + "bf16: true\nlora_modules_to_save: [lm_head]\n"),
    ),
    (
        "RG731",
        {"args.yaml": ARGS + "deepspeed: ds.json\n", "ds.json": json.dumps({"gradient_accumulation_steps": 4})},
        {"args.yaml": ARGS + "deepspeed: ds.json\n", "ds.json": json.dumps({"gradient_accumulation_steps": "auto"})},
    ),
    (
        "RG732",
        {"args.yaml": ARGS + "bf16: true\ndeepspeed: ds.json\n", "ds.json": '{"fp16": {"enabled": true}}'},
        {"args.yaml": ARGS + "fp16: true\ndeepspeed: ds.json\n", "ds.json": '{"fp16": {"enabled": true}}'},
    ),
    ("RG736", {"args.yaml": ARGS + "optim: adamw_hf\n"}, {"args.yaml": ARGS + "optim: adamw_torch\n"}),
    (
        "RG301",
        {"launch.sh": "CUDA_VISIBLE_DEVICES=0 torchrun --nproc_per_node 2 t.py\n"},
        {"launch.sh": "CUDA_VISIBLE_DEVICES=0,1 torchrun --nproc_per_node 2 t.py\n"},
    ),
    (
        "RG302",
        {"launch.sh": "torchrun --nnodes 2 --nproc_per_node 2 t.py\n"},
        {"launch.sh": "torchrun --nnodes 2 --nproc_per_node 2 --rdzv_backend c10d --rdzv_endpoint $H:29500 t.py\n"},
    ),
    ("RG302", {"launch.sh": TWO + " t.py\n"}, {"launch.sh": TWO + " --main_process_ip $H t.py\n"}),
    (
        "RG303",
        {"j.slurm": BATCH + "srun accelerate launch --machine_rank $SLURM_PROCID t.py\n"},
        {"j.slurm": BATCH + "srun bash -c 'accelerate launch --machine_rank $SLURM_PROCID t.py'\n"},
    ),
    (
        "RG304",
        {"launch.sh": TWO + " --main_process_ip h t.py\n"},
        {"launch.sh": TWO + " --main_process_ip h --machine_rank $NODE_RANK t.py\n"},
    ),
    (
        "RG310",
        {"launch.sh": "torchrun --nproc_per_node 2 t.py --deepspeed ds.json\n", "ds.json": zero(2, **CPU)},
        {
            "launch.sh": "export OMP_NUM_THREADS=8\ntorchrun --nproc_per_node 2 t.py --deepspeed ds.json\n",
            "ds.json": zero(2, **CPU),
        },
    ),
    (
        "RG312",
        {"args.yaml": ARGS + "device_map: auto\n", "launch.sh": "torchrun --nproc_per_node 2 t.py\n"},
        {"args.yaml": ARGS + "device_map: auto\n", "launch.sh": "python t.py\n"},
    ),
    ("RG316", {"launch.sh": AXOLOTL + "\n"}, {"launch.sh": AXOLOTL + " --rdzv_id a\n"}),
]


@pytest.mark.parametrize(("rule", "yes", "no"), PAIRS, ids=[f"{rule}-{i}" for i, (rule, _, _) in enumerate(PAIRS)])
def test_the_condition_is_exact(rule: str, yes: dict[str, str], no: dict[str, str]) -> None:
    assert rule in said(yes)
    assert rule not in said(no)


@pytest.mark.parametrize(
    ("attention", "hardware", "rule"),
    [
        ("flash_attention_3", "8x-h100", None),
        ("flash_attention_3", "8x-rtx-4090", "RG205"),
        ("flash_attention_4", "8x-h100", None),
        ("flash_attention_4", "8x-b200", None),
        ("flash_attention_4", "8x-rtx-5090", "RG226"),
        ("kernels-community/flash-attn3", "8x-rtx-5090", "RG226"),
        ("sdpa", "8x-rtx-5090", None),
    ],
)
def test_attention_needs_its_card(attention: str, hardware: str, rule: str | None) -> None:
    found = said(axolotl(f"attn_implementation: {attention}\n"), hardware=hardware)
    assert {"RG205", "RG226"} & set(found) == ({rule} if rule else set())


def test_a_class_of_the_models_own_family_passes() -> None:
    text = "fsdp_version: 2\nfsdp_config: {transformer_layer_cls_to_wrap: %s}\n"
    model = "mistralai/Mixtral-8x7B-v0.1"
    assert "RG233" in said(axolotl(text % "LlamaDecoderLayer"), model=model)
    assert "RG233" not in said(axolotl(text % "MixtralSparseMoeBlock"), model=model)
    assert "RG233" not in said(axolotl(text % "MixtralDecoderLayer"), model=model)


def test_a_pinned_version_wins_over_the_stack() -> None:
    files = axolotl(QLORA + FSDP2 % "")
    assert "RG474" not in said(files)
    found = said({**files, "requirements.txt": "# pins\naxolotl==0.4.1\n"})["RG474"]
    assert found.where == "requirements.txt:2"
    assert version_number("2.9.1+cu129") == (2, 9, 1)
    assert version_number("main") == ()


@pytest.mark.parametrize("roles", ["[bot]", "[]"])
def test_roles_that_no_turn_has_are_named(roles: str) -> None:
    entry = f"datasets:\n  - path: d\n    type: chat_template\n    roles_to_train: {roles}\n"
    found = said(axolotl(entry))["RG513"]
    assert found.severity is Severity.WARNING
    assert found.where == "axolotl.yaml:6"
    own = entry.replace("    type:", "    roles: {assistant: [bot]}\n    type:")
    assert roles == "[]" or said(axolotl(own))["RG513"].severity is Severity.NOTE


def test_a_checkpoint_of_the_other_kind_is_an_error() -> None:
    files: dict[str, str | bytes] = {
        **axolotl(FSDP2 % "state_dict_type: FULL_STATE_DICT" + "resume_from_checkpoint: ./out/checkpoint-1\n"),
        "out/checkpoint-1/pytorch_model_fsdp_0/__0_0.distcp": b"",
    }
    assert said(files)["RG455"].severity is Severity.ERROR
    same = files | axolotl(
        FSDP2 % "state_dict_type: SHARDED_STATE_DICT" + "resume_from_checkpoint: ./out/checkpoint-1\n"
    )
    assert "RG455" not in said(same)


def test_every_rule_explains_itself() -> None:
    rules = all_file_rules()
    assert len({rule.id for rule in rules}) == len(rules)
    for rule in rules:
        assert all((rule.doc, rule.title, rule.source)), rule.id
    assert find_file_rule("rg301") is not None
    assert find_file_rule("RG999") is None


@pytest.mark.parametrize(
    "text", ["", "[]", "a: [", "datasets: 3\nfsdp_config: 7\nadapter: []\nspecial_tokens: x\n", "\x00"]
)
def test_any_text_gives_findings_and_no_traceback(text: str) -> None:
    for name in ("axolotl.yaml", "accelerate.yaml", "args.yaml", "train.json", "ds.json", "launch.sh", "j.slurm"):
        findings(subject({name: text}, hardware="8x-rtx-5090"))
    assert View(subject({})).trainer == ""
