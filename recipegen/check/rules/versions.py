"""What single versions of the stack do: one rule a row of versions.yaml."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from recipegen.check.rules.registry import Said, rule
from recipegen.check.rules.view import FOUR_BIT, View, version_number
from recipegen.spec import Severity

_BNB_8BIT = ("adamw_8bit", "adamw_bnb_8bit", "paged_adamw_8bit", "lion_8bit", "paged_lion_8bit")


def _tied(view: View) -> bool:
    return view.model is not None and view.model.tie_word_embeddings


def _optimizer(view: View) -> str:
    return str(view.value("optimizer.name") or "")


CONDITIONS: Mapping[str, Callable[[View], bool]] = {
    "fsdp": lambda v: v.engine == "fsdp",
    "fsdp2": lambda v: v.fsdp_version == 2,
    "sharded": lambda v: v.engine == "fsdp" or v.is_zero3,
    "full_state_dict": lambda v: v.value("fsdp.state_dict_type") == "FULL_STATE_DICT",
    "sharded_state_dict": lambda v: v.value("fsdp.state_dict_type") == "SHARDED_STATE_DICT",
    "resumes": lambda v: bool(
        v.fact("resume_from_checkpoint") or v.raw("resume_from_checkpoint") or v.fact("auto_resume_from_checkpoints")
    ),
    "tied": _tied,
    "four_bit": lambda v: v.bits == FOUR_BIT,
    "efficient_loading": lambda v: v.value("fsdp.cpu_ram_efficient_loading") is True,
    "bnb_8bit_optimizer": lambda v: _optimizer(v) in _BNB_8BIT,
    "paged_optimizer": lambda v: _optimizer(v).startswith("paged_"),
    "blackwell": lambda v: v.gpu is not None and v.gpu.compute_capability == "sm_120",
}


def _register(row: Mapping[str, Any]) -> None:
    def check(view: View) -> Iterator[Said]:
        if not all(_inside(view.version(package), *bounds) for package, bounds in row["versions"].items()):
            return
        if all(CONDITIONS[name](view) for name in row["when"]):
            packages = [package for package in row["versions"] if package in view.pins]
            place = view.pins[packages[0]][1] if packages else view.subject.main
            yield Said(row["reason"], row["fix"], place)

    check.__name__ = row["id"].lower()
    ranges = "; ".join(_words(package, *bounds) for package, bounds in row["versions"].items())
    check.__doc__ = f"{row['reason']}. Asked where: {', '.join(row['when']).replace('_', ' ')}. Versions: {ranges}."
    rule(row["id"], row["family"], Severity(row["severity"]), source=row["source"], title=row["reason"])(check)


def _inside(version: tuple[int, ...], least: str | None, below: str | None) -> bool:
    """False for a package of unknown version."""
    if not version:
        return False
    return (least is None or version >= version_number(least)) and (below is None or version < version_number(below))


def _words(package: str, least: str | None, below: str | None) -> str:
    parts = [f">= {least}" if least else "", f"< {below}" if below else ""]
    return f"{package} {', '.join(filter(None, parts))}"


for _row in yaml.safe_load((Path(__file__).parent / "versions.yaml").read_text(encoding="utf-8")):
    _register(_row)
