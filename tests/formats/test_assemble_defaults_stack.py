"""What `assemble` fills in is what the real trainers do: every file is put through their own code and compared.

- Axolotl: validate_config with the plugins of the file, prepare_optim_env, normalize_config, and the arguments that its
  builder makes for Transformers, on several machines (8 GPUs, one, two nodes, GPUs without bf16 and tf32).
- TrainingArguments, and TRL's SFTConfig and ModelConfig with Accelerate's FSDP plugin.
- A DeepSpeed JSON, filled in by HfTrainerDeepSpeedConfig and DeepSpeedPlugin, as DeepSpeedConfig takes it.
- The file of `accelerate launch`: the environment of a worker, and the plugins made from it.

Files are written by hand (trainer_written.py), or drawn by seeds (trainer_cases.py, trainer_cases_hf.py): a case takes
some 50 ms in another process, so a shrinking search would take minutes. What a trainer refuses is not compared.

Not to be compared without a GPU or a model: which attention Transformers chooses where a file names none, what
attention and the kernels of plugins keep, the dtypes after loading (tests/estimate/test_claims_*_stack.py ask for
those), how many steps there are, NCCL's variables on a real host. LLaMA-Factory is not installed with the stack.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from recipegen.catalog import load_cluster
from recipegen.catalog.model import read as read_model
from recipegen.check.axolotl_lite import capabilities
from recipegen.formats import accelerate_read, arguments_read, axolotl_read, deepspeed_read
from recipegen.formats.assemble import assemble
from recipegen.formats.reading import Reading
from recipegen.spec import Cluster, ModelSpec, Recipe
from tests.formats import trainer_comparison as compare
from tests.formats.assembling import LORA, axolotl
from tests.formats.test_assemble_examples import FILES, NEEDED, STACK, from_catalogue, readings
from tests.formats.trainer_cases import axolotl_file
from tests.formats.trainer_cases_hf import accelerate_file, arguments_file, deepspeed_file
from tests.formats.trainer_written import BASE, STOPS, WRITTEN
from tests.recipes_for_tests import cluster, model

pytestmark = pytest.mark.stack
ROOT = Path(__file__).parents[2]
CLUSTER = load_cluster("8x-h100")
WORLDS = (CLUSTER, cluster(1, 1), cluster(1, 2, bf16=False, tf32=False), cluster(2, 4))
MODEL_TYPES = ("llama", "llama", "gemma4", "muse_glimmer", "qwen3_moe")
Case, Truth = dict[str, Any], Mapping[str, Any]
Compare = Callable[[Recipe, Truth], dict[str, tuple[Any, Any]]]


def ask(cases: Sequence[Case], folder: Path) -> list[Truth]:
    """The trainers' own answers, from one child process."""
    work, answers = folder / "work.json", folder / "answers.json"
    work.write_text(json.dumps(cases, default=str))
    environment = {**os.environ, "AXOLOTL_DO_NOT_TRACK": "1", "HF_HUB_OFFLINE": "1", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "tests.formats.trainer_truth", str(work), str(answers)]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    found: list[Truth] = json.loads(answers.read_text())
    return found


class Drawn:
    """One drawn or written file: the question to its trainer, its readings, and how the answers are compared."""

    def __init__(
        self, case: Case, files: Sequence[Reading], compared: Compare, world: Cluster, shape: ModelSpec
    ) -> None:
        self.case, self.files, self.compared, self.world, self.shape = case, files, compared, world, shape

    def differences(self, truth: Truth) -> dict[str, tuple[Any, Any]] | None:
        """None where there is nothing to compare: the trainer refuses the file, or no recipe describes it."""
        if "error" in truth:
            return None
        answer = assemble(self.files, STACK, cluster=self.world, model=lambda _: self.shape)
        if answer.recipe is None:
            assert answer.unknown, self.case
            return None
        return self.compared(answer.recipe, truth)


def of_axolotl(text: str, world: Cluster = CLUSTER, shape: ModelSpec | None = None) -> Drawn:
    shape = shape or model()
    case = {
        "kind": "axolotl",
        "values": yaml.safe_load(text),
        "capabilities": capabilities(world),
        "torch": STACK.pins["torch"],
        "model_type": shape.model_type,
    }
    return Drawn(case, [axolotl_read.read(text.encode(), "axolotl.yaml")], compare.differences, world, shape)


def drawn_axolotl(seed: int) -> Drawn:
    shape = model(model_type=MODEL_TYPES[seed % len(MODEL_TYPES)])
    return of_axolotl(yaml.safe_dump(axolotl_file(seed)), WORLDS[seed % len(WORLDS)], shape)


def drawn_arguments(seed: int) -> Drawn:
    values = arguments_file(seed)
    reading = arguments_read.read(yaml.safe_dump(values).encode(), "args.yaml")
    case = {"kind": "arguments", "values": values, "trl": "trl" in reading.facts, "capabilities": capabilities(CLUSTER)}
    return Drawn(case, [reading], compare.arguments_differences, CLUSTER, model())


def drawn_deepspeed(seed: int) -> Drawn:
    values, beside = deepspeed_file(seed)
    text = yaml.safe_dump({**beside, "model_name_or_path": "m", "deepspeed": "ds.json"})
    files = [
        arguments_read.read(text.encode(), "args.yaml"),
        deepspeed_read.read(json.dumps(values).encode(), "ds.json"),
    ]
    hidden, target = model().hidden_size, capabilities(CLUSTER)
    case = {"kind": "deepspeed", "values": values, "arguments": beside, "hidden_size": hidden, "capabilities": target}
    return Drawn(case, files, compare.deepspeed_differences, CLUSTER, model())


