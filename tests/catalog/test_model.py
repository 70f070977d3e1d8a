"""The model catalogue: names, sources, and what is opened for one of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from recipegen.catalog import all_models, complete_models, describe, load_model, model, model_names
from recipegen.catalog.model_config import known_model_types
from recipegen.catalog.reading import load_yaml
from recipegen.estimate import parameters
from recipegen.spec import RecipegenError

FILES = sorted(model.MODELS_FOLDER.glob("*.yaml"))
AXOLOTL_TEMPLATES = {  # axolotl 0.19.0 utils/schemas/enums.py ChatTemplate, those that are used here
    "alpaca", "chatml", "gemma", "gemma3", "llama3", "mistral_v1", "mistral_v2v3", "mistral_v3_tekken",
    "mistral_v7_tekken", "phi_3", "phi_35", "qwen_25", "qwen3", "tokenizer_default",
}  # fmt: skip


def facts_of(path: Path) -> dict[str, Any]:
    return dict(load_yaml(path))


def test_the_families_people_fine_tune_are_there() -> None:
    names = model_names()
    assert len(names) >= 40
    for needed in (
        "meta-llama/Llama-2-7b-hf",
        "meta-llama/Llama-3.1-8B",
        "meta-llama/Llama-3.1-405B",
        "meta-llama/Llama-3.3-70B-Instruct",
        "Qwen/Qwen2.5-7B-Instruct",
        "Qwen/Qwen3-14B",
        "Qwen/Qwen3-30B-A3B",
        "mistralai/Mixtral-8x7B-v0.1",
        "google/gemma-3-27b-it",
        "microsoft/phi-4",
        "openai/gpt-oss-120b",
        "zai-org/GLM-4-9B-0414",
        "ibm-granite/granite-3.3-8b-instruct",
        "allenai/OLMo-2-1124-7B",
        "HuggingFaceTB/SmolLM3-3B",
        "deepseek-ai/DeepSeek-R1-Distill-Qwen-32B",
    ):
        assert needed in names


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_the_file_name_is_the_id(path: Path) -> None:
    assert path.stem == facts_of(path)["id"].replace("/", "--")


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_the_shape_gives_the_stated_number_of_parameters(path: Path) -> None:
    spec = load_model(facts_of(path)["id"])
    assert parameters.total(spec) == spec.num_parameters
    assert parameters.disagreement(spec) is None


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_shape_and_count_have_independent_sources(path: Path) -> None:
    """Two sources at different places; the second one's number is ours, to its own rounding."""
    facts = facts_of(path)
    by_kind = {source["what"]: source for source in facts["sources"]}
    assert len(by_kind) == len(facts["sources"])
    assert by_kind["shape"]["url"].startswith("https://")
    assert by_kind["shape"]["seen"]
    assert by_kind["shape"]["of"] == f"https://huggingface.co/{facts['id']}/blob/main/config.json"
    count = by_kind.get("parameters")
    if count is None:
        assert facts["unconfirmed"] is True
        return
    assert "unconfirmed" not in facts
    assert count["url"].startswith("https://")
    assert count["url"] != by_kind["shape"]["url"]
    assert count["seen"]
    error = abs(count["value"] - count.get("surplus", 0) - facts["num_parameters"])
    assert error <= count.get("rounded_to", 0) / 2
    assert ("surplus" in count) == ("surplus_is" in count)


def test_a_surplus_of_a_source_is_what_it_says() -> None:
    """Rotary buffers of old Llama checkpoints, and heads saved although they are tied."""
    for path in FILES:
        facts = facts_of(path)
        for source in facts["sources"]:
            if "surplus" not in source:
                continue
            spec = load_model(facts["id"])
            if "rotary" in source["surplus_is"]:
                assert source["surplus"] == spec.num_hidden_layers * spec.head_dim // 2
            else:
                assert spec.tie_word_embeddings
                assert source["surplus"] == parameters.embedding(spec)


def test_at_most_five_counts_are_unconfirmed() -> None:
    assert len([path for path in FILES if facts_of(path).get("unconfirmed")]) <= 5


def test_every_model_says_what_a_person_needs_before_downloading() -> None:
    for spec in all_models():
        assert spec.license != "unknown"
        assert spec.end_of_turn
        assert spec.eos_token
        assert spec.chat_template in AXOLOTL_TEMPLATES
        assert spec.source
        assert not spec.trust_remote_code
        if spec.id.startswith(("meta-llama/", "google/")):
            assert spec.gated


