"""Run by test_matrix.py: Axolotl's real validate_config on many configurations; prints {cell: error} as JSON."""

import copy
import json
import os
import sys
from pathlib import Path

os.environ.update(AXOLOTL_DO_NOT_TRACK="1", HF_HUB_OFFLINE="1")

from axolotl.utils.config import prepare_plugins, validate_config
from axolotl.utils.dict import DictDefault

TORCH = "2.13.0"


report = {}
for item in json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")):
    cfg = DictDefault(copy.deepcopy(item["values"]))
    try:
        prepare_plugins(cfg)
        out = validate_config(cfg, capabilities=item["capabilities"], env_capabilities={"torch_version": TORCH})
    except Exception as error:
        report[item["cell"]] = f"{type(error).__name__}: {error}"
        continue
    kept = set(out)
    dropped = [k for k, v in item["values"].items() if v is not None and k not in kept]
    report[item["cell"]] = f"dropped: {dropped}" if dropped else ""
print(json.dumps(report))
