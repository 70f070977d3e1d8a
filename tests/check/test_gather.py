"""The model of a file, where the catalogue does not offer it: its shape is found by name, and never silently."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from recipegen.check.gather import Gathered, Target, gather
from recipegen.source import collect
from recipegen.spec import Dtype

HARDWARE = Target(hardware="8x-h100")
LORA = "adapter: lora\nlora_r: 8\nlora_alpha: 16\nlora_target_modules: [q_proj, v_proj]\n"
QLORA = LORA.replace("adapter: lora", "adapter: qlora\nload_in_4bit: true")
BATCH = (
    "datasets: [{path: a, type: alpaca}]\nlearning_rate: 0.0001\nsequence_len: 2048\nmicro_batch_size: 1\nbf16: true\n"
)


def gathered(folder: Path, model: str, more: str = LORA) -> Gathered:
    (folder / "axolotl.yaml").write_text(f"base_model: {model}\n{BATCH}{more}")
    (project,) = collect([folder]).projects
    return gather(project, HARDWARE)


def reasons(found: Gathered) -> list[tuple[str, str]]:
    return [(u.where, u.reason) for u in found.subject.assembled.unknown if u.path == "model"]


def test_a_shape_that_is_taken_from_another_name_is_said(tmp_path: Path) -> None:
    found = gathered(tmp_path, "NousResearch/Llama-3.2-1B")
    assert found.subject.estimate is not None
    assert reasons(found) == [
        ("axolotl.yaml:1", "shape of meta-llama/Llama-3.2-1B taken for NousResearch/Llama-3.2-1B")
    ]


def test_a_shape_under_its_own_name_needs_no_word(tmp_path: Path) -> None:
    found = gathered(tmp_path, "codellama/CodeLlama-7b-hf")
    assert found.subject.estimate is not None
    assert reasons(found) == []


def test_what_a_shape_approximates_is_said(tmp_path: Path) -> None:
    found = gathered(tmp_path, "tiiuae/Falcon-H1-7B-Base")
    assert found.subject.estimate is not None
    assert "state-space mixer" in reasons(found)[0][1]


@pytest.mark.parametrize("name", ["someone/Llama-3.1-8B-medical", "someone/NewModel-7B"])
def test_a_model_that_nobody_knows_has_no_estimate(tmp_path: Path, name: str) -> None:
    found = gathered(tmp_path, name)
    assert found.subject.estimate is None
    assert reasons(found)[0][1].startswith(f"the shape of {name} is not known")


def test_a_model_that_cannot_be_described_says_why(tmp_path: Path) -> None:
    found = gathered(tmp_path, "state-spaces/mamba-2.8b")
    assert found.subject.estimate is None
    assert "without attention" in reasons(found)[0][1]


def test_a_config_json_wins_over_a_name(tmp_path: Path) -> None:
    folder = tmp_path / "NousResearch" / "Llama-3.2-1B"
    folder.mkdir(parents=True)
    config = {"model_type": "llama", "hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": 4,
              "num_attention_heads": 8, "num_key_value_heads": 8, "vocab_size": 1000, "max_position_embeddings": 2048,
              "tie_word_embeddings": False}  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    (tmp_path / "axolotl.yaml").write_text(f"base_model: NousResearch/Llama-3.2-1B\n{BATCH}{LORA}")
    (project,) = collect([tmp_path / "axolotl.yaml"]).projects
    found = gather(project, HARDWARE)
    assert found.subject.assembled.model is not None
    assert found.subject.assembled.model.hidden_size == 512
    assert reasons(found) == []


def test_weights_published_in_four_bits(tmp_path: Path) -> None:
    """bitsandbytes' are loaded as they are, NVFP4 is counted as NF4 and said, others have no recipe."""
    name = "unsloth/Meta-Llama-3.1-8B-bnb-4bit"
    assert gathered(tmp_path, name, QLORA).subject.estimate is not None
    assert gathered(tmp_path, name).subject.estimate is None
    found = gathered(tmp_path, "nvidia/Qwen3-30B-A3B-NVFP4")
    recipe = found.subject.assembled.recipe
    assert recipe is not None
    assert recipe.precision.parameters is Dtype.NF4
    assert recipe.quantised_experts
    assert any("nvfp4" in u.reason for u in found.subject.assembled.unknown if u.path == "precision.parameters")
    awq = gathered(tmp_path, "TheBloke/Llama-2-7B-AWQ")
    assert awq.subject.estimate is None
    assert any("awq" in u.reason for u in awq.subject.assembled.unknown if u.path == "dequantize")


def test_no_torch_is_imported_and_nothing_of_the_network() -> None:
    code = (
        "import sys; from recipegen.check.model_names import model_of; model_of('phi-2', exact=True);"
        "assert not {'torch', 'transformers', 'huggingface_hub', 'axolotl'} & set(sys.modules), sorted(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


ROOT = Path(__file__).parents[2]
EXAMPLES = Path(os.environ.get("RECIPEGEN_AXOLOTL_EXAMPLES", ROOT.parent / "shared" / "data" / "axolotl-examples"))
FILES = sorted(path for path in EXAMPLES.rglob("*") if path.suffix in (".yml", ".yaml")) if EXAMPLES.is_dir() else []


@pytest.mark.skipif(not FILES, reason=f"no examples in {EXAMPLES}; RECIPEGEN_AXOLOTL_EXAMPLES names another")
@pytest.mark.parametrize("hardware", ["8x-h100", "kentino-8x-rtx-pro-6000"])
def test_most_examples_of_axolotl_end_in_an_estimate_and_the_rest_in_a_reason(hardware: str) -> None:
    estimated = 0
    for path in FILES:
        found = collect([path])
        assert found.projects or found.skipped
        for project in found.projects:
            answer = gather(project, Target(hardware=hardware))
            estimated += answer.subject.estimate is not None
            assert answer.subject.estimate or answer.subject.assembled.unknown, path
    assert estimated >= 0.85 * len(FILES)
