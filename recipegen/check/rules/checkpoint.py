"""Will there be a model at the end, and can the run go on: what is saved, and what reads it."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator

from recipegen.check.rules.registry import Said, in_place_of, rule
from recipegen.check.rules.view import View
from recipegen.spec import Severity, Strategy

_SHARDED, _FULL = "SHARDED_STATE_DICT", "FULL_STATE_DICT"
_MERGES = re.compile(r"merge-weights|merge_fsdp_weights|merge-sharded-fsdp-weights|merge_sharded_fsdp_weights")
_ZERO_TO_FP32 = re.compile(r"zero_to_fp32|ds_to_universal|convert_zero_checkpoint")
_TORCHAO = ("adamw_torch_8bit", "adamw_torch_4bit", "ao_adamw_8bit", "ao_adamw_4bit", "ao_adamw_fp8")
_SHARDS = re.compile(r"(?:.*/)?(?:__\d+_\d+\.distcp|\.metadata)\Z")
_WHOLE = re.compile(r"(?:.*/)?(?:model[^/]*\.safetensors|pytorch_model[^/]*\.bin|adapter_model\.safetensors)\Z")
_NUMBERED = re.compile(r"checkpoint-(\d{1,12})/")
_RESCUE = (
    "set SHARDED_STATE_DICT; a run already saved so is rescued by starting from the checkpoint's "
    "adapter_model.safetensors (Axolotl: lora_model_dir); its optimizer state is gone"
)


@in_place_of("RG201")
def adapter_under_fsdp2_saves_sharded(view: View) -> Iterator[Said]:
    """As RG201."""
    if view.fsdp_version == 2 and view.has_adapter and view.value("fsdp.state_dict_type") == _FULL:
        reason = "an adapter under FSDP2 with FULL_STATE_DICT loses the adapter on resume"
        yield Said(reason, _RESCUE, view.where("fsdp.state_dict_type"), "fsdp.state_dict_type")


@rule("RG451", "checkpoint", Severity.WARNING, source="https://github.com/huggingface/transformers/issues/30491")
def sharded_checkpoints_are_merged_at_the_end(view: View) -> Iterator[Said]:
    """SHARDED_STATE_DICT is right for going on: every rank writes its part. But the parts (.distcp) are no model that
    from_pretrained loads: the last save must be whole, or a merge must follow. Axolotl writes the final model whole,
    and so does recipegen's train.py; intermediate checkpoints stay parts."""
    if view.engine != "fsdp" or view.trainer in ("axolotl", "train_json"):
        return
    if view.value("fsdp.state_dict_type") != _SHARDED or not view.states("fsdp.state_dict_type"):
        return
    if not _MERGES.search(view.text("launch")):
        yield Said(
            "SHARDED_STATE_DICT, and nothing makes a model of the parts at the end",
            "after training: accelerate merge-weights OUTPUT/checkpoint-N/pytorch_model_fsdp_0 MERGED",
            view.where("fsdp.state_dict_type"),
            "fsdp.state_dict_type",
        )


@rule("RG452", "checkpoint", Severity.NOTE, source="https://github.com/lm-sys/FastChat/issues/693")
def a_full_state_dict_is_gathered_on_the_host(view: View) -> Iterator[Said]:
    """FULL_STATE_DICT gathers the whole model for every checkpoint, under Accelerate in the host memory of rank 0 (on
    the GPU where a hand-written loop leaves offload_to_cpu off, which is where such runs die at their last step)."""
    model = view.model
    if view.engine != "fsdp" or view.has_adapter is not False or view.value("fsdp.state_dict_type") != _FULL:
        return
    size = f"{2 * model.num_parameters / 1e9:.0f} GB or twice that" if model and model.num_parameters else "all of it"
    yield Said(
        f"every checkpoint gathers the whole model on rank 0 ({size} of host RAM)",
        "SHARDED_STATE_DICT for the checkpoints, the final model whole",
        view.where("fsdp.state_dict_type"),
        "fsdp.state_dict_type",
    )


