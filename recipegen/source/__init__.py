"""A recipe's files from a folder or from single paths, as named bytes. Nothing outside what was named is opened."""

from recipegen.source.classify import Kind, classify
from recipegen.source.files import Limits, Refused, Skipped, SourceFile, read_bounded
from recipegen.source.projects import Collected, Project, collect

__all__ = [
    "Collected",
    "Kind",
    "Limits",
    "Project",
    "Refused",
    "Skipped",
    "SourceFile",
    "classify",
    "collect",
    "read_bounded",
]
