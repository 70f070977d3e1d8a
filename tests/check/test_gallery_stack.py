"""Nothing that recipegen recommends is called wrong by recipegen, nor by the trainers' own validators."""

from __future__ import annotations

from pathlib import Path

import pytest

from recipegen.check.checking import check
from recipegen.spec import Severity, Verdict

GALLERY = Path(__file__).parents[2] / "recipes"
# True, and said by `recipegen new` as well: experts that stay bf16, and a slow network.
EXPECTED = {"RG231", "RG601"}


@pytest.mark.stack
def test_no_error_on_the_gallery() -> None:
    outcome = check([GALLERY])
    assert outcome.exit_code == 0
    assert len(outcome.checked) == len(list(GALLERY.glob("*/*/recipe.lock"))) >= 60
    for checked in outcome.checked:
        assert any("pydantic models" in line for line in checked.ran) or checked.subject.main == "train.json"
        assert checked.verdict is Verdict.FITS, checked.project
        serious = [f"{f.rule} {f.where}: {f.reason}" for f in checked.findings if f.severity is not Severity.NOTE]
        assert [line for line in serious if line[:5] not in EXPECTED] == []
