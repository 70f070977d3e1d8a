"""Packages whose names are imported when they are asked for: every name is there, no other is."""

import importlib

import pytest


@pytest.mark.parametrize("package", ["recipegen.spec", "recipegen.catalog"])
def test_every_public_name_is_there(package: str) -> None:
    module = importlib.import_module(package)
    for name in module.__all__:
        assert getattr(module, name).__name__ == name


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    import recipegen.spec

    with pytest.raises(AttributeError, match=r"recipegen\.spec.*Recipes"):
        recipegen.spec.Recipes  # noqa: B018
