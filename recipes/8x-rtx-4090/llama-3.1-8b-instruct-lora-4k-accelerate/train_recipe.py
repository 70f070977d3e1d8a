"""train.json: its keys and types, checked before anything is loaded."""

from __future__ import annotations

import json
from dataclasses import dataclass, is_dataclass
from pathlib import Path
from typing import get_args, get_origin, get_type_hints

FORMAT_VERSION = 1


class Problem(Exception):
    """Something a person can mend; printed as one line."""


@dataclass
class Model:
    name: str
    revision: str | None
    trust_remote_code: bool
    attention: str
    load_dtype: str  # float32 keeps fp32 master weights; bfloat16
    quantization: str | None  # nf4: a frozen base in 4 bits
    dequantize: str | None  # mxfp4: the published weights are so, and are loaded as load_dtype
    freeze_vision: bool  # train the text part only
    gradient_checkpointing: bool
    gradient_checkpointing_reentrant: bool
    loss_kernel: str  # stock, chunked_upcast, fused_linear
    export_dtype: str
    tf32: bool


@dataclass
class Adapter:
    r: int
    alpha: int
    dropout: float
    target_modules: list[str] | str  # a pattern is one string
    use_rslora: bool
    use_dora: bool


@dataclass
class Dataset:
    path: str  # a file, or a data set on the Hub
    kind: str  # chat, instruction, completion, segments
    split: str
    fields: dict  # our name of a column: its name in the data
    prompts: dict  # of kind instruction: with_input and without_input, with {instruction} and {input} in them


@dataclass
class Data:
    datasets: list[Dataset]
    sequence_len: int
    packing: bool
    flatten: bool  # one row a micro-batch: the flash attention kernels tell packed documents apart only so
    pad_to_sequence_len: bool
    excess_length_strategy: str  # drop, truncate
    val_set_size: float  # 0: none; a share below 1, or rows
    chat_template: str | None  # used when the tokenizer has none
    eot_tokens: list[str]  # what ends a turn of the assistant; trained
    prepared: str  # folder of the tokenised data
    processes: int  # that tokenise
    workers: int
    prefetch_factor: int | None
    pin_memory: bool


@dataclass
class Batch:
    micro_batch_size: int
    gradient_accumulation: int
    dp_replicate: int
    dp_shard: int
    global_batch_size: int
    sync_each_batch: bool

    @property
    def world_size(self):
        return self.dp_replicate * self.dp_shard


@dataclass
class Optimizer:
    name: str
    beta1: float
    beta2: float
    epsilon: float
    weight_decay: float
    max_grad_norm: float


@dataclass
class Schedule:
    learning_rate: float
    scheduler: str  # cosine, linear, constant, constant_with_warmup
    warmup_steps: int | None
    warmup_ratio: float | None
    epochs: float
    max_steps: int | None


@dataclass
class Saving:
    output: str
    save_steps: int | None  # None: once per epoch
    save_total_limit: int
    eval_steps: int | None
    logging_steps: int
    logger: str


@dataclass
class Recipe:
    format_version: int
    strategy: str
    model: Model
    adapter: Adapter | None
    data: Data
    batch: Batch
    optimizer: Optimizer
    schedule: Schedule
    saving: Saving
    seed: int


def parse(hint, value, where):
    """`value` as the type `hint`: a dataclass from exactly its fields, `list[X]`, `X | None` or a plain type."""
    if get_origin(hint) is list:
        items = parse(list, value, where)
        return [parse(get_args(hint)[0], item, f"{where}[{number}]") for number, item in enumerate(items)]
    if get_args(hint):  # X | None
        return None if value is None else parse(get_args(hint)[0], value, where)
    if is_dataclass(hint):
        hints, value = get_type_hints(hint), parse(dict, value, where)
        for name in sorted(hints.keys() ^ value.keys()):
            raise Problem(f"{where}.{name} is {'missing' if name in hints else 'not a known key'}")
        return hint(**{name: parse(hints[name], value[name], f"{where}.{name}") for name in hints})
    if hint is float and type(value) is int:
        value = float(value)
    if type(value) is not hint:
        raise Problem(f"{where} must be {hint.__name__}, not {value!r}")
    return value


def read_recipe(path):
    try:
        values = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise Problem(f"cannot read {path}: {error}") from None
    version = values.get("format_version") if isinstance(values, dict) else None
    if version != FORMAT_VERSION:
        raise Problem(f"{path} has format_version {version!r}; this train.py reads {FORMAT_VERSION}")
    recipe = parse(Recipe, values, "train.json")
    b = recipe.batch
    if b.micro_batch_size * b.gradient_accumulation * b.world_size != b.global_batch_size:
        raise Problem(
            f"train.json: micro_batch_size({b.micro_batch_size}) * gradient_accumulation({b.gradient_accumulation}) * "
            f"dp_replicate({b.dp_replicate}) * dp_shard({b.dp_shard}) is not global_batch_size({b.global_batch_size})"
        )
    return recipe
