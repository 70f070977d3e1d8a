"""Which float types the card can do, and what half precision cannot hold."""

from __future__ import annotations

from collections.abc import Iterator

from recipegen.check.rules.registry import Said, rule
from recipegen.check.rules.view import View
from recipegen.spec import Severity


def _states_bf16(view: View) -> bool:
    if view.trainer == "axolotl" and view.subject.main:
        return view.raw("bf16") is True or view.raw("bfloat16") is True
    return view.fact("bf16") is True or view.fact("mixed_precision") == "bf16" or view.fact("bf16_enabled") is True


@rule("RG227", "compat", Severity.ERROR, source="https://github.com/OptimalScale/LMFlow/issues/88")
def the_card_computes_in_bf16(view: View) -> Iterator[Said]:
    """Cards before Ampere (below sm_80) have no bf16: the trainer stops, or computes in emulation. Use fp16 there, sdpa
    for attention, no tf32, and "auto" for the precision of a DeepSpeed JSON."""
    gpu = view.gpu
    if gpu is not None and not gpu.bf16 and _states_bf16(view):
        yield Said(
            f"{gpu.name} ({gpu.compute_capability}) has no bf16",
            "fp16: true and bf16: false",
            view.where("bf16", "precision.compute", "mixed_precision", "bf16_enabled"),
            "precision.compute",
        )


@rule("RG228", "compat", Severity.ERROR, source="transformers 5.16.1, training_args.py (tf32)")
def the_card_computes_in_tf32(view: View) -> Iterator[Said]:
    """tf32 needs Ampere or newer; TrainingArguments stop on an older card."""
    gpu = view.gpu
    if gpu is None or gpu.tf32 or gpu.compute_capability == "cpu":
        return
    if view.states("tf32") and view.value("tf32") is True:
        yield Said(f"{gpu.name} has no tf32", "tf32: false", view.where("tf32"), "tf32")


@rule("RG229", "compat", Severity.WARNING, source="https://github.com/axolotl-ai-cloud/axolotl/issues/1031")
def fp16_does_not_train_fp16_weights(view: View) -> Iterator[Said]:
    """The loss scaler of fp16 needs gradients in fp32. Modules in modules_to_save are trained in the dtype in which
    they were loaded, fp16, and unscaling them is refused ("Attempting to unscale FP16 gradients")."""
    saved = view.fact("lora_modules_to_save") or view.raw("modules_to_save")
    if saved and view.has_adapter and view.computes_in_fp16:
        yield Said(
            "fp16 with modules_to_save: their gradients are fp16, which the scaler refuses",
            "bf16: true, or load the weights in fp32",
            view.where("lora_modules_to_save", "modules_to_save"),
            "lora_modules_to_save",
        )


@rule("RG741", "silent", Severity.WARNING, source="axolotl 0.19.0, utils/config/__init__.py (normalize_config)")
def bf16_auto_becomes_fp16(view: View) -> Iterator[Said]:
    """Axolotl's default is bf16: auto. On a machine without bf16 it trains in fp16 without a word, with a loss scaler
    and another range of numbers."""
    gpu = view.gpu
    if gpu is None or gpu.bf16 or view.trainer != "axolotl" or not view.subject.main:
        return
    if view.fact("bf16_auto") or (view.raw("bf16") is None and not view.raw("fp16")):
        reason = f"bf16: auto on {gpu.name}, which has no bf16, trains in fp16"
        yield Said(reason, "write fp16: true, or bf16: false for fp32", view.where("bf16_auto", "bf16"), "bf16")
