"""A few real training steps of one recipe on one device, in a process of its own; the worker of cuda_points.

    python -m benchmarks.cuda_step --probe                what card is here, as one line of JSON
    python -m benchmarks.cuda_step < WORK                 pickled by cuda_points; prints what was measured

The step is the trainers': Accelerate's autocast around the model (fully_shard with its policy under FSDP2), the loss
inside transformers' forward, clipped gradients, fused AdamW. Peaks begin after the model is built.
"""

from __future__ import annotations

import json
import math
import os
import pickle
import subprocess
import sys
import time
from importlib import metadata
from importlib.util import find_spec
from typing import Any

from recipegen.spec import ModelSpec, Recipe

STEPS = 4
_VERSIONS = ("torch", "transformers", "accelerate", "peft", "bitsandbytes", "liger-kernel", "axolotl", "triton")
_MIB = 2**20


def probe() -> dict[str, Any]:
    """The card that PyTorch sees first: name, total and free bytes, Triton; or `reason` where there is none."""
    if find_spec("torch") is None:
        return {"reason": "PyTorch is not installed"}
    import torch

    if not torch.cuda.is_available():
        built = "" if torch.version.cuda else " (this PyTorch is built without CUDA)"
        return {"reason": f"PyTorch sees no CUDA card{built}"}
    properties = torch.cuda.get_device_properties(0)
    free, total = torch.cuda.mem_get_info(0)
    return {
        "name": properties.name,
        "uuid": str(properties.uuid),
        "total_bytes": total,
        "free_bytes": free,
        "capability": f"sm_{properties.major}{properties.minor}",
        "triton": find_spec("triton") is not None,
    }


def smi_bytes(uuid: str | None) -> int | None:
    """What nvidia-smi calls used on a card, by every process; None without a card or without nvidia-smi."""
    if not uuid:
        return None
    query = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits", f"--id=GPU-{uuid}"]
    try:
        done = subprocess.run(query, capture_output=True, text=True, check=True, timeout=30)
        return int(done.stdout.split()[0]) * _MIB
    except (OSError, subprocess.SubprocessError, ValueError, IndexError):
        return None


def measure(
    spec: ModelSpec, recipe: Recipe, device_type: str, steps: int = STEPS, uuid: str | None = None
) -> dict[str, Any]:
    """Peaks in bytes over `steps` optimizer steps (None on a CPU, which counts none) and the median step in seconds.

    `uuid` names the card to nvidia-smi, which is asked before this process has anything on it, and at the end.
    """
    before = smi_bytes(uuid)
    import torch

    from benchmarks.cuda_build import build

    device = torch.device(device_type, 0) if device_type == "cuda" else torch.device(device_type)
    cuda = device.type == "cuda"
    torch.manual_seed(0)
    outer, base = build(spec, recipe, device)
    model = _prepared(outer, base, spec, recipe, device)
    trainable = [p for p in outer.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trainable, lr=recipe.schedule.learning_rate, fused=True)
    shape = (recipe.micro_batch_size, recipe.sequence_len)
    batch = torch.randint(0, spec.vocab_size, shape, device=device)
    if cuda:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
    seconds, losses = [], []
    for _ in range(steps):
        begun = time.perf_counter()
        for _ in range(recipe.gradient_accumulation):
            loss = _loss(model, batch) / recipe.gradient_accumulation
            loss.backward()
        torch.nn.utils.clip_grad_norm_(trainable, recipe.optimizer.max_grad_norm)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))  # waits for the device
        seconds.append(time.perf_counter() - begun)
    after = smi_bytes(uuid)
    used = after - before if before is not None and after is not None else None
    return {
        "allocated_bytes": torch.cuda.max_memory_allocated(device) if cuda else None,
        "reserved_bytes": torch.cuda.max_memory_reserved(device) if cuda else None,
        "nvidia_smi_bytes": used,
        "step_s": sorted(seconds)[len(seconds) // 2],
        "losses": losses,
        "finite": all(map(math.isfinite, losses)),
        "trainable_parameters": sum(p.numel() for p in trainable),
        "alloc_conf": os.environ.get("PYTORCH_ALLOC_CONF"),
    }


def _loss(model: Any, batch: Any) -> Any:
    """The loss alone: logits live no longer than backward needs them, as in the Trainer's compute_loss."""
    return model(input_ids=batch, labels=batch).loss


def _prepared(outer: Any, base: Any, spec: ModelSpec, recipe: Recipe, device: Any) -> Any:
    """The model as Accelerate hands it to the training loop."""
    if recipe.parallelism.strategy.is_fsdp:
        _shard(outer, base, spec, recipe, device)
        return outer
    from accelerate import Accelerator

    accelerator = Accelerator(mixed_precision="bf16", cpu=device.type == "cpu")
    return accelerator.prepare_model(outer)


def _shard(outer: Any, base: Any, spec: ModelSpec, recipe: Recipe, device: Any) -> None:
    """Every decoder layer, then the rest, with one policy (accelerate 1.13.0, utils/fsdp_utils.py), over one rank."""
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    from benchmarks.cuda_build import DTYPES

    assert recipe.fsdp is not None
    backend = "nccl" if device.type == "cuda" else "gloo"
    dist.init_process_group(backend, rank=0, world_size=1, store=dist.HashStore())
    compute, reduction = DTYPES[recipe.precision.compute], DTYPES[recipe.precision.reduction]
    options = {
        "mesh": init_device_mesh(device.type, (1,)),
        "mp_policy": MixedPrecisionPolicy(param_dtype=compute, reduce_dtype=reduction, output_dtype=compute),
        "reshard_after_forward": recipe.fsdp.reshard_after_forward,
    }
    for layer in base.get_submodule(spec.layers_path):
        fully_shard(layer, **options)
    fully_shard(outer, **options)


def versions() -> dict[str, str]:
    found = {}
    for name in _VERSIONS:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def main(arguments: list[str] | None = None) -> int:
    arguments = sys.argv[1:] if arguments is None else arguments
    if arguments == ["--probe"]:
        print(json.dumps(probe()))
        return 0
    work = pickle.loads(sys.stdin.buffer.read())
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")  # nothing is downloaded
    try:
        result = measure(**work)
    except Exception as error:  # whatever a library says is the result of this point
        oom = type(error).__name__ == "OutOfMemoryError"
        result = {"error": f"{type(error).__name__}: {' '.join(str(error).split())[:300]}", "oom": oom}
    print(json.dumps(result | {"versions": versions()}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
