"""One optimizer step of a recipe, and one batch of its evaluation, with every storage followed.

The step is a steady one: optimizer states exist, gradients do not. Of a gradient accumulation two micro-batches run,
the first without synchronisation; further ones repeat the first. Phases change at hooks: the head's forward, the
logits' gradient, the gradient of every decoder layer's output, FSDP2's root group.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from typing import Any

import torch

from recipegen.catalog.stack import Stack
from recipegen.simulate import losses, sharding
from recipegen.simulate.build import Model
from recipegen.simulate.ledger import Ledger
from recipegen.simulate.optimizers import Stepper
from recipegen.simulate.options import Options
from recipegen.simulate.tracker import Tracker
from recipegen.spec import LossKernel, ModelSpec, Recipe, Strategy

Progress = Callable[[int, int], None]


class Step:
    """A built model on its way through a step. `run` may be called once."""

    def __init__(
        self, model: Model, spec: ModelSpec, recipe: Recipe, stack: Stack, options: Options, ledger: Ledger,
        progress: Progress | None = None,
    ) -> None:  # fmt: skip
        self.model, self.spec, self.recipe, self.options = model, spec, recipe, options
        self.ledger = ledger
        self.tracker = Tracker(ledger)
        self.tracker.head_shape = (spec.vocab_size, spec.hidden_size)
        self.tracker.sequence_len = batch_shape(recipe)[1]
        self.fsdp = recipe.parallelism.strategy.is_fsdp
        self.autocast = not self.fsdp  # Accelerate wraps forward in autocast everywhere but under FSDP2
        self.kernel = recipe.loss_kernel
        self.evaluating = False
        self._progress, self._done = progress, 0
        self._total = 2 * spec.num_hidden_layers * (2 if recipe.gradient_accumulation > 1 else 1)
        if recipe.val_set_size:
            self._total += spec.num_hidden_layers
        shape = batch_shape(recipe)
        high = spec.vocab_size if options.real_tensors else 0
        self.ids, self.labels = (
            torch.randint(0, high, shape) if high else torch.empty(shape, dtype=torch.long) for _ in range(2)
        )
        self.stepper = Stepper(model.trainable, recipe, stack.optimizer(recipe.optimizer.name), self.tracker)

    # --- phases

    def _go(self, phase: str, label: str) -> None:
        if self.evaluating:
            phase = "eval"
        self.tracker.label = label
        self.ledger.enter(phase)

    def _tick(self) -> None:
        self._done += 1
        if self._progress:
            self._progress(min(self._done, self._total), self._total)

    def _hook(self) -> None:
        """Phase changes on the model's own events."""
        layers = list(self.model.layers)
        count = len(layers)

        def after_layer(index: int) -> Callable[..., None]:
            def hook(module: Any, args: Any, output: Any) -> None:
                if self.tracker.label != "saved_activations":
                    return  # a recomputation
                self._tick()
                hidden = output[0] if isinstance(output, tuple) else output
                if hidden.requires_grad:
                    hidden.register_hook(lambda _: self._layer_backward(index, count))

            return hook

        def before_first(module: Any, args: Any, kwargs: Any) -> None:
            hidden = args[0] if args else kwargs["hidden_states"]
            if self.tracker.label == "saved_activations" and hidden.requires_grad:
                hidden.register_hook(lambda _: self._root_backward())

        def after_head(module: Any, args: Any, logits: Any) -> None:
            self._loss_begins()
            self.tracker.mark(logits, "logits_and_loss")
            if logits.requires_grad:
                logits.register_hook(lambda _: self._head_backward())

        layers[0].register_forward_pre_hook(before_first, with_kwargs=True)
        for index, layer in enumerate(layers):
            # before FSDP2's own, whose backward counterpart gathers the layer: that belongs to the layer's phase
            layer.register_forward_hook(after_layer(index), prepend=True)
        self.model.base.get_output_embeddings().register_forward_hook(after_head)

    def _loss_begins(self) -> None:
        self._go("loss_forward", "logits_and_loss")

    def _head_backward(self) -> None:
        self.tracker.label = "layer_working_set"

    def _layer_backward(self, index: int, count: int) -> None:
        self._tick()
        done = count - 1 - index
        name = "layer_backward_first" if done < 2 else "layer_backward_last" if index < 2 else "layer_backward_middle"
        self._go(name, "layer_working_set")

    def _root_backward(self) -> None:
        tied = self.spec.tie_word_embeddings and self.recipe.method.value == "full"
        self._go("tied_embedding" if tied else "embedding_backward", "embedding_gradients")

    def _root_reduction(self) -> None:
        self._go("root_reduce_scatter", "reduce_scatter")

    # --- the step

    def run(self) -> None:
        """Leaves the peaks of every phase in the ledger."""
        tracker, model = self.tracker, self.model
        self._label_what_lasts()
        self._hook()
        model.base.recipegen_loss_begins = self._loss_begins
        with ExitStack() as stack:
            if self.fsdp:
                stack.enter_context(sharding.labelled(model, tracker, self._root_reduction))
            else:
                for parameter in model.trainable:
                    parameter.register_post_accumulate_grad_hook(lambda p: tracker.mark(p.grad, "gradients"))
            stack.enter_context(tracker.resizes())
            stack.enter_context(tracker)
            tracker.label = "optimizer_states"
            self.stepper.make_states()
            gc.collect()
            self.options.on_start()
            self.ledger.start()
            self._optimizer_step()
            if self.recipe.val_set_size:
                self._evaluate()

    def _label_what_lasts(self) -> None:
        adapter = self.recipe.method.is_adapter
        for parameter in self.model.outer.parameters():
            self.tracker.mark(parameter, "adapters" if adapter and parameter.requires_grad else "parameters")
        for name, buffer in self.model.outer.named_buffers():
            packed = name.rpartition(".")[2] in ("absmax", "nested_absmax", "code", "nested_code")
            self.tracker.mark(buffer, "quantisation_constants" if packed else "parameters")
        self.tracker.mark(self.ids, "batch")
        self.tracker.mark(self.labels, "batch")
        ranks = self.recipe.parallelism
        self._buckets = None
        if ranks.strategy is Strategy.DDP and ranks.world_size > 1:
            self._buckets = sharding.buckets(self.model.trainable, self.tracker)

    def _optimizer_step(self) -> None:
        if self.recipe.gradient_accumulation > 1:
            waits = self.fsdp and not self.recipe.sync_each_batch
            if waits:
                self.model.outer.set_requires_gradient_sync(False)
            self._micro_batch()
            if waits:
                self.model.outer.set_requires_gradient_sync(True)
        self._micro_batch()
        self._go("optimizer_step", "optimizer_temporaries")
        self.stepper.step()
        for parameter in self.model.trainable:
            parameter.grad = None

    def _micro_batch(self) -> None:
        self._go("forward", "saved_activations")
        loss = self._forward()
        self._go("loss_backward", "logits_and_loss")
        loss.backward()

    def _evaluate(self) -> None:
        self.evaluating = True
        self.model.outer.eval()
        self._go("eval", "saved_activations")
        with torch.no_grad():
            self._forward()

    # --- forward and loss

    def _forward(self) -> Any:
        """The loss. Names here keep nothing alive that the trainer would have let go."""
        autocast = torch.autocast("cpu", torch.bfloat16) if self.autocast else nullcontext()
        inputs: dict[str, Any] = {"input_ids": self.ids, "use_cache": False}
        if self.spec.model_type == "gemma3":
            inputs["token_type_ids"] = torch.zeros_like(self.ids)
        without_logits = self.kernel in losses.WITHOUT_LOGITS and not self.evaluating
        inside = self.recipe.trainer == "axolotl" or without_logits
        if inside:
            inputs["labels"] = self.labels
        base = self.model.base
        if without_logits:
            original = base.forward
            base.forward = losses.forward_without_logits(base, self.kernel, self.autocast)
        elif inside and self.kernel is LossKernel.CHUNKED_UPCAST:
            base.loss_function = losses.chunked(self.options.compiled_loss)
        try:
            with autocast:
                output = self.model.outer(**inputs)
        finally:
            if without_logits:
                base.forward = original
        if self.autocast and not without_logits:
            output = _in_fp32(output)
        if inside:
            return output["loss"]
        logits = output.logits
        del output
        return losses.outside(self.kernel)(logits, self.labels)


def batch_shape(recipe: Recipe) -> tuple[int, int]:
    """Rows and tokens of a row of one micro-batch. With packing and a flash attention package both trainers lay the
    micro-batch out as one long row (axolotl 0.19.0 multipack_real_batches; our train.py's `flatten`)."""
    if recipe.packing and recipe.attention.startswith("flash"):
        return 1, recipe.tokens_per_micro_batch
    return recipe.micro_batch_size, recipe.sequence_len


def _in_fp32(output: Any) -> Any:
    """What Accelerate does to the outputs of a forward under autocast."""
    from accelerate.utils.operations import convert_to_fp32

    return convert_to_fp32(output)