@rule("RG453", "checkpoint", Severity.WARNING, source="https://github.com/axolotl-ai-cloud/axolotl/issues/2744")
def states_of_torchao_can_be_saved(view: View) -> Iterator[Said]:
    """torchao's 8-bit and 4-bit optimizer states are tensor subclasses without the operations that gathering a sharded
    state needs: the run trains to its end and dies while it saves. Where the stack's own table says so, RG202 does."""
    name, stack = view.value("optimizer.name"), view.subject.stack
    if view.engine != "fsdp" or name not in _TORCHAO or view.raw("save_only_model") is True:
        return
    if view.fsdp_version == 1 or not stack.optimizer(str(name)).problem_with(Strategy.FSDP2_FULL):
        yield Said(
            f"{name} under FSDP: saving its states dies",
            "adamw_torch_fused or optimi_adamw, or save_only_model: true (nothing to resume from)",
            view.where("optimizer.name"),
            "optimizer.name",
        )


@rule("RG454", "checkpoint", Severity.WARNING, source="https://github.com/lm-sys/FastChat/issues/508")
def zero3_gathers_what_it_saves(view: View) -> Iterator[Said]:
    """ZeRO-3 keeps a slice of every weight on each rank. Without stage3_gather_16bit_weights_on_model_save the saved
    model holds placeholders; the weights are only in the ZeRO checkpoint, from which zero_to_fp32.py takes them."""
    if not view.is_zero3 or view.value("deepspeed.save_16bit_model"):
        return
    auto = view.fact("auto", "deepspeed") or ()
    if any("gather_16bit" in key for key in auto) or _ZERO_TO_FP32.search(view.text("launch")):
        return
    yield Said(
        "ZeRO-3 without gathering on save: the final model would be placeholders",
        "stage3_gather_16bit_weights_on_model_save: true (accelerate: zero3_save_16bit_model), or run zero_to_fp32.py",
        view.where("deepspeed.save_16bit_model", "deepspeed.stage", "zero_stage"),
        "deepspeed.save_16bit_model",
    )


@rule("RG455", "checkpoint", Severity.ERROR, source="https://github.com/axolotl-ai-cloud/axolotl/pull/3609")
def the_checkpoint_is_of_the_configured_kind(view: View) -> Iterator[Said]:
    """A sharded run reads parts (.distcp), a FULL_STATE_DICT run whole files: a checkpoint of the other kind cannot be
    resumed. Where the folder is not among the files it is listed as something to look at."""
    folder, kind = _resumed(view), view.value("fsdp.state_dict_type")
    if view.engine != "fsdp" or not folder:
        return
    if kind not in (_SHARDED, _FULL):
        return
    inside = _inside(view, folder)
    shards, whole = any(map(_SHARDS.match, inside)), any(map(_WHOLE.match, inside))
    place = view.where("resume_from_checkpoint", "auto_resume_from_checkpoints", "fsdp.state_dict_type")
    if not shards and not whole:
        expected = "*.distcp" if kind == _SHARDED else "no *.distcp"
        reason = f"needs verification: {folder} must be a checkpoint of {kind} ({expected})"
        fix = f"find {folder} -name '*.distcp' | head -1"
        yield Said(reason, fix, place, "fsdp.state_dict_type", Severity.NOTE)
    elif shards != (kind == _SHARDED):
        found = _SHARDED if shards else _FULL
        reason = f"{folder} was saved with {found}, the configuration says {kind}"
        yield Said(reason, f"write {found}", place, "fsdp.state_dict_type")


def _resumed(view: View) -> str:
    """The checkpoint that the run goes on from; of an output folder the one with the highest number."""
    stated = view.fact("resume_from_checkpoint") or view.raw("resume_from_checkpoint")
    if isinstance(stated, str):
        return stated
    output = view.fact("output_dir") or view.raw("output_dir")
    automatic = view.fact("auto_resume_from_checkpoints") or view.raw("auto_resume_from_checkpoints")
    if True not in (stated, automatic) or not isinstance(output, str):
        return ""
    folder = posixpath.normpath(output)
    found = {
        int(match[1])
        for name in _inside(view, folder)
        if (match := _NUMBERED.match(name.removeprefix(f"{folder}/"))) is not None
    }
    return f"{folder}/checkpoint-{max(found)}" if found else ""


def _inside(view: View, folder: str) -> list[str]:
    prefix = f"{posixpath.normpath(folder)}/"
    return [name for name in view.subject.files if name.startswith(prefix)]
