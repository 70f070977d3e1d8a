"""The whole list of what is replaced to run a GPU project on CPU. None of it does arithmetic.

Each patch answers one question ("which device is there?") that the trainers ask of CUDA. `test_cpu_shim.py` compares
every attribute of the loaded trainers with and without the patches and fails when another one differs.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, MutableMapping
from typing import Any

from import_hook import Patch

MODES = ("single", "ddp", "sharded", "deepspeed")


def mode(environment: Mapping[str, str]) -> str | None:
    """The kind of run that is asked for; None when the patches are off."""
    value = environment.get("RECIPEGEN_TEST_CPU")
    if value is not None and value not in MODES:
        raise SystemExit(f"RECIPEGEN_TEST_CPU is {value!r}; it must be one of {', '.join(MODES)}")
    return value


def is_worker(environment: Mapping[str, str]) -> bool:
    """True in a process that torch's launcher started as one of several (not in `accelerate launch` itself)."""
    return "LOCAL_RANK" in environment and int(environment.get("WORLD_SIZE", "1")) > 1


def set_environment(environment: MutableMapping[str, str]) -> None:
    """Accelerate's and DeepSpeed's own variables for "the device is the CPU", in the workers of a parallel run."""
    if mode(environment) in (None, "single") or not is_worker(environment):
        return
    environment.setdefault("ACCELERATE_TORCH_DEVICE", "cpu")
    if mode(environment) == "ddp":
        environment["ACCELERATE_USE_CPU"] = "true"
    if mode(environment) == "deepspeed":
        environment.setdefault("DS_ACCELERATOR", "cpu")


def _backend(kind: str) -> Callable[[Any], Any]:
    """Accelerate turns MULTI_GPU into FSDP or DeepSpeed, but not MULTI_CPU; DDP on CPU must be MULTI_CPU."""

    def replace(original: Any) -> Any:
        def _prepare_backend(self: Any, cpu: bool = False, sagemaker_dp: bool = False, backend: Any = None) -> Any:
            from accelerate.utils import DistributedType

            found, distributed_type = original(self, cpu, sagemaker_dp, backend)
            if found is not None and kind != "ddp":
                return found, distributed_type  # a real device is never overridden
            return "gloo", DistributedType.MULTI_CPU if kind == "ddp" else DistributedType.MULTI_GPU

        return _prepare_backend

    return replace


def _cpu_mesh(original: Any) -> Any:
    def build_device_mesh(self: Any, device_type: str) -> Any:
        return original(self, "cpu")

    return build_device_mesh


def _cpu_device_map(original: Any) -> Any:
    """`original` is a classmethod object."""

    def from_pretrained(cls: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(kwargs.get("device_map"), dict):
            kwargs["device_map"] = dict.fromkeys(kwargs["device_map"], "cpu")
        return original.__func__(cls, *args, **kwargs)

    return classmethod(from_pretrained)


def _yes(original: Any) -> Any:
    def is_torch_bf16_gpu_available() -> bool:
        return True

    return is_torch_bf16_gpu_available


def _seed_first(original: Any) -> Any:
    def pre_lora_load(self: Any, cfg: Any, model: Any) -> Any:
        from transformers import set_seed

        set_seed(int(os.environ["RECIPEGEN_TEST_ADAPTER_SEED"]))
        return original(self, cfg, model)

    return pre_lora_load


def _without_gradients(original: Any) -> Any:
    import torch

    return torch.no_grad()(original)


def patches(kind: str) -> list[Patch]:
    """The patches of one mode."""
    found = [
        Patch(
            "transformers.training_args",
            "is_torch_bf16_gpu_available",
            _yes,
            "`bf16: true` is refused without a GPU, though CPUs do bf16 arithmetic",
        )
    ]
    if kind == "single":
        return found
    found += [
        Patch(
            "accelerate.state",
            "PartialState._prepare_backend",
            _backend(kind),
            "without a device every rank trains alone and exits 0",
        ),
        Patch(
            "transformers.modeling_utils",
            "PreTrainedModel.from_pretrained",
            _cpu_device_map,
            'Axolotl sends the model to {"": LOCAL_RANK}',
        ),
    ]
    if kind == "sharded":
        found.append(
            Patch(
                "accelerate.parallelism_config",
                "ParallelismConfig.build_device_mesh",
                _cpu_mesh,
                'Axolotl asks for a mesh of "cuda"',
            )
        )
    if kind == "deepspeed":
        found.append(
            Patch(
                "deepspeed.runtime.zero.stage_1_and_2",
                "DeepSpeedZeroOptimizer.step",
                _without_gradients,
                "gloo's all_gather writes into views that autograd tracks and raises; NCCL writes raw memory",
            )
        )
    return found


SEED = Patch(
    "axolotl.integrations.base",
    "PluginManager.pre_lora_load",
    _seed_first,
    "Axolotl seeds after the adapter exists; a comparison of two adapter runs needs equal adapters",
)


def active(environment: Mapping[str, str]) -> list[Patch]:
    """What this process patches."""
    kind = mode(environment)
    found = []
    if kind == "single" or (kind is not None and is_worker(environment)):
        found += patches(kind)
    if "RECIPEGEN_TEST_ADAPTER_SEED" in environment:
        found.append(SEED)
    return found
