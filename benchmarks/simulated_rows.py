"""One line of a file of simulated peaks as a recipe: the columns of tests/corpus/simulated-peaks*.csv.

A column that is missing or empty has the value it had when no such column existed (DEFAULTS). What no recipe can say,
an unknown model and a column that this module does not know raise `NotExpressible`; nothing is dropped.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path

from benchmarks.layout import Layout
from benchmarks.recipe import recipe_for
from benchmarks.setup import NotExpressible, stack
from recipegen.catalog import load_model, model_names
from recipegen.catalog.model_config import architecture_facts
from recipegen.catalog.model_words import words
from recipegen.check.model_names import UnknownModel, model_of
from recipegen.estimate import parameters
from recipegen.estimate.symbols import Symbols, symbols
from recipegen.simulate import Options
from recipegen.spec import (
    AttentionMemory,
    Dtype,
    LossKernel,
    Method,
    ModelSpec,
    Parallelism,
    Precision,
    Recipe,
    RecipegenError,
    Strategy,
)

#: what is chosen in a row, and its value where the column is missing. `trainer`: empty is Axolotl's loss inside forward
#: with plain FSDP2 wrapping, as the first points were made; axolotl and accelerate wrap and compute as those do.
DEFAULTS = {
    "model": "", "method": "full", "trainer": "", "strategy": "ddp", "world": "1", "replicate": "1", "seq": "",
    "mbs": "1", "ckpt": "1", "dtype": "bf16", "reduce": "fp32", "optim": "adamw", "loss": "hf", "compiled_loss": "1",
    "ga": "1", "sync_each_batch": "", "reshard": "true", "wrap": "root", "lora_r": "16", "targets": "", "dora": "0",
    "rslora": "0", "attn": "flash", "mixed": "0",
}  # fmt: skip
#: columns that say what came out
_RESULTS = {"id", "mechanism", "n_params", "n_trainable", "peak_bytes", "peak_gb", "peak_phase", "peak_op", "terms",
            "closed_form_err_pct", "closed_form_phase", "used_to_build_formula", "breakdown_relabelled",
            "wall_s"}  # fmt: skip
_RESULT_PREFIXES, _RESULT_SUFFIXES = ("phase_",), ("_bytes",)

KERNELS = {
    "hf": LossKernel.STOCK,
    "stock": LossKernel.STOCK,
    "chunked": LossKernel.CHUNKED_UPCAST,
    "liger": LossKernel.FUSED_LINEAR,
    "cce": LossKernel.CUT,
}
ATTENTIONS = {
    "flash": AttentionMemory.FLASH,
    "varlen": AttentionMemory.VARLEN,
    "sdpa": AttentionMemory.MASKED,
    "eager": AttentionMemory.EAGER,
}
OPTIMIZERS = {
    "adamw": "adamw_torch_fused",
    "adamw_foreach": "adamw_torch",
    "adamw_8bit": "adamw_torch_8bit",
    "kahan": "optimi_adamw",
}
_ALL_LINEAR = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
_MIXED = ("embed_tokens", "lm_head", "norm")


@dataclass(frozen=True)
class Point:
    """A simulated row, understood. `peak_bytes` None: not simulated yet."""

    id: str
    model: ModelSpec
    recipe: Recipe
    symbols: Symbols
    options: Options
    peak_bytes: int | None

    @property
    def text(self) -> str:
        """The setup in one line."""
        r = self.recipe
        ranks = f"{r.parallelism.strategy.label} x {r.parallelism.world_size}"
        batch = f"{r.micro_batch_size} x {r.sequence_len} x {r.gradient_accumulation}"
        kernels = f"{r.loss_kernel.value}, {r.attention_memory.value}, {r.optimizer.name}"
        saved = "checkpointing" if r.activation_checkpointing else "no checkpointing"
        return f"{self.model.id}, {r.method.value}, {ranks}, {batch}, {r.precision.label.value}, {saved}, {kernels}"


def read_points(path: Path) -> list[dict[str, str]]:
    """The lines of a file as they are. Raises RecipegenError where there are none."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            rows = [{k: (v or "").strip() for k, v in row.items() if k} for row in csv.DictReader(file)]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise RecipegenError(f"cannot read it: {error}", where=str(path)) from None
    if not rows or "model" not in rows[0] or "peak_bytes" not in rows[0]:
        raise RecipegenError("no rows with the columns model and peak_bytes", where=str(path))
    return rows


