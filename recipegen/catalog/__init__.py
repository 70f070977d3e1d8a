"""What is known, as data: models, machines, tested stacks."""

from typing import TYPE_CHECKING

from recipegen._late import late_names

if TYPE_CHECKING:
    from recipegen.catalog.cluster import describe_hardware, gpu_names, hardware_names, load_cluster, network_names
    from recipegen.catalog.model import all_models, complete_models, describe, load_model, model_names
    from recipegen.catalog.resources import data_folder
    from recipegen.catalog.stack import Stack, load_stack, stack_names
else:
    __getattr__ = late_names(
        __name__,
        cluster="describe_hardware gpu_names hardware_names load_cluster network_names",
        model="all_models complete_models describe load_model model_names",
        resources="data_folder",
        stack="Stack load_stack stack_names",
    )

__all__ = [
    "Stack",
    "all_models",
    "complete_models",
    "data_folder",
    "describe",
    "describe_hardware",
    "gpu_names",
    "hardware_names",
    "load_cluster",
    "load_model",
    "load_stack",
    "model_names",
    "network_names",
    "stack_names",
]
