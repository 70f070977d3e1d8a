"""The item of Axolotl's `datasets:` list for a data set, with roles and masking spelled out.

Keys and meanings: axolotl 0.19.0, utils/schemas/datasets.py and prompt_strategies/.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from recipegen.dataset.facts import facts
from recipegen.dataset.shapes import Shape
from recipegen.spec import DataFormat, DatasetSpec, RecipegenError

Entry = tuple[tuple[str, object], ...]


def trainer_entry(
    path: str,
    shape: Shape,
    *,
    ds_type: str | None = None,
    split: str = "train",
    chat_template: str = "tokenizer_default",
    roles: Mapping[str, Iterable[str]] | None = None,
    training_flags: bool = False,
    system: bool = False,
    verbatim: bool = False,
) -> Entry:
    """The complete item, in the order it is written.

    `ds_type` names the loader of a local file (None for a Hub id). `roles` are the names seen in the data by role;
    `verbatim` leaves the prompt of a pair as it is instead of ending it with a line break. `chat_template` is written
    into the item because Axolotl's schema fills a missing one with `tokenizer_default` before it looks at the
    top-level key, which then has no effect on this data set.
    """
    columns = shape.columns
    item: list[tuple[str, object]] = [("path", path)]
    item += [("ds_type", ds_type)] if ds_type else []
    item += [("split", split)]
    if shape.is_chat:
        item += _chat(columns, chat_template, roles or {}, training_flags)
    elif shape.is_segments:
        item += [("type", "input_output")]
    elif shape.format is DataFormat.COMPLETION:
        item += [("type", "completion"), ("field", columns["text"])]
    elif shape.format is DataFormat.ALPACA:
        item += [("type", "alpaca_w_system.load_instruct" if system else "alpaca")]
    elif shape.format is DataFormat.INPUT_OUTPUT:
        item += [("type", _pair(columns, system, verbatim))]
    else:
        raise refused(shape.format, path)
    return tuple(item)


def refused(format: DataFormat, name: str) -> RecipegenError:
    """The error for a format that is recognised but not trained on."""
    return RecipegenError(
        f"{format.value} data (chosen and rejected answers) is recognised, but not trained on: recipes are supervised "
        "fine-tunes",
        where=" ".join(name.split()),
        fix="Use alpaca, messages, sharegpt, completion or input_output rows, such as the chosen answers as messages.",
    )


def _chat(
    columns: Mapping[str, str], template: str, roles: Mapping[str, Iterable[str]], training_flags: bool
) -> list[tuple[str, object]]:
    # Axolotl's own default aliases first, then what the data has beside them.
    usual = {"user": ["human", "user"], "assistant": ["gpt", "assistant"], "system": ["system"], "tool": ["tool"]}
    mapping = {role: [*names, *sorted(set(roles.get(role, ())) - set(names))] for role, names in usual.items()}
    item: list[tuple[str, object]] = [
        ("type", "chat_template"),
        ("chat_template", template),
        ("field_messages", columns["messages"]),
        ("message_property_mappings", {"role": columns["role"], "content": columns["content"]}),
        ("roles", mapping),
        ("roles_to_train", ["assistant"]),
        ("train_on_eos", "turn"),
        ("train_on_eot", "turn"),
    ]
    if training_flags:
        item.append(("message_field_training", columns["training"]))
    return item


def _pair(columns: Mapping[str, str], system: bool, verbatim: bool) -> dict[str, str]:
    end = "" if verbatim else "\n"
    custom = {"field_instruction": columns["prompt"], "field_output": columns["answer"]}
    if "context" in columns:
        custom |= {"field_input": columns["context"], "format": "{instruction}\n\n{input}" + end}
    else:
        # Axolotl falls back to a column named `input`; a format without {input} leaves such a column out.
        custom |= {"format": "{instruction}" + end}
    custom |= {"no_input_format": "{instruction}" + end}
    if system:
        custom |= {"field_system": "system", "system_format": "{system}\n\n"}
    return custom


def with_path(dataset: DatasetSpec, path: str) -> DatasetSpec:
    """The same data set under another path (a project folder names its data from inside)."""
    entry = tuple((key, path if key == "path" else value) for key, value in dataset.entry)
    return replace(dataset, path=path, entry=entry)


def default_shape(format: DataFormat) -> Shape:
    """The usual columns of a format, for data that cannot be looked at."""
    columns = {
        DataFormat.ALPACA: {"prompt": "instruction", "context": "input", "answer": "output"},
        DataFormat.MESSAGES: {"messages": "messages", "role": "role", "content": "content"},
        DataFormat.SHAREGPT: {"messages": "conversations", "role": "from", "content": "value"},
        DataFormat.COMPLETION: {"text": facts()["completion_fields"][0]},
        DataFormat.INPUT_OUTPUT: {"prompt": "prompt", "answer": "completion"},
        DataFormat.PREFERENCE: {"chosen": "chosen", "rejected": "rejected"},
    }
    return Shape(format, columns[format])
