"""How fast a data file is measured, against a plain json.loads loop over the same file in the same run.

    python -m benchmarks.dataset_speed [--rows 100000] [--tokenizer FOLDER]

Prints rows per second of both and their ratio (1.0: as fast as json.loads alone), and the peak of Python's memory.
With --tokenizer lengths are counted with its tokenizer.json, else estimated.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
import time
import tracemalloc
from pathlib import Path

from recipegen.dataset import measure
from recipegen.spec import ModelSpec

TEXT = "the rows of this file are made of plain words, some numbers like 4096 and a little code: def f(x): return x"
WORDS = TEXT.split()


def write_chats(path: Path, rows: int) -> None:
    """Conversations of one to three exchanges, about 1 kB a row."""
    rng = random.Random(1)
    with path.open("w", encoding="utf-8") as stream:
        for _ in range(rows):
            turns = []
            for _ in range(rng.randrange(1, 4)):
                turns.append({"role": "user", "content": " ".join(rng.choices(WORDS, k=rng.randrange(5, 60)))})
                turns.append({"role": "assistant", "content": " ".join(rng.choices(WORDS, k=rng.randrange(10, 120)))})
            stream.write(json.dumps({"messages": turns}) + "\n")


def example_model() -> ModelSpec:
    """An instruct model without files; only its vocabulary size and template matter here."""
    return ModelSpec(
        id="example/llama-3", model_type="llama", layer_class="LlamaDecoderLayer", hidden_size=4096,
        intermediate_size=14336, num_hidden_layers=32, num_attention_heads=32, num_key_value_heads=8, head_dim=128,
        vocab_size=128256, max_position_embeddings=8192, chat_template="llama3", end_of_turn=("<|eot_id|>",),
        eos_token="<|eot_id|>", instruct=True,
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--tokenizer", type=Path, default=None)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "chats.jsonl"
        write_chats(path, options.rows)
        size_mb = path.stat().st_size / 1e6
        start = time.perf_counter()
        with path.open("rb") as stream:
            for line in stream:
                json.loads(line)
        plain_s = time.perf_counter() - start
        start = time.perf_counter()
        spec = measure(path, model=example_model(), tokenizer_path=options.tokenizer)
        measure_s = time.perf_counter() - start
        tracemalloc.start()
        measure(path, model=example_model(), tokenizer_path=options.tokenizer, max_rows=min(options.rows, 30_000))
        peak_mib = tracemalloc.get_traced_memory()[1] / 2**20
    basis = spec.lengths.basis if spec.lengths else "none"
    print(f"file: {options.rows} rows, {size_mb:.0f} MB; lengths by {basis}")
    print(f"json.loads: {options.rows / plain_s:,.0f} rows/s ({size_mb / plain_s:.0f} MB/s)")
    print(f"measure:    {options.rows / measure_s:,.0f} rows/s ({size_mb / measure_s:.0f} MB/s)")
    print(f"ratio:      {plain_s / measure_s:.2f}; peak of Python's memory {peak_mib:.1f} MiB")


if __name__ == "__main__":
    main()
