"""Which copies DeepSpeed's ZeRO-2 and ZeRO-3 hold, and when: bytes per parameter on one of two ranks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.long  # DeepSpeed alone takes ten seconds to start
HERE = Path(__file__).parent
RANKS = 2
WHOLE = 2  # bf16 parameters, or their gradients
MASTER, STATES, GRADIENT = 4 / RANKS, 8 / RANKS, WHOLE / RANKS
ZERO2_LASTS = WHOLE + MASTER + STATES
LAYER = WHOLE / 12  # bf16 weights of one of the model's twelve layers
BUCKET = 2  # layers that fill a bucket
ZERO3_HOLDS = WHOLE / RANKS + MASTER + GRADIENT + BUCKET * LAYER

ZERO2 = f"2 1 1 {BUCKET}"
ZERO2_ALONE = f"2 0 1 {BUCKET}"
ZERO2_ACCUMULATION = f"2 1 2 {BUCKET}"
ZERO2_WIDE = "2 0 1 24"
ZERO3 = f"3 0 1 {BUCKET}"
ZERO3_WIDE = "3 0 1 24"


@cache
def reports() -> dict[str, Any]:
    """One start for all cases, in a process of its own."""
    pytest.importorskip("deepspeed")
    cases = (ZERO2, ZERO2_ALONE, ZERO2_ACCUMULATION, ZERO2_WIDE, ZERO3, ZERO3_WIDE)
    ranks = {
        "RANK": "0",
        "LOCAL_RANK": "0",
        "WORLD_SIZE": str(RANKS),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "29649",
    }
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(HERE / "claims_zero.py"), *cases],
        capture_output=True,
        text=True,
        env={**os.environ, **ranks, "DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(HERE)},
        timeout=600,
        check=False,
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("REPORT ")]
    assert lines, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(lines[0].removeprefix("REPORT "))
    return found


def near(value: float, *, off: float = 0.05) -> Any:
    return pytest.approx(value, abs=off)


@pytest.mark.parametrize("case", [ZERO2, ZERO3])
def test_each_rank_holds_its_share_of_the_fp32_master(case: str) -> None:
    assert reports()[case]["partition"] == near(1 / RANKS)


# --- ZeRO-2


def test_zero2_keeps_all_parameters_and_its_share_of_an_fp32_master() -> None:
    assert reports()[ZERO2]["start"]["left"] == near(WHOLE + MASTER)


def test_zero2_keeps_no_gradients_from_the_step_to_the_next_backward() -> None:
    assert reports()[ZERO2]["step 1"]["left"] == near(ZERO2_LASTS)
    assert reports()[ZERO2]["forward 1"]["peak"] == near(ZERO2_LASTS, off=0.1)


def test_zero2_keeps_bf16_gradients_of_its_partition_after_backward() -> None:
    assert reports()[ZERO2]["backward 1"]["left"] == near(ZERO2_LASTS + GRADIENT)


def test_zero2_backward_has_one_bucket_and_a_second_where_communication_overlaps() -> None:
    """They are gone after it."""
    one, two = (reports()[case]["backward 1"]["peak"] for case in (ZERO2_ALONE, ZERO2))
    assert two - one == near(BUCKET * LAYER)
    assert one - (ZERO2_LASTS + GRADIENT) == near((BUCKET + 1.5) * LAYER, off=0.7 * LAYER)


def test_zero2_buckets_are_allocated_whole_however_little_is_trained() -> None:
    assert reports()[ZERO2_WIDE]["backward 1"]["peak"] > ZERO2_LASTS + 24 * LAYER


def test_zero2_accumulation_keeps_the_sum_and_the_micro_batchs_own_gradients() -> None:
    """The partition's gradients are there twice when the backward of a later micro-batch ends."""
    found = reports()[ZERO2_ACCUMULATION]
    assert found["step 1"]["left"] == near(ZERO2_LASTS + GRADIENT)  # a micro-batch is over, no step yet
    assert found["forward 2"]["peak"] == near(ZERO2_LASTS + GRADIENT, off=0.1)
    one = reports()[ZERO2]["backward 1"]["peak"]
    assert found["backward 2"]["peak"] == near(one + GRADIENT)
    assert found["backward 2"]["left"] == near(ZERO2_LASTS + GRADIENT)


def test_zero2_step_holds_the_gradients_their_flat_copy_and_its_fp32_copy() -> None:
    assert reports()[ZERO2]["step 1"]["peak"] == near(ZERO2_LASTS + GRADIENT + GRADIENT + MASTER)


# --- ZeRO-3


def test_zero3_keeps_bf16_gradients_of_its_partition_and_a_bucket_from_start_to_end() -> None:
    """Before the first step, in forward, and after a step."""
    found = reports()[ZERO3]
    assert found["start"]["left"] == near(ZERO3_HOLDS)
    assert found["step 1"]["left"] == near(ZERO3_HOLDS + STATES)


def test_zero3_forward_leaves_gathered_what_max_live_parameters_allows() -> None:
    """Here that is everything; backward lets all but the last go."""
    found = reports()[ZERO3]
    assert found["forward 1"]["left"] == near(ZERO3_HOLDS + STATES + WHOLE)
    assert found["backward 1"]["left"] == near(ZERO3_HOLDS + STATES, off=1.1 * LAYER)


def test_zero3_allocates_its_bucket_whole() -> None:
    wide, narrow = (reports()[case]["start"]["left"] for case in (ZERO3_WIDE, ZERO3))
    assert wide - narrow == near((24 - BUCKET) * LAYER)


def test_zero3_step_holds_the_gradients_a_flat_copy_and_an_fp32_one() -> None:
    """And the bucket."""
    assert reports()[ZERO3]["step 1"]["peak"] == near(ZERO3_HOLDS + STATES + GRADIENT + MASTER)
