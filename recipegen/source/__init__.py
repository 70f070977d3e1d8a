"""A recipe's files from a folder or from single paths, as named bytes. Nothing outside what was named is opened."""

from recipegen.source.classify import Kind, classify
from recipegen.source.files import Limits, Refused, Skipped, SourceFile, is_a_recipes, may_be_recipe, read_bounded
from recipegen.source.projects import Collected, Parsed, Project, collect, collect_within
from recipegen.source.within import Within

__all__ = [
    "Collected",
    "Kind",
    "Limits",
    "Parsed",
    "Project",
    "Refused",
    "Skipped",
    "SourceFile",
    "Within",
    "classify",
    "collect",
    "collect_within",
    "is_a_recipes",
    "may_be_recipe",
    "read_bounded",
]
