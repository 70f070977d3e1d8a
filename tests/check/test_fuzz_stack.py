"""Values that JSON has no word for, on their way to the trainers' validators in their own process."""

from __future__ import annotations

import datetime
from pathlib import Path

import pytest

from recipegen.check.trainer_process import TrainerProcess
from recipegen.check.trainer_worker import _dated
from tests.fuzzing import commands, mutations

AXOLOTL = (mutations.ROOT / "recipes/4x-rtx-4090/qwen3-14b-qlora-4k/axolotl.yaml").read_bytes()


@pytest.mark.stack
@pytest.mark.parametrize("value", ["2001-01-01", "2001-01-01T10:00:00Z", ".nan", "{a: 2001-01-01}"])
def test_the_full_validation_takes_dates_and_no_numbers(value: str, tmp_path: Path) -> None:
    (tmp_path / "axolotl.yaml").write_bytes(AXOLOTL + f"surprise: {value}\nwandb_name: {value}\n".encode())
    arguments = ("check", ".", "--hardware", "8x-h100", "--full", "--format", "json")
    answer = commands.asked(tmp_path, arguments)
    assert not list(commands.complaints(answer, arguments, tmp_path))
    assert "validate_config with plugins, in a child process" in answer.out


def test_a_request_with_what_no_yaml_holds_is_a_mistake_of_ours() -> None:
    with TrainerProcess() as process, pytest.raises(TypeError, match="a object has no place"):
        process.ask("axolotl", values={"a": object()})


def test_a_date_arrives_as_the_date_it_was() -> None:
    import json

    from recipegen.check.trainer_process import _date

    sent = {"a": datetime.date(2001, 1, 1), "b": [datetime.datetime(2001, 1, 1, 10, tzinfo=datetime.timezone.utc)]}
    assert json.loads(json.dumps(sent, default=_date), object_hook=_dated) == sent
