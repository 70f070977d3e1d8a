"""A measured row as the planner sees it: model, machine, recipe and the symbols of the formulas.

Everything follows from the row's columns and from one table of what its framework does (frameworks.yaml). A column that
says `unknown` is filled from that table alone, and the row is then marked assumed. What no recipe can say raises
`NotExpressible` with the reason.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

from benchmarks import spelling
from benchmarks.cards import Card, card_of
from benchmarks.frameworks import Framework, framework
from benchmarks.layout import Layout, layout_of
from benchmarks.precisions import precision_of
from benchmarks.recipe import recipe_for
from benchmarks.rows import Row
from benchmarks.targets import adapted_expert_parameters, targets_of, trained_whole
from recipegen.catalog import load_stack
from recipegen.catalog.stack import Stack
from recipegen.check.model_names import UnknownModel, model_of
from recipegen.estimate.parameters import quantised_parameters, quantised_per_layer
from recipegen.estimate.symbols import Symbols, symbols
from recipegen.spec import AttentionMemory, Dtype, LossKernel, ModelSpec, Recipe

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
    shifts_logits: bool = False

    @property
    def habit(self) -> str | None:
        """What the framework's loop does to the allocator (estimate.memory.spread_driver)."""
        if self.framework.empties_cache:
            return "emptied_cache"
        if self.framework.varying_lengths:
            return "varying_lengths"
        return "shifted_logits" if self.shifts_logits else None

    @property
    def typical_length(self) -> float:
        """Mean tokens of a row over those of the longest, from the notes (`mean 3234 tok`); 1 where it is not said."""
        mean = self.row.note(r"mean (\d+) tok")
        return min(1.0, float(mean) / self.recipe.sequence_len) if mean else 1.0

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
        value = spelling.whole(text)
        if value is None:
            raise NotExpressible(f"{column} {text[:40]!r} is not one whole number below a billion")
        if value < 1:
            raise NotExpressible(f"{column} is {value}")
        return value


def _attention(text: str, model: ModelSpec, facts: Framework) -> AttentionMemory:
    if facts.eager_softcap and model.logit_softcap:
        return AttentionMemory.EAGER  # scores are capped by hand
    fused = spelling.fused_attention(text)
    if fused is None:
        raise NotExpressible(f"attention {text!r}: not known whether it keeps the scores")
    if fused:
        # sdpa over whole rows takes the flash or the memory-efficient kernel
        return AttentionMemory.VARLEN if facts.repeats_kv else AttentionMemory.FLASH
    return AttentionMemory.EAGER


def _optimizer(text: str, facts: Framework) -> str:
    bits = spelling.adam_bits(text)
    if bits is None:
        raise NotExpressible(f"optimizer {text!r} does not keep Adam's two moments")
    if bits < 32:
        return "adamw_torch_4bit" if bits == 4 else "adamw_bnb_8bit"
    fused = "fused" in text.lower() or not facts.foreach or "paged" in text.lower()
    return "adamw_torch_fused" if fused else "adamw_torch"


def _loss(text: str, facts: Framework) -> LossKernel:
    if text in ("fused_linear", "cut"):
        return LossKernel(text)
    if facts.kernel(text) is None:
        raise NotExpressible(f"the table of frameworks does not say what loss {text!r} is")
    return LossKernel.STOCK


def _experts_packed(row: Row) -> bool:
    """Fused expert matrices are quantised as well: by a switch, in the checkpoint, or split into linear modules."""
    name = row.model.lower()
    return "quantize_moe_experts" in row.notes or "nvfp4" in name or "linearized" in name


def _states(optimizer: str) -> Dtype | None:
    """The dtype of the moments where the optimizer decides it."""
    return Dtype.INT8 if spelling.adam_bits(optimizer) == 8 else None


def _reshaped(x: Symbols, facts: Framework) -> Symbols:
    """The model and its quantisation as the framework makes them."""
    shape = x.shape
    embeddings = shape.V * shape.H
    if facts.untied and shape.tied:
        shape = replace(shape, tied=False, N=shape.N + embeddings, P_r=shape.P_r + embeddings)
        x = replace(x, n_t=shape.N if x.full else x.n_t)
    if facts.head_quantised and x.quantised:
        shape = replace(shape, Q=shape.Q + embeddings)
        x = replace(x, quantised_head=True)
    if facts.quantisation_constants is not None and x.quantised:
        x = replace(x, packed_constants=facts.quantisation_constants)
    if facts.constants_sharded:
        x = replace(x, packed_constants=x.packed_constants / x.S)
    return replace(x, shape=shape, sequence_parallel=facts.sequence_parallel)


