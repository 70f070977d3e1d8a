"""Which architectures Axolotl's LoRA kernels can be patched into, as JSON on stdout. The patches stay in this process.

usage: patched_architectures.py FOLDER MODEL_TYPE ...
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any


def main(folder: Path, architectures: list[str]) -> dict[str, Any]:
    from axolotl.monkeypatch.lora_kernels import patch_self_attn_lora
    from axolotl.utils.dict import DictDefault
    from transformers import AutoConfig

    found: dict[str, Any] = {}
    for name in architectures:
        config: Any = AutoConfig.for_model(name)
        config.save_pretrained(folder / name)
        text = config.get_text_config()
        try:
            patch_self_attn_lora(DictDefault({"base_model": str(folder / name)}))
            problem = ""
        except AssertionError as error:
            problem = str(error)
        activation = getattr(text, "hidden_act", getattr(text, "hidden_activation", None))
        found[name] = {"problem": problem, "activation": activation}
    return found


if __name__ == "__main__":
    print("REPORT " + json.dumps(main(Path(sys.argv[1]), sys.argv[2:])))
