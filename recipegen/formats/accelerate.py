"""accelerate.yaml beside Axolotl: which processes start where, and nothing else.

Axolotl sets FSDP, DeepSpeed, mixed precision and compilation itself, in every rank, from axolotl.yaml
(axolotl/utils/trainer.py: prepare_optim_env). Keys for these in this file would be overridden in part and stay standing
in part (`fsdp_offload_params`, `dynamo_backend`), so they do not belong here. DeepSpeed too: `deepspeed:` in
axolotl.yaml exports ACCELERATE_USE_DEEPSPEED before the process group exists, so the launch is a plain MULTI_GPU one.
"""

from __future__ import annotations

from typing import Any

from recipegen.formats.passthrough import merge
from recipegen.formats.rendering import Document, render
from recipegen.spec import Recipe

_REASONS = {
    "num_processes": "all GPUs of all nodes; accelerate starts num_processes / num_machines on each",
    "machine_rank": "launch.sh passes --machine_rank; this is the value for one node",
    "mixed_precision": "Axolotl sets the precision from its own file. Quoted: a bare no is a boolean in YAML",
    "rdzv_backend": "the file cannot choose another one: accelerate reads it from the command line only",
}


def values(recipe: Recipe) -> dict[str, Any]:
    """Machine and process keys, in order, without passthrough."""
    mesh = recipe.parallelism
    return {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": "MULTI_GPU" if mesh.world_size > 1 else "NO",
        "num_machines": mesh.nodes,
        "num_processes": mesh.world_size,
        "machine_rank": 0,
        "main_process_port": recipe.launch.main_process_port,
        "rdzv_backend": "static",
        "mixed_precision": "no",
        "use_cpu": False,
    }


def write(recipe: Recipe) -> str:
    """The text of accelerate.yaml for `--trainer axolotl`."""
    merged, seen = merge(values(recipe), recipe.passthrough.get("accelerate", {}))
    return render("accelerate.yaml.j2", doc=Document(merged, {**_REASONS, **seen}), recipe=recipe)
