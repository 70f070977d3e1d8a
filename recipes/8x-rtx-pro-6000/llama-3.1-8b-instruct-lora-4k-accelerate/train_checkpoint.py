"""Checkpoints to go on from, and the model at the end.

OUTPUT/checkpoint-STEP holds the trained parameters (of an adapter: only those) and the optimizer's state as shards of
torch.distributed.checkpoint, which any number of GPUs can load; under DeepSpeed it is DeepSpeed's own format. OUTPUT
must lie on storage that all nodes share.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_state_dict,
    set_state_dict,
)

from train_recipe import Problem

TRAINABLE = StateDictOptions(ignore_frozen_params=True, strict=False)


def trained_state(model, optimizer):
    """What a checkpoint holds: {"model": trained parameters by name, "optimizer": its states by name}."""
    parameters, states = get_state_dict(model, optimizer.optimizer, options=TRAINABLE)
    return {"model": parameters, "optimizer": states}


def checkpoints(output):
    """[(step, folder)] of the complete checkpoints, oldest first."""
    found = [(path.name.rpartition("-")[2], path) for path in Path(output).glob("checkpoint-*")]
    return sorted((int(step), path) for step, path in found if step.isdigit())


def save(accelerator, model, optimizer, recipe, step, facts):
    """Write OUTPUT/checkpoint-STEP under another name, rename it when it is complete, and remove the oldest."""
    folder = Path(recipe.saving.output) / f"checkpoint-{step}"
    temporary = folder.with_name(f"incomplete-{step}")
    if accelerator.is_main_process:
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
    accelerator.wait_for_everyone()
    if recipe.strategy.startswith("zero"):
        accelerator.save_state(str(temporary))
    else:
        state = trained_state(model, optimizer)
        dcp.save(state, checkpoint_id=temporary, planner=DefaultSavePlanner(dedup_save_to_lowest_rank=True))
    random = {"cpu": torch.get_rng_state(), "gpu": torch.cuda.get_rng_state() if torch.cuda.is_available() else None}
    torch.save(random, temporary / f"random-{accelerator.process_index}.pt")
    accelerator.wait_for_everyone()
    if accelerator.is_main_process:
        (temporary / "step.json").write_text(json.dumps({"step": step, **facts}), encoding="utf-8")
        shutil.rmtree(folder, ignore_errors=True)
        temporary.rename(folder)
        for _, old in checkpoints(recipe.saving.output)[: -recipe.saving.save_total_limit]:
            shutil.rmtree(old)
    accelerator.wait_for_everyone()
    return folder


def find_checkpoint(recipe, resume):
    """The folder to go on from, or None for a new run."""
    found = checkpoints(recipe.saving.output)
    if resume is None:
        if found:
            raise Problem(f"{found[-1][1]} is there already: add --resume latest, or move {recipe.saving.output} away")
        return None
    folder = found[-1][1] if resume == "latest" and found else Path(resume)
    if not (folder / "step.json").is_file():
        raise Problem(f"no checkpoint to resume from in {recipe.saving.output if resume == 'latest' else resume}")
    return folder


def load(accelerator, model, optimizer, recipe, folder, facts):
    """Restore `folder` and return its step."""
    if recipe.strategy.startswith("zero"):
        accelerator.load_state(str(folder))
    else:
        state = trained_state(model, optimizer)
        dcp.load(state, checkpoint_id=folder)
        set_state_dict(
            model,
            optimizer.optimizer,
            model_state_dict=state["model"],
            optim_state_dict=state["optimizer"],
            options=TRAINABLE,
        )
    own = folder / f"random-{accelerator.process_index}.pt"
    if own.is_file():
        random = torch.load(own, weights_only=True)
        torch.set_rng_state(random["cpu"])
        if random["gpu"] is not None and torch.cuda.is_available():
            torch.cuda.set_rng_state(random["gpu"])
    kept = json.loads((folder / "step.json").read_text(encoding="utf-8"))
    changed = [name for name, value in facts.items() if kept.get(name) != value]
    if changed and accelerator.is_main_process:
        print(f"train.py: {', '.join(changed)} changed since {folder}: the order of the data does too", file=sys.stderr)
    return kept["step"]


def export(accelerator, model, tokenizer, recipe):
    """OUTPUT/final: the adapter, or the whole model, as `from_pretrained` and serving programs read it."""
    if recipe.strategy.startswith("zero"):
        state = accelerator.get_state_dict(model)
    else:
        options = StateDictOptions(full_state_dict=True, cpu_offload=True, ignore_frozen_params=bool(recipe.adapter))
        state = get_model_state_dict(model, options=options)
    folder, unwrapped = Path(recipe.saving.output) / "final", accelerator.unwrap_model(model)
    if accelerator.is_main_process:
        dtype = getattr(torch, recipe.model.export_dtype)
        state = {name: t.to(dtype) if t.is_floating_point() else t for name, t in state.items()}
        unwrapped.save_pretrained(folder, state_dict=state)
        if not recipe.adapter:
            unwrapped.config.dtype = recipe.model.export_dtype
            unwrapped.config.use_cache = True
            unwrapped.config.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    accelerator.wait_for_everyone()
    return folder
