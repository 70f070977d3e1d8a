"""The GPUs of the box and their driver."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from recipegen.check.probe import Probe, ProbedGpu
from recipegen.check.subject import Subject
from recipegen.check.verification.answer import BOX, MEMORY, Answer, different, good, note, short
from recipegen.spec import Cluster, Severity
from recipegen.spec.units import gib

# Every CUDA 13.x runs on drivers of branch 580 and newer, every 12.x on 525 (minor version compatibility, Linux).
_BRANCHES = {12: 525, 13: 580}
_STACK_CUDA = 13  # major version in PyPI's wheels of the torch that the stack pins
_SOURCE = "https://docs.nvidia.com/cuda/archive/13.0.0/cuda-toolkit-release-notes/ (CUDA driver)"
_LESS_MEMORY = 0.03  # share; nvidia-smi counts 2% more than torch
_MORE_MEMORY = 0.1  # share; a profile may leave out what a display holds
_WITH_THE_BOX = "check with --hardware of this box (recipegen hardware probe --format yaml --out box.yaml)"


def driver(subject: Subject, probe: Probe | None, where: str) -> Iterator[Answer]:
    """Is it new enough for the CUDA of torch?"""
    pinned = str(subject.stack.pins["torch"]).partition("+")[0]
    branch = _BRANCHES[_STACK_CUDA]
    question = note(
        f"the driver: it must be new enough for the CUDA of the installed torch {pinned}; CUDA {_STACK_CUDA}.x needs "
        f"{branch} or newer",
        "nvidia-smi --query-gpu=driver_version --format=csv,noheader; "
        "python -c 'import torch; print(torch.version.cuda)'",
        where,
        _SOURCE,
    )
    if probe is None:
        yield question
        return
    if probe.driver is None:
        # Without a GPU that is said of the cards, with its reason.
        if probe.gpus:
            yield question
        return
    there = int(probe.driver.partition(".")[0])
    ships = f"torch {pinned} of the recipe's stack comes with CUDA {_STACK_CUDA}.x, which needs {branch} or newer"
    if probe.torch is None or probe.torch_cuda is None:
        if there >= branch:
            yield good(f"driver {probe.driver}: {ships}")
        else:
            yield _too_old(Severity.ERROR, f"driver {probe.driver}: {ships}", branch, where)
        return
    installed = f"CUDA {probe.torch_cuda} of the installed torch {probe.torch}"
    least = _BRANCHES.get(int(probe.torch_cuda.partition(".")[0]))
    if probe.torch_works:  # also with NVIDIA's forward compatibility packages
        yield good(f"driver {probe.driver} runs {installed}")
    elif least is None:
        yield question
    elif there < least:
        yield _too_old(
            Severity.ERROR, f"driver {probe.driver}: {installed} needs {least} or newer", max(least, branch), where
        )
        return
    else:
        yield good(f"driver {probe.driver}: {installed} needs {least} or newer")
    if there < branch and probe.torch.partition("+")[0] != pinned:
        yield _too_old(Severity.WARNING, f"driver {probe.driver} is for {installed}; {ships}", branch, where)


def _too_old(severity: Severity, reason: str, branch: int, where: str) -> Answer:
    return different(BOX, severity, reason, f"install a driver of branch {branch} or newer", where, _SOURCE)


def cards(subject: Subject, cluster: Cluster, wanted: int, probe: Probe, where: str) -> Iterator[Answer]:
    """Are there enough, of the profile's kind, with the memory free?"""
    if not probe.gpus:
        reason = f"{wanted} {_gpus(wanted)} needed on a node, and the probe found none: {probe.no_gpus}"
        yield different(BOX, Severity.ERROR, reason, "run the probe on the training box", where)
        return
    planned = cluster.gpu.compute_capability
    # The best that the launcher can be given; a small card for a display does not count.
    best = sorted(probe.gpus, key=lambda gpu: (gpu.compute_capability == planned, gpu.left_bytes), reverse=True)
    best = sorted(best[:wanted], key=lambda gpu: gpu.index)
    name = best[0].name
    if len(probe.gpus) < wanted:
        yield different(
            BOX,
            Severity.ERROR,
            f"{wanted} processes on a node, and the box has {len(probe.gpus)} of {name}",
            f"start {len(probe.gpus)}, or plan with the profile of this box "
            "(recipegen hardware probe --format yaml --out box.yaml)",
            where,
        )
    else:
        yield good(f"{len(probe.gpus)} GPUs ({name}) for {wanted} processes on a node")
    kinds = sorted({gpu.compute_capability for gpu in best if gpu.compute_capability})
    if kinds and kinds != [planned]:
        yield different(
            BOX,
            Severity.WARNING,
            f"the box's GPUs are {', '.join(kinds)} ({name}); the profile {cluster.name} is {planned} "
            f"({cluster.gpu.name}), so estimates and kernels are of another card",
            _WITH_THE_BOX,
            where,
        )
    yield from _memory(subject, cluster, best, probe, where)


def _gpus(number: int) -> str:
    return "GPU is" if number == 1 else "GPUs are"


def _memory(
    subject: Subject, cluster: Cluster, best: Sequence[ProbedGpu], probe: Probe, where: str
) -> Iterator[Answer]:
    planned, cost = cluster.gpu.memory_bytes, subject.estimate

    def too_small(gpu: ProbedGpu) -> bool:
        return cost is not None and gpu.left_bytes < planned and gpu.left_bytes < cost.gpu.needed_high_bytes

    fullest = min(best, key=lambda gpu: gpu.left_bytes)
    beside = [str(gpu.index) for gpu in probe.gpus if gpu not in best and too_small(gpu)]
    if cost is not None and too_small(fullest):
        certain = cost.gpu.needed_low_bytes > fullest.left_bytes
        yield short(
            MEMORY,
            Severity.ERROR if certain else Severity.WARNING,
            f"GPU {fullest.index} has {gib(fullest.left_bytes)} free of {gib(fullest.memory_bytes)}; the recipe needs "
            f"{gib(cost.gpu.needed_low_bytes)} to {gib(cost.gpu.needed_high_bytes)}",
            f"end what holds the memory (nvidia-smi shows it), or {_WITH_THE_BOX}",
            where,
            cost.gpu.needed_high_bytes,
            fullest.left_bytes,
        )
        return
    if beside:
        yield different(
            MEMORY,
            Severity.WARNING,
            f"GPU {', '.join(beside)}: too little memory is free for the recipe, and a launcher takes the first GPUs "
            "unless it is told which",
            f"CUDA_DEVICE_ORDER=PCI_BUS_ID CUDA_VISIBLE_DEVICES={','.join(str(gpu.index) for gpu in best)}",
            where,
        )
    odd = next((gpu for gpu in best if not _same_memory(gpu.memory_bytes, planned)), None)
    if odd is not None:
        reason = f"GPU {odd.index} has {gib(odd.memory_bytes)}; the profile {cluster.name} counts on {gib(planned)}"
        yield different(MEMORY, Severity.WARNING, reason, _WITH_THE_BOX, where)
    else:
        yield good(f"{gib(fullest.left_bytes)} free on the fullest GPU")


def _same_memory(there: int, planned: int) -> bool:
    return planned * (1 - _LESS_MEMORY) <= there <= planned * (1 + _MORE_MEMORY)
