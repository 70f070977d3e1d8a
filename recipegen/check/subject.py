"""One recipe under check: its files, what was read of them, and what follows from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from recipegen.catalog.stack import Stack
from recipegen.formats.assembled import Assembled
from recipegen.formats.documents import Document
from recipegen.formats.reading import Reading
from recipegen.spec import Cluster, Estimate


@dataclass(frozen=True)
class Subject:
    """`readings` and `documents` are by file name as in `files`; `main` is the trainer's own file, "" for none.

    `cluster` is None where neither a profile nor a process count is given; `estimate` where no recipe could be made.
    """

    name: str
    main: str
    files: Mapping[str, bytes]
    documents: Mapping[str, Document]
    readings: Mapping[str, Reading]
    assembled: Assembled
    stack: Stack
    cluster: Cluster | None = None
    estimate: Estimate | None = None

    def fact(self, name: str) -> object:
        """A fact of the assembled files; None for none."""
        return self.assembled.facts.get(name)