def row_id(row: Mapping[str, str], number: int) -> str:
    """The row's own id, else what was chosen in it, else its number in the file."""
    chosen = [row.get(name, "") for name in ("model", "method", "strategy", "world", "seq", "mbs")]
    return row.get("id") or "-".join([f"{number:02d}", *filter(None, chosen)])


def _whole(name: str, text: str, largest: int = 10**9) -> int:
    """A whole number from 1. Raises ValueError for another text."""
    if not re.fullmatch(r"\d{1,16}", text) or not 1 <= int(text) <= largest:
        raise ValueError(f"{name} {text[:40]!r} is no whole number between 1 and {largest}")
    return int(text)


def understand_point(row: Mapping[str, str], number: int = 0) -> Point:
    """The model, recipe and symbols of a row."""
    unknown = [k for k, v in row.items() if v and k not in DEFAULTS and k not in _RESULTS
               and not k.startswith(_RESULT_PREFIXES) and not k.endswith(_RESULT_SUFFIXES)]  # fmt: skip
    if unknown:
        raise NotExpressible(f"column {unknown[0]!r} is not known")
    chosen = {name: row.get(name) or default for name, default in DEFAULTS.items()}
    try:
        model = _model(chosen["model"], row.get("n_params", ""))
        recipe = _recipe(model, chosen)
        peak = _whole("peak_bytes", row["peak_bytes"], 10**15) if row.get("peak_bytes") else None
    except (KeyError, ValueError) as error:
        raise NotExpressible(f"not understood: {error}") from None
    split, groups = chosen["wrap"] == "split", chosen["trainer"] == "axolotl"
    if chosen["wrap"] not in ("root", "split"):
        raise NotExpressible(f"wrap {chosen['wrap']!r} is not known")
    compiled = chosen["compiled_loss"] == "1"
    x = _with_wrapping(
        symbols(model, recipe, stack(), triton=compiled),
        recipe,
        split=split,
        adapter_groups=groups,
        by_a_trainer=bool(chosen["trainer"]),
    )
    options = Options(compiled_loss=compiled, split_root=split, adapter_groups=groups)
    return Point(row_id(row, number), model, recipe, x, options, peak)


def _with_wrapping(x: Symbols, recipe: Recipe, *, split: bool, adapter_groups: bool, by_a_trainer: bool) -> Symbols:
    """The symbols of a run whose FSDP2 groups are not those of the recipe's trainer."""
    known = {f.name for f in fields(Symbols)}
    if split:
        if "split_root" not in known:
            raise NotExpressible("the estimate has no split root")
        x = replace(x, split_root=True)
    if "adapter_groups" in known and recipe.method.is_adapter and recipe.parallelism.strategy.is_fsdp:
        x = replace(x, adapter_groups=adapter_groups)
    if not by_a_trainer:  # the first points emulate Liger with one gradient of the head, Linear4bit as a linear module
        x = replace(
            x,
            fused_head_loss=Dtype.FP32.bytes,
            fused_head_after=Dtype.FP32.bytes,
            root_reshards=False,
            quantised_adapters_copy=True,
        )
    return x


def _model(name: str, count: str) -> ModelSpec:
    """The model of that name and exact parameter count; of a multimodal one the text part, if that is the count."""
    stated = _whole("n_params", count, 10**15) if count else None
    try:
        spec = model_of(name, stated / 1e9 if stated else None).spec
    except UnknownModel as error:
        raise NotExpressible(error.reason) from None
    if spec.is_multimodal and stated not in (None, parameters.total(spec)):
        spec = text_part(spec)
    if stated is not None and parameters.total(spec) != stated:
        spec = _of_exact_count(name, stated) or spec
    if stated is not None and parameters.total(spec) != stated:
        raise NotExpressible(f"{name!r} has {stated} parameters, {spec.id} has {parameters.total(spec)}")
    return spec


