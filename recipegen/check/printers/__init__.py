"""An Outcome as text for people, JSON for programs, annotations for GitHub, SARIF for code scanning. Prints only."""

from recipegen.check.printers.github import github
from recipegen.check.printers.plain_json import as_json
from recipegen.check.printers.sarif import sarif
from recipegen.check.printers.text import text

__all__ = ["as_json", "github", "sarif", "text"]
