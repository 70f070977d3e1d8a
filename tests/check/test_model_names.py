"""Names of models as publications write them, and the shapes they resolve to."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recipegen.catalog.reading import load_yaml
from recipegen.catalog.shape_files import SHAPES_FOLDER, read
from recipegen.check import model_names
from recipegen.check.model_names import KnownModel, UnknownModel, model_of
from recipegen.estimate import parameters
from recipegen.spec import ModelSpec

# Names from published measurements with the parameter count that the publication gives, in billions, and the model
# that is meant. One line a spelling.
PUBLISHED = [
    ("01-ai/Yi-34B-Chat", 34.39, "01-ai/Yi-34B"),
    ("ByteDance-Seed/Seed-OSS-36B-Instruct", 36, "ByteDance-Seed/Seed-OSS-36B-Instruct"),
    ("CodeLlama-34B", 33.74, "codellama/CodeLlama-34b-hf"),
    ("Gemma 2 9B", 9.24, "google/gemma-2-9b-it"),
    ("Gemma 7B", 8.54, "google/gemma-7b"),
    ("Granite-3.3-8B", 8.17, "ibm-granite/granite-3.3-8b-instruct"),
    ("LiquidAI/LFM2-350M", 0.35, "LiquidAI/LFM2-350M"),
    ("LiquidAI/LFM2-8B-A1B", 8.3, "LiquidAI/LFM2-8B-A1B"),
    ("Llama 2 13B", 13.02, "meta-llama/Llama-2-13b-hf"),
    ("Llama 3.1 70B", 70.55, "meta-llama/Llama-3.1-70B"),
    ("Llama 3.1 8B", 8.03, "meta-llama/Llama-3.1-8B"),
    ("Llama-2-13B", 13.02, "meta-llama/Llama-2-13b-hf"),
    ("Llama-2-70B", 68.98, "meta-llama/Llama-2-70b-hf"),
    ("Llama-2-7B", 6.74, "meta-llama/Llama-2-7b-hf"),
    ("Llama-3-70B", 70.55, "meta-llama/Meta-Llama-3-70B"),
    ("Llama-3-8B", 8.03, "meta-llama/Meta-Llama-3-8B"),
    ("Llama-3.1-405B", 405.9, "meta-llama/Llama-3.1-405B"),
    ("Llama-3.1-70B", 70.55, "meta-llama/Llama-3.1-70B"),
    ("Llama-3.1-8B", 8.03, "meta-llama/Llama-3.1-8B"),
    ("Llama-3.2-3B", 3.21, "meta-llama/Llama-3.2-3B"),
    ("Llama-3.3-70B AWQ", 70.55, "meta-llama/Llama-3.3-70B-Instruct"),
    ("Mistral-7B-v0.2", 7.24, "mistral-community/Mistral-7B-v0.2"),
    ("Mistral-Nemo-12B", 12.2, "mistralai/Mistral-Nemo-Instruct-2407"),
    ("NousResearch/Llama-2-70b-hf", 68.98, "meta-llama/Llama-2-70b-hf"),
    ("NousResearch/Meta-Llama-3.1-8B", 8.03, "meta-llama/Llama-3.1-8B"),
    ("Phi3-mini (3.8B)", 3.82, "microsoft/Phi-3-mini-4k-instruct"),
    ("Qwen 3 8B", 8.19, "Qwen/Qwen3-8B"),
    ("Qwen-1.8B", 1.84, "Qwen/Qwen-1_8B"),
    ("Qwen-1.8B-Chat", 1.84, "Qwen/Qwen-1_8B"),
    ("Qwen-14B", 14.17, "Qwen/Qwen-14B"),
    ("Qwen-14B-Chat", 14.17, "Qwen/Qwen-14B"),
    ("Qwen-72B", 72.29, "Qwen/Qwen-72B"),
    ("Qwen-72B-Chat", 72.29, "Qwen/Qwen-72B"),
    ("Qwen-7B", 7.72, "Qwen/Qwen-7B"),
    ("Qwen-7B-Chat", 7.72, "Qwen/Qwen-7B"),
    ("Qwen/Qwen2.5-0.5B-Instruct", 0.49, "Qwen/Qwen2.5-0.5B-Instruct"),
    ("Qwen/Qwen2.5-1.5B-Instruct", 1.54, "Qwen/Qwen2.5-1.5B-Instruct"),
    ("Qwen/Qwen2.5-3B-Instruct", 3.09, "Qwen/Qwen2.5-3B-Instruct"),
    ("Qwen/Qwen2.5-7B-Instruct", 7.62, "Qwen/Qwen2.5-7B-Instruct"),
    ("Qwen/Qwen3-Next-80B-A3B-Instruct", 79.7, "Qwen/Qwen3-Next-80B-A3B-Instruct"),
    ("Qwen/Qwen3.5-27B", 27, "Qwen/Qwen3.5-27B"),
    ("Qwen1.5-14B", 14.2, "Qwen/Qwen1.5-14B"),
    ("Qwen1.5-72B-GPTQ-Int4", 72.3, "Qwen/Qwen1.5-72B"),
    ("Qwen2.5-0.5B", 0.49, "Qwen/Qwen2.5-0.5B"),
    ("Qwen2.5-1.5B", 1.54, "Qwen/Qwen2.5-1.5B"),
    ("Qwen2.5-14B", 14.77, "Qwen/Qwen2.5-14B"),
    ("Qwen2.5-32B", 32.76, "Qwen/Qwen2.5-32B"),
    ("Qwen2.5-3B", 3.09, "Qwen/Qwen2.5-3B-Instruct"),
    ("Qwen2.5-7B", 7.62, "Qwen/Qwen2.5-7B"),
    ("Qwen3-30B-A3B", 30.5, "Qwen/Qwen3-30B-A3B"),
    ("XiaomiMiMo/MiMo-7B-RL", 7.6, "XiaomiMiMo/MiMo-7B-RL"),
    ("Yi-34B", 34.39, "01-ai/Yi-34B"),
    ("Yi-34B-Chat", 34.39, "01-ai/Yi-34B"),
    ("Yi-6B-Chat", 6.06, "01-ai/Yi-6B"),
    ("ai21labs/Jamba-v0.1", 51.6, "ai21labs/Jamba-v0.1"),
    ("allenai/Olmo-3-7B-Instruct-SFT", 7.3, "allenai/Olmo-3-7B-Instruct-SFT"),
    ("arcee-ai/AFM-4.5B", 4.5, "arcee-ai/AFM-4.5B"),
    ("arcee-ai/Trinity-Nano-Preview", 6, "arcee-ai/Trinity-Nano-Preview"),
    ("axolotl-ai-co/Mistral-Medium-3.5-128B-BF16", 128, "mistralai/Mistral-Medium-3.5-128B"),
    ("axolotl-ai-co/Mistral-Small-4-119B-2603-BF16", 119, "mistralai/Mistral-Small-4-119B-2603"),
    ("axolotl-ai-co/gpt-oss-120b-dequantized", 116.8, "openai/gpt-oss-120b"),
    (
        "axolotl-quants/Llama-4-Scout-17B-16E-Linearized-bnb-nf4-bf16",
        109,
        "meta-llama/Llama-4-Scout-17B-16E-Instruct",
    ),
    ("casperhansen/llama-3-70b-fp16", 70.55, "meta-llama/Meta-Llama-3-70B"),
    ("falcon-7b", 7.2, "tiiuae/falcon-7b"),
    ("gemma-2b", 2.5, "google/gemma-2b"),
    ("gemma-7b", 8.5, "google/gemma-7b"),
    ("gemma2-2b", 2.6, "google/gemma-2-2b-it"),
    ("gemma2-9b", 9.2, "google/gemma-2-9b-it"),
    ("google/gemma-4-12B-it", 12, "google/gemma-4-12B-it"),
    ("google/gemma-4-31B", 31, "google/gemma-4-31B"),
    ("ibm-granite/granite-4.0-tiny-preview", 6.7, "ibm-granite/granite-4.0-tiny-preview"),
    ("ibm/PowerLM-3b", 3.51, "ibm/PowerLM-3b"),
    ("katanemo/Plano-Orchestrator-4B", 4.0, "Qwen/Qwen3-4B-Instruct-2507"),
    ("llama-2-7b", 6.74, "meta-llama/Llama-2-7b-hf"),
    ("llama-3-8b", 8.03, "meta-llama/Meta-Llama-3-8B"),
    ("llama-3.1-8b", 8.03, "meta-llama/Llama-3.1-8B"),
    ("llama-3.2-1B", 1.24, "meta-llama/Llama-3.2-1B"),
    ("llama-3.2-3B", 3.21, "meta-llama/Llama-3.2-3B"),
    ("meta-llama/Meta-Llama-3-8B", 8.03, "meta-llama/Meta-Llama-3-8B"),
    ("mistral-7b", 7.24, "mistralai/Mistral-7B-v0.1"),
    ("mistral-7b-v0.2", 7.24, "mistral-community/Mistral-7B-v0.2"),
    ("mistralai/Magistral-Small-2506", 23.6, "mistralai/Mistral-Small-24B-Base-2501"),
    ("mistralai/Magistral-Small-2507", 23.6, "mistralai/Mistral-Small-24B-Base-2501"),
    ("mistralai/Ministral-3-3B-Reasoning-2512", 3.4, "mistralai/Ministral-3-3B-Reasoning-2512"),
    ("mistralai/Mistral-7B-v0.1", 7.24, "mistralai/Mistral-7B-v0.1"),
    ("mistralai/Mixtral-8x7B-Instruct-v0.1", 46.7, "mistralai/Mixtral-8x7B-Instruct-v0.1"),
    ("moonshotai/Kimi-Linear-48B-A3B-Instruct", 48, "moonshotai/Kimi-Linear-48B-A3B-Instruct"),
    ("nvidia/Gemma-4-26B-A4B-NVFP4", 26, "google/gemma-4-26B-A4B"),
    ("nvidia/Qwen3-30B-A3B-NVFP4", 30.5, "Qwen/Qwen3-30B-A3B"),
    ("openai/gpt-oss-20b", 20.9, "openai/gpt-oss-20b"),
    ("phi-2", 2.78, "microsoft/phi-2"),
    ("phi-3", 3.82, "microsoft/Phi-3-mini-4k-instruct"),
    ("stablelm-base-alpha-3b", 3.6, "stabilityai/stablelm-base-alpha-3b"),
    ("tencent/Hunyuan-0.5B-Instruct", 0.5, "tencent/Hunyuan-0.5B-Instruct"),
    ("tiny-llama", 1.1, "TinyLlama/TinyLlama-1.1B-Chat-v1.0"),
    ("zai-org/GLM-4.7-Flash", 30, "zai-org/GLM-4.7-Flash"),
]

# Publications that state a model's nominal size, not its count; the count of the published weight files is the shape's.
NOMINAL = {"arcee-ai/AFM-4.5B", "arcee-ai/Trinity-Nano-Preview", "tencent/Hunyuan-0.5B-Instruct"}
# The publication says 48, the published weight files hold 49.12 billion; the shape is an approximation of 49.15.
APPROXIMATE = {"moonshotai/Kimi-Linear-48B-A3B-Instruct"}

# Spellings without a count.
BARE = [
    ("swiss-ai/Apertus-8B-Instruct-2509", "swiss-ai/Apertus-8B-2509"),
    ("OLMoE-1B-7B-0924-Instruct", "allenai/OLMoE-1B-7B-0924"),
    ("NousResearch/Hermes-3-Llama-3.1-8B", "meta-llama/Llama-3.1-8B"),
    ("mixtral-moe-7b-instruct", "mistralai/Mixtral-8x7B-v0.1"),
    ("granite-7b-base", "meta-llama/Llama-2-7b-hf"),  # not granite-4.0-tiny, whose count is near
    ("Codestral-22B-v0.1", "mistralai/Mistral-Small-Instruct-2409"),
    ("bigscience/bloom-7b1", "bigscience/bloomz-7b1"),
    ("Olmo-3-32B-Think", "allenai/Olmo-3-1125-32B"),
    ("dolly-v2-12b", "EleutherAI/pythia-12b"),
    ("Llama-3.2-1B-Instruct", "meta-llama/Llama-3.2-1B-Instruct"),
    ("unsloth/Meta-Llama-3.1-8B-bnb-4bit", "meta-llama/Llama-3.1-8B"),
    ("Mistral-7B-Instruct-v0.2", "mistral-community/Mistral-7B-v0.2"),
    ("Mistral-Small-2409", "mistralai/Mistral-Small-Instruct-2409"),
    ("Mistral-Small-24B", "mistralai/Mistral-Small-24B-Base-2501"),
    ("Mistral-Nemo-Base-2407", "mistralai/Mistral-Nemo-Instruct-2407"),
    ("Qwen2-7B-Instruct", "Qwen/Qwen2.5-7B"),
    ("Qwen2.5-Coder-7B-Instruct", "Qwen/Qwen2.5-7B"),
    ("Qwen/Qwen-1_8B-Chat", "Qwen/Qwen-1_8B"),
    ("Qwen1.5-MoE-A2.7B-Chat", "Qwen/Qwen1.5-MoE-A2.7B"),
    ("Qwen3-Coder-30B-A3B-Instruct", "Qwen/Qwen3-30B-A3B"),
    ("phi-1.5", "microsoft/phi-1_5"),
    ("phi3-mini-128k", "microsoft/Phi-3-mini-4k-instruct"),
    ("Yi-1.5-34B-Chat", "01-ai/Yi-34B"),
    ("glm4-9b-chat", "zai-org/glm-4-9b"),
    ("GLM-4-9B-0414", "zai-org/GLM-4-9B-0414"),
    ("internlm2_5-7b-chat", "internlm/internlm2-7b"),
    ("deepseek-7b", "deepseek-ai/deepseek-llm-7b-base"),
    ("EleutherAI/pythia-12b-deduped", "EleutherAI/pythia-12b"),
    ("vicuna-7b-v1.5", "meta-llama/Llama-2-7b-hf"),
    ("vicuna-7b", "huggyllama/llama-7b"),
    ("LLaMA-13B", "huggyllama/llama-13b"),
    ("stabilityai/stablelm-2-1_6b", "stabilityai/stablelm-2-1_6b"),
    ("granite-34b-code", "ibm-granite/granite-34b-code-base-8k"),
    ("gemma-3-12b", "google/gemma-3-12b-it"),
]

UNKNOWN = [
    ("Llama-3.2-11B-Vision-Instruct", "tower"),
    ("Qwen/Qwen3-VL-8B-Instruct", "tower"),
    ("bigscience/mt0-xxl", "encoder-decoder"),
    ("bigscience/T0_3B", "encoder-decoder"),
    ("state-spaces/mamba-2.8b", "state-space"),
    ("tiiuae/Falcon-H1-0.5B-Base", "side by side"),
    ("nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", "state-space"),
    ("llava-hf/llava-1.5-13b-hf", "vision-language"),
    ("Qwen2-VL-7B-Instruct", "vision-language"),
    ("google/gemma-3n-E2B-it", "per-layer embeddings"),
    ("facebook/opt-6.7b", "position embeddings"),
    ("SomethingNew-7B", "no shape is known"),
    ("Mixtral", "leaves open"),
    ("Llama 3", "leaves open"),
    ("Qwen2.5", "leaves open"),
    ("", "no shape is known"),
    ("7B", "no shape is known"),
    ("instruct", "no shape is known"),
    ("Qwen2.5-0B", "no shape is known"),
    ("Qwen2.5-" + "9" * 400 + "B", "no shape is known"),
]

FILES = sorted(SHAPES_FOLDER.glob("*.yaml"))


def counts(known: KnownModel) -> tuple[int, int]:
    """All parameters, and those without a vision tower, in billions of which publications state either."""
    total = parameters.total(known.spec)
    return total, total - known.spec.extra_parameters


@pytest.mark.parametrize(("name", "billions", "expected"), PUBLISHED)
def test_a_published_name_is_the_model_that_is_meant(name: str, billions: float, expected: str) -> None:
    known = model_of(name, billions)
    assert known.spec.id == expected
    if name not in NOMINAL | APPROXIMATE:
        assert any(abs(count / 1e9 / billions - 1) < 0.02 for count in counts(known)), counts(known)


@pytest.mark.parametrize("name", sorted(NOMINAL))
def test_a_nominal_size_is_no_doubt_where_the_weight_files_confirm_the_shape(name: str) -> None:
    known = model_of(name)
    assert known.spec.num_parameters == parameters.total(known.spec)


@pytest.mark.parametrize(("name", "expected"), BARE)
def test_a_name_without_a_count(name: str, expected: str) -> None:
    assert model_of(name).spec.id == expected


@pytest.mark.parametrize(("name", "reason"), UNKNOWN)
def test_what_is_not_known_says_why(name: str, reason: str) -> None:
    with pytest.raises(UnknownModel, match=reason) as error:
        model_of(name)
    assert "\n" not in error.value.reason


def test_a_name_and_a_count_that_contradict_each_other() -> None:
    with pytest.raises(UnknownModel, match=r"is said to have 70\.0 billion"):
        model_of("Llama-2-7B", 70.0)


def test_a_stated_count_decides_between_models() -> None:
    assert model_of("Mixtral", 46.7).spec.id == "mistralai/Mixtral-8x7B-v0.1"
    assert model_of("Mixtral", 140.6).spec.num_hidden_layers == 56
    assert model_of("phi-3", 13.96).spec.id == "microsoft/Phi-3-medium-4k-instruct"


def test_notes_say_what_is_uncertain_and_nothing_else() -> None:
    assert model_of("Llama-3.1-8B", 8.03).notes == ()
    assert model_of("Qwen2-7B").notes == ()
    assert "Qwen2.5" in model_of("Qwen2-7B").derived
    assert "leaves the version open" in model_of("mistral-7b", 7.24).notes[0]
    assert "side by side" in model_of("phi-2").notes[0]
    awq = model_of("Llama-3.3-70B AWQ")
    assert awq.quantised == "awq"
    assert "quantised (awq)" in awq.notes[0]
    assert model_of("axolotl-ai-co/gpt-oss-120b-dequantized").quantised is None


def test_module_names_of_a_model_that_names_its_modules_otherwise() -> None:
    """Every linear module of the first Qwen has its published name, and no name leads nowhere."""
    known = model_of("Qwen-7B-Chat")
    named = {ours for names in known.module_names.values() for ours in names}
    assert named == set(parameters.linear_modules(known.spec))
    assert known.module_names["c_proj"] == ("o_proj", "down_proj")


DECORATIONS = ["", "-Instruct", "-chat", "-hf", "-bnb-4bit", "-AWQ", "-2407", " (base)"]
PREFIXES = ["", "meta-llama/", "someone/", "some-org/"]
PLAIN = ["Llama-3.1-8B", "Llama-2-70B", "Qwen2.5-7B", "Qwen1.5-14B", "Mistral-7B-v0.3", "gemma-2-9b", "TinyLlama-1.1B",
         "CodeLlama-34B", "Yi-34B", "phi-2", "Mixtral-8x7B", "Qwen3-30B-A3B", "falcon-7b", "pythia-1.4b"]  # fmt: skip


@given(
    st.sampled_from(PLAIN),
    st.sampled_from(PREFIXES),
    st.sampled_from(DECORATIONS),
    st.sampled_from([" ", "-", "_", "--"]),
    st.sampled_from([str.lower, str.upper, str.title, str]),
)
def test_case_separators_organisation_and_decoration_do_not_count(
    name: str, prefix: str, decoration: str, separator: str, case: type
) -> None:
    spelled = prefix + case((name + decoration).replace("-", separator))
    plain, other = model_of(name).spec, model_of(spelled).spec
    assert parameters.linear_modules(other) == parameters.linear_modules(plain)
    assert parameters.total(other) == parameters.total(plain)


@given(st.text(max_size=40), st.none() | st.floats(0.01, 2000))
def test_any_text_is_a_model_or_a_reason(name: str, billions: float | None) -> None:
    try:
        known = model_of(name, billions)
    except UnknownModel as error:
        assert error.reason
    else:
        assert parameters.total(known.spec) > 0


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_model_file(path: Path) -> None:
    """A file names itself, has a source, and its count is that of its shape where a published one exists."""
    facts, spec = load_yaml(path), read(path)
    assert path.stem == spec.id.replace("/", "--", 1)
    assert spec.source.startswith("https://")
    total = parameters.total(spec)
    published = [source for source in facts["sources"] if source["what"] == "parameters"]
    if published:
        assert spec.num_parameters == published[0]["value"] == total
    else:
        assert spec.num_parameters == 0
        assert spec.unconfirmed
    listed = sum(
        parameters.linear_parameters((g.in_features, g.out_features, g.bias)) * g.count for g in spec.extra_linear
    )
    assert listed <= spec.extra_parameters
    known = set(parameters.linear_modules(spec)) | {"gate_proj", "up_proj", "gate_up_proj", "down_proj"}
    assert {ours for names in facts.get("module_names", {}).values() for ours in names} <= known


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_model_is_found_by_its_id(path: Path) -> None:
    assert model_of(path.stem.replace("--", "/", 1)).spec == read(path)


# Names of files that train what they name, and the model whose shape is theirs.
EXACT = [
    ("NousResearch/Llama-3.2-1B", "meta-llama/Llama-3.2-1B"),
    ("NousResearch/Meta-Llama-3.1-8B-Instruct", "meta-llama/Llama-3.1-8B"),
    ("codellama/CodeLlama-13b-hf", "codellama/CodeLlama-13b-hf"),
    ("Qwen/Qwen3.5-35B-A3B-Base", "Qwen/Qwen3.5-35B-A3B"),
    ("EleutherAI/pythia-12b-deduped", "EleutherAI/pythia-12b"),
    ("axolotl-ai-co/Mistral-Small-4-119B-2603-BF16", "mistralai/Mistral-Small-4-119B-2603"),
    ("google/gemma-2-9b", "google/gemma-2-9b-it"),
    ("/data/models/Llama-3.1-8B", "meta-llama/Llama-3.1-8B"),
]
# Fine-tunes and other models that are only called alike.
OTHER = [
    "someone/Llama-3.1-8B-medical", "someone/MyLlama-3.1-8B", "someone/Llama-3.1-9B", "someone/Llama-3.1",
    "mistralai/Mistral-7B", "someone/Qwen3", "Qwen/Qwen3-8B-Embedding", "Qwen/Qwen3-Reranker-8B",
    "someone/TinyLlama", "someone/gemma-2", "microsoft/phi", "someone/Llama-3.1-8B-pruned-4B", "gpt-oss",
    "someone/Mixtral", "outputs/checkpoint-500", "someone/Llama-3.1-Minitron-4B", "llama-3.1-8b.gguf", "8B", "",
]  # fmt: skip


@pytest.mark.parametrize(("name", "expected"), EXACT)
def test_a_mirror_is_its_model_exactly(name: str, expected: str) -> None:
    assert model_of(name, exact=True).spec.id == expected


@pytest.mark.parametrize("name", OTHER)
def test_a_name_that_is_only_alike_is_no_model(name: str) -> None:
    with pytest.raises(UnknownModel):
        model_of(name, exact=True)


@given(st.sampled_from(PLAIN), st.text("abcdefghijklmnopqrstuvwxyz", min_size=6, max_size=9))
def test_a_word_of_ones_own_makes_another_model(name: str, word: str) -> None:
    with pytest.raises(UnknownModel):
        model_of(f"someone/{name}-{word}", exact=True)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_shape_is_found_exactly_by_its_id(path: Path) -> None:
    assert model_of(path.stem.replace("--", "/", 1), exact=True).spec == read(path)


def test_only_the_file_that_is_meant_is_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[Path] = []

    def counted(path: Path) -> ModelSpec:
        opened.append(path)
        return read(path)

    monkeypatch.setattr(model_names, "read", counted)
    model_names._entries.cache_clear()
    assert model_of("NousResearch/Llama-2-7b-hf", exact=True).spec.hidden_size == 4096
    model_names._entries.cache_clear()
    assert [path.stem for path in opened] == ["meta-llama--Llama-2-7b-hf"]
