#!/usr/bin/env python3
"""Fine-tune a causal language model as train.json says. This script decides nothing; edit train.json instead.

    accelerate launch --config_file accelerate.yaml train.py                    # start
    accelerate launch --config_file accelerate.yaml train.py --resume latest    # go on from the last checkpoint
    python train.py --prepare                                                   # tokenise only, needs no GPU

Events come out as one JSON object a line, on the standard output of rank 0 and in OUTPUT/metrics.jsonl.

Loss. Every trained token of a global batch weighs the same, wherever it lies: the loss of an optimizer step is the sum
of the token losses over all micro-batches and ranks, divided by the number of trained tokens among them.

Learning rate. A pure function of the step; what train.json says on resume is what happens.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections import Counter
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.utils import DummyOptim, GradientAccumulationPlugin, set_seed
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader
from transformers import AutoModelForCausalLM, BitsAndBytesConfig, Mxfp4Config

from train_checkpoint import export, find_checkpoint, load, save
from train_data import IGNORE, Stream, collate, load_tokenizer, prepare, split
from train_recipe import Problem, read_recipe

GIB = 2**30
# Names of what multimodal models of transformers have beside the text decoder.
VISION = (
    "vision_tower",
    "vision_model",
    "embed_vision",
    "multi_modal_projector",
    "visual",
    "audio_tower",
    "embed_audio",
)
LOSS_CHUNK = 1024  # tokens whose logits are raised to fp32 at a time


# ---------------------------------------------------------------------------------------------- start


def start(recipe):
    """The Accelerator of accelerate.yaml. Raises Problem when it is not the layout that train.json was made for."""
    accumulation = GradientAccumulationPlugin(
        num_steps=recipe.batch.gradient_accumulation,
        sync_each_batch=recipe.batch.sync_each_batch,
        sync_with_dataloader=False,
    )
    accelerator = Accelerator(
        gradient_accumulation_plugin=accumulation,
        log_with=None if recipe.saving.logger == "none" else recipe.saving.logger,
        project_dir=recipe.saving.output,
    )
    engine = {"single": "NO", "ddp": "MULTI_", "fsdp2_full": "FSDP", "fsdp2_hybrid": "FSDP"}
    expected, found = engine.get(recipe.strategy, "DEEPSPEED"), accelerator.distributed_type.value
    if not found.startswith(expected) or accelerator.num_processes != recipe.batch.world_size:
        raise Problem(
            f"train.json is for {recipe.strategy} on {recipe.batch.world_size} processes, but accelerate started "
            f"{found} on {accelerator.num_processes}; start it with accelerate launch --config_file accelerate.yaml"
        )
    mesh = accelerator.parallelism_config
    if recipe.strategy == "fsdp2_hybrid" and (mesh is None or mesh.dp_shard_size != recipe.batch.dp_shard):
        raise Problem(f"accelerate.yaml does not shard over {recipe.batch.dp_shard} GPUs as train.json says")
    return accelerator


class Log:
    """Events of rank 0: a line of JSON to standard output and to metrics.jsonl; numbers to the tracker as well."""

    def __init__(self, accelerator, recipe):
        self.accelerator, self.path = accelerator, Path(recipe.saving.output) / "metrics.jsonl"
        if accelerator.is_main_process:
            self.path.parent.mkdir(parents=True, exist_ok=True)
        if recipe.saving.logger != "none":
            accelerator.init_trackers(Path.cwd().name)

    def __call__(self, event, **values):
        if self.accelerator.is_main_process:
            line = json.dumps({"event": event, **values})
            print(line, flush=True)
            with self.path.open("a", encoding="utf-8") as file:
                file.write(line + "\n")
        if event in ("step", "validation"):
            numbers = {f"{event}/{k}": v for k, v in values.items() if k != "step" and v is not None}
            self.accelerator.log(numbers, step=values["step"])


# ---------------------------------------------------------------------------------------------- model and optimizer


def load_model(recipe, accelerator):
    """The model on its way to `prepare`, with the adapter in fp32 around a frozen base."""
    m = recipe.model
    options = {"dtype": getattr(torch, m.load_dtype), "attn_implementation": m.attention}
    if m.quantization == "nf4":
        options["quantization_config"] = BitsAndBytesConfig(
            load_in_4bit=True,
            bnb_4bit_quant_type="nf4",
            bnb_4bit_use_double_quant=True,
            bnb_4bit_compute_dtype=torch.bfloat16,
            bnb_4bit_quant_storage=torch.bfloat16,  # FSDP shards floating point numbers only
        )
    if m.dequantize == "mxfp4":
        options["quantization_config"] = Mxfp4Config(dequantize=True)
    if m.quantization or recipe.strategy in ("single", "ddp"):  # straight to the GPU, no copy in host memory
        options["device_map"] = {"": accelerator.device}
    model = AutoModelForCausalLM.from_pretrained(
        m.name, revision=m.revision, trust_remote_code=m.trust_remote_code, **options
    )
    model.config.use_cache = False
    if m.freeze_vision:
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(not any(part in VISION for part in name.split(".")))
    if m.loss_kernel == "fused_linear":
        from liger_kernel.transformers import _apply_liger_kernel_to_instance
        from liger_kernel.transformers.monkey_patch import MODEL_TYPE_TO_APPLY_LIGER_FN

        if model.config.model_type not in MODEL_TYPE_TO_APPLY_LIGER_FN:
            raise Problem(f"loss_kernel is fused_linear, but Liger has none for {model.config.model_type}; use stock")
        others = dict.fromkeys(("rope", "rms_norm", "swiglu", "geglu", "cross_entropy"), False)
        _apply_liger_kernel_to_instance(model, fused_linear_cross_entropy=True, **others)
    if m.gradient_checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": m.gradient_checkpointing_reentrant})
        if m.gradient_checkpointing_reentrant:
            model.enable_input_require_grads()  # else nothing behind a frozen embedding gets a gradient
    if recipe.adapter:
        from peft import LoraConfig, get_peft_model

        a = recipe.adapter
        config = LoraConfig(
            task_type="CAUSAL_LM",
            r=a.r,
            lora_alpha=a.alpha,
            lora_dropout=a.dropout,
            target_modules=a.target_modules,
            use_rslora=a.use_rslora,
            use_dora=a.use_dora,
        )
        model = get_peft_model(model, config, autocast_adapter_dtype=True)
    model.train()
    return model


def make_optimizer(recipe, model, accelerator):
    """The optimizer by name. Weight decay leaves out vectors (norms, biases)."""
    o = recipe.optimizer
    trained = [p for p in model.parameters() if p.requires_grad]
    plugin = accelerator.state.deepspeed_plugin if recipe.strategy.startswith("zero") else None
    if plugin is not None and "optimizer" in plugin.deepspeed_config:
        return DummyOptim(trained, lr=recipe.schedule.learning_rate, weight_decay=o.weight_decay)
    groups = [{"params": trained, "weight_decay": 0.0}]
    if o.weight_decay:
        groups = [
            {"params": [p for p in trained if p.ndim > 1], "weight_decay": o.weight_decay},
            {"params": [p for p in trained if p.ndim < 2], "weight_decay": 0.0},
        ]
    groups = [group for group in groups if group["params"]]
    options = {"lr": recipe.schedule.learning_rate, "betas": (o.beta1, o.beta2), "eps": o.epsilon}
    if o.name == "adamw_torch_fused":
        return torch.optim.AdamW(groups, fused=True, **options)
    if o.name == "adamw_torch":
        return torch.optim.AdamW(groups, **options)
    if o.name == "adamw_bnb_8bit":
        from bitsandbytes.optim import AdamW8bit

        return AdamW8bit(groups, **options)
    if o.name == "optimi_adamw":
        from optimi import AdamW

        return AdamW(groups, foreach=False, **options)  # compensated sums for bf16 parameters
    raise Problem(f"optimizer.name is {o.name!r}, which this script does not know")


def learning_rate(schedule, step, steps):
    """Of optimizer step `step` (from 0) of `steps`: linear warm-up, then constant, or down to 0 by line or cosine."""
    warmup = schedule.warmup_steps
    if warmup is None:
        warmup = math.ceil((schedule.warmup_ratio or 0.0) * steps)
    if step < warmup and schedule.scheduler != "constant":
        return schedule.learning_rate * (step + 1) / warmup
    done = (step - warmup) / max(steps - warmup, 1)
    shapes = {"cosine": 0.5 * (1 + math.cos(math.pi * done)), "linear": 1 - done}
    return schedule.learning_rate * shapes.get(schedule.scheduler, 1.0)


# ---------------------------------------------------------------------------------------------- loss


def summed_loss(model, batch, kernel):
    """Sum of the token losses of one micro-batch, in fp32. No name here keeps the logits alive for backward."""
    targets = batch["targets"]
    inputs = {name: batch[name] for name in ("input_ids", "position_ids") if name in batch}
    if kernel == "fused_linear" and model.training:
        trained = (targets != IGNORE).sum().clamp(min=1)
        output = model(**inputs, use_cache=False, shift_labels=targets, num_items_in_batch=trained)
        return output.loss.float() * trained
    logits = model(**inputs, use_cache=False).logits.flatten(0, 1)
    if kernel != "chunked_upcast":
        return token_loss(logits, targets.flatten())
    pieces = zip(logits.split(LOSS_CHUNK), targets.flatten().split(LOSS_CHUNK), strict=True)
    return torch.stack([checkpoint(token_loss, *piece, use_reentrant=False) for piece in pieces]).sum()


def token_loss(logits, targets):
    """Summed cross entropy of (tokens, vocabulary) logits."""
    return F.cross_entropy(logits.float(), targets, ignore_index=IGNORE, reduction="sum")


@torch.no_grad()
def validate(model, sequences, recipe, accelerator):
    """Mean loss over the trained tokens of the validation set. All ranks run the same number of batches."""
    size, world, rank = recipe.batch.micro_batch_size, recipe.batch.world_size, accelerator.process_index
    total = torch.zeros(2, device=accelerator.device)
    model.eval()
    for start_of_round in range(0, len(sequences), size * world):
        indexes = range(start_of_round + rank * size, start_of_round + (rank + 1) * size)
        rows = [sequences[index if index < len(sequences) else -1] for index in indexes]
        batch = to_device(collate(rows, recipe.data), accelerator.device)
        loss = summed_loss(model, batch, recipe.model.loss_kernel)
        total += torch.stack([loss.float(), (batch["targets"] != IGNORE).sum()])
    model.train()
    total = accelerator.reduce(total, "sum")
    return (total[0] / total[1]).item()


def to_device(batch, device):
    return {name: tensor.to(device, non_blocking=True) for name, tensor in batch.items()}


# ---------------------------------------------------------------------------------------------- what really runs


def count_dtypes(tensors):
    """{dtype: elements of the whole, unsharded tensors}."""
    found = Counter()
    for tensor in tensors:
        found[str(tensor.dtype).removeprefix("torch.")] += getattr(tensor, "ds_numel", tensor.numel())
    return dict(sorted(found.items()))


def count_states(optimizer):
    """{state: {dtype: elements}} of the optimizer, without its step counters."""
    inner = optimizer
    while hasattr(inner, "optimizer"):
        inner = inner.optimizer
    found = {}
    for states in inner.state.values():
        for name, value in states.items():
            if isinstance(value, torch.Tensor) and name != "step":
                found.setdefault(name, []).append(value)
    return {name: count_dtypes(tensors) for name, tensors in found.items()}


def mesh_names(tensor):
    return tensor.device_mesh.mesh_dim_names or ("dp_shard",)


def describe(accelerator, model, recipe):
    """The layout and dtypes that were made of accelerate.yaml and train.json."""
    parameters = list(model.parameters())
    trained = [p for p in parameters if p.requires_grad]
    sample = next((p for p in trained if hasattr(p, "device_mesh")), None)
    policy = getattr(getattr(accelerator.state, "fsdp_plugin", None), "mixed_precision_policy", None)
    return {
        "strategy": recipe.strategy,
        "distributed_type": accelerator.distributed_type.value,
        "processes": accelerator.num_processes,
        "device": str(accelerator.device),
        "mixed_precision": accelerator.mixed_precision,
        "mesh": None if sample is None else dict(zip(mesh_names(sample), sample.device_mesh.shape, strict=True)),
        "placements": None if sample is None else str(sample.placements),
        "wrapper": type(model).__name__,
        "sharded_modules": sum(type(module).__name__.startswith("FSDP") for module in model.modules()),
        "gradient_checkpointing": any(getattr(module, "gradient_checkpointing", False) for module in model.modules()),
        "reduction": str(policy.reduce_dtype).removeprefix("torch.") if policy is not None else None,
        "frozen": count_dtypes(p for p in parameters if not p.requires_grad),
        "trainable": count_dtypes(trained),
        "trainable_parameters": sum(getattr(p, "ds_numel", p.numel()) for p in trained),
    }


def peak_memory():
    """Of this GPU since the start, as PyTorch counts it."""
    if not torch.cuda.is_available():
        return {"peak_allocated_gib": None, "peak_reserved_gib": None}
    return {
        "peak_allocated_gib": round(torch.cuda.max_memory_allocated() / GIB, 3),
        "peak_reserved_gib": round(torch.cuda.max_memory_reserved() / GIB, 3),
    }


# ---------------------------------------------------------------------------------------------- the run


def tokenised(recipe, tokenizer, accelerator, log):
    """Training and validation sequences, and the number of optimizer steps."""
    with accelerator.local_main_process_first():
        folder = prepare(recipe, tokenizer)
    training, validation = split(folder, recipe)
    per_epoch = len(training) / recipe.batch.global_batch_size
    steps = recipe.schedule.max_steps or math.ceil(recipe.schedule.epochs * per_epoch)
    counts = json.loads((folder / "counts.json").read_text(encoding="utf-8"))
    log("data", **counts, sequences=len(training), validation_sequences=len(validation), steps=steps)
    return training, validation, steps


def optimizer_step(micro_batches, model, optimizer, recipe, accelerator):
    """One optimizer step.

    Returns this rank's sum of token losses and number of trained tokens, the gradient norm over all ranks, and the
    dtypes of the gradients.
    """
    trained = torch.stack([(batch["targets"] != IGNORE).sum() for batch in micro_batches]).sum()
    # Backward divides by the accumulation steps and averages over the ranks: undo both, divide by all trained tokens.
    everywhere = accelerator.reduce(trained, "sum").clamp(min=1)
    scale = recipe.batch.world_size * recipe.batch.gradient_accumulation / everywhere
    total = torch.zeros((), device=accelerator.device)
    for batch in micro_batches:
        with accelerator.accumulate(model):
            loss = summed_loss(model, batch, recipe.model.loss_kernel)
            total += loss.detach()
            accelerator.backward(loss * scale)
            if accelerator.sync_gradients:
                norm = accelerator.clip_grad_norm_(model.parameters(), recipe.optimizer.max_grad_norm)
            optimizer.step()
            if accelerator.sync_gradients:
                gradients = count_dtypes(p.grad for p in model.parameters() if p.grad is not None)
            optimizer.zero_grad()
    return total, trained, norm, gradients


def train(recipe, resume):
    set_seed(recipe.seed)
    if recipe.model.tf32:
        torch.set_float32_matmul_precision("high")
    accelerator = start(recipe)
    checkpoint_folder = find_checkpoint(recipe, resume)
    log = Log(accelerator, recipe)
    tokenizer = load_tokenizer(recipe)
    training, validation, steps = tokenised(recipe, tokenizer, accelerator, log)
    batch, saving = recipe.batch, recipe.saving
    save_steps = saving.save_steps or math.ceil(len(training) / batch.global_batch_size)

    model = load_model(recipe, accelerator)
    model, optimizer = accelerator.prepare(model, make_optimizer(recipe, model, accelerator))
    log("setup", **describe(accelerator, model, recipe))
    facts = {"global_batch_size": batch.global_batch_size, "sequences": len(training), "seed": recipe.seed}
    first = 0
    if checkpoint_folder is not None:
        first = load(accelerator, model, optimizer, recipe, checkpoint_folder, facts)
        log("resume", step=first, folder=str(checkpoint_folder))

    batches = iter(
        DataLoader(
            training,
            batch_sampler=Stream(recipe, len(training), accelerator.process_index, first, steps),
            collate_fn=partial(collate, data=recipe.data),
            num_workers=recipe.data.workers,
            prefetch_factor=recipe.data.prefetch_factor if recipe.data.workers else None,
            pin_memory=recipe.data.pin_memory,
        )
    )
    seen, clock = torch.zeros(3, device=accelerator.device), time.perf_counter()  # since the last line of the log
    for done in range(first + 1, steps + 1):
        rate = learning_rate(recipe.schedule, done - 1, steps)
        for group in optimizer.param_groups:
            group["lr"] = rate
        micro_batches = [to_device(next(batches), accelerator.device) for _ in range(batch.gradient_accumulation)]
        loss, trained, norm, gradients = optimizer_step(micro_batches, model, optimizer, recipe, accelerator)
        tokens = sum(micro_batch["input_ids"].numel() for micro_batch in micro_batches)  # padding included
        seen += torch.stack([loss, trained, torch.full_like(trained, tokens)])
        if done == first + 1:
            log("precision", gradients=gradients, states=count_states(optimizer))
        if done % saving.logging_steps == 0 or done == steps:
            total_loss, total_trained, total_tokens = accelerator.reduce(seen, "sum").tolist()
            seconds, clock = time.perf_counter() - clock, time.perf_counter()
            if not math.isfinite(total_loss):
                raise Problem(f"the loss is {total_loss} at step {done}: go on from a checkpoint with a lower rate")
            log(
                "step",
                step=done,
                epoch=round(done * batch.global_batch_size / len(training), 4),
                loss=total_loss / max(total_trained, 1),
                grad_norm=float(norm.full_tensor() if hasattr(norm, "full_tensor") else norm),
                learning_rate=rate,
                trained_tokens=int(total_trained),
                tokens_per_s=round(total_tokens / seconds, 1),
                seconds=round(seconds, 4),
                **peak_memory(),
            )
            seen.zero_()
        if len(validation) and ((saving.eval_steps and done % saving.eval_steps == 0) or done == steps):
            log("validation", step=done, loss=validate(model, validation, recipe, accelerator))
        if done % save_steps == 0 or done == steps:
            folder = save(accelerator, model, optimizer, recipe, done, facts)
            log("checkpoint", step=done, folder=str(folder))
    log("export", folder=str(export(accelerator, model, tokenizer, recipe)))
    accelerator.end_training()


def main():
    parser = argparse.ArgumentParser(description="Fine-tune as train.json says.")
    parser.add_argument("--resume", metavar="CHECKPOINT", help="a checkpoint's folder, or: latest")
    parser.add_argument("--prepare", action="store_true", help="tokenise only, once, before the GPUs start")
    arguments = parser.parse_args()
    try:
        recipe = read_recipe("train.json")
        if arguments.prepare:
            print((prepare(recipe, load_tokenizer(recipe)) / "counts.json").read_text(encoding="utf-8"))
        else:
            train(recipe, arguments.resume)
    except Problem as problem:
        print(f"train.py: error: {problem}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
