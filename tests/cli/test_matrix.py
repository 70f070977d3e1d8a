"""The matrix: every kentino profile x model x method x nodes is a project that the trainers' own code accepts, or one
screen that says why not and what would do."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from recipegen.catalog import hardware_names, load_cluster, load_model, load_stack
from recipegen.check.axolotl_lite import LiteAxolotl, capabilities
from recipegen.cli import show
from recipegen.dataset.measure import measure
from recipegen.decide import decide
from recipegen.project import render
from recipegen.spec import Decision, Request, Verdict

pytestmark = pytest.mark.stack

PROFILES = [n for n in hardware_names() if n.startswith("kentino-")]
MODELS = ["Llama-3.2-1B", "Llama-3.1-8B", "Qwen3-14B", "Qwen3-32B", "Qwen3-30B-A3B", "Llama-3.3-70B-Instruct"]
METHODS = ["full", "lora", "qlora"]
DATA = Path(__file__).parents[2] / "examples/support-chat.jsonl"
SCREEN_LINES = 60
DISTINCT_CELLS = 30


def cells() -> Iterator[tuple[str, Decision]]:
    stack = load_stack()
    for profile in PROFILES:
        for nodes, network in ((1, "none"), (2, "roce-100")):
            cluster = load_cluster(profile, nodes=nodes, network=network)
            for name in MODELS:
                model = load_model(name)
                data = (measure(str(DATA), model=model),)
                for method in METHODS:
                    request = Request(name, profile, nodes=nodes, network=network, method=method)
                    yield f"{profile} {nodes} {name} {method}", decide(request, model, cluster, stack, data)


@pytest.fixture(scope="module")
def matrix() -> dict[str, Decision]:
    return dict(cells())


def test_the_matrix_is_whole(matrix: dict[str, Decision]) -> None:
    assert len(PROFILES) == 20
    assert len(matrix) == 20 * 6 * 3 * 2


def test_what_does_not_fit_says_on_one_screen_why_and_what_would(matrix: dict[str, Decision]) -> None:
    refused = {k: d for k, d in matrix.items() if d.verdict is Verdict.DOES_NOT_FIT}
    assert refused
    for cell, d in refused.items():
        lines = list(show._text(d, False))
        assert len(lines) <= SCREEN_LINES, cell
        assert d.findings[0].reason, cell
        assert d.ways_out, cell


@pytest.fixture(scope="module")
def projects(matrix: dict[str, Decision]) -> dict[str, tuple[Decision, dict[str, bytes]]]:
    return {k: (d, render(d)) for k, d in matrix.items() if d.verdict in (Verdict.FITS, Verdict.TIGHT)}


def test_axolotls_schema_accepts_every_project(projects: dict[str, tuple[Decision, dict[str, bytes]]]) -> None:
    lite = LiteAxolotl(load_stack())
    for cell, (d, files) in projects.items():
        values = yaml.safe_load(files["axolotl.yaml"])
        verdict = lite.validate(values, capabilities(d.cluster), files)
        assert not verdict.errors, (cell, verdict.errors)


def test_accelerates_loader_accepts_every_project(
    projects: dict[str, tuple[Decision, dict[str, bytes]]], tmp_path: Path
) -> None:
    from accelerate.commands.config.config_args import load_config_from_file

    seen = {files["accelerate.yaml"]: d for d, files in projects.values()}
    for i, (content, d) in enumerate(seen.items()):
        path = tmp_path / f"{i}.yaml"
        path.write_bytes(content)
        loaded = load_config_from_file(str(path))
        assert loaded.num_processes == d.cluster.world_size
        assert loaded.num_machines == d.cluster.nodes


def test_full_validate_config_accepts_a_cell_of_every_set_of_keys(
    projects: dict[str, tuple[Decision, dict[str, bytes]]], tmp_path: Path
) -> None:
    """Cells that cover every distinct set of keys, through Axolotl's own validate_config with plugins, in a child."""
    by_keys: dict[tuple[str, ...], tuple[str, Decision, dict[str, bytes]]] = {}
    for cell, (d, files) in projects.items():
        keys = tuple(sorted(_paths(yaml.safe_load(files["axolotl.yaml"]))))
        by_keys.setdefault(keys, (cell, d, files))
    chosen = list(by_keys.values())
    rest = (x for x in ((c, d, f) for c, (d, f) in projects.items()) if x[0] not in {c for c, _, _ in chosen})
    while len(chosen) < DISTINCT_CELLS:
        chosen.append(next(rest))
    work = [
        {"cell": cell, "values": yaml.safe_load(files["axolotl.yaml"]), "capabilities": capabilities(d.cluster)}
        for cell, d, files in chosen
    ]
    report: dict[str, str] = {}
    for plugins in (False, True):  # Axolotl keeps the plugins of one file for the next in the same process
        part = [item for item in work if bool(item["values"].get("plugins")) == plugins]
        (tmp_path / "work.json").write_text(json.dumps(part))
        done = subprocess.run(
            [sys.executable, str(Path(__file__).with_name("validate_cells.py")), str(tmp_path / "work.json")],
            capture_output=True, text=True, cwd=tmp_path, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-2000:]
        report |= json.loads(done.stdout.splitlines()[-1])
    assert len(report) == len(work) >= DISTINCT_CELLS
    assert not {cell: said for cell, said in report.items() if said}


def _paths(value: object, prefix: str = "") -> Iterator[str]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _paths(inner, f"{prefix}.{key}")
    else:
        yield f"{prefix}={value}" if isinstance(value, (bool, str)) and prefix.count(".") < 3 else prefix
