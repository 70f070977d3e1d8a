"""What the real Axolotl makes of the entries that we write: its schema, its loaders, its prompt strategies."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from data_samples import chat
from tiny_tokenizers import make_tokenizer_folder

from recipegen.dataset import end_of_turn, measure
from recipegen.dataset.facts import facts
from recipegen.spec import DatasetSpec, ModelSpec, RecipegenError

pytestmark = pytest.mark.stack

os.environ.setdefault("AXOLOTL_DO_NOT_TRACK", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("HF_DATASETS_OFFLINE", "1")

ALPACA = [
    {"instruction": "Add.", "input": "2 and 2", "output": "Four."},
    {"instruction": "Name the capital of Norway.", "input": "", "output": "Oslo."},
]
ALPACA_SYSTEM = [{"system": "Be brief.", **row} for row in ALPACA]
MESSAGES = [
    chat("What is two plus two?", "Four.", "And the capital?", "Oslo.", system="Be brief."),
    chat("Hi", "Paris."),
]
SHAREGPT = [
    {
        "conversations": [
            {"from": "human", "value": "What is two plus two?"},
            {"from": "gpt", "value": "Four."},
            {"from": "human", "value": "And the capital?"},
            {"from": "gpt", "value": "Oslo."},
        ]
    }
]
CUSTOM = [{"dialogue": [{"speaker": "Human", "text": "Hi"}, {"speaker": "Bot", "text": "Oslo."}], "id": 7}]
SEGMENTS = [{"segments": [{"label": False, "text": "<s>Q: two plus two?"}, {"label": True, "text": " Four.</s>"}]}]
PAIRS = [
    {"question": "What is two plus two?", "answer": "Four."},
    {"question": "Capital of Norway?", "answer": "Oslo."},
]
DOLLY = [{"instruction": "Add.", "context": "2 and 2", "response": "Four."}, {"instruction": "Go", "response": "Oslo."}]
TEXT = [{"text": "The capital of Norway is Oslo."}]
ALL_FORMATS: Mapping[str, list[dict[str, Any]]] = {
    "alpaca": ALPACA,
    "alpaca with system": ALPACA_SYSTEM,
    "messages": MESSAGES,
    "sharegpt": SHAREGPT,
    "custom names": CUSTOM,
    "segments": SEGMENTS,
    "pairs": PAIRS,
    "pairs with context": DOLLY,
    "completion": TEXT,
}
CHATML = "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}{% endfor %}"


def axolotl_config(spec: DatasetSpec, **more: Any) -> Any:
    """A small config with our entry, through Axolotl's real validation."""
    from axolotl.utils.config import validate_config
    from axolotl.utils.dict import DictDefault

    values = {
        "base_model": "example/model",
        "datasets": [dict(spec.entry)],
        "sequence_len": 512,
        "micro_batch_size": 1,
        "gradient_accumulation_steps": 1,
        "num_epochs": 1,
        "learning_rate": 1e-4,
        "optimizer": "adamw_torch_fused",
        "lr_scheduler": "cosine",
        "train_on_inputs": False,
        "dataset_num_proc": 1,
        **more,
    }
    return validate_config(DictDefault(json.loads(json.dumps(values))))


def tokenized(config: Any, tokenizer: Any) -> list[dict[str, list[int]]]:
    """The rows as Axolotl's own loader and prompt strategy make them."""
    from axolotl.utils.data.shared import load_dataset_with_config
    from axolotl.utils.data.wrappers import get_dataset_wrapper

    entry = config.datasets[0]
    data = load_dataset_with_config(entry, use_auth_token=False)
    base_type = entry.type.split(":")[0] if isinstance(entry.type, str) else None
    wrapper, _ = get_dataset_wrapper(entry, tokenizer, config, base_type, data)
    return [dict(row) for row in wrapper]


def load_tokenizer(folder: Path) -> Any:
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast.from_pretrained(folder)


def trained_text(row: Mapping[str, list[int]], tokenizer: Any) -> str:
    return str(tokenizer.decode([label for label in row["labels"] if label != -100]))


