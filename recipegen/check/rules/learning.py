"""Will it learn what was meant: tokens without a row, roles that nobody trains, padding that is masked as the end."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from recipegen.check.rules.registry import Said, rule
from recipegen.check.rules.view import View
from recipegen.check.schema import closest
from recipegen.spec import Severity

_TYPES = yaml.safe_load((Path(__file__).parent / "dataset_types.yaml").read_text(encoding="utf-8"))
_CHAT = "axolotl 0.19.0, prompt_strategies/chat_template.py"
_LLAMA3_VOCABULARY = 128_256
# ChatTemplatePrompter.roles where a data set names none.
_ROLES = {
    "human": "user",
    "user": "user",
    "assistant": "assistant",
    "gpt": "assistant",
    "system": "system",
    "tool": "tool",
}
_BF16_FAMILIES = ("gemma", "qwen", "mistral", "mixtral", "gpt_oss")  # torch_dtype of their config.json: bfloat16
_AS_PUBLISHED = ("meta-llama", "NousResearch")  # who publish Meta's base models, tokenizer and all
_EMBEDDINGS = ("embed_tokens", "lm_head", "wte")


@rule("RG411", "data", Severity.NOTE, source="https://github.com/axolotl-ai-cloud/axolotl/issues/1570")
def there_is_a_pad_token(view: View) -> Iterator[Said]:
    """Llama 3 ships no pad token. Axolotl falls back to eos, which its collator bears; a loop that masks labels by the
    pad id then masks every end of text, and the model never stops. Take a reserved token; do not add one."""
    model = view.model
    if model is None or model.model_type != "llama" or model.vocab_size != _LLAMA3_VOCABULARY:
        return
    tokens = view.fact("special_tokens")
    if view.trainer not in ("axolotl", "arguments") or (isinstance(tokens, Mapping) and tokens.get("pad_token")):
        return
    if view.trainer == "arguments" and (view.raw("pad_token") or view.fact("template")):
        return  # TRL and LLaMA-Factory were told
    yield Said(
        f"{model.id} has no pad token" + (": Axolotl takes eos" if view.trainer == "axolotl" else ""),
        'special_tokens: {pad_token: "<|finetune_right_pad_id|>"}, which exists already',
        view.where("special_tokens", "model"),
        "special_tokens.pad_token",
        None if view.trainer == "axolotl" else Severity.WARNING,
    )


@rule("RG412", "learning", Severity.WARNING, source="https://github.com/axolotl-ai-cloud/axolotl/issues/1570")
def added_tokens_are_trained(view: View) -> Iterator[Said]:
    """Rows of new tokens start random. An adapter on the linear layers does not train them: the embeddings (and an
    untied head) must be in lora_modules_to_save, or the rows in peft_trainable_token_indices."""
    if not view.has_adapter or not view.fact("added_tokens"):
        return
    saved = view.fact("lora_modules_to_save") or ()
    targets = view.value("adapter.target_modules") or ()
    if any(name in saved or name in targets for name in _EMBEDDINGS) or view.fact("peft_trainable_token_indices"):
        return
    yield Said(
        f"{len(view.fact('added_tokens'))} new tokens, and nothing trains their embeddings",
        "lora_modules_to_save: [embed_tokens, lm_head] (embed_tokens alone where they are tied)",
        view.where("added_tokens", "tokens"),
        "lora_modules_to_save",
    )


@rule("RG513", "data", Severity.WARNING, source=_CHAT)
def the_trained_roles_occur(view: View) -> Iterator[Said]:
    """Axolotl maps the roles of the rows (gpt becomes assistant) and trains those in roles_to_train, which it maps as
    well. A name that is neither known nor the result of the data set's own `roles` matches no turn: all labels are
    masked and nothing is learned, at a loss of 0 or NaN."""
    entries = view.raw("datasets")
    if view.trainer != "axolotl" or not isinstance(entries, list):
        return
    for index, entry in enumerate(entries):
        if not isinstance(entry, Mapping) or entry.get("type") != "chat_template":
            continue
        wanted = entry.get("roles_to_train")
        if wanted is None:
            continue
        names = wanted if isinstance(wanted, list) else [wanted]
        place = view.where(f"datasets.{index}.roles_to_train", "datasets")
        if not names and not (entry.get("message_field_training") or entry.get("message_field_training_detail")):
            if not view.raw("train_on_inputs"):
                yield Said(
                    "roles_to_train is empty: nothing is trained", "[assistant]", place, "datasets.roles_to_train"
                )
            continue
        roles = _roles(entry.get("roles"))
        mapped = [roles.get(str(name), str(name)) for name in names]
        lost = [str(name) for name, role in zip(names, mapped, strict=True) if role not in roles.values()]
        if lost and len(lost) == len(names):
            reason = f"roles_to_train names {', '.join(lost)}, which no turn is mapped to: everything is masked"
            yield Said(reason, f"one of {', '.join(dict.fromkeys(roles.values()))}", place, "datasets.roles_to_train")
        elif any(role != str(name) for name, role in zip(names, mapped, strict=True)):
            reason = f"roles_to_train {', '.join(map(str, names))} means {', '.join(mapped)}"
            fix = f"write {', '.join(mapped)}: older versions masked everything under the alias"
            yield Said(reason, fix, place, "datasets.roles_to_train", Severity.NOTE)


@rule("RG413", "learning", Severity.NOTE, source="https://huggingface.co/docs/transformers/perf_train_gpu_one")
def bf16_models_stay_in_range(view: View) -> Iterator[Said]:
    """fp16 ends at 65504. Llama 3, Qwen, Mistral and Gemma were trained in bf16, which reaches as far as fp32, and
    activations may overflow in fp16 (Gemma's do: losses of NaN). On a card with bf16 nothing speaks for fp16."""
    model, gpu = view.model, view.gpu
    if model is None or gpu is None or not gpu.bf16 or not view.computes_in_fp16:
        return
    gemma = model.model_type.startswith("gemma")
    if not model.model_type.startswith(_BF16_FAMILIES) and model.vocab_size != _LLAMA3_VOCABULARY:
        return
    yield Said(
        f"{model.id} was trained in bf16, and fp16 ends at 65504"
        + (": Gemma's activations overflow" if gemma else f"; {gpu.name} has bf16"),
        "bf16: true instead of fp16",
        view.where("mixed_precision", "fp16", "fp16_enabled"),
        "precision.compute",
        Severity.WARNING if gemma else None,
    )


@rule("RG414", "data", Severity.WARNING, source=f"{_CHAT}; axolotl/utils/chat_templates/base.py (get_chat_template)")
def the_tokenizer_has_the_template(view: View) -> Iterator[Said]:
    """`type: chat_template` without `chat_template` takes the tokenizer's own. Base models of Llama 3 have none, and
    Axolotl stops while it prepares the data. (Instruct models, and republications with a template of theirs, have.)"""
    model, stated = view.model, view.value("model") or view.raw("base_model")
    if view.trainer != "axolotl" or model is None or model.model_type != "llama" or model.instruct:
        return
    if model.vocab_size != _LLAMA3_VOCABULARY or view.raw("chat_template") not in (None, "tokenizer_default"):
        return
    owner, _, name = str(stated).rpartition("/")
    if owner not in _AS_PUBLISHED or "instruct" in name.casefold() or view.raw("tokenizer_config"):
        return
    entries = view.raw("datasets")
    for index, entry in enumerate(entries if isinstance(entries, list) else ()):
        if not isinstance(entry, Mapping) or entry.get("type") != "chat_template":
            continue
        if entry.get("chat_template") in (None, "tokenizer_default"):
            reason = f"{stated} is a base model: its tokenizer has no chat template, and Axolotl stops at that"
            place = view.where(f"datasets.{index}.type", "datasets")
            yield Said(reason, "chat_template: llama3, or the Instruct model", place, "chat_template")
            return


@rule("RG514", "data", Severity.WARNING, source=str(_TYPES["source"]))
def the_type_of_the_data_has_a_strategy(view: View) -> Iterator[Said]:
    """A `type` that is neither a name of Axolotl's nor a module passes its validation, and stops the run when the data
    are prepared ("unhandled prompt tokenization strategy")."""
    entries = view.raw("datasets")
    if view.trainer != "axolotl" or not isinstance(entries, list) or view.is_preference:
        return
    for index, entry in enumerate(entries):
        kind = entry.get("type") if isinstance(entry, Mapping) else None
        name = kind.partition(":")[0] if isinstance(kind, str) else ""
        if not name or "." in name or name in _TYPES["names"]:
            continue
        near = closest(name, _TYPES["names"])
        yield Said(
            f"type {name[:60]} is no prompt strategy of Axolotl's: it stops when the data are prepared",
            f"did you mean {near}?" if near else "alpaca, chat_template, completion, input_output, or a module's path",
            view.where(f"datasets.{index}.type", "datasets"),
            f"datasets.{index}.type",
            Severity.ERROR if near else None,
        )


def _roles(stated: Any) -> dict[str, str]:
    """source -> target, from Axolotl's `roles: {target: [sources]}`."""
    if not isinstance(stated, Mapping) or not stated:
        return _ROLES
    return {
        str(source): str(target)
        for target, sources in stated.items()
        for source in (sources if isinstance(sources, list) else [sources])
    }
