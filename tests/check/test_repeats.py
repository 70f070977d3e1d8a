"""One cause is one finding."""

from __future__ import annotations

import pytest

from recipegen.check.repeats import once
from recipegen.spec import Finding, Severity


def found(rule: str, reason: str = "", severity: str = "warning", where: str = "a.yaml", **more: str) -> Finding:
    return Finding(rule, Severity(severity), "family", reason, where=where, **more)


SPELLING = found("RG715", "flash_attention is a deprecated spelling", "note", "a.yaml:7", field="flash_attention")
PREFIX = found("RG715", "...", "note", "a.yaml:9", field="fsdp_config.fsdp_state_dict_type")


@pytest.mark.parametrize(
    ("warning", "said"),
    [
        ("`flash_attention: true` is deprecated and will be removed. Use `attn_implementation`", SPELLING),
        ("Auto-enabling LoRA kernel optimizations for faster training", found("RG742", where="a.yaml:3")),
        ("FSDP1 is deprecated and will be removed in an upcoming release", found("RG747", where="a.yaml:4")),
        ("Configuring FSDP fields with the `fsdp_` prefix is deprecated. Please", PREFIX),
    ],
)
def test_the_trainers_warning_is_left_to_the_rule_that_says_it(warning: str, said: Finding) -> None:
    trainer = found("RG714", warning)
    assert once([trainer, said]) == [said]
    assert once([trainer]) == [trainer]
    elsewhere = found(said.rule, said.reason, where="b.yaml:1", field=said.field)
    assert once([trainer, elsewhere]) == [trainer, elsewhere]


def test_another_warning_of_the_trainer_stays() -> None:
    other = found("RG714", "`sdp_attention: true` is deprecated")
    assert once([other, SPELLING]) == [other, SPELLING]


def test_a_refused_value_is_said_once_with_what_to_write() -> None:
    schema = found("RG702", "bf16 is 'full'; it must be auto", "error", "a.yaml:2", field="bf16")
    union = [
        found("RG711", f"bf16.{kind}: Input should be", "error", "a.yaml:2", field=f"bf16.{kind}")
        for kind in ("bool", "literal")
    ]
    spelling = found("RG715", "bf16 is a deprecated spelling", "note", "a.yaml:2", field="bf16", fix="write bf16: true")
    (only,) = once([schema, *union, spelling])
    assert (only.rule, only.fix) == ("RG702", "write bf16: true")


def test_processes_are_counted_against_what_is_visible() -> None:
    visible = found("RG301", "16 processes, 4 visible GPUs", "error", "acc.yaml:5", field="num_processes")
    machine = found("RG722", "16 processes, 8 GPUs", "error", "acc.yaml:5", field="num_processes")
    assert once([machine, visible]) == [visible]
    assert once([machine]) == [machine]


def test_many_findings_take_no_time_by_pairs() -> None:
    many = [found("RG701", f"k{i}", where=f"a.yaml:{i}", field=f"k{i}") for i in range(50_000)]
    assert once(many) == many
