"""Where `templates/` and `recipes/` lie: the checkout's own folders, else the copies inside the wheel."""

from __future__ import annotations

from pathlib import Path

from recipegen.spec import RecipegenError

_PACKAGE = Path(__file__).resolve().parent.parent
KINDS = ("templates", "recipes")


def data_folder(kind: str) -> Path:
    """The folder of `kind` (templates or recipes).

    A checkout or an editable install uses its own top-level folder, so that an edited template is seen at once; an
    installed wheel carries a copy in `recipegen/_data/<kind>`. Raises RecipegenError when neither is there.
    """
    if kind not in KINDS:
        raise ValueError(f"unknown data folder {kind!r}; known: {', '.join(KINDS)}")
    checkout = _PACKAGE.parent
    if (checkout / "pyproject.toml").is_file() and (checkout / kind).is_dir():
        return checkout / kind
    packaged = _PACKAGE / "_data" / kind
    if packaged.is_dir():
        return packaged
    raise RecipegenError(f"the folder {kind!r} is missing from this installation", fix="Install recipegen again.")
