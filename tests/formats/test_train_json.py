"""train.json says what the Recipe says, in the words that templates/train_recipe.py takes; nothing is lost silently."""

from __future__ import annotations

import copy
import importlib.util
import json
import py_compile
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recipegen.formats import train_json
from recipegen.spec import (
    Adapter,
    DataFormat,
    Dtype,
    Fsdp,
    LossKernel,
    Method,
    Parallelism,
    Precision,
    RecipegenError,
    Saving,
    Schedule,
    Strategy,
)
from tests.recipes_for_tests import dataset, model, recipe, recipes

TEMPLATES = Path(__file__).parents[2] / "templates"
RUNNABLE = [(name, r) for name, r in recipes() if not train_json.unsupported(r)]


@pytest.fixture(scope="module")
def train_recipe() -> ModuleType:
    """templates/train_recipe.py as the project's own train.py imports it; it needs the standard library only."""
    spec = importlib.util.spec_from_file_location("train_recipe", TEMPLATES / "train_recipe.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["train_recipe"] = module
    spec.loader.exec_module(module)
    return module


def written(r: Any) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(train_json.write(r, model(), {}))
    return loaded


@pytest.mark.parametrize(("name", "r"), RUNNABLE, ids=[name for name, _ in RUNNABLE])
def test_train_py_accepts_every_written_file(name: str, r: Any, train_recipe: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "train.json").write_text(train_json.write(r, model(), {}))
    read = train_recipe.read_recipe(tmp_path / "train.json")
    assert read.batch.world_size == r.parallelism.data_parallel_ranks
    assert read.batch.global_batch_size == r.global_batch_size
    assert read.strategy == r.parallelism.strategy.value
    assert (read.adapter is None) == (r.adapter is None)
    assert read.schedule.learning_rate == r.schedule.learning_rate
    assert read.data.sequence_len == r.sequence_len
    assert read.saving.save_total_limit == r.saving.save_total_limit
    assert read.seed == r.seed


def test_most_recipes_can_be_run() -> None:
    assert {r.parallelism.strategy for _, r in RUNNABLE} == set(Strategy)
    assert {r.method for _, r in RUNNABLE} == set(Method)


@pytest.mark.parametrize(
    ("parameters", "method", "load_dtype", "quantization"),
    [
        (Dtype.FP32, Method.FULL, "float32", None),
        (Dtype.BF16, Method.FULL, "bfloat16", None),
        (Dtype.BF16, Method.LORA, "bfloat16", None),
        (Dtype.NF4, Method.QLORA, "bfloat16", "nf4"),
    ],
)
def test_the_dtype_of_the_parameters_is_that_of_the_precision(
    parameters: Dtype, method: Method, load_dtype: str, quantization: str | None
) -> None:
    precision = Precision(parameters, Dtype.FP32, Dtype.FP32, Dtype.BF16, Dtype.FP32, Dtype.BF16)
    found = written(recipe(Strategy.DDP, method, precision=precision))["model"]
    assert (found["load_dtype"], found["quantization"]) == (load_dtype, quantization)
    assert found["export_dtype"] == ("bfloat16" if method is Method.FULL else "float32")


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"parallelism": Parallelism(Strategy.FSDP2_FULL, 1, 8, dp_shard=4, tp=2)}, "parallelism"),
        ({"activation_offloading": True}, "activation_offloading"),
        ({"loss_kernel": LossKernel.CUT}, "loss_kernel"),
        ({"saving": Saving(10, 2, None, 1, "none", save_only_model=True)}, "saving.save_only_model"),
        ({"method": Method.LORA, "adapter": Adapter(8, 16, 0.0, ("q_proj",), fused_kernels=True)}, "fused_kernels"),
        ({"dequantize": "fp8"}, "dequantize"),
        ({"optimizer_name": "muon"}, "optimizer.name"),
        ({"schedule": Schedule(1e-5, "polynomial", 10, None)}, "schedule.scheduler"),
        ({"fsdp": Fsdp(True, True, False, "FULL_STATE_DICT", "LlamaDecoderLayer")}, "fsdp.state_dict_type"),
        ({"datasets": (dataset(format=DataFormat.PREFERENCE),)}, "datasets"),
    ],
)
def test_what_train_py_cannot_do_is_refused_and_named(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(RecipegenError, match=field) as error:
        train_json.write(recipe(**changes), model(), {})
    assert "\n" not in str(error.value)


# ------------------------------------------------------------------------------------------------ data sets


def entry(**keys: Any) -> Any:
    return dataset(entry=(("path", "d.jsonl"), ("split", "train"), *keys.items()), path="d.jsonl")


def test_sharegpt_columns_and_role_names() -> None:
    found = train_json.dataset(
        entry(
            type="chat_template",
            field_messages="conversations",
            message_property_mappings={"role": "from", "content": "value"},
            roles={"user": ["human", "user"], "assistant": ["gpt"]},
            message_field_training="train",
        )
    )
    assert found["kind"] == "chat"
    assert found["fields"] == {
        "messages": "conversations",
        "role": "from",
        "content": "value",
        "roles": {"human": "user", "user": "user", "gpt": "assistant"},
        "training": "train",
    }


def test_alpaca_gets_its_prompts() -> None:
    prompts = train_json.dataset(entry(type="alpaca"))["prompts"]
    assert (
        prompts["with_input"]
        .format(instruction="I", input="C")
        .endswith("### Instruction:\nI\n\n### Input:\nC\n\n### Response:\n")
    )
    assert prompts["without_input"].format(instruction="I").endswith("### Instruction:\nI\n\n### Response:\n")
    assert prompts["system_without_input"].format(system="S", instruction="I").startswith("S\n\n### Instruction:")


def test_named_columns_of_pairs() -> None:
    kind = {"field_instruction": "question", "field_output": "answer", "format": "{instruction}\n"}
    found = train_json.dataset(entry(type={**kind, "no_input_format": "{instruction}\n"}))
    assert found["fields"] == {"instruction": "question", "output": "answer"}
    assert found["prompts"]["without_input"] == "{instruction}\n"


def test_completion_and_segments() -> None:
    assert train_json.dataset(entry(type="completion", field="body"))["fields"] == {"text": "body"}
    assert train_json.dataset(entry(type="input_output"))["kind"] == "segments"


def test_an_unknown_type_of_data_is_refused() -> None:
    with pytest.raises(RecipegenError, match=r"d\.jsonl.*bradley_terry"):
        train_json.dataset(entry(type="bradley_terry"))


def test_a_family_template_is_carried_for_models_without_one() -> None:
    assert "<|eot_id|>" in (train_json.chat_template("llama3") or "")
    assert train_json.chat_template("tokenizer_default") is None
    assert train_json.chat_template(None) is None


# ------------------------------------------------------------------------------------------------ the schema


def leaves(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    if isinstance(value, dict) and path[-1:] not in (("fields",), ("prompts",)):
        return [found for key, item in value.items() for found in leaves(item, (*path, key))]
    return [path]


def put(values: dict[str, Any], path: tuple[Any, ...], value: Any) -> None:
    for step in path[:-1]:
        values = values[step]
    values[path[-1]] = value


FILE = json.loads(train_json.write(recipe(Strategy.DDP, Method.LORA), model(), {}))


@given(st.sampled_from(leaves(FILE)), st.sampled_from([object, {"a": 1}, [[]]]), st.booleans())
@settings(max_examples=150)
def test_a_wrong_type_is_one_line_that_names_the_key(
    train_recipe: ModuleType, path: tuple[Any, ...], wrong: Any, missing: bool
) -> None:
    values = copy.deepcopy(FILE)
    if path in (("adapter",), ("data", "datasets")) or wrong is object:
        missing = True
    if missing:
        inner = values
        for step in path[:-1]:
            inner = inner[step]
        del inner[path[-1]]
    else:
        put(values, path, wrong)
    with pytest.raises(train_recipe.Problem, match=str(path[-1])) as error:
        train_recipe.parse(train_recipe.Recipe, values, "train.json")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "cannot read"),
        ("[]", "format_version None"),
        (json.dumps({**FILE, "format_version": 99}), "format_version 99"),
        (json.dumps({**FILE, "learning_rte": 1}), "learning_rte is not a known key"),
        (json.dumps({**FILE, "batch": {**FILE["batch"], "global_batch_size": 7}}), r"is not global_batch_size\(7\)"),
        (json.dumps({**FILE, "seed": True}), "seed must be int"),
    ],
)
def test_a_bad_file_is_refused_in_one_line(train_recipe: ModuleType, tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "train.json").write_text(text)
    with pytest.raises(train_recipe.Problem, match=message) as error:
        train_recipe.read_recipe(tmp_path / "train.json")
    assert "\n" not in str(error.value)


