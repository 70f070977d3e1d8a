"""Tiny random models and small data sets, made on the spot: two decoder layers of hidden size 64, no network."""

from __future__ import annotations

import json
import random
from pathlib import Path

_TEXT = "the a cat dog tree sun moon river stone bird runs eats sees likes red blue big small fast slow and or not"
WORDS = _TEXT.split()
FAMILIES = ("llama", "qwen3")
CHAT_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
ROWS = 400


def _sentence(source: random.Random) -> str:
    return " ".join(source.choices(WORDS, k=source.randint(4, 12))) + "."


def rows(count: int = ROWS) -> list[dict[str, str]]:
    """Alpaca rows of a few words; always the same."""
    source = random.Random(0)
    return [
        {
            "instruction": "Write about " + _sentence(source),
            "input": source.choice(["", _sentence(source)]),
            "output": _sentence(source) + " " + _sentence(source),
        }
        for _ in range(count)
    ]


def write_data(folder: Path) -> dict[str, Path]:
    """`alpaca.jsonl` and `chat.jsonl` (OpenAI messages) with the same sentences."""
    folder.mkdir(parents=True, exist_ok=True)
    found = {"alpaca": folder / "alpaca.jsonl", "chat": folder / "chat.jsonl"}
    alpaca = rows()
    chat = [
        {
            "messages": [
                {"role": "user", "content": row["instruction"]},
                {"role": "assistant", "content": row["output"]},
            ]
        }
        for row in alpaca
    ]
    found["alpaca"].write_text("".join(json.dumps(row) + "\n" for row in alpaca), encoding="utf-8")
    found["chat"].write_text("".join(json.dumps(row) + "\n" for row in chat), encoding="utf-8")
    return found


def write_tokenizer(folder: Path) -> int:
    """A byte-level BPE of about 400 tokens with ChatML's markers, as Qwen's; returns its size."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=512,
        special_tokens=["<pad>", "<s>", "</s>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train_from_iterator((json.dumps(row) for row in rows()), trainer)
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<s>",
        eos_token="</s>",
        pad_token="<pad>",
        model_max_length=2048,
        additional_special_tokens=["<|im_start|>", "<|im_end|>"],
    )
    wrapped.chat_template = CHAT_TEMPLATE
    wrapped.save_pretrained(folder)
    return len(wrapped)


def write_model(family: str, folder: Path) -> Path:
    """A random model of one family with its tokenizer, as `save_pretrained` leaves it (bf16 weights)."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM

    folder.mkdir(parents=True, exist_ok=True)
    shape = {
        "vocab_size": write_tokenizer(folder),
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 2048,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 0,
        "tie_word_embeddings": False,
    }
    torch.manual_seed(0)
    if family == "llama":
        model = LlamaForCausalLM(LlamaConfig(**shape))
    elif family == "qwen3":
        model = Qwen3ForCausalLM(Qwen3Config(head_dim=16, **shape))
    else:
        raise ValueError(f"family is {family!r}; it must be one of {', '.join(FAMILIES)}")
    model.to(torch.bfloat16).save_pretrained(folder)
    return folder