@pytest.fixture
def chatml_folder(tmp_path: Path) -> Path:
    return make_tokenizer_folder(
        tmp_path / "tok", special=["<|im_start|>", "<|im_end|>"], eos="<|im_end|>", template=CHATML
    )


@pytest.fixture(autouse=True)
def _own_dataset_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "datasets-cache"))


@pytest.mark.parametrize("name", ALL_FORMATS)
def test_every_key_of_an_entry_is_one_that_axolotl_has(name: str, model: ModelSpec, write: Callable[..., Path]) -> None:
    from axolotl.utils.schemas.datasets import SFTDataset, UserDefinedPrompterType

    entry = dict(measure(write("data.jsonl", ALL_FORMATS[name]), model=model).entry)
    assert set(entry) <= set(SFTDataset.model_fields)
    if isinstance(entry["type"], dict):
        assert set(entry["type"]) <= set(UserDefinedPrompterType.model_fields)
    kept = SFTDataset.model_validate(json.loads(json.dumps(entry))).model_dump(exclude_none=True)
    assert {key: kept[key] for key in entry} == entry


@pytest.mark.parametrize("name", ALL_FORMATS)
def test_prompts_are_masked_and_answers_end_with_a_trained_end_token(
    name: str, model: ModelSpec, write: Callable[..., Path], chatml_folder: Path
) -> None:
    model = replace(model, id=str(chatml_folder))
    rows = ALL_FORMATS[name]
    spec = measure(write("data.jsonl", rows), model=model)
    tokenizer = load_tokenizer(chatml_folder)
    ending = end_of_turn(model)
    made = tokenized(axolotl_config(spec, eot_tokens=list(ending.eot_tokens)), tokenizer)
    assert len(made) == spec.rows == len(rows)
    for row, source in zip(made, rows, strict=True):
        text, whole = trained_text(row, tokenizer), tokenizer.decode(row["input_ids"])
        if name == "completion":
            assert text == whole
            continue
        for asked in ("two plus two?", "Add.", "Be brief.", "Hi"):
            assert asked not in text
        assert "Oslo." in text or "Four." in text or "Paris." in text
        if name != "segments":
            answers = sum(str(value).count("'assistant'") + str(value).count("'gpt'") for value in source.values()) or 1
            assert text.count("<|im_end|>") == answers


@pytest.mark.parametrize("name", ALL_FORMATS)
def test_lengths_with_the_models_tokenizer_are_those_that_axolotl_makes(
    name: str, model: ModelSpec, write: Callable[..., Path], chatml_folder: Path
) -> None:
    model = replace(model, id=str(chatml_folder))
    spec = measure(write("data.jsonl", ALL_FORMATS[name]), model=model)
    made = tokenized(axolotl_config(spec), load_tokenizer(chatml_folder))
    assert spec.lengths is not None
    assert spec.lengths.basis == "tokenizer"
    assert spec.lengths.total_tokens == sum(len(row["input_ids"]) for row in made)
    assert spec.lengths.longest == max(len(row["input_ids"]) for row in made)


def _family_folder(name: str, folder: Path, *, with_template: bool) -> Path:
    from axolotl.utils.chat_templates import get_chat_template

    known = facts()["templates"][name]
    ends = [token for token in known["end"] if token != "eos"]
    return make_tokenizer_folder(
        folder,
        special=[*known["needs"], "user", "assistant", "system", "model"],
        eos="</s>",
        generation_eos=[*ends, "</s>"],
        template=get_chat_template(name) if with_template else None,
    )


