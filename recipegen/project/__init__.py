"""The life of a project folder: what is in it, and how it comes to be."""

from recipegen.project.create import Created, create
from recipegen.project.files import render
from recipegen.project.paths import check_name, localize

__all__ = ["Created", "check_name", "create", "localize", "render"]
