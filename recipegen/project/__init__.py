"""The life of a project folder: what is in it, and how it comes to be."""

from recipegen.project.create import create
from recipegen.project.files import render
from recipegen.project.paths import check_name, localize

__all__ = ["check_name", "create", "localize", "render"]
