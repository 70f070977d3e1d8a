"""Numbers carry their unit; an error is one line."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recipegen.spec import RecipegenError
from recipegen.spec.units import gb, gib, seconds


def test_memory_is_in_gib_and_traffic_in_gb() -> None:
    assert gib(2**30) == "1.00 GiB"
    assert gb(10**9) == "1.0 GB"


@pytest.mark.parametrize(
    ("value", "said"), [(0.42, "0.42 s"), (41.2, "41 s"), (180, "3.0 min"), (36000, "10.0 h"), (864000, "10.0 days")]
)
def test_durations_are_said_as_people_say_them(value: float, said: str) -> None:
    assert seconds(value) == said


@given(st.text(), st.text(), st.text())
def test_an_error_is_one_line(message: str, where: str, fix: str) -> None:
    text = str(RecipegenError(message, where=where or None, fix=fix or None))
    assert "\n" not in text.replace(where, "")
