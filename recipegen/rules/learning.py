"""Will it learn: updates that round to nothing, decay that does nothing, turns that never end."""

from __future__ import annotations

import math
from collections.abc import Iterator

from recipegen.catalog.defaults import training_defaults
from recipegen.rules.registry import Context, Milder, rule
from recipegen.spec import DataFormat, Dtype, Recipe, Severity

_TEST = "tests/catalog/test_stack_precision.py"
# Templates of Axolotl that are put on other families' models as well.
_ENDS = {
    "chatml": ("<|im_end|>",),
    "llama3": ("<|eot_id|>",),
    "gemma": ("<end_of_turn>",),
    "gemma3": ("<end_of_turn>",),
}
_USUAL_TOKENS = 4096  # of a packed row, for which the default rates of a full fine-tune are


@rule("RG401", "learning", Severity.WARNING, source=_TEST)
def updates_survive_rounding(context: Context) -> Iterator[tuple[str, str]]:
    """bf16 has 8 significant bits: an AdamW step below about 1/256 of a weight is lost. Without an fp32 master or
    compensated (Kahan) sums most of a fine-tune's updates round to nothing at the rates of full fine-tunes, and the
    loss curve hardly shows it."""
    r = context.recipe
    limit = float(training_defaults()["learning"]["pure_bf16_min_learning_rate"])
    if not r.precision.updates_survive_rounding and r.schedule.learning_rate < limit:
        yield (
            f"{r.precision.label.value} at learning rate {r.schedule.learning_rate:g}: most updates round to nothing",
            "LoRA (fp32 adapters), an optimizer with compensated sums, or an fp32 master",
        )


def decay_rounds_away(recipe: Recipe) -> bool:
    """Whether the weights are bf16 without a master, and rate x decay is below what moves one."""
    floor = float(training_defaults()["learning"]["bf16_weight_decay_floor"])
    shrink = recipe.schedule.learning_rate * recipe.optimizer.weight_decay
    return recipe.precision.trainable is Dtype.BF16 and recipe.precision.master is None and 0 < shrink < floor


@rule("RG402", "learning", Severity.WARNING, source=_TEST, field="optimizer.weight_decay")
def weight_decay_does_something(context: Context) -> Iterator[tuple[str, str]]:
    """`p *= 1 - lr * wd` on a bf16 weight changes nothing while lr x wd is below about 2e-3, and compensation does not
    cover it."""
    r = context.recipe
    if decay_rounds_away(r):
        yield (
            f"weight_decay {r.optimizer.weight_decay:g} at rate {r.schedule.learning_rate:g} moves no bf16 weight",
            "--set weight_decay=0",
        )


@rule("RG403", "learning", Severity.WARNING, source=_TEST)
def second_moment_does_not_drift(context: Context) -> Iterator[tuple[str, str]]:
    """A bf16 second moment at beta2 0.999 cannot fall: each step's change is below its rounding. After a tenfold fall
    of the gradient it stays several times too large and the steps too small."""
    r = context.recipe
    limit = float(training_defaults()["learning"]["bf16_states_max_beta2"])
    if r.precision.states is Dtype.BF16 and r.optimizer.beta2 > limit:
        yield f"beta2 {r.optimizer.beta2:g} with bf16 states drifts", "--set optimizer.beta2=0.99"


@rule("RG404", "learning", Severity.WARNING, source="axolotl 0.19.0, axolotl/prompt_strategies/chat_template.py")
def the_end_of_a_turn_is_trained(context: Context) -> Iterator[tuple[str, str] | Milder]:
    """If the token that ends the assistant's turn is not the tokenizer's eos and is not named, Axolotl only warns, and
    the model never learns to stop."""
    r = context.recipe
    chat = any(d.format in (DataFormat.MESSAGES, DataFormat.SHAREGPT) for d in r.datasets)
    if r.trainer != "axolotl" or not chat or r.eot_tokens:
        return
    model, own = context.model, r.chat_template in (None, "tokenizer_default", context.model.chat_template)
    ends = model.end_of_turn if own else _ENDS.get(str(r.chat_template), ())
    if ends and model.eos_token in ends:
        return  # Axolotl's default is the eos token
    if ends:
        template = model.id if own else f"the template {r.chat_template}"
        yield f"{template} ends a turn with {ends[0]}, and nothing names it", f"--set eot_tokens={ends[0]}"
        return
    reason = f"the end-of-turn token of {context.model.id} is not known from here"
    fix = "--set eot_tokens=TOKEN, as the model's chat template writes it"
    yield (reason, fix) if context.generated else Milder(reason, fix, Severity.NOTE)


@rule("RG405", "learning", Severity.WARNING, source="catalog/training_defaults.yaml", needs_estimate=True)
def there_are_enough_steps(context: Context) -> Iterator[tuple[str, str]]:
    """A run of a handful of optimizer steps has no schedule to speak of: warm-up alone may outlast it."""
    r, time = context.recipe, context.costs.time
    steps = r.max_steps or (round(time.steps_per_epoch * r.epochs) if time.steps_per_epoch else 0)
    warmup = r.schedule.warmup_steps or 0
    if steps and steps <= warmup:
        yield f"warm-up of {warmup} steps lasts the whole run of {steps} steps", "--set warmup_steps=0, or more epochs"


@rule("RG407", "learning", Severity.WARNING, source="https://arxiv.org/abs/2405.14578 (AdamW, batch size and rate)")
def the_batch_is_not_tiny(context: Context) -> Iterator[tuple[str, str]]:
    """The default rates of a full fine-tune are for 16 to 128 sequences; AdamW wants the rate scaled by the square root
    of the batch below that. Packed rows hold several sequences: there the tokens of 16 usual ones are enough."""
    r = context.recipe
    smallest = int(training_defaults()["full"]["global_batch_min"])
    enough = r.packing and r.global_batch_size * r.sequence_len >= smallest * _USUAL_TOKENS
    if not r.method.is_adapter and r.global_batch_size < smallest and not enough:
        scale = math.sqrt(r.global_batch_size / smallest)
        yield (
            f"a global batch of {r.global_batch_size} is small for a full fine-tune at {r.schedule.learning_rate:g}",
            f"--learning-rate {r.schedule.learning_rate * scale:.1e}, or --global-batch-size {smallest}",
        )


@rule("RG406", "learning", Severity.WARNING, source="https://thinkingmachines.ai/blog/lora/")
def learning_rate_suits_the_method(context: Context) -> Iterator[str]:
    """Adapters want about ten times the rate of a full fine-tune; a full fine-tune at an adapter's rate diverges or
    forgets."""
    r = context.recipe
    limit = float(training_defaults()["learning"]["full_max_learning_rate"])
    if not r.method.is_adapter and r.schedule.learning_rate >= limit:
        yield f"learning rate {r.schedule.learning_rate:g} is an adapter's; full fine-tunes use 5e-6 to 2e-5"
