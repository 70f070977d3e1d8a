"""Axolotl's own examples, where they are at hand: what its validator accepts gets no finding of schema or trainer from
us, and what it rejects gets one."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

import pytest

from recipegen.catalog import load_cluster
from recipegen.catalog.stack import load_stack
from recipegen.check import TrainerProcess, ValidationReport, validate_axolotl, validate_deepspeed
from recipegen.check.checking import Checked, Options, check
from recipegen.check.gather import Target
from recipegen.check.keys import check_axolotl, check_deepspeed
from recipegen.spec import Finding, Severity

ROOT = Path(__file__).parents[2]
FOLDER = Path(os.environ.get("RECIPEGEN_AXOLOTL_EXAMPLES", ROOT.parent / "shared" / "data" / "axolotl-examples"))
# cloud/ holds settings of a rented machine, no configuration of a run.
FILES = sorted(
    path for path in FOLDER.rglob("*") if path.suffix in (".yml", ".yaml") and path.parent.name != "cloud"
) if FOLDER.is_dir() else []  # fmt: skip
NAMES = [path.relative_to(FOLDER).as_posix() for path in FILES]
ENGINES = sorted((FOLDER / "deepspeed_configs").glob("*.json")) if FOLDER.is_dir() else []
STACK = load_stack()
MACHINES = ("8x-h100", "kentino-8x-rtx-5090")
VALIDATORS = ("RG711", "RG712", "RG713")
FAMILIES = ("schema", "trainer")
# Of the whole validate_config, which takes seconds a file, these; all of them in `make test-long`.
SEVERAL = ("llama-3/fft-8b.yaml", "mistral4/fft-text.yml", "expert_parallel/qwen3_30ba3b_ep_fft_4gpu.yaml")

pytestmark = [
    pytest.mark.stack,
    pytest.mark.skipif(not FILES, reason=f"no examples in {FOLDER}; RECIPEGEN_AXOLOTL_EXAMPLES names another"),
]


@cache
def checked(machine: str) -> Mapping[str, Checked]:
    """What `recipegen check` says of every file."""
    outcome = check([FOLDER], Options(target=Target(hardware=machine)))
    found = {}
    for one in outcome.checked:
        if one.project.main:
            path = (one.project.folder / one.project.main).relative_to(FOLDER.resolve())
            found[path.as_posix()] = one
    return found


def validated(name: str, machine: str, process: TrainerProcess | None = None) -> ValidationReport:
    """Axolotl's verdict on a file with its plugins; the DeepSpeed files are at hand under the names it may use."""
    files = {f"deepspeed_configs/{path.name}": path.read_bytes() for path in ENGINES}
    content = (FOLDER / name).read_bytes()
    report = validate_axolotl(content, load_cluster(machine), STACK, name=name, files=files, process=process)
    assert report.ran, report.note
    return report


def ours(findings: tuple[Finding, ...]) -> list[Finding]:
    return [f for f in findings if f.family in FAMILIES and f.rule not in VALIDATORS]


def test_every_file_is_a_project() -> None:
    assert set(checked(MACHINES[0])) == set(NAMES)


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("name", NAMES)
def test_the_verdict_is_that_of_the_validator(name: str, machine: str) -> None:
    accepted = validated(name, machine).accepted
    findings = checked(machine)[name].findings
    if accepted:
        assert ours(findings) == []
        assert [f for f in findings if f.family in FAMILIES] == []
    else:
        worst = [f for f in findings if f.family in FAMILIES and f.severity is Severity.ERROR]
        assert worst
        assert all(f.where for f in worst)


@pytest.mark.parametrize("name", NAMES)
def test_without_the_trainer_nothing_that_it_accepts_is_called_wrong(name: str) -> None:
    """The key check is all there is where Axolotl is not installed."""
    if validated(name, MACHINES[0]).accepted:
        assert ours(check_axolotl((FOLDER / name).read_bytes(), STACK, name)) == []


@pytest.fixture(scope="module")
def child() -> Iterator[TrainerProcess]:
    with TrainerProcess() as process:
        yield process


@pytest.mark.parametrize(
    "name", [name if name in SEVERAL else pytest.param(name, marks=pytest.mark.long) for name in NAMES]
)
def test_the_whole_validate_config_says_the_same(name: str, child: TrainerProcess) -> None:
    report = validated(name, MACHINES[0], child)
    assert report.accepted is validated(name, MACHINES[0]).accepted
    if report.accepted:
        assert ours(checked(MACHINES[0])[name].findings) == []


@pytest.mark.parametrize("path", ENGINES, ids=[path.name for path in ENGINES])
def test_deepspeeds_own_class_says_the_same_of_its_files(path: Path, child: TrainerProcess) -> None:
    """`compile: {disable, backend}` is of a DeepSpeed before 0.18: its CompileConfig forbids keys that it lacks."""
    report = validate_deepspeed(
        path.read_bytes(),
        STACK,
        child,
        world_size=8,
        micro_batch_size=1,
        gradient_accumulation=1,
        hidden_size=4096,
        name=path.name,
    )
    assert report.ran
    rejected = [f for f in check_deepspeed(path.read_bytes(), STACK, path.name) if f.severity is Severity.ERROR]
    assert report.accepted is (not rejected)
