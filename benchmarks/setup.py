"""A measured row as the planner sees it: model, machine, recipe and the symbols of the formulas.

Everything follows from the row's columns and from one table of what its framework does (frameworks.yaml). A column that
says `unknown` is filled from that table alone, and the row is then marked assumed. What no recipe can say raises
`NotExpressible` with the reason.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import cache

from benchmarks.cards import Card, card_of
from benchmarks.frameworks import Framework, framework
from benchmarks.layout import Layout, layout_of
from benchmarks.model_names import UnknownModel, model_of
from benchmarks.precisions import precision_of
from benchmarks.recipe import recipe_for
from benchmarks.rows import Row
from benchmarks.targets import targets_of
from recipegen.catalog import load_stack
from recipegen.catalog.stack import Stack
from recipegen.estimate.parameters import quantised_parameters, quantised_per_layer
from recipegen.estimate.symbols import Symbols, symbols
from recipegen.spec import AttentionMemory, LossKernel, Method, ModelSpec, Recipe

_DATA_DEPENDENT = ("attention", "act_checkpointing", "fused_ce", "precision", "optimizer", "grad_accum", "packing")


class NotExpressible(Exception):
    """Why no recipe says what this row did."""


@dataclass(frozen=True)
class Setup:
    """A row, understood. `assumed` names what the row does not say and the framework's table filled in."""

    row: Row
    model: ModelSpec
    card: Card
    layout: Layout
    recipe: Recipe
    symbols: Symbols
    framework: Framework
    assumed: tuple[str, ...]

    @property
    def offloads(self) -> bool:
        return self.layout.offload_parameters or self.layout.offload_states

    @property
    def text(self) -> str:
        """The setup in one line, for a reader who checks how the row was understood."""
        r, x = self.recipe, self.symbols
        what = r.method.value + (f" r{r.adapter.r}" if r.adapter else "")
        where = f"{self.layout.text} on {r.parallelism.world_size} x {self.card.name}"
        batch = f"{r.micro_batch_size} x {r.sequence_len}, accumulation {r.gradient_accumulation}"
        kept = f"weights {r.precision.parameters.value}, trained in {r.precision.trainable.value}"
        how = "checkpointing" if x.checkpointing else "no checkpointing"
        return f"{self.model.id}, {what}, {where}, {batch}, {kept}, {how}, {r.loss_kernel.value}, {r.optimizer.name}"


@cache
def stack() -> Stack:
    return load_stack("axolotl-0.19.0")


@dataclass
class _Reader:
    """Reads columns and remembers which were filled from the framework's table."""

    row: Row
    facts: Framework
    assumed: list[str]

    def text(self, column: str) -> str:
        said = self.row.says(column)
        if said is not None:
            return said
        filled = self.facts.unknown.get(column)
        if filled is None:
            raise NotExpressible(f"{column} is unknown, and the table of frameworks says nothing about it")
        self.assumed.append(column)
        return filled

    def whole(self, column: str) -> int:
        text = self.text(column)
        if not re.fullmatch(r"\d+(\.0+)?", text):
            raise NotExpressible(f"{column} {text!r} is not one whole number")
        value = int(float(text))
        if value < 1:
            raise NotExpressible(f"{column} is {value}")
        return value


def _attention(text: str) -> AttentionMemory:
    word = text.lower()
    if word.startswith(("flash", "sdpa", "te", "flex", "fa")):
        return AttentionMemory.FLASH  # sdpa over whole rows takes the flash or the memory-efficient kernel
    return AttentionMemory.EAGER


def _optimizer(text: str, facts: Framework) -> str:
    word = text.lower()
    if "4bit" in word or "4-bit" in word:
        return "adamw_torch_4bit"
    if "8bit" in word or "8-bit" in word:
        return "adamw_bnb_8bit"
    if "fused" in word or not facts.foreach or "paged" in word:
        return "adamw_torch_fused"
    return "adamw_torch"


def _loss(text: str, facts: Framework) -> LossKernel:
    word = text.lower()
    if word.startswith(("liger", "fused_linear")):
        return LossKernel.FUSED_LINEAR
    if word.startswith(("cce", "cut")):
        return LossKernel.CUT
    if facts.kernel(text) is None:
        raise NotExpressible(f"the table of frameworks does not say what loss {text!r} is")
    return LossKernel.STOCK


def understand(row: Row) -> Setup:
    """The setup of a row. Raises NotExpressible."""
    facts = framework(row.framework, row.note(r"framework_config=([\w-]+)"))
    if facts is None:
        raise NotExpressible(f"nobody wrote down what {row.framework} does")
    assumed: list[str] = []
    read = _Reader(row, facts, assumed)
    try:
        known = model_of(row.model, row.number("params_b"))
    except UnknownModel as error:
        raise NotExpressible(str(error)) from None
    assumed.extend(f"model: {note}" for note in known.notes)
    model = known.spec
    try:
        method = Method(row.method)
    except ValueError:
        raise NotExpressible(f"method {row.method!r}") from None
    gpus = read.whole("n_gpus")
    layout = layout_of(read.text("strategy"), gpus)
    if isinstance(layout, str):
        raise NotExpressible(layout)
    card = card_of(row.gpu, row.number("gpu_mem_gb"))
    targets: tuple[str, ...] = ()
    r = 1
    if method.is_adapter:
        r = read.whole("lora_r")
        listed = targets_of(model, read.text("lora_targets"), facts.targets)
        if isinstance(listed, str):
            raise NotExpressible(listed)
        targets = listed
    precision = precision_of(read.text("precision"), method, layout, facts)
    if isinstance(precision, str):
        raise NotExpressible(precision)
    checkpointing = read.text("act_checkpointing").lower()
    fused = read.text("fused_ce")
    optimizer = read.text("optimizer")
    loss = _loss(fused, facts)
    recipe = recipe_for(
        model,
        method,
        layout,
        gpus,
        precision=precision.precision,
        optimizer=_optimizer(optimizer, facts),
        r=r,
        targets=targets,
        dora="dora" in row.notes.lower(),
        fsdp_version=facts.fsdp,
        sequence_len=read.whole("seq_len"),
        micro_batch_size=read.whole("micro_batch"),
        gradient_accumulation=read.whole("grad_accum"),
        packing=read.text("packing").lower().startswith("yes"),
        activation_checkpointing=checkpointing != "no",
        activation_offloading="activation offloading" in row.notes.lower() or "activation_offloading on" in row.notes,
        loss_kernel=loss,
        attention_memory=_attention(read.text("attention")),
        torch_compile="compile" in row.notes.lower() and "no compile" not in row.notes.lower(),
    )
    x = symbols(model, recipe, stack())
    kernel = facts.kernel(fused)
    if loss is LossKernel.STOCK and kernel is not None:
        x = replace(x, stock_forward=kernel.forward, stock_backward=kernel.backward)
    x = replace(
        x,
        packed=precision.packed_bytes,
        packed_constants=precision.constant_bytes,
        autocast=precision.autocast,
        adapter_groups=x.adapter_groups and facts.adapter_groups,
        reentrant=facts.reentrant,
        outputs_upcast=False,
        optimizer_in_backward="optimizer-in-backward" in optimizer,
        selective_checkpointing=checkpointing == "selective",
    )
    if facts.expert_modules and model.is_moe:
        quantised = quantised_parameters(model, experts=True)
        per_layer = quantised_per_layer(model, experts=True)
        x = replace(x, shape=replace(x.shape, Q=quantised, Q_l=per_layer))
    return Setup(row, model, card, layout, recipe, x, facts, tuple(dict.fromkeys(assumed)))
