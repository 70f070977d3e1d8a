"""The smaller parts of a recipe: optimizer, schedule, checkpoints, loaders, launch and data, as the trainer has them.

Defaults that depend on other fields (axolotl 0.19.0 unless named; numbers in the stack's trainer_defaults.yaml):

- with none of the three loader keys: a worker per GPU, 256 batches ahead each, pinned (default_dataloader_opts);
- gradient_checkpointing without kwargs is reentrant, but with unfrozen_parameters, and never for Gemma 4
  (normalize_config); in Transformers 5.16 it is not, nor with empty kwargs; with other words for torch 2.13 it is;
- warm-up and logging follow from all steps (_configure_warmup_and_logging); without them, the share is kept; one step
  of warm-up becomes two; with `max_steps` below 0 Axolotl counts so many steps: no warm-up, and a log every step;
- `save_strategy: steps` alone saves every 500 steps, `eval_strategy: steps` alone evaluates when it logs
  (Transformers);
- a class that takes its numbers from `adam_kwargs` gets both betas or none;
- a DeepSpeed JSON without `gradient_clipping` clips nothing: Accelerate leaves clipping to DeepSpeed, whose default
  is 0.
"""

from __future__ import annotations

from typing import Any

from recipegen.formats.assemble_draft import Draft
from recipegen.spec import (
    DataFormat,
    DatasetSpec,
    Launch,
    Loading,
    Method,
    Optimizer,
    Parallelism,
    RecipegenError,
    Saving,
    Schedule,
)

_ZERO_3 = 3
_FILES = (".json", ".jsonl", ".parquet", ".csv", ".arrow", ".txt")
_FORMATS = {
    "alpaca": DataFormat.ALPACA,
    "sharegpt": DataFormat.SHAREGPT,
    "completion": DataFormat.COMPLETION,
    "pretrain": DataFormat.COMPLETION,
    "text": DataFormat.COMPLETION,
    "input_output": DataFormat.INPUT_OUTPUT,
    "preference": DataFormat.PREFERENCE,
}


def optimizer(draft: Draft) -> Optimizer:
    """Name and numbers; the class's own where it does not take the trainer's."""
    name = draft.take("optimizer.name")
    own = draft.stack.trainer_defaults("optimizers").get(name, {}) if draft.axolotl else {}
    betas = ("optimizer.beta1", "optimizer.beta2")
    unused = betas if own and not all(draft.values.get(path) for path in betas) else ()
    if draft.axolotl and draft.passthrough.get("axolotl", {}).get("optim_args"):
        draft.note("optimizer", "optim_args: what the optimizer takes from there is not among its numbers here")

    def take(part: str) -> float:
        path = f"optimizer.{part}"
        if part == "max_grad_norm" and draft.unclipped:
            draft.trainers(path)
            return 0.0
        if path in unused:  # adam_kwargs of core/builders/base.py: both betas, or the class's own
            draft.trainers(path)
            return float(own.get(path, draft.table[path]))
        return float(draft.take(path, own[path]) if path in own else draft.take(path))

    return Optimizer(name, take("beta1"), take("beta2"), take("epsilon"), take("weight_decay"), take("max_grad_norm"))


def reentrant(draft: Draft, wrapped: bool) -> bool:
    """Whether recomputation is reentrant; `wrapped` is FSDP's own, which never is."""
    path, kwargs = "activation_checkpointing_reentrant", "gradient_checkpointing_kwargs"
    adapted = draft.values.get("method", Method.FULL).is_adapter
    if draft.axolotl and draft.model.model_type in draft.rules["never_reentrant"]:
        draft.trainers(path)
        return False
    if draft.format == "trl" and adapted and draft.values.get("deepspeed.stage") == _ZERO_3:  # sft_trainer.py
        draft.trainers(path)
        return True
    if draft.rules.get("reentrant"):  # LLaMA-Factory
        return bool(draft.take(path, draft.left.get("use_reentrant_gc") is not False))
    torchs = any(key.startswith(f"{kwargs}.") for key in draft.left)  # words for torch, without this one: its default
    axolotls = draft.axolotl and draft.fact("unfrozen_parameters") is None and draft.left.get(kwargs) != {}
    on = draft.values.get("activation_checkpointing", False)
    kept: bool = draft.take(path, bool(on and not wrapped and (axolotls or torchs)))
    return kept


def schedule(draft: Draft, max_steps: int | None) -> Schedule:
    """Learning rate, scheduler and warm-up."""
    rate = draft.need("schedule.learning_rate", "learning_rate")
    steps, ratio = draft.values.get("schedule.warmup_steps"), draft.values.get("schedule.warmup_ratio")
    if steps is None and ratio is None and not draft.states("schedule.warmup_steps"):
        share = draft.rules.get("warmup_ratio")
        draft.defaults.add("schedule.warmup_steps" if share is None or max_steps else "schedule.warmup_ratio")
        if share is None:
            steps = 0
        elif max_steps:
            steps = min(int(share * max_steps), int(draft.rules["warmup_steps_max"]))
        else:
            ratio = share
    if draft.axolotl and ratio is not None and (draft.fact("no_step_limit") or int(ratio * (max_steps or 0)) == 1):
        steps, ratio = int(ratio * (max_steps or 0)), None
        for path in ("schedule.warmup_ratio", "schedule.warmup_steps"):
            draft.trainers(path)
    if draft.axolotl and steps == 1:
        steps = 2
        draft.trainers("schedule.warmup_steps")
    return Schedule(float(rate), draft.take("schedule.scheduler"), steps, ratio)


