"""What the trainer will change or choose without saying."""

from __future__ import annotations

from collections.abc import Iterator

from recipegen.check.rules.registry import Said, rule
from recipegen.check.rules.view import EIGHT_BIT, View
from recipegen.spec import Severity

_CONFIG = "axolotl 0.19.0, utils/schemas/config.py"
_VALIDATION = "axolotl 0.19.0, utils/schemas/validation.py"
_EVAL_BATCH = 8  # per_device_eval_batch_size of TrainingArguments
_LOADER = ("loading.dataloader_workers", "loading.prefetch_factor", "loading.pin_memory")


def _axolotl(view: View) -> bool:
    document = view.subject.documents.get(view.subject.main)
    return view.trainer == "axolotl" and document is not None and document.values is not None


@rule("RG742", "silent", Severity.NOTE, source=f"{_CONFIG} check_auto_enable_lora_kernels")
def lora_kernels_switch_themselves_on(view: View) -> Iterator[Said]:
    """With an adapter and no lora_*_kernel key Axolotl switches all four fused Triton kernels on, except for preference
    training, remote code, an int8 base, and FSDP1 on several GPUs. One key, be it false, keeps it from that."""
    if (
        not _axolotl(view)
        or not view.has_adapter
        or view.fact("foreign_adapter")
        or view.fact("lora_kernels") is not None
    ):
        return
    if view.is_preference or view.value("trust_remote_code") or view.bits == EIGHT_BIT:
        return
    if view.fsdp_version == 1 and (view.world or 2) > 1:
        return
    gpu = view.gpu
    broken = gpu is not None and not gpu.triton
    yield Said(
        "no lora_*_kernel key: Axolotl switches all four on"
        + (f", and {gpu.name} has no Triton" if broken and gpu else ""),
        "write lora_mlp_kernel, lora_qkv_kernel, lora_o_kernel and lora_embedding_kernel, true or false",
        view.where("adapter", "method"),
        "adapter.fused_kernels",
        Severity.ERROR if broken else None,
    )


@rule("RG743", "silent", Severity.NOTE, source=f"{_CONFIG} default_dataloader_opts")
def the_loader_prefetches_256_batches(view: View) -> Iterator[Said]:
    """With none of the three dataloader keys Axolotl starts one worker for each GPU of the run, in every rank, and each
    prefetches 256 batches: on 8 GPUs 64 processes and 16384 batches in host memory. Tokens are small; with images or
    sound that is a host's whole RAM."""
    if not _axolotl(view) or any(view.states(field) for field in _LOADER):
        return
    world = view.world
    many = f"{world} x {world} workers x 256 batches" if world else "a worker for each GPU x 256 batches, in every rank"
    yield Said(
        f"no dataloader key: {many} are prefetched into host memory",
        "dataloader_num_workers: 2, dataloader_prefetch_factor: 4, dataloader_pin_memory: true",
        view.subject.main,
        "loading.prefetch_factor",
        Severity.WARNING if view.fact("processor_type") and (world or 2) > 1 else None,
    )


@rule("RG744", "silent", Severity.NOTE, source=f"{_VALIDATION} hint_sample_packing_padding")
def packing_pads(view: View) -> Iterator[Said]:
    """sample_packing without pad_to_sequence_len switches the padding on: every row has sequence_len tokens."""
    stated = view.states("packing") and not view.states("pad_to_sequence_len")
    if _axolotl(view) and stated and view.value("packing") is True:
        reason = "sample_packing switches pad_to_sequence_len on"
        yield Said(reason, "write pad_to_sequence_len", view.where("packing"), "pad_to_sequence_len")


@rule("RG745", "memory", Severity.WARNING, source="https://github.com/unslothai/unsloth/pull/5168")
def evaluation_is_no_larger_than_training(view: View) -> Iterator[Said]:
    """Evaluation has a micro-batch of its own: 8 in TrainingArguments, whatever training uses; Axolotl takes
    training's. Its logits grow with it, so that a run that trains dies at its first evaluation."""
    micro = view.value("micro_batch_size")
    if view.trainer == "axolotl":
        stated = view.fact("eval_batch_size")
        evaluates = bool(view.value("val_set_size") or view.fact("test_dataset_entries"))
    elif view.trainer == "arguments":
        stated = view.raw("per_device_eval_batch_size") or view.raw("per_gpu_eval_batch_size") or _EVAL_BATCH
        evaluates = view.fact("eval_strategy") not in (None, "no") or view.raw("do_eval") is True
        micro = micro if view.states("micro_batch_size") else _EVAL_BATCH
    else:
        return
    if not evaluates or not isinstance(stated, int) or not isinstance(micro, int) or stated <= micro:
        return
    given = view.fact("eval_batch_size") or view.raw("per_device_eval_batch_size")
    word = "eval_batch_size" if view.trainer == "axolotl" else "per_device_eval_batch_size"
    yield Said(
        f"evaluation runs {stated} rows at once{'' if given else ' (the default)'}, training {micro}",
        f"{word}: {micro}",
        view.where(word, "eval_strategy", "val_set_size"),
        word,
    )


@rule("RG746", "silent", Severity.WARNING, source=f"{_CONFIG} (sequence_len)")
def the_sequence_length_is_written(view: View) -> Iterator[Said]:
    """Axolotl's sequence_len is 512 where the file says nothing, and longer rows are dropped."""
    unset = view.raw("sequence_len") is None and view.raw("datasets") is not None
    if _axolotl(view) and unset and not view.is_preference:
        reason = "no sequence_len: 512 tokens, and longer rows are dropped"
        yield Said(reason, "write sequence_len", view.subject.main, "sequence_len")


@rule(
    "RG747", "silent", Severity.WARNING, source=f"{_VALIDATION} check_fsdp_version_in_fsdp_config; transformers 5.16.1"
)
def the_version_of_fsdp_is_written(view: View) -> Iterator[Said]:
    """Without fsdp_version Axolotl and Accelerate use FSDP1, which Transformers drops in 5.20; its memory and its
    precision are others than FSDP2's."""
    if view.engine != "fsdp" or view.fsdp_version != 1 or view.trainer not in ("axolotl", ""):
        return
    words = ("fsdp_version", "fsdp_config.fsdp_version", "fsdp_config.version")
    explicit = any(view.raw(word) is not None for word in words) or any(
        "fsdp.version" in reading.values for reading in view.of("accelerate")
    )
    if not explicit:
        yield Said(
            "no fsdp_version: this is FSDP1", "fsdp_version: 2", view.where("fsdp_config", "fsdp"), "fsdp.version"
        )


@rule(
    "RG748",
    "silent",
    Severity.WARNING,
    source=f"{_VALIDATION} check_fsdp_deepspeed; utils/trainer.py prepare_optim_env",
)
def one_engine_is_named(view: View) -> Iterator[Said]:
    """The Transformers trainer with both `fsdp` and `deepspeed` uses one and drops the other. (Axolotl's file is
    RG724's.)"""
    if view.trainer == "arguments" and view.raw("fsdp") and view.raw("deepspeed"):
        yield Said("fsdp and deepspeed are both set", "remove one of the two", view.where("deepspeed"), "deepspeed")
