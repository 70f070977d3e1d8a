"""The dtypes Axolotl's own model loader leaves behind, as JSON on stdout. Its patches stay in this process.

usage: dtypes_one_process.py FOLDER_OF_A_TINY_LLAMA OUTPUT_FOLDER
"""

from __future__ import annotations

import json
import sys
from typing import Any

TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
ADAPTER = {
    "lora_r": 8,
    "lora_alpha": 16,
    "lora_target_modules": TARGETS,
    "lora_mlp_kernel": False,
    "lora_qkv_kernel": False,
    "lora_o_kernel": False,
    "lora_embedding_kernel": False,
}
CASES: dict[str, dict[str, Any]] = {
    "full sdpa": {},
    "full flash_attention_2": {"attn_implementation": "flash_attention_2"},
    "lora": {"adapter": "lora", **ADAPTER},
    "qlora": {"adapter": "qlora", "load_in_4bit": True, **ADAPTER},
}


def loaded(folder: str, output: str, **settings: Any) -> Any:
    """The model as it is handed to the trainer for `bf16: true`."""
    from axolotl.loaders import ModelLoader, load_tokenizer
    from axolotl.utils.config import normalize_config, validate_config
    from axolotl.utils.dict import DictDefault

    config = DictDefault(
        {
            "base_model": folder,
            "datasets": [{"path": "unused.jsonl", "type": "alpaca"}],
            "learning_rate": 1e-5,
            "micro_batch_size": 1,
            "gradient_accumulation_steps": 1,
            "num_epochs": 1,
            "bf16": True,
            "tf32": False,
            "attn_implementation": "sdpa",
            "sequence_len": 128,
            "output_dir": output,
            **settings,
        }
    )
    config = validate_config(
        config,
        capabilities={"bf16": True, "fp8": True, "tf32": True, "n_gpu": 1, "compute_capability": "sm_120"},
        env_capabilities={"torch_version": "2.13.0"},
    )
    normalize_config(config)
    # The flash kernel is not on this machine. The cast depends on `attn_needs_dtype_cast`, which validation has set.
    config.attn_implementation = "sdpa"
    model, _ = ModelLoader(config, load_tokenizer(config)).load()
    return model


def report(model: Any) -> dict[str, Any]:
    import bitsandbytes

    packed = [p for p in model.parameters() if isinstance(p, bitsandbytes.nn.Params4bit)]
    return {
        "trainable": {n: str(p.dtype) for n, p in model.named_parameters() if p.requires_grad},
        "frozen": {n: str(p.dtype) for n, p in model.named_parameters() if not p.requires_grad},
        "packed": len(packed),
        "quant_types": sorted({p.quant_state.quant_type for p in packed}),
    }


if __name__ == "__main__":
    found = {name: report(loaded(sys.argv[1], sys.argv[2], **settings)) for name, settings in CASES.items()}
    print("REPORT " + json.dumps(found), flush=True)