def _of_exact_count(name: str, count: int) -> ModelSpec | None:
    """A catalogue model of the family with exactly that many parameters: versions of a name differ in vocabulary."""
    family = words(name).core[:1]
    same = (load_model(known) for known in model_names() if words(known).core[:1] == family)
    return next((spec for spec in same if parameters.total(spec) == count), None)


def text_part(spec: ModelSpec) -> ModelSpec:
    """The text decoder of a multimodal model as a model of its own."""
    rows = architecture_facts()["architectures"]
    text_type = next(name for name, row in rows.items() if row["layer_class"] == spec.layer_class)
    return replace(spec, model_type=text_type, layers_path="model.layers", extra_parameters=0, extra_linear=())


def _strategy(name: str, world: int) -> Strategy:
    if name == "fsdp2":
        return Strategy.FSDP2_FULL
    if name == "hsdp":
        return Strategy.FSDP2_HYBRID
    if name != "ddp":
        raise NotExpressible(f"strategy {name!r} is not known")
    return Strategy.DDP if world > 1 else Strategy.SINGLE


def _recipe(model: ModelSpec, row: Mapping[str, str]) -> Recipe:
    world, method = _whole("world", row["world"]), Method(row["method"])
    strategy = _strategy(row["strategy"], world)
    nodes = max(_whole("replicate", row["replicate"]), 2) if strategy is Strategy.FSDP2_HYBRID else 1
    if world % nodes:
        raise NotExpressible(f"{world} ranks do not divide by {nodes} replicas")
    recipe = recipe_for(
        model,
        method,
        Layout(strategy.value, Parallelism.of(strategy, nodes, world // nodes), False, False),
        precision=_precision(row, method, strategy),
        optimizer=OPTIMIZERS[row["optim"]],
        r=_whole("lora_r", row["lora_r"]),
        targets=tuple(row["targets"].split("+")) if row["targets"] else _targets(model),
        dora=row["dora"] == "1",
        sequence_len=_whole("seq", row["seq"]),
        micro_batch_size=_whole("mbs", row["mbs"]),
        gradient_accumulation=_whole("ga", row["ga"]),
        packing=True,
        activation_checkpointing=row["ckpt"] == "1",
        activation_offloading=False,
        loss_kernel=KERNELS[row["loss"]],
        attention_memory=ATTENTIONS[row["attn"]],
        torch_compile=False,
    )
    recipe = replace(recipe, trainer=row["trainer"] or "axolotl", sync_each_batch=row["sync_each_batch"] == "yes")
    if recipe.adapter and row["rslora"] == "1":
        recipe = replace(recipe, adapter=replace(recipe.adapter, use_rslora=True))
    if recipe.fsdp:
        recipe = replace(recipe, fsdp=replace(recipe.fsdp, reshard_after_forward=row["reshard"] != "false"))
    return recipe


def _targets(model: ModelSpec) -> tuple[str, ...]:
    """All linear modules of a dense model (by the names of unfused ones), attention of an MoE model."""
    if model.is_moe:
        return _ALL_LINEAR[:4]
    names = parameters.linear_modules(model)
    return _ALL_LINEAR if set(_ALL_LINEAR) == set(names) else tuple(names)


def _precision(row: Mapping[str, str], method: Method, strategy: Strategy) -> Precision:
    reduction = Dtype(row["reduce"])
    if method.is_adapter:
        base = Dtype.NF4 if method is Method.QLORA else Dtype.BF16
        reduction = reduction if strategy.is_fsdp else Dtype.FP32
        return Precision(base, Dtype.FP32, Dtype.FP32, reduction, Dtype.FP32, Dtype.BF16)
    kept = Dtype(row["dtype"])
    modules = _MIXED if row["mixed"] == "1" else ()
    states = Dtype.INT8 if row["optim"] == "adamw_8bit" else kept
    compensation = Dtype.BF16 if row["optim"] == "kahan" and kept is Dtype.BF16 else None
    return Precision(
        kept,
        kept,
        kept,
        reduction if strategy.is_fsdp else kept,
        states,
        Dtype.BF16,
        modules,
        compensation=compensation,
    )
