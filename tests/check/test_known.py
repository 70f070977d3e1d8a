"""Every rule has one home and can be explained."""

from recipegen.check.known import known_rules
from recipegen.check.registry import check_rules
from recipegen.check.rules import all_file_rules
from recipegen.rules import all_rules
from recipegen.spec import Severity


def test_no_two_rules_share_an_id() -> None:
    ids = [*(r.id for r in all_rules()), *(r.id for r in all_file_rules()), *check_rules()]
    assert sorted(ids) == sorted(known_rules())


def test_every_rule_explains_itself() -> None:
    for rule in known_rules().values():
        assert rule.title
        assert rule.family
        assert len(rule.doc) > 40, rule.id
        assert rule.severity == "" or Severity(rule.severity)