@pytest.mark.parametrize("name", sorted(set(facts()["templates"])))
def test_the_end_of_a_turn_is_trained_with_every_template_that_is_written(
    name: str, base_model: ModelSpec, write: Callable[..., Path], tmp_path: Path
) -> None:
    folder = _family_folder(name, tmp_path / "tok", with_template=False)
    model = replace(base_model, chat_template=name, eos_token="</s>")
    ending = end_of_turn(model, folder)
    assert ending.chat_template == name
    assert len(ending.eot_tokens) == 1
    rows = [chat("What is two plus two?", "Four.", "And the capital?", "Oslo.")]
    spec = measure(write("data.jsonl", rows), model=model, tokenizer_path=folder)
    tokenizer = load_tokenizer(folder)
    config = axolotl_config(spec, chat_template=ending.chat_template, eot_tokens=list(ending.eot_tokens))
    (row,) = tokenized(config, tokenizer)
    end = tokenizer.convert_tokens_to_ids(ending.eot_tokens[0])
    assert row["labels"].count(end) == 2, "the token behind each of the two answers is trained"
    assert "capital" not in trained_text(row, tokenizer)


@pytest.fixture(scope="module")
def tekken() -> Any:
    """The tokenizer of Mistral Nemo (131,072 tokens), as mistral-common ships it."""
    import mistral_common
    from transformers.integrations.mistral import convert_tekken_tokenizer

    source = Path(mistral_common.__file__).parent / "data" / "tekken_240911.json"
    return convert_tekken_tokenizer(str(source))


@pytest.mark.parametrize("name", sorted(set(facts()["templates"])))
def test_the_overhead_of_a_template_is_covered_but_not_exaggerated(name: str, tekken: Any) -> None:
    """With a real vocabulary, to which the family's own tokens are added."""
    from copy import deepcopy

    from axolotl.utils.chat_templates import get_chat_template

    known = facts()["templates"][name]
    tokenizer = deepcopy(tekken)
    tokenizer.add_special_tokens({"extra_special_tokens": [*known["needs"], "<think>", "</think>"]})
    template = get_chat_template(name)
    for words in (["Hi", "Oslo."], ["Hi", "Oslo.", "Add two and two.", "Four."]):
        turns = chat(*words)["messages"]
        made = tokenizer.apply_chat_template(turns, chat_template=template, tokenize=True, return_dict=False)
        overhead = len(made) - sum(len(tokenizer.encode(text, add_special_tokens=False)) for text in words)
        stated = known["per_row"] + len(words) * known["per_turn"]
        assert overhead <= stated <= 2 * overhead + 8


@pytest.mark.parametrize("name", ["chatml", "llama3", "gemma3", "phi_35", "qwen3", "mistral_v1"])
def test_the_end_of_a_turn_is_read_off_a_tokenizers_own_template(
    name: str, model: ModelSpec, write: Callable[..., Path], tmp_path: Path
) -> None:
    folder = _family_folder(name, tmp_path / "tok", with_template=True)
    ending = end_of_turn(replace(model, end_of_turn=(), eos_token=None), folder)
    expected = [token if token != "eos" else "</s>" for token in facts()["templates"][name]["end"]]
    assert (ending.chat_template, list(ending.eot_tokens)) == ("tokenizer_default", expected)
    spec = measure(write("data.jsonl", [chat("Hi", "Oslo.")]), model=model, tokenizer_path=folder)
    tokenizer = load_tokenizer(folder)
    (row,) = tokenized(axolotl_config(spec, eot_tokens=list(ending.eot_tokens)), tokenizer)
    assert row["labels"].count(tokenizer.convert_tokens_to_ids(expected[0])) == 1
    assert spec.lengths is not None
    assert spec.lengths.longest == len(row["input_ids"])


