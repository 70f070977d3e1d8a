"""No value reaches a generated file without going through a filter."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from jinja2 import UndefinedError, nodes

from recipegen.catalog.resources import data_folder
from recipegen.formats.rendering import FILTERS, Document, entry, environment, render
from recipegen.spec import RecipegenError

TEMPLATES = sorted(data_folder("templates").glob("*.j2"))


def unfiltered(source: str) -> Iterator[str]:
    """Every printed expression whose last step is not one of FILTERS."""
    tree = environment().parse(source)
    for output in tree.find_all(nodes.Output):
        for node in output.nodes:
            if isinstance(node, nodes.TemplateData):
                continue
            if not (isinstance(node, nodes.Filter) and node.name in FILTERS):
                yield f"line {node.lineno}: {node!r:.200}"


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.name)
def test_every_expression_ends_in_a_filter(path: Path) -> None:
    assert list(unfiltered(path.read_text(encoding="utf-8"))) == []


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.name)
def test_templates_do_not_build_text_another_way(path: Path) -> None:
    tree = environment().parse(path.read_text(encoding="utf-8"))
    for kind in (nodes.CallBlock, nodes.FilterBlock, nodes.Include, nodes.Import, nodes.FromImport, nodes.Macro):
        assert list(tree.find_all(kind)) == []


@pytest.mark.parametrize("source", ["{{ name }}", "{{ name | upper }}", "{{ name ~ (other | scalar) }}", "{{ f() }}"])
def test_the_check_finds_unfiltered_expressions(source: str) -> None:
    assert list(unfiltered(source))


def test_an_unknown_name_is_an_error() -> None:
    with pytest.raises((UndefinedError, RecipegenError)):
        environment().from_string("{{ missing | scalar }}").render()


def test_an_entry_prints_its_reason_above_itself() -> None:
    document = Document({"a": 1, "b": {"c": [{"d": 2}]}}, {"a": "why", "b.c.d": "inner"})
    assert entry("a", document) == "# why\na: 1\n"
    assert entry("b", document) == "b:\n  c:\n    # inner\n    - d: 2\n"
    assert entry("absent", document) == ""
    assert document.rest() == []


def test_rendered_text_ends_in_one_line_break() -> None:
    assert render("recipe.yaml.j2", doc=Document({"a": 1}, {}), request=None).endswith("a: 1\n")
