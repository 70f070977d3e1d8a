"""Keys that the trainer still knows and refuses."""

from __future__ import annotations

from collections.abc import Iterator

from recipegen.check.rules.registry import Said, rule
from recipegen.check.rules.view import View
from recipegen.spec import Severity


@rule("RG716", "schema", Severity.ERROR, source="axolotl 0.19.0 utils/schemas/deprecated.py, validation.py")
def key_was_removed(view: View) -> Iterator[Said]:
    """Axolotl knows the key and stops at its start when it is set: what it did is gone, or goes by another name."""
    if not view.of("axolotl"):
        return
    for key, row in view.subject.stack.removed_keys("axolotl").items():
        value = view.raw(key)
        if value if row["when"] == "true" else value is not None:
            yield Said(f"{key} is refused by Axolotl: it was removed", row["fix"], view.where(key), key)