def drawn_accelerate(seed: int) -> Drawn:
    values = accelerate_file(seed)
    text = yaml.safe_dump(values)
    files = [
        arguments_read.read(b"model_name_or_path: m\n", "args.yaml"),
        accelerate_read.read(text.encode(), "accelerate.yaml"),
    ]
    world = cluster(values["num_machines"], values["num_processes"] // values["num_machines"])
    return Drawn({"kind": "accelerate", "text": text}, files, compare.accelerate_differences, world, model())


# How many of each kind; at least so many of ten must be compared, so that a drawing that is always refused fails.
KINDS = {drawn_axolotl: 6, drawn_arguments: 10, drawn_deepspeed: 10, drawn_accelerate: 7}
FEW = {drawn_axolotl: 40, drawn_arguments: 30, drawn_deepspeed: 20, drawn_accelerate: 15}
MANY = {drawn_axolotl: 800, drawn_arguments: 400, drawn_deepspeed: 200, drawn_accelerate: 100}


def drawn(counts: Mapping[Callable[[int], Drawn], int], first: int) -> list[tuple[str, int, Drawn]]:
    return [(draw.__name__, seed, draw(seed)) for draw, n in counts.items() for seed in range(first, first + n)]


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> list[Truth]:
    """Of the written files, then of the few drawn ones: a second process would import the trainers again."""
    texts = [*WRITTEN.values(), *(text for text, _ in STOPS.values())]
    cases = [of_axolotl(BASE + text).case for text in texts]
    cases += [file.case for _, _, file in drawn(FEW, 0)]
    return ask(cases, tmp_path_factory.mktemp("asked"))


@pytest.fixture(scope="module")
def truths(answers: list[Truth]) -> dict[str, Truth]:
    return dict(zip([*WRITTEN, *STOPS], answers, strict=False))


@pytest.mark.parametrize("name", WRITTEN)
def test_a_written_file_is_what_axolotl_makes_of_it(name: str, truths: dict[str, Truth]) -> None:
    assert "error" not in truths[name], truths[name]["error"]
    assert of_axolotl(BASE + WRITTEN[name]).differences(truths[name]) == {}


@pytest.mark.parametrize("name", STOPS)
def test_what_axolotl_accepts_and_stops_at(name: str, truths: dict[str, Truth]) -> None:
    assert STOPS[name][1] in truths[name]["error"]


def drawn_files_agree(files: Sequence[tuple[str, int, Drawn]], truths: Sequence[Truth]) -> None:
    found = {(name, seed): file.differences(truth) for (name, seed, file), truth in zip(files, truths, strict=True)}
    assert {where: differ for where, differ in found.items() if differ} == {}
    for draw, least in KINDS.items():
        compared = [differ is not None for (name, _), differ in found.items() if name == draw.__name__]
        assert sum(compared) * 10 >= least * len(compared), (draw.__name__, sum(compared), len(compared))


def test_drawn_files_are_what_the_trainers_make_of_them(answers: list[Truth]) -> None:
    drawn_files_agree(drawn(FEW, 0), answers[len(WRITTEN) + len(STOPS) :])


@pytest.mark.long
def test_many_drawn_files_are_what_the_trainers_make_of_them(tmp_path: Path) -> None:
    files = drawn(MANY, 1000)
    drawn_files_agree(files, ask([file.case for _, _, file in files], tmp_path))


@NEEDED
@pytest.mark.long
def test_axolotls_examples_are_what_axolotl_makes_of_them(tmp_path: Path) -> None:
    files = []
    for path in FILES:
        values = yaml.safe_load(path.read_text())
        shape = from_catalogue(values.get("base_model", "")) or model()
        drawn = of_axolotl(path.read_text(), CLUSTER, shape)
        drawn.files = readings(path)
        files.append((path.name, drawn))
    truths = ask([drawn.case for _, drawn in files], tmp_path)
    found = {name: drawn.differences(truth) for (name, drawn), truth in zip(files, truths, strict=True)}
    assert {name: differ for name, differ in found.items() if differ} == {}
    assert sum(differ is not None for differ in found.values()) > len(files) / 2


@pytest.mark.long
def test_targets_that_no_file_names_are_the_trainers(tmp_path: Path) -> None:
    """Every architecture of the catalogue, without weights: Axolotl's lora_target_linear, and peft's defaults."""
    shapes: dict[str, ModelSpec] = {}
    for path in sorted((ROOT / "recipegen" / "catalog" / "models").rglob("*.yaml")):
        shape = read_model(path)
        shapes.setdefault(shape.model_type, shape)
    cases = [{"kind": "linear", "model_type": name, "multimodal": s.is_multimodal} for name, s in shapes.items()]
    by_default = STACK.trainer_rules("arguments")
    dequantised = "model_quantization_config: Mxfp4Config\nmodel_quantization_config_kwargs: {dequantize: true}\n"
    for (name, shape), truth in zip(shapes.items(), ask(cases, tmp_path), strict=True):
        more = dequantised if shape.quantization else ""
        answer = axolotl(LORA + more, world=CLUSTER, shape=shape)
        assert answer.recipe is not None, (name, answer.unknown)
        assert answer.recipe.adapter is not None
        assert sorted(answer.recipe.adapter.target_modules) == truth["names"], name
        ours = by_default["target_modules"] if name in by_default["target_model_types"] else None
        assert ours == truth["default"], name
