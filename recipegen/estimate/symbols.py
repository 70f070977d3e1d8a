"""The symbols of the formulas: one frozen object of numbers per (model, recipe), named as on paper.

Shapes      H hidden size, F MLP width (of one expert), V vocabulary, L decoder layers, q = heads x head_dim,
            kv = key-value heads x head_dim, A heads, D head_dim, E experts, k experts per token
Parameters  N all, P_l largest decoder layer, P_r root (embeddings, head, final norm), X experts of one layer,
            Q quantised in all (Q_l in one layer), n adapter, n_t trainable in all, n_l trainable of one layer
Batch       T tokens per GPU and micro-batch, s tokens of one sequence
Ranks       S shard degree: ranks that split parameters, gradients and states. W world size of the recipe
            (it may leave GPUs of a machine idle)
Bytes of one element
            p stored parameter, t trainable, g gradient, d reduced gradient, c compute
            o optimizer state per trainable parameter (moments and compensation), m separate master, f temporaries
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING

from recipegen.estimate import parameters
from recipegen.estimate.adapters import NOTHING_ADAPTED, Adapted, adapted
from recipegen.estimate.shape import Shape, shape
from recipegen.spec import AttentionMemory, Dtype, LossKernel, Method, Strategy

if TYPE_CHECKING:
    from recipegen.catalog.stack import Stack
    from recipegen.spec import DeepSpeed, ModelSpec, Recipe


# NF4 with double quantisation: one uint8 absmax per 64 weights, one fp32 per 256 of those (bitsandbytes Linear4bit).
ABSMAX_BYTES_PER_PARAMETER = 1 / 64 + 4 / (64 * 256)


#: bytes per token and vocabulary entry: fp32 logits and their shifted copy (transformers 5.16.1 modeling_gemma3.py)
OWN_LOSS_FORWARD = 8.0


@lru_cache(maxsize=1024)
def _adapter_parameters(model: ModelSpec, targets: tuple[str, ...], r: int) -> int:
    return parameters.lora(model, targets, r)


@dataclass(frozen=True)
class Symbols:
    """What the memory formulas read; the module says what each letter means."""

    shape: Shape
    strategy: Strategy
    full: bool
    quantised: bool
    T: int
    s: int
    S: int
    W: int
    nodes: int
    ranks_per_node: int
    tp: int
    n: int
    n_t: int
    n_l: float
    p: float
    t: float
    g: float
    d: float
    c: float
    o: float
    m: float
    f: float
    #: parameters of the modules kept in fp32 beside bf16 ones, and what their states take more than the others'
    n_fp32: int
    o_fp32: float
    embeddings_fp32: bool
    head_fp32: bool
    fp32_parameters: bool
    autocast: bool
    checkpointing: bool
    activation_offload: bool
    accumulation: int
    sync_each_batch: bool
    reshard_after_forward: bool
    parameter_offload: bool
    state_offload: str
    evaluates: bool
    loss: LossKernel
    loss_compiled: bool
    attention: AttentionMemory
    deepspeed: DeepSpeed | None
    #: trained copies of modules count in n and n_t by their bytes; this many parameters more than that
    narrow: int = 0
    #: parameters outside the decoder that a full fine-tune leaves as they are
    frozen: int = 0
    #: bytes per element of the largest tensor while an optimizer steps tensor by tensor
    f_largest: float = 0.0
    #: bytes of one quantised weight, and of its constants, which sharding does not split
    packed: float = Dtype.NF4.bytes
    packed_constants: float = ABSMAX_BYTES_PER_PARAMETER
    #: the stock loss over kept logits, bytes per token and vocabulary entry (Hugging Face 5.16: see loss.py)
    stock_forward: float = 10.0
    stock_backward: float = 12.0
    fsdp_version: int = 2
    #: embeddings and head are FSDP groups of their own instead of one root group
    split_root: bool = False
    #: each gradient is used and freed inside backward
    optimizer_in_backward: bool = False
    #: only the results of matrix products and of attention are kept, everything else is recomputed
    selective_checkpointing: bool = False
    compiled: bool = False
    adapted: Adapted = NOTHING_ADAPTED
    #: Axolotl makes an FSDP2 group of every adapter, so the next decoder layer is not gathered ahead in backward
    adapter_groups: bool = False
    #: the loss is computed inside the model's forward, so FSDP2 gathers the root group before the loss goes backward
    loss_inside_model: bool = True
    #: FSDP2 frees the root group after forward and gathers it again for backward, as Axolotl and Accelerate wrap it
    root_reshards: bool = False
    dora: bool = False
    #: rows of a micro-batch as the model sees it; packed rows before a flash kernel are laid out as one
    batch_rows: int = 1
    #: adapters on quantised modules keep copies of their inputs under autocast as well (peft does not)
    quantised_adapters_copy: bool = False
    #: bytes per element of a trained head that a fused linear loss holds: gradient, product and fp32 copy while it
    #: works (Liger 0.8.1), then the gradient alone
    fused_head_loss: float = 8.0
    fused_head_after: float = 2.0
    #: Accelerate makes an fp32 copy of the model's outputs (convert_outputs_to_fp32; one GPU and DDP)
    outputs_upcast: bool = False
    #: reentrant checkpoints around the sharded units, as Transformers had them before GradientCheckpointingLayer
    reentrant_around: bool = False
    #: dropout before every adapter: it keeps its result and a mask of one byte per element
    adapter_dropout: bool = False
    #: one linear module makes queries, keys and values: adapters on them share one input, and without grouped
    #: queries the values are a view that keeps all three
    packed_qkv: bool = False
    #: graphs whose inputs of quantised modules stay until their loss is forgotten (bitsandbytes before 0.44 keeps the
    #: input of Linear4bit as a plain attribute): 1 the current step's, 2 the step's before as well
    kept_graphs: int = 0
    #: torch's sdpa gets q, k and v in fp32 where activations are; a flash kernel behind a cast does not
    fp32_attention: bool = False
    #: moments lie in memory that the GPU pages in and that is not PyTorch's
    paged_states: bool = False
    #: with adapters too, offloading moves the inputs of checkpointed layers instead of replacing the recomputation
    offloads_boundaries: bool = False
    #: tensor parallelism splits the rows between its regions, and the vocabulary of the loss
    sequence_parallel: bool = False
    #: the head is a quantised module
    quantised_head: bool = False
    #: the head makes its logits in this many chunks, each with a gradient of the head of its own; 0 one piece
    head_chunks: int = 0

    # --- the largest of all tensors

    @property
    def largest(self) -> int:
        """Elements of the largest tensor: the embeddings, or a layer's fused experts."""
        return max(self.shape.V * self.shape.H, self.shape.X)

    @property
    def trained_root(self) -> int:
        """Elements of the root group that are trained by a full fine-tune."""
        return self.shape.P_r - self.frozen

    # --- ranks

    @property
    def fsdp(self) -> bool:
        return self.strategy.is_fsdp

    @property
    def hybrid(self) -> bool:
        return self.strategy is Strategy.FSDP2_HYBRID

    @property
    def zero2(self) -> bool:
        return self.strategy is Strategy.ZERO2

    @property
    def zero3(self) -> bool:
        return self.strategy in (Strategy.ZERO3_CPU, Strategy.ZERO3_NVME)

    @property
    def unsharded_accumulation(self) -> bool:
        """FSDP2 under no_sync keeps every gradient whole on every GPU until the last micro-batch."""
        return self.fsdp and self.accumulation > 1 and not self.sync_each_batch

    # --- adapters

    @property
    def own_copy(self) -> float:
        """Bytes per element of the copy that each adapter keeps of its input; 0: the adapters of one input share it.

        peft 0.20.0: LoRA on a linear module casts its input to the adapter's dtype, and autocast casts that to bf16;
        LoRA on a quantised module does not cast under autocast. FSDP gives the adapters bf16 before they run, except
        where they are groups of their own, which are gathered after the cast.
        """
        if self.full:
            return 0.0
        copy = self._cast_copy
        if self.adapter_dropout:  # the dropped copy replaces the cast one
            return (copy or self.h) + 1.0
        return copy

    @property
    def offloads_everything(self) -> bool:
        """Axolotl's offloading with adapters replaces the recomputation: all that a layer saves travels."""
        return self.activation_offload and not (self.full or self.offloads_boundaries)

    @property
    def h(self) -> float:
        """Bytes of one element of the activations between modules. A quantised module returns the dtype of its input
        (bitsandbytes Linear4bit), so fp32 embeddings and norms make all of them fp32 where no autocast casts back."""
        return Dtype.FP32.bytes if self.quantised and self.embeddings_fp32 and not self.autocast else self.c

    @property
    def wide(self) -> bool:
        """Activations are fp32 though the weights are not."""
        return self.h > self.c

    @property
    def unfused_attention(self) -> bool:
        """No fused kernel of torch's sdpa takes fp32 with grouped queries: it makes all probabilities. Where keys and
        values are repeated before (VARLEN), the memory-efficient kernel takes them."""
        grouped = self.shape.kv < self.shape.q and self.attention is AttentionMemory.FLASH
        return self.wide and self.fp32_attention and grouped

    @property
    def _cast_copy(self) -> float:
        if self.deepspeed is not None or self.wide:
            return 0.0
        if self.fsdp:
            return self.c if self.adapter_groups else 0.0
        if self.autocast:
            return 0.0 if self.quantised and not self.quantised_adapters_copy else self.c
        return self.t if self.t > self.c else 0.0

    # --- parameters on one GPU

    @property
    def padding(self) -> float:
        """FSDP2 splits a tensor along dim 0, so E experts over S ranks become ceil(E/S) on rank 0."""
        E = self.shape.E
        return math.ceil(E / self.S) * self.S / E if E and self.fsdp else 1.0

    def sharded(self, count: float) -> float:
        """Elements of `count` base parameters that rank 0 keeps, experts unevenly split."""
        experts = self.shape.X * self.shape.moe_layers * (count / self.shape.N)
        return (count - experts + experts * self.padding) / self.S

    @property
    def layer(self) -> float:
        """Elements of one gathered decoder layer (experts padded to whole shards)."""
        return (self.shape.P_l + self.shape.X * (self.padding - 1.0)) / self.tp

    @property
    def layer_bytes(self) -> float:
        """One gathered decoder layer in compute dtype; quantised linears stay packed, half a byte each."""
        packed = self.shape.Q_l if self.quantised else 0
        adapters = 0.0 if self.full else self.c * self.n_l
        return self.c * (self.layer - packed) + self.packed * packed + adapters

    @property
    def n_l_padded(self) -> float:
        """Trainable elements of one layer as the reduce-scatter sees them."""
        return self.layer if self.full else self.n_l


