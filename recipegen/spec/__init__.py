"""The vocabulary: frozen dataclasses of the standard library. No I/O."""

from typing import TYPE_CHECKING

from recipegen._late import late_names

if TYPE_CHECKING:
    from recipegen.spec.cluster import Cluster, EnvVar, Gpu, Network, Node
    from recipegen.spec.data import DataFormat, DatasetSpec, Lengths
    from recipegen.spec.decision import Alternative, Decision, WayOut
    from recipegen.spec.errors import RecipegenError
    from recipegen.spec.estimate import (
        Collective,
        Disk,
        Estimate,
        GpuMemory,
        HostMemory,
        Phase,
        Term,
        Time,
        Traffic,
        Verdict,
    )
    from recipegen.spec.finding import Edit, Finding, Severity
    from recipegen.spec.kinds import AttentionMemory, LossKernel, Method, QkNorm
    from recipegen.spec.model import LinearGroup, ModelSpec, MoeSpec
    from recipegen.spec.parallelism import Parallelism, Strategy
    from recipegen.spec.precision import Dtype, Precision, PrecisionLabel
    from recipegen.spec.recipe import (
        Adapter,
        DeepSpeed,
        Fsdp,
        Launch,
        Loading,
        Optimizer,
        Recipe,
        Saving,
        Schedule,
    )
    from recipegen.spec.request import Request
else:
    __getattr__ = late_names(
        __name__,
        cluster="Cluster EnvVar Gpu Network Node",
        data="DataFormat DatasetSpec Lengths",
        decision="Alternative Decision WayOut",
        errors="RecipegenError",
        estimate="Collective Disk Estimate GpuMemory HostMemory Phase Term Time Traffic Verdict",
        finding="Edit Finding Severity",
        kinds="AttentionMemory LossKernel Method QkNorm",
        model="LinearGroup ModelSpec MoeSpec",
        parallelism="Parallelism Strategy",
        precision="Dtype Precision PrecisionLabel",
        recipe="Adapter DeepSpeed Fsdp Launch Loading Optimizer Recipe Saving Schedule",
        request="Request",
    )

__all__ = [
    "Adapter",
    "Alternative",
    "AttentionMemory",
    "Cluster",
    "Collective",
    "DataFormat",
    "DatasetSpec",
    "Decision",
    "DeepSpeed",
    "Disk",
    "Dtype",
    "Edit",
    "EnvVar",
    "Estimate",
    "Finding",
    "Fsdp",
    "Gpu",
    "GpuMemory",
    "HostMemory",
    "Launch",
    "Lengths",
    "LinearGroup",
    "Loading",
    "LossKernel",
    "Method",
    "ModelSpec",
    "MoeSpec",
    "Network",
    "Node",
    "Optimizer",
    "Parallelism",
    "Phase",
    "Precision",
    "PrecisionLabel",
    "QkNorm",
    "Recipe",
    "RecipegenError",
    "Request",
    "Saving",
    "Schedule",
    "Severity",
    "Strategy",
    "Term",
    "Time",
    "Traffic",
    "Verdict",
    "WayOut",
]
