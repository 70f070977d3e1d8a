"""The text that a row becomes, so that its tokens can be counted as the trainer will."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from recipegen.dataset.chat_template import ChatTemplate
from recipegen.dataset.facts import facts
from recipegen.dataset.shapes import Shape, as_turns, part_text, role_of
from recipegen.spec import DataFormat


class Prompt(NamedTuple):
    """Texts whose tokens are counted each on its own, and tokens that come on top."""

    texts: tuple[str, ...]
    extra: int


class Prompts:
    """Makes Prompts of rows. `begin` is the number of tokens that the tokenizer puts before a text."""

    def __init__(
        self,
        shape: Shape,
        *,
        begin: int,
        template: ChatTemplate | None = None,
        template_name: str = "tokenizer_default",
        system: bool = False,
    ) -> None:
        self._shape = shape
        self._begin = begin
        self._template = template
        self._system = system
        known = facts()["templates"].get(template_name, facts()["unknown_template"])
        self._per_turn, self._per_row = int(known["per_turn"]), int(known["per_row"])

    def of(self, row: dict[str, Any]) -> Prompt:
        """The row's prompt. The row must have passed its check. Raises TemplateRefused."""
        if self._shape.is_chat:
            return self._chat(row)
        if self._shape.is_segments:
            return Prompt(tuple(s["text"] for s in row["segments"]), 0)
        columns = self._shape.columns
        if self._shape.format is DataFormat.COMPLETION:
            return Prompt((row[columns["text"]],), self._begin + 1)
        instruction, answer = row[columns["prompt"]], row[columns["answer"]]
        context = row.get(columns.get("context", "")) or ""
        system = row.get("system") or ""
        if self._shape.format is DataFormat.ALPACA:
            prompt = self._alpaca(instruction, context, system)
        else:
            prompt = "\n\n".join(text for text in (system, instruction, context) if text) + "\n"
        return Prompt((prompt, answer), self._begin + 1)

    def _alpaca(self, instruction: str, context: str, system: str) -> str:
        words = facts()["alpaca"]
        which = "with_input" if context else "without_input"
        if not self._system:
            return str(words[which]).format(instruction=instruction, input=context)
        head = str(words["system"]).format(system=system) if system else ""
        return head + str(words[f"system_{which}"]).format(instruction=instruction, input=context)

    def _chat(self, row: dict[str, Any]) -> Prompt:
        turns = self.turns(row)
        tools = row.get("tools")
        if self._template is not None:
            return Prompt((self._template.render(turns, _tools(tools)),), 0)
        texts = [turn.get("content") or "" for turn in turns]
        calls = [turn["tool_calls"] for turn in turns if turn.get("tool_calls")]
        texts += [json.dumps(part, ensure_ascii=False, default=str) for part in (*calls, tools) if part]
        return Prompt(tuple(texts), self._per_row + self._per_turn * len(turns))

    def turns(self, row: dict[str, Any]) -> list[dict[str, Any]]:
        """The conversation as the chat template gets it: roles mapped, parts of a content joined."""
        columns = self._shape.columns
        source: Any = as_turns(row[columns["messages"]])
        turns = []
        for turn in source:
            if len(turn) == 2 and type(turn.get(columns["content"])) is str:
                turns.append({"role": role_of()[turn[columns["role"]].lower()], "content": turn[columns["content"]]})
                continue
            made = {k: v for k, v in turn.items() if k not in (columns["role"], columns["content"]) and v is not None}
            content = turn.get(columns["content"])
            if isinstance(content, list):
                content = "".join(str(part_text(part)) for part in content)
            made["role"] = role_of()[turn[columns["role"]].lower()]
            if content is not None:
                made["content"] = content
            turns.append(made)
        system = row.get("system")
        if isinstance(system, str) and system and turns[0]["role"] != "system":
            turns.insert(0, {"role": "system", "content": system})
        return turns


def _tools(value: object) -> object:
    if isinstance(value, str):
        try:
            return json.loads(value)
        except (ValueError, RecursionError):
            return None
    return value