def symbols(model: ModelSpec, recipe: Recipe, stack: Stack, *, triton: bool = True) -> Symbols:
    """The numbers of a recipe. `triton`: the GPU can run the compiled (chunked) loss."""
    par, pre = recipe.parallelism, recipe.precision
    if par.ep > 1 and model.moe is not None:  # of the experts, each rank has its own
        model = replace(model, moe=replace(model.moe, num_experts=-(-model.moe.num_experts // par.ep)))
    x = shape(model)
    if recipe.quantised_experts:
        packed_all = parameters.quantised_parameters(model, experts=True)
        x = replace(x, Q=packed_all, Q_l=parameters.quantised_per_layer(model, experts=True))
    strategy = par.strategy
    full = recipe.method is Method.FULL
    adapter = recipe.adapter
    n = 0 if full or adapter is None else _adapter_parameters(model, adapter.target_modules, adapter.r)
    reached = adapted(model, adapter.target_modules) if adapter and not full else NOTHING_ADAPTED
    if adapter and adapter.use_dora:
        n += x.L * reached.outputs  # a magnitude for every output (peft 0.20.0 tuners/lora/dora.py)
    saved = 0 if full or adapter is None else parameters.saved_copies(model, adapter.modules_to_save)
    frozen = model.extra_parameters if full and recipe.freeze_vision else 0
    n_t = x.N - frozen if full else n
    facts = stack.optimizer(recipe.optimizer.name)
    modules = pre.fp32_modules if pre.parameters is not Dtype.FP32 else ()
    embeddings = "embed_tokens" in modules
    head = "lm_head" in modules or (x.tied and embeddings)
    n_fp32 = x.V * x.H * (embeddings + (head and not x.tied)) + x.norm_parameters * ("norm" in modules)
    one_process = strategy in (Strategy.SINGLE, Strategy.DDP)
    fp32 = pre.parameters is Dtype.FP32
    sharding = strategy.is_fsdp or strategy in (Strategy.ZERO3_CPU, Strategy.ZERO3_NVME)
    own_loss = model.own_loss and recipe.trainer == "axolotl"  # train.py makes the loss itself
    o = facts.state_bytes_per_parameter(pre.states) + (pre.compensation.bytes if pre.compensation else 0.0)
    found = Symbols(
        shape=x,
        strategy=strategy,
        full=full,
        quantised=pre.parameters in (Dtype.NF4, Dtype.INT8),
        T=-(-recipe.tokens_per_micro_batch // par.cp),
        s=recipe.sequence_len,
        S=par.dp_shard * par.cp * par.tp if sharding else par.tp,
        W=par.world_size,
        nodes=par.nodes,
        ranks_per_node=par.gpus_per_node,
        tp=par.tp,
        n=n,
        n_t=n_t,
        n_l=x.P_l if full else n / x.L,
        p=Dtype.BF16.bytes if pre.parameters in (Dtype.NF4, Dtype.INT8) else pre.parameters.bytes,
        t=pre.trainable.bytes,
        g=pre.gradients.bytes,
        d=pre.reduction.bytes,
        c=pre.compute.bytes,
        o=o,
        m=pre.master.bytes if pre.master else 0.0,
        f=facts.temporary_bytes_per_parameter(pre.trainable),
        n_fp32=n_fp32,
        o_fp32=facts.moments * Dtype.FP32.bytes - o if full and facts.states == "parameter" else 0.0,
        embeddings_fp32=embeddings,
        head_fp32=head,
        fp32_parameters=fp32,
        autocast=one_process and (fp32 or not full or bool(modules)),
        checkpointing=recipe.activation_checkpointing,
        activation_offload=recipe.activation_offloading,
        accumulation=recipe.gradient_accumulation,
        sync_each_batch=recipe.sync_each_batch,
        reshard_after_forward=recipe.fsdp.reshard_after_forward if recipe.fsdp else True,
        parameter_offload=bool(recipe.fsdp and recipe.fsdp.offload_params)
        or bool(recipe.deepspeed and recipe.deepspeed.offload_param != "none"),
        state_offload="cpu"
        if recipe.fsdp and recipe.fsdp.offload_params
        else (recipe.deepspeed.offload_optimizer if recipe.deepspeed else "none"),
        evaluates=bool(recipe.val_set_size),
        loss=LossKernel.STOCK if own_loss and recipe.loss_kernel is LossKernel.CHUNKED_UPCAST else recipe.loss_kernel,
        stock_forward=OWN_LOSS_FORWARD if own_loss else Symbols.stock_forward,
        loss_compiled=triton,
        attention=recipe.attention_memory,
        deepspeed=recipe.deepspeed,
        packed=pre.parameters.bytes if pre.parameters is Dtype.INT8 else Dtype.NF4.bytes,
        # LLM.int8: one fp32 scale per row of a weight
        packed_constants=Dtype.FP32.bytes / x.H if pre.parameters is Dtype.INT8 else ABSMAX_BYTES_PER_PARAMETER,
        fsdp_version=recipe.fsdp.version if recipe.fsdp else 2,
        compiled=recipe.torch_compile,
        adapted=reached,
        adapter_groups=strategy.is_fsdp and not full and recipe.trainer == "axolotl",
        # train.py computes a stock or chunked loss from the logits; a fused one needs the model's own forward
        loss_inside_model=recipe.trainer == "axolotl"
        or recipe.loss_kernel in (LossKernel.FUSED_LINEAR, LossKernel.CUT),
        root_reshards=strategy.is_fsdp and (recipe.fsdp is None or recipe.fsdp.reshard_after_forward),
        dora=bool(adapter and adapter.use_dora),
        batch_rows=1 if recipe.packing and recipe.attention.startswith("flash") else recipe.micro_batch_size,
        outputs_upcast=one_process,
        frozen=frozen,
        f_largest=facts.largest_tensor_bytes_per_element(pre.states),
        adapter_dropout=bool(adapter and adapter.dropout > 0),
        packed_qkv=model.fused_qkv,
        paged_states=facts.paged,
    )
    if not saved:
        return found
    width = 1.0 if embeddings else found.c / found.t  # copies keep the model's dtype (peft casts adapters alone)
    more = round(saved * min(width, 1.0))
    return replace(found, n=found.n + more, n_t=found.n_t + more, narrow=saved - more)
