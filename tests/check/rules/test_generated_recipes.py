"""What recipegen writes itself gets no error of these rules, and few warnings."""

from __future__ import annotations

from pathlib import Path

import pytest
from subjects import subject

from recipegen.catalog import load_cluster, load_model, load_stack
from recipegen.check.rules import findings
from recipegen.decide import decide
from recipegen.project.files import render
from recipegen.spec import Decision, Recipe, RecipegenError, Request, Severity
from tests.recipes_for_tests import recipes

GOLDEN = Path(__file__).parents[2] / "formats" / "golden"
HARDWARE = ("kentino-1x-rtx-4090", "kentino-8x-rtx-4090", "kentino-8x-rtx-5090", "kentino-4x-rtx-pro-6000", "8x-h100")
MODELS = ("meta-llama/Llama-3.1-8B", "Qwen/Qwen3-30B-A3B", "google/gemma-3-4b-it")
# A generated QLoRA of a MoE model leaves its experts in bf16, and the estimate counts them so: the warning is true.
EXPECTED = {"RG231"}


def _files(decision: Decision) -> dict[str, bytes]:
    return render(decision)


def _unexpected(files: dict[str, bytes], recipe: Recipe | None, hardware: str, model: str, nodes: int = 1) -> list[str]:
    network = "roce-100" if nodes > 1 else "none"
    cluster = load_cluster(hardware, nodes=nodes, network=network)
    found = findings(subject(files, hardware=cluster, model=model, recipe=recipe))
    return [
        f"{f.rule} {f.severity.value} {f.where}: {f.reason}"
        for f in found
        if f.severity is not Severity.NOTE and f.rule not in EXPECTED
    ]


@pytest.mark.parametrize("name", sorted(path.name for path in GOLDEN.iterdir() if path.is_dir()))
@pytest.mark.parametrize("together", [True, False], ids=["project", "single files"])
def test_nothing_is_said_of_golden_projects(name: str, together: bool) -> None:
    files = {path.name: path.read_bytes() for path in (GOLDEN / name).iterdir() if path.is_file()}
    nodes = 2 if "2-nodes" in name else 1
    groups = [files] if together else [{key: text} for key, text in files.items() if key != "accelerate.yaml"]
    for group in groups:
        assert _unexpected(group, None, "kentino-8x-rtx-4090", "meta-llama/Llama-3.1-8B", nodes) == []


@pytest.mark.parametrize("hardware", HARDWARE)
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("trainer", ["axolotl", "accelerate"])
@pytest.mark.parametrize("method", ["full", "lora", "qlora"])
def test_nothing_is_said_of_decided_projects(hardware: str, model: str, trainer: str, method: str) -> None:
    request = Request(model=model, hardware=hardware, trainer=trainer, method=method, pins={})
    try:
        decision = decide(request, load_model(model), load_cluster(hardware), load_stack(request.stack), ())
    except RecipegenError as error:
        pytest.skip(str(error))
    if decision.recipe is None:
        pytest.skip("nothing fits")
    files = _files(decision)
    for recipe in (decision.recipe, None):
        assert _unexpected(files, recipe, hardware, model) == []


@pytest.mark.parametrize(("name", "recipe"), list(recipes()), ids=[name for name, _ in recipes()])
def test_nothing_is_said_of_sample_recipes(name: str, recipe: Recipe) -> None:
    from recipegen.formats import accelerate, axolotl, deepspeed, launcher

    model = load_model("meta-llama/Llama-3.1-8B")
    files = {
        "axolotl.yaml": axolotl.write(recipe, model, {}).encode(),
        "accelerate.yaml": accelerate.write(recipe).encode(),
        "launch.sh": launcher.write(recipe).encode(),
        "launch.slurm": launcher.write_slurm(recipe).encode(),
    }
    if recipe.deepspeed is not None:
        files["deepspeed.json"] = deepspeed.write(recipe).encode()
    if recipe.parallelism.strategy.is_deepspeed and recipe.method.is_adapter:
        pytest.skip("RG204: never generated")
    count, nodes = recipe.parallelism.gpus_per_node, recipe.parallelism.nodes
    errors = [line for line in _unexpected(files, None, f"{count}x-rtx-4090", model.id, nodes) if " error " in line]
    assert errors == []