def understand(row: Row) -> Setup:
    """The setup of a row. Raises NotExpressible."""
    said = spelling.method(row.method)
    if said is None:
        raise NotExpressible(f"method {row.method!r}")
    method, dora = said
    facts = framework(row.framework, row.note(r"framework_config=([\w-]+)"), method.value)
    if facts is None:
        raise NotExpressible(f"nobody wrote down what {row.framework} does")
    assumed = [f"framework: taken as {facts.generic}"] if facts.generic else []
    read = _Reader(row, facts, assumed)
    try:
        layers = row.note(r"layers:(\d+) of \d+")  # the first layers of a model, as benchmarks.cuda_points builds it
        known = model_of(row.model, None if layers else row.number("params_b"))
    except UnknownModel as error:
        raise NotExpressible(str(error)) from None
    assumed.extend(f"model: {note}" for note in known.notes)
    model = known.spec
    if layers:
        model = replace(model, num_hidden_layers=int(layers), num_parameters=0)
    gpus = read.whole("n_gpus")
    strategy = read.text("strategy")
    if facts.single_engine and spelling.strategy(strategy) == "single":
        strategy = facts.single_engine
    layout = layout_of(strategy, gpus)
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
    stored = "nvfp4" if "nvfp4" in row.model.lower() else ""  # a checkpoint whose weights are 4-bit already
    precision = precision_of(f"{read.text('precision')} {stored}", method, layout, facts, states=_states(row.optimizer))
    if isinstance(precision, str):
        raise NotExpressible(precision)
    checkpointing = spelling.checkpointing(read.text("act_checkpointing"))
    if checkpointing is None:
        raise NotExpressible(f"act_checkpointing {row.act_checkpointing!r} is neither yes, no nor selective")
    fused = spelling.loss(read.text("fused_ce"))
    optimizer = read.text("optimizer")
    loss = _loss(fused, facts)
    added = facts.added(row.notes)
    notes = " ".join((row.notes.lower(), *(added or ())))
    says_compiled = "compile" in notes or added is not None
    recipe = recipe_for(
        model,
        method,
        layout,
        precision=precision.precision,
        optimizer=_optimizer(optimizer, facts),
        r=r,
        targets=targets,
        dora=dora or "dora" in row.notes.lower(),
        fsdp_version=facts.fsdp,
        sequence_len=read.whole("seq_len"),
        micro_batch_size=read.whole("micro_batch"),
        gradient_accumulation=read.whole("grad_accum"),
        packing=bool(spelling.yes(read.text("packing"))),
        activation_checkpointing=checkpointing != "no",
        activation_offloading="activation offloading" in notes or "activation_offloading on" in notes,
        loss_kernel=loss,
        attention_memory=_attention(read.text("attention"), model, facts),
        sync_each_batch=facts.sync_each_batch,
        reduce_bucket=facts.reduce_bucket,
        torch_compile="compile" in notes and "no compile" not in notes if says_compiled else facts.compiled,
    )
    x = symbols(model, recipe, stack())
    kernel = facts.kernel(fused, compiled=recipe.torch_compile)
    if loss is LossKernel.STOCK and kernel is not None:
        forward, backward = kernel.of(autocast=precision.autocast, fp32_head=x.head_fp32 or x.fp32_parameters)
        x = replace(x, stock_forward=forward, stock_backward=backward)
    x = replace(
        x,
        packed=precision.packed_bytes,
        packed_constants=precision.constant_bytes,
        autocast=precision.autocast,
        adapter_groups=x.adapter_groups and facts.adapter_groups,
        reentrant_around=facts.reentrant,
        outputs_upcast=False,
        root_reshards=False,
        loss_inside_model=True,
        optimizer_in_backward="optimizer-in-backward" in optimizer,
        selective_checkpointing=checkpointing == "selective",
        adapter_dropout=facts.dropout,
        packed_qkv=facts.packed_qkv,
        offloads_boundaries=facts.offloads_boundaries,
        fp32_attention="sdpa" in read.text("attention").lower(),
        kept_graphs=min(facts.kept_graphs, 1) if recipe.activation_checkpointing else facts.kept_graphs,
        paged_states="paged" in optimizer.lower(),
        head_chunks=facts.head_chunks if fused.lower().startswith("chunked") else 0,
    )
    x = _reshaped(x, facts)
    if method.is_adapter:
        text = read.text("lora_targets")
        experts, copies = adapted_expert_parameters(model, text, r), trained_whole(model, text)
        width = 1.0 if x.embeddings_fp32 else x.c / x.t  # copies keep the model's dtype, not the adapters'
        more = experts + round(copies * width)
        x = replace(x, n=x.n + more, n_t=x.n_t + more, n_l=x.n_l + experts / x.shape.L)
    if model.is_moe and (facts.expert_modules or _experts_packed(row)):
        quantised = quantised_parameters(model, experts=True)
        per_layer = quantised_per_layer(model, experts=True)
        x = replace(x, shape=replace(x.shape, Q=quantised, Q_l=per_layer))
    shifts = loss is LossKernel.STOCK and kernel is not None and kernel.shifted
    return Setup(row, model, card, layout, recipe, x, facts, tuple(dict.fromkeys(assumed)), shifts)