def test_mxfp4_downloads_are_smaller_than_two_bytes_a_parameter() -> None:
    spec = load_model("gpt-oss-20b")
    assert spec.quantization == "mxfp4"
    assert spec.download_bytes == 13_761_264_768  # 4.25 bits for a weight of an expert, 16 for the rest


@pytest.mark.parametrize(
    "name", ["meta-llama/Llama-3.1-8B", "Llama-3.1-8B", "llama-3.1-8b", "META-LLAMA/llama-3.1-8b", " Llama-3.1-8B "]
)
def test_a_name_is_found_without_its_organisation_and_in_any_case(name: str) -> None:
    assert load_model(name).id == "meta-llama/Llama-3.1-8B"


def test_one_model_opens_one_model_file(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[Path] = []

    def spy(path: Path) -> Any:
        opened.append(path)
        return load_yaml(path)

    monkeypatch.setattr(model, "load_yaml", spy)
    model.read.cache_clear()
    load_model("Qwen3-14B")
    assert [path.name for path in opened] == ["Qwen--Qwen3-14B.yaml"]
    model.read.cache_clear()


def test_names_are_listed_without_opening_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model, "load_yaml", lambda path: pytest.fail(f"opened {path}"))
    assert "Qwen/Qwen3-14B" in model_names()


def test_an_ambiguous_short_name_says_which_models_it_may_be(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for organisation in ("one", "two"):
        (tmp_path / f"{organisation}--twin-7b.yaml").write_text("id: x\n")
    monkeypatch.setattr(model, "MODELS_FOLDER", tmp_path)
    with pytest.raises(RecipegenError, match=r"may be any of one/twin-7b, two/twin-7b.*organisation"):
        load_model("Twin-7B")


def test_a_misspelt_name_gets_the_nearest_ones() -> None:
    with pytest.raises(RecipegenError, match=r"Did you mean meta-llama/Llama-3\.1-8B"):
        load_model("Lama-3.1-8B")


@pytest.mark.parametrize("name", ["Llama-3.3-70B", "llama-3.3", "meta-llama/Llama-3.3-70B", "unsloth/Llama-3.3-70B"])
def test_the_beginning_of_a_name_suggests_what_it_begins(name: str) -> None:
    assert model.suggestion(name) == "Did you mean meta-llama/Llama-3.3-70B-Instruct?"


def test_a_short_name_is_only_suggested_never_taken() -> None:
    with pytest.raises(RecipegenError, match=r"Did you mean meta-llama/Llama-3\.3-70B-Instruct"):
        load_model("Llama-3.3-70B")


def test_a_shell_completes_ids_and_the_part_after_the_organisation() -> None:
    assert complete_models("llama-3.3") == ["meta-llama/Llama-3.3-70B-Instruct"]
    assert complete_models("META-LLAMA/llama-3.3") == ["meta-llama/Llama-3.3-70B-Instruct"]
    assert set(complete_models("Qwen3-30B")) == {"Qwen/Qwen3-30B-A3B", "Qwen/Qwen3-30B-A3B-Instruct-2507"}
    assert complete_models("3.3") == []
    assert complete_models("") == model_names()


@pytest.mark.parametrize(
    "name",
    ["", "  ", "a\nb", "x\x00y", "nothing-like-it", "a/b/c", "../..", "./nowhere", "~nobody/x", "a--b/c", "q" * 5000],
)
def test_a_bad_name_is_one_clear_line(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(RecipegenError) as caught:
        load_model(name)
    assert "\n" not in str(caught.value)


def test_a_description_is_json() -> None:
    facts = json.loads(json.dumps(describe("Qwen3-30B-A3B")))
    assert facts["id"] == "Qwen/Qwen3-30B-A3B"
    assert facts["num_parameters"] == 30_532_122_624
    assert facts["moe"]["num_experts"] == 128
    assert {source["what"] for source in facts["sources"]} == {"shape", "parameters"}


def test_a_description_has_both_sources_or_says_that_the_count_is_unconfirmed() -> None:
    for name in model_names():
        facts = describe(name)
        assert json.loads(json.dumps(facts)) == facts
        counted = set() if facts["unconfirmed"] else {"parameters"}
        assert {source["what"] for source in facts["sources"]} == {"shape"} | counted, name
        assert all(source["url"].startswith("https://") for source in facts["sources"]), name
        assert isinstance(facts["unconfirmed"], bool), name


def test_every_catalogue_architecture_is_a_known_one() -> None:
    assert {spec.model_type for spec in all_models()} <= set(known_model_types())