def test_the_scripts_compile(tmp_path: Path) -> None:
    scripts = sorted(TEMPLATES.glob("train*.py"))
    assert [path.name for path in scripts] == ["train.py", "train_checkpoint.py", "train_data.py", "train_recipe.py"]
    for path in scripts:
        py_compile.compile(str(path), str(tmp_path / "out.pyc"), doraise=True)


def test_the_scripts_are_clean() -> None:
    """They are copied into projects, so the repository's own linting leaves templates/ out."""
    rules = "E,F,W,I,UP,B,C4,SIM,RUF,PIE,RET"
    command = [
        sys.executable,
        "-m",
        "ruff",
        "check",
        "--isolated",
        "--no-cache",
        "--line-length=120",
        f"--select={rules}",
    ]
    command += ["--target-version=py310", *sorted(path.name for path in TEMPLATES.glob("train*.py"))]
    done = subprocess.run(command, cwd=TEMPLATES, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_what_train_py_does_not_do_is_refused() -> None:
    adapter = Adapter(8, 16, 0.0, ("q_proj",), modules_to_save=("lm_head",))
    ranks = Parallelism(Strategy.DDP, 1, 2, dp_replicate=2, ep=2)
    for field, chosen in (
        ("quantised_experts", recipe(Strategy.DDP, Method.QLORA, quantised_experts=True)),
        ("adapter.modules_to_save", recipe(Strategy.DDP, Method.LORA, adapter=adapter)),
        ("parallelism", recipe(Strategy.DDP, Method.LORA, parallelism=ranks)),
    ):
        assert field in [name for name, _ in train_json.unsupported(chosen)]
