"""Tokenizer folders made in the test: a small byte-level BPE with a family's special tokens."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

TEXT = [
    "user assistant system tool model What is two plus two? Four.",
    "The capital of Norway is Oslo, and that of France Paris.",
    "### Instruction:\nadd\n\n### Response:\nFour.\n\n### Instruction:\nadd\n\n### Response:\nOslo.",
    " [INST] add [/INST] Four. [INST] add [/INST] Oslo.",
]


def make_tokenizer_folder(
    folder: Path,
    *,
    special: Sequence[str] = (),
    bos: str | None = "<s>",
    eos: str = "</s>",
    template: str | None = None,
    generation_eos: Sequence[str] = (),
) -> Path:
    """Writes tokenizer.json and its configs the way save_pretrained does; needs the tokenizers library only."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    whole = [t for t in dict.fromkeys([bos, eos, *special]) if t]
    trainer = trainers.BpeTrainer(
        vocab_size=600, special_tokens=whole, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator(TEXT * 4, trainer)
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in whole])
    if bos:
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{bos} $A", special_tokens=[(bos, tokenizer.token_to_id(bos))]
        )
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": bos, "eos_token": eos, "pad_token": eos}
    if template is not None:
        config["chat_template"] = template
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    if generation_eos:
        ids = [tokenizer.token_to_id(t) for t in generation_eos]
        (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": ids}))
    return folder