def saving(draft: Draft, max_steps: int | None) -> Saving:
    """Checkpoints and logs. Several checkpoints per epoch, or none, are not a recipe's words: once per epoch."""
    share = draft.rules.get("logging_share")
    logging = None
    if share is not None:
        most = int(draft.rules["logging_steps_max"])
        counted = 0 if draft.fact("no_step_limit") else max_steps
        logging = most if counted is None else max(min(int(share * counted), most), 1)
    if not draft.axolotl and not draft.states("saving.save_total_limit"):
        reason = "every checkpoint is kept (no save_total_limit): ten are counted"
        draft.note("saving.save_total_limit", reason)
    for name in ("saves_per_epoch", "save_steps_share", "save_steps", "save_strategy"):
        if not draft.states("saving.save_steps") and draft.fact(name) not in (None, "epoch", "steps"):
            draft.note("saving.save_steps", f"{name} is counted as one checkpoint per epoch", name)
    logs: int = draft.take("saving.logging_steps", logging) if logging else draft.take("saving.logging_steps")
    return Saving(
        save_steps=draft.take("saving.save_steps", _default_saves(draft)),
        save_total_limit=draft.take("saving.save_total_limit"),
        eval_steps=draft.take("saving.eval_steps", _default_evals(draft, logs)),
        logging_steps=logs,
        logger=draft.take("saving.logger"),
        save_only_model=draft.take("saving.save_only_model"),
    )


def _default_saves(draft: Draft) -> Any:
    """None, once per epoch, or every so many steps."""
    if draft.axolotl:
        return draft.rules["save_steps"] if draft.fact("save_strategy") == "steps" else None
    if draft.fact("save_strategy") in ("no", "best") or draft.fact("save_steps"):  # the second is a share of the run
        return None
    return draft.table.get("saving.save_steps")


def _default_evals(draft: Draft, logs: int) -> int | None:
    """Where nothing but `steps` stands, when it logs; a share of the run is not a recipe's word."""
    stated = draft.fact("eval_steps") or draft.fact("eval_steps_share")
    return logs if draft.fact("eval_strategy") == "steps" and not stated else None


def loading(draft: Draft, mesh: Parallelism) -> Loading:
    """The host side; Axolotl fills in all three loader keys where none stands."""
    names = ("dataloader_workers", "prefetch_factor", "pin_memory")
    prefetch = draft.rules.get("prefetch_factor")
    if prefetch is not None and not any(draft.states(f"loading.{name}") for name in names):
        filled: tuple[Any, ...] = (mesh.world_size, prefetch, True)
    else:
        filled = (draft.table["loading.dataloader_workers"], None, draft.table["loading.pin_memory"])
    workers, ahead, pinned = (draft.take(f"loading.{name}", value) for name, value in zip(names, filled, strict=True))
    cores = draft.cluster.node.physical_cores if draft.cluster else 1
    processes = draft.table.get("loading.dataset_num_proc", cores)  # Axolotl: os.cpu_count()
    return Loading(workers, ahead, pinned, draft.take("loading.dataset_num_proc", processes))


def launch(draft: Draft) -> Launch:
    """How the processes start."""
    table = draft.stack.trainer_defaults("launch")
    return Launch(
        main_process_port=draft.take("launch.main_process_port", table["launch.main_process_port"]),
        omp_num_threads=draft.take("launch.omp_num_threads", table["launch.omp_num_threads"]),
        environment=tuple(draft.take("launch.environment", tuple(table["launch.environment"]))),
        bf16_capable=draft.cluster is None or draft.cluster.gpu.bf16,
    )


def datasets(draft: Draft) -> tuple[DatasetSpec, ...]:
    """The data sets by name. Rows and lengths are measured elsewhere: None here."""
    entries = draft.fact("dataset_entries") or draft.fact("pretraining_entries") or ()
    if not entries and isinstance(draft.fact("datasets"), tuple):  # train.json
        entries = tuple(tuple(item.items()) for item in draft.fact("datasets"))
    found = []
    for entry in entries:
        item = dict(entry)
        path, kind = str(item.get("path", "")), str(item.get("type", item.get("kind", "")))
        local = path.endswith(_FILES) or path.startswith((".", "/", "~")) or bool(item.get("data_files"))
        shape = next((value for word, value in _FORMATS.items() if kind.startswith(word)), DataFormat.MESSAGES)
        found.append(DatasetSpec(path, shape, None, None, tuple(entry), local, split=str(item.get("split", "train"))))
    for name in ("dataset", "dataset_name", "train_file"):
        value = draft.fact(name)
        if not found and isinstance(value, str):
            found.append(
                DatasetSpec(value, DataFormat.MESSAGES, None, None, (("path", value),), value.endswith(_FILES))
            )
    return tuple(found)


def known(draft: Draft, name: str) -> bool:
    """The stack knows the optimizer; otherwise the reason is noted."""
    try:
        draft.stack.optimizer(name)
    except RecipegenError as error:
        draft.block("optimizer.name", str(error))
        return False
    return True
