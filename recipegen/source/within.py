"""The tree that a recipe of somebody else may be read from: what its files name is looked for inside of it, and nowhere
else. A recipe without one is a person's own, and means files of that person's machine as the trainer would.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

_GIT = ".git"  # its configuration may hold a token
_LONGEST_NAME = 1024  # characters of a path that a file names
_MOST_ENTRIES = 4096  # of a folder whose links are looked at


@dataclass(frozen=True)
class Within:
    """`root` is the tree, a real path. `beside`: a second place of the same layout for what the first does not keep (a
    model's folder that git ignores), or None."""

    root: Path
    beside: Path | None = None

    def places(self, folder: Path, name: str) -> list[Path]:
        """What a file of `folder` may mean by `name`: from that folder, then from the top of the tree. Only what lies
        inside of a tree after every link; whether anything is there is not looked at."""
        if not 0 < len(name) < _LONGEST_NAME or "\0" in name or name.startswith("~") or os.path.isabs(name):
            return []
        if not folder.is_relative_to(self.root):
            return []
        below = folder.relative_to(self.root)
        found = []
        for root in (self.root, self.beside):
            for start in () if root is None else (root / below, root):
                path = Path(os.path.normpath(start / name))
                if root is not None and path.is_relative_to(root) and _inside(path, root):
                    found.append(path)
        return list(dict.fromkeys(found))

    def file(self, folder: Path, name: str) -> Path | None:
        """The first of `places` that is a regular file."""
        return next((path for path in self.places(folder, name) if os.path.isfile(path)), None)

    def folder(self, folder: Path, name: str) -> Path | None:
        """The first of `places` that is a folder none of whose files is a link to a place outside."""
        for path in self.places(folder, name):
            if os.path.isdir(path) and self._closed(path):
                return path
        return None

    def contains(self, path: Path) -> bool:
        """Whether a path lies in the tree after every link."""
        return _inside(path, self.root)

    def shown(self, path: Path) -> Path:
        """A path as seen from the top of the tree."""
        absolute = Path(os.path.abspath(path))
        return absolute.relative_to(self.root) if absolute.is_relative_to(self.root) else path

    def _closed(self, folder: Path) -> bool:
        root = self.root if folder.is_relative_to(self.root) else self.beside
        try:
            with os.scandir(folder) as entries:
                for number, entry in enumerate(entries):
                    if number >= _MOST_ENTRIES:
                        return False
                    if entry.is_symlink() and (root is None or not _inside(Path(entry.path), root)):
                        return False
        except OSError:
            return False
        return True


def _inside(path: Path, root: Path) -> bool:
    try:
        real = Path(os.path.realpath(path))
    except (OSError, ValueError):
        return False
    return real.is_relative_to(root) and not any(part.lower() == _GIT for part in real.relative_to(root).parts)
