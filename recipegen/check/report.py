"""What one validator said, and whether it ran at all."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from recipegen.catalog.stack import Stack
from recipegen.spec import Finding, Severity


@dataclass(frozen=True)
class ValidationReport:
    """`ran` False: `note` says why. `resolved` is the configuration as the trainer would see it, defaults filled in."""

    validator: str
    ran: bool
    note: str  # one line: which version and route, or why it did not run
    findings: tuple[Finding, ...] = ()
    resolved: Mapping[str, Any] = field(default_factory=dict)

    @property
    def accepted(self) -> bool:
        """True when it ran and found no error."""
        return self.ran and not any(f.severity is Severity.ERROR for f in self.findings)


def missing(stack: Stack, package: str) -> str:
    """Why a validator of `package` cannot run here; empty when the pinned version is installed."""
    wanted = stack.pins[package]
    try:
        found = version(package)
    except PackageNotFoundError:
        return f"{package} {wanted} is not installed"
    return "" if found == wanted else f"{package} {found} is installed, and {stack.name} needs {wanted}"
