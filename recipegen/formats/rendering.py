"""Templates to text: one Jinja environment, and the filters through which every value must go.

A template prints, it does not choose. tests/formats/test_rendering.py fails on an expression that does not end in one
of FILTERS, so a value that could break out of its place cannot reach a file.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from recipegen.catalog.resources import data_folder
from recipegen.formats import scalars

FILTERS: dict[str, Callable[..., str]] = {
    "scalar": scalars.scalar,
    "comment": scalars.comment,
    "shell": scalars.shell,
    "words": scalars.words,
    "json": scalars.to_json,
    "text": scalars.text,
    "code": scalars.code,
    "pin": scalars.pin,
}


class Document:
    """A YAML mapping on its way to a file: values in order, and a reason for some of them.

    `reasons` maps dotted key paths (`fsdp_config.offload_params`) to one line. Templates print entries by name with
    `{{ "learning_rate" | entry(doc) -}}`; an absent key prints nothing, and `rest` prints what no line asked for.
    """

    def __init__(self, values: Mapping[str, Any], reasons: Mapping[str, str]) -> None:
        self.values = dict(values)
        self.reasons = dict(reasons)
        self.printed: set[str] = set()

    def has(self, *names: str) -> bool:
        """True when one of the keys is there (a section without keys has no title)."""
        return any(name in self.values for name in names)

    def rest(self) -> list[str]:
        """The keys that have not been printed yet."""
        return [name for name in self.values if name not in self.printed]


def entry(name: str, document: Document) -> str:
    """`name: value` in block form with the reasons above it, ending in a line break; nothing for an absent key."""
    if name not in document.values:
        return ""
    document.printed.add(name)
    return "".join(f"{line}\n" for line in _lines(name, document.values[name], 0, (name,), document.reasons))


def block(values: Mapping[str, Any], reasons: Mapping[str, str] | None = None) -> str:
    """A whole mapping in block form, one key a line, with its reasons as comments."""
    document = Document(values, reasons or {})
    return "".join(entry(name, document) for name in document.values)


def _lines(name: str, value: Any, indent: int, path: tuple[str, ...], reasons: Mapping[str, str]) -> list[str]:
    reason = reasons.get(".".join(path))
    lines = scalars.comment(reason, indent).split("\n") if reason else []
    key = " " * indent + scalars.scalar(name)
    if isinstance(value, Mapping) and value:
        lines.append(f"{key}:")
        for inner, item in value.items():
            lines += _lines(str(inner), item, indent + 2, (*path, str(inner)), reasons)
    elif isinstance(value, Sequence) and not isinstance(value, str) and value:
        lines.append(f"{key}:")
        for item in value:
            lines += _item(item, indent + 2, path, reasons)
    else:
        lines.append(f"{key}: {scalars.scalar(value)}")
    return lines


def _item(item: Any, indent: int, path: tuple[str, ...], reasons: Mapping[str, str]) -> list[str]:
    """One list item; a mapping starts on the line of its dash."""
    if not isinstance(item, Mapping) or not item:
        return [" " * indent + f"- {scalars.scalar(item)}"]
    lines: list[str] = []
    for inner, value in item.items():
        lines += _lines(str(inner), value, indent + 2, (*path, str(inner)), reasons)
    first = next(i for i, line in enumerate(lines) if not line.lstrip().startswith("#"))
    lines[first] = " " * indent + "- " + lines[first].lstrip()
    # Reasons of the first key stand above the dash, at its depth.
    return [" " * indent + line.lstrip() if i < first else line for i, line in enumerate(lines)]


FILTERS["entry"] = entry


@functools.cache
def environment() -> Any:
    """The Jinja environment over templates/: undefined names are errors, nothing is escaped but by the filters."""
    import jinja2

    result = jinja2.Environment(
        loader=jinja2.FileSystemLoader(data_folder("templates")),
        undefined=jinja2.StrictUndefined,
        autoescape=False,  # noqa: S701  YAML and shell, not HTML: the filters do the quoting
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    result.filters.update(FILTERS)
    return result


def render(template: str, **values: Any) -> str:
    """`templates/<template>` filled in. The text is valid Unicode and ends in one line break."""
    rendered: str = environment().get_template(template).render(**values)
    return scalars.require_utf8(rendered).rstrip("\n") + "\n"
