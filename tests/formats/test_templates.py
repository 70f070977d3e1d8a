"""No value reaches a generated file without going through a filter."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from jinja2 import UndefinedError, nodes

from recipegen.catalog import resources
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


def test_templates_are_found_in_a_checkout_and_in_a_wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "site-packages" / "recipegen"
    (package / "_data" / "templates").mkdir(parents=True)
    monkeypatch.setattr(resources, "_PACKAGE", package)
    assert data_folder("templates") == package / "_data" / "templates"
    # Somebody's own folder of that name beside an installed package is not ours.
    (package.parent / "templates").mkdir()
    assert data_folder("templates") == package / "_data" / "templates"
    (package.parent / "pyproject.toml").write_text("")
    assert data_folder("templates") == package.parent / "templates"
    with pytest.raises(RecipegenError, match="missing"):
        data_folder("recipes")
    with pytest.raises(ValueError, match="unknown"):
        data_folder("secrets")
