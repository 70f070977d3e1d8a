"""Run by test_cpu_shim.py: three steps of transformers' own Trainer, alone and then observed; prints both results."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from pathlib import Path
from typing import Any


def train(folder: Path) -> dict[str, Any]:
    """Losses, gradient norms, and digests of the trained weights and of the random generator's state."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments, set_seed

    set_seed(0)
    model = LlamaForCausalLM(
        LlamaConfig(vocab_size=64, hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2)
    )
    rows = [{"input_ids": torch.randint(0, 64, (8,)), "labels": torch.randint(0, 64, (8,))} for _ in range(6)]
    arguments = TrainingArguments(
        output_dir=str(folder), max_steps=3, per_device_train_batch_size=2, logging_steps=1, report_to=[], use_cpu=True,
        save_strategy="no", disable_tqdm=True, learning_rate=1e-2,
    )  # fmt: skip
    trainer = Trainer(model=model, args=arguments, train_dataset=rows)
    trainer.train()
    weights = hashlib.sha256()
    for parameter in model.parameters():
        weights.update(parameter.detach().numpy().tobytes())
    logs = [entry for entry in trainer.state.log_history if "loss" in entry]
    return {
        "losses": [entry["loss"] for entry in logs],
        "norms": [entry["grad_norm"] for entry in logs],
        "weights": weights.hexdigest(),
        "generator": hashlib.sha256(torch.get_rng_state().numpy().tobytes()).hexdigest(),
    }


def main(folder: Path) -> None:
    import probe
    import transformers.trainer

    alone = train(folder)
    # Only now: with it in the environment from the start, the shim would have wrapped the first run too.
    os.environ["RECIPEGEN_TEST_REPORT"] = str(folder / "report")
    probe.OBSERVED.apply(transformers.trainer)
    print("RESULTS", json.dumps({"alone": alone, "observed": train(folder)}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