def test_the_end_of_a_turn_is_trained_on_mistrals_own_tokenizer(
    model: ModelSpec, write: Callable[..., Path], tmp_path: Path, tekken: Any
) -> None:
    tokenizer = tekken
    tokenizer.save_pretrained(tmp_path / "tekken")
    base = replace(
        model,
        id="example/nemo",
        instruct=False,
        chat_template="mistral_v3_tekken",
        end_of_turn=(),
        eos_token="</s>",
        vocab_size=131072,
    )
    ending = end_of_turn(base, tmp_path / "tekken")
    assert (ending.chat_template, ending.eot_tokens) == ("mistral_v3_tekken", ("</s>",))
    rows = [chat("What is two plus two?", "Four.", "And the capital of Norway?", "Oslo.")]
    spec = measure(write("data.jsonl", rows), model=base, tokenizer_path=tmp_path / "tekken")
    config = axolotl_config(spec, chat_template=ending.chat_template, eot_tokens=list(ending.eot_tokens))
    (row,) = tokenized(config, tokenizer)
    end = tokenizer.convert_tokens_to_ids("</s>")
    places = [index for index, token in enumerate(row["input_ids"]) if token == end]
    assert len(places) == 2
    assert all(row["labels"][place] == end for place in places)
    assert trained_text(row, tokenizer) == "Four.</s>Oslo.</s>"
    assert spec.lengths is not None
    assert len(row["input_ids"]) <= spec.lengths.longest <= len(row["input_ids"]) + 2


def test_a_top_level_chat_template_alone_does_not_reach_a_data_set(
    base_model: ModelSpec, write: Callable[..., Path]
) -> None:
    """Why the entry carries its template: Axolotl fills a missing one before it looks at the top-level key."""
    from axolotl.utils.config import normalize_cfg_datasets

    spec = measure(write("data.jsonl", [chat("Hi", "Oslo.")]), model=base_model)
    assert dict(spec.entry)["chat_template"] == "llama3"
    config = axolotl_config(spec, chat_template="llama3")
    normalize_cfg_datasets(config)
    assert config.datasets[0].chat_template == "llama3"
    bare = replace(spec, entry=tuple((k, v) for k, v in spec.entry if k != "chat_template"))
    config = axolotl_config(bare, chat_template="llama3")
    normalize_cfg_datasets(config)
    assert config.datasets[0].chat_template == "tokenizer_default"


def test_a_message_flag_masks_a_turn(model: ModelSpec, write: Callable[..., Path], chatml_folder: Path) -> None:
    row = chat("Hi", "Four.", "Hi", "Oslo.")
    row["messages"][1]["weight"] = 0
    row["messages"][3]["weight"] = 1
    spec = measure(write("data.jsonl", [row]), model=model, tokenizer_path=chatml_folder)
    assert dict(spec.entry)["message_field_training"] == "weight"
    tokenizer = load_tokenizer(chatml_folder)
    (made,) = tokenized(axolotl_config(spec, eot_tokens=["<|im_end|>"]), tokenizer)
    assert trained_text(made, tokenizer) == "Oslo.<|im_end|>"


JSONL = "".join(json.dumps(row) + "\n" for row in PAIRS)
LOADABLE: Mapping[str, tuple[str, bytes]] = {
    "jsonl": ("d.jsonl", JSONL.encode()),
    "byte order mark": ("d.jsonl", b"\xef\xbb\xbf" + JSONL.encode()),
    "CRLF": ("d.jsonl", JSONL.replace("\n", "\r\n").encode()),
    "blank lines": ("d.jsonl", JSONL.replace("\n", "\n\n").encode()),
    "no last line break": ("d.jsonl", JSONL.rstrip().encode()),
    "array": ("d.json", json.dumps(PAIRS).encode()),
    "pretty array": ("d.json", json.dumps(PAIRS, indent=2).encode()),
    "gzip": ("d.jsonl.gz", gzip.compress(JSONL.encode())),
    "csv": ("d.csv", b'question,answer\r\n"What, is\r\nit?",Four.\r\nWho?,"""Oslo"""\r\n'),
    "csv gzip": ("d.csv.gz", gzip.compress(b"question,answer\nWhat?,Four.\nWho?,Oslo.\n")),
    "odd name": ("d 'q\" $x;\n{1}#%20!.jsonl", JSONL.encode()),
    "no ending": ("data", JSONL.encode()),
}
REFUSED: Mapping[str, tuple[str, bytes]] = {
    "array after white space": ("d.json", b"\n" + json.dumps(PAIRS).encode()),
    "array after a byte order mark": ("d.json", b"\xef\xbb\xbf" + json.dumps(PAIRS).encode()),
    "rows under a key": ("d.json", json.dumps({"data": PAIRS}).encode()),
    "pattern in the name": ("d[1].jsonl", JSONL.encode()),
    "star in the name": ("d*.jsonl", JSONL.encode()),
    "chain in the name": ("d::1.jsonl", JSONL.encode()),
    "not UTF-8": ("d.jsonl", JSONL.encode() + b'{"question":"caf\xe9?","answer":"x"}\n'),
    "unpaired surrogate": ("d.jsonl", b'{"question":"\\ud800","answer":"x"}\n'),
    "NUL byte": ("d.jsonl", JSONL.encode() + b"\0\n"),
    "cut off": ("d.jsonl", JSONL.encode()[:-9]),
    "csv of numbers": ("d.csv", b"question,answer\nWhat?,4\nWho?,5\n"),
    "csv of true and false": ("d.csv", b"question,answer\nWhat?,True\nWho?,False\n"),
    "csv with a missing value": ("d.csv", b"question,answer\nWhat?,NA\nWho?,Oslo\n"),
    "csv with too many fields": ("d.csv", b"question,answer\nWhat?,4,5\nWho?,Oslo\n"),
}


