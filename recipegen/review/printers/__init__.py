"""A Review as text for a terminal, markdown for a pull request, JSON for programs, annotations for GitHub. Nothing is
decided here."""

from recipegen.review.printers.github import github
from recipegen.review.printers.markdown import markdown
from recipegen.review.printers.plain_json import plain_json
from recipegen.review.printers.text import text

__all__ = ["github", "markdown", "plain_json", "text"]
