"""Sides of a recipe for the tests: files in a folder, checked for a box."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from recipegen.check.checking import Checked, Options, check
from recipegen.check.gather import Target
from recipegen.review.compare import compare
from recipegen.review.difference import RecipeDifference

BOX = "kentino-8x-rtx-pro-6000"
FULL = """\
base_model: meta-llama/Llama-3.1-8B
datasets:
  - path: data.jsonl
    ds_type: json
    type: chat_template
    field_messages: messages
    roles_to_train: [assistant]
    train_on_eos: turn
chat_template: llama3
eot_tokens: ["<|eot_id|>"]
dataset_prepared_path: ./prepared
output_dir: ./outputs
val_set_size: 0.01
sequence_len: 4096
sample_packing: true
excess_length_strategy: drop
train_on_inputs: false
micro_batch_size: 2
gradient_accumulation_steps: 4
num_epochs: 2
learning_rate: 1.0e-5
lr_scheduler: cosine
warmup_ratio: 0.03
optimizer: adamw_torch_fused
adam_beta1: 0.9
adam_beta2: 0.99
adam_epsilon: 1.0e-8
weight_decay: 0.0
max_grad_norm: 1.0
bf16: true
tf32: true
attn_implementation: sdpa
gradient_checkpointing: true
gradient_checkpointing_kwargs:
  use_reentrant: false
fsdp_version: 2
fsdp_config:
  reshard_after_forward: true
  state_dict_type: SHARDED_STATE_DICT
  auto_wrap_policy: TRANSFORMER_BASED_WRAP
  transformer_layer_cls_to_wrap: LlamaDecoderLayer
save_steps: 100
save_total_limit: 2
logging_steps: 10
seed: 42
dataloader_num_workers: 2
dataloader_prefetch_factor: 4
dataloader_pin_memory: true
"""
_FSDP = FULL[FULL.index("fsdp_version") : FULL.index("save_steps")]
LORA = (
    FULL.replace(_FSDP, "")
    .replace("learning_rate: 1.0e-5", "learning_rate: 2.0e-4")
    .replace("gradient_accumulation_steps: 4", "gradient_accumulation_steps: 1")
    + """\
adapter: lora
lora_r: 16
lora_alpha: 32
lora_dropout: 0.0
lora_target_modules: [q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj]
lora_mlp_kernel: true
lora_qkv_kernel: true
lora_o_kernel: true
"""
)


def checked(folder: Path, text: str, *, hardware: str | None = BOX, files: Mapping[str, str] | None = None) -> Checked:
    """`text` as axolotl.yaml in a new folder, with other files beside it."""
    folder.mkdir(parents=True)
    for name, content in {"axolotl.yaml": text, **(files or {})}.items():
        (folder / name).write_text(content, encoding="utf-8")
    (one,) = check([folder], Options(Target(hardware=hardware))).checked
    return one


def edited(text: str, *edits: tuple[str, str]) -> str:
    """The text with pieces replaced; an edit that changes nothing is an error of the test."""
    for old, new in edits:
        assert text.count(old) == 1, (old, text.count(old))
        text = text.replace(old, new)
    return text


def difference(folder: Path, before: str, after: str, **keywords: object) -> RecipeDifference:
    """The semantic difference of two texts of axolotl.yaml."""
    sides = [checked(folder / name, text, **keywords) for name, text in (("before", before), ("after", after))]  # type: ignore[arg-type]
    return compare("recipe", *sides)
