"""A file that cannot be read, as a finding. Reading itself is formats/documents.py."""

from __future__ import annotations

from recipegen.check.registry import finding
from recipegen.formats.documents import Document
from recipegen.spec import Finding, Severity


def problems(document: Document) -> tuple[Finding, ...]:
    """Why a document has no values; empty when it was read."""
    found = document.problem
    return (finding("RG706", Severity.ERROR, found.reason, where=found.where, field=found.key),) if found else ()
