"""Predicates on (Recipe, Cluster, Estimate): `decide` rejects with them, `check` reports them."""

from recipegen.rules import compat, data, learning, memory, network
from recipegen.rules.evaluation import evaluate, evaluate_recipe
from recipegen.rules.registry import Context, Rule, all_rules, find_rule

__all__ = [
    "Context",
    "Rule",
    "all_rules",
    "compat",
    "data",
    "evaluate",
    "evaluate_recipe",
    "find_rule",
    "learning",
    "memory",
    "network",
]
