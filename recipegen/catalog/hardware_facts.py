"""What is known of GPUs and the machines around them, read from catalog/hardware: one GPU file and one host table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from recipegen.catalog.reading import load_yaml
from recipegen.spec import EnvVar

FOLDER = Path(__file__).resolve().parent / "hardware"
STATED = "stated"  # the mark of a value from an override or from a person's own profile
PER_SOCKET = "cpu_adam_params_per_s_per_socket"


@dataclass(frozen=True)
class Fact:
    """A value with its origin. `mark`: measured, spec, derived, claimed, or stated by the user."""

    value: Any
    mark: str
    source: str
    note: str = ""


@dataclass(frozen=True)
class Machine:
    """One node before it is a `Node`: facts by name, in the units of fields.yaml.

    `gpu` also holds compute_capability; `node` holds host_ram_gib (stated) or host_ram_gb (catalogue), and
    cpu_adam_params_per_s or its value per socket. `environment` None means: by the rules of environment.yaml.
    """

    name: str
    gpu_name: str
    gpu_count: int
    gpu: Mapping[str, Fact]
    node: Mapping[str, Fact]
    description: str
    source: str
    environment: tuple[EnvVar, ...] | None = field(default=None)


@cache
def read_table(name: str) -> Any:
    """The parsed file NAME.yaml of catalog/hardware. `name` is never a user's text."""
    return load_yaml(FOLDER / f"{name}.yaml")


@cache
def gpu_names() -> tuple[str, ...]:
    """The GPUs of the catalogue, sorted: `a100-40gb`, ..., `rtx-pro-6000-server`."""
    return tuple(sorted(path.stem for path in (FOLDER / "gpus").glob("*.yaml")))


def known_machine(name: str, gpu: str, gpu_count: int, *, description: str = "") -> Machine:
    """`gpu_count` GPUs of the catalogue's `gpu` in the host they are usually found in. `gpu` must be in gpu_names()."""
    table = read_table(f"gpus/{gpu}")
    host = table["host"]
    where = description or read_table("hosts")[host]["description"]
    return Machine(
        name=name,
        gpu_name=table["name"],
        gpu_count=gpu_count,
        gpu=_facts(table["facts"]),
        node={
            **host_facts(host, gpu_count, table["facts"]["pcie_generation"]["value"]),
            **_rates(table, gpu_count),
        },
        description=f"{gpu_count} x {table['title']}; {where}",
        source=f"catalog/hardware/gpus/{gpu}.yaml",
    )


def host_facts(host: str, gpu_count: int, pcie_generation: int) -> dict[str, Fact]:
    """Memory, sockets, cores and disk of the usual `host` (pcie or nvlink) for that many GPUs."""
    table = read_table("hosts")[host]
    return {
        PER_SOCKET: Fact(**table[PER_SOCKET]),
        **_facts(by_count(table["by_gpu_count"], gpu_count)),
        **_facts(by_count(table["nvme_by_pcie_generation"], pcie_generation)),
    }


def by_count(table: Mapping[int, Any], count: int) -> Any:
    """The row of the smallest listed number that is at least `count`, else the last row."""
    return table[min((number for number in table if number >= count), default=max(table))]


def _rates(table: Mapping[str, Any], gpu_count: int) -> dict[str, Fact]:
    rates = _facts(by_count(table["by_gpu_count"], gpu_count))
    if "all_reduce_gb_s" in rates:
        rates["bus_bandwidth_gb_s"] = rates.pop("all_reduce_gb_s")
    return rates


def _facts(rows: Mapping[str, Mapping[str, Any]]) -> dict[str, Fact]:
    return {name: Fact(**row) for name, row in rows.items()}