@pytest.mark.parametrize("name", LOADABLE)
def test_the_trainers_loader_reads_as_many_rows_as_we_count(
    name: str, model: ModelSpec, write: Callable[..., Path], chatml_folder: Path
) -> None:
    spec = measure(write(*LOADABLE[name]), model=model, tokenizer_path=chatml_folder)
    assert len(tokenized(axolotl_config(spec), load_tokenizer(chatml_folder))) == spec.rows == 2


@pytest.mark.parametrize("name", REFUSED)
def test_what_we_refuse_the_trainers_loader_does_not_read_as_meant(
    name: str, model: ModelSpec, write: Callable[..., Path], chatml_folder: Path
) -> None:
    path = write(*REFUSED[name])
    with pytest.raises(RecipegenError):
        measure(path, model=model)
    write("d-another.jsonl", PAIRS)  # what a pattern in a name would take in as well
    good = measure(write("good.jsonl", PAIRS), model=model)
    entry = tuple(
        {**dict(good.entry), "path": str(path), "ds_type": "csv" if path.suffix == ".csv" else "json"}.items()
    )
    tokenizer = load_tokenizer(chatml_folder)
    try:
        made = tokenized(axolotl_config(replace(good, entry=entry)), tokenizer)
    except Exception:  # any failure of the loader or the strategy shows the point
        return
    assert not all(trained_text(row, tokenizer).strip("<|im_end>") for row in made) or len(made) != 2


def test_parquet_is_read_alike(model: ModelSpec, tmp_path: Path, chatml_folder: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.Table.from_pylist(MESSAGES), tmp_path / "d.parquet")
    spec = measure(tmp_path / "d.parquet", model=model, tokenizer_path=chatml_folder)
    assert (spec.rows, spec.system_rows, dict(spec.entry)["ds_type"]) == (2, 1, "parquet")
    made = tokenized(axolotl_config(spec), load_tokenizer(chatml_folder))
    assert spec.lengths is not None
    assert spec.lengths.total_tokens == sum(len(row["input_ids"]) for row in made)


def test_packing_is_as_full_as_axolotls_own(model: ModelSpec) -> None:
    import random

    import numpy as np
    from axolotl.utils.samplers.multipack import pack_parallel

    from recipegen.dataset import packing_efficiency, summarise

    rng = random.Random(1)
    for median, spread in ((150, 0.9), (700, 1.0), (1500, 0.4), (30, 0.5)):
        values = [min(int(rng.lognormvariate(np.log(median), spread)) + 4, 2048) for _ in range(4000)]
        lengths = summarise(values, "tokenizer")
        assert lengths is not None
        bins = pack_parallel(np.array(values, dtype=np.int32), 2048, 100_000, 200, num_processes=1)
        real = sum(values) / (len(bins) * 2048)
        assert packing_efficiency(lengths, 2048) == pytest.approx(real, abs=0.03)
